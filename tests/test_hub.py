"""Models that are saved, pushed and loaded: with this package and without it, from folders and from a Hub that fails."""

import ast
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import vanilla_transformer as vt
from runs import recipe_values, save_translator, word_tokenizer
from tiny import LANGUAGE_MODELS, tiny_model
from vanilla_transformer.cli import main
from vanilla_transformer.configuration_vanilla_transformer import AUTO_MAP
from vanilla_transformer.hub import PushError, _content, push_folder
from vanilla_transformer.model_files import companion_files, files_left_out, model_files
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.averaging import average_checkpoints
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.utils.schema import override_fields

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vanilla_transformer"
PARTS = ("configuration", "generation", "kernels", "losses", "modeling", "positions", "sequences")
CODE = {f"{part}_vanilla_transformer.py" for part in PARTS}
MODEL = {"config.json", "generation_config.json", "model.safetensors", *CODE}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
UPLOADS = {"lfs": "import huggingface_hub.constants as c; c.HF_HUB_DISABLE_XET = True\n", "xet": ""}

needs_xet = pytest.mark.skipif(importlib.util.find_spec("hf_xet") is None, reason="hf_xet is not installed")
uploads = pytest.mark.parametrize("upload", ["lfs", pytest.param("xet", marks=needs_xet)])


@pytest.fixture
def hub(server):
    server.heal()
    server.requests.clear()
    yield server
    server.heal()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run with its checkpoints, and a mean of these made by hand."""
    values = recipe_values(tmp_path_factory.mktemp("run"))
    values |= {"evaluation": {"sentences": 2}}
    run = run_recipe(Recipe.from_dict(values), log=lambda line: None).folder
    average_checkpoints(sorted(run.glob("checkpoint-*")), run.parent / "mean")
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A translator, and what it answers to `answer`."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = save_translator(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# A model\n", encoding="utf-8")
    torch.save(answer(model), folder.parent / "answer.pt")
    return folder


def answer(model):
    inputs = {"input_ids": torch.arange(3, 9)[None]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.arange(3, 7)[None]
    with torch.no_grad():
        return model.eval()(**inputs)[0]


ANSWER = """
def answer(model):
    inputs = {"input_ids": torch.arange(3, 9)[None]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.arange(3, 7)[None]
    with torch.no_grad():
        return model.eval()(**inputs)[0]
"""


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------- with the package and without it


def test_the_code_of_a_model_needs_nothing_but_transformers_and_torch():
    for name in CODE:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and f"{node.module}.py" in CODE, "transformers copies siblings, by their names"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
                for module in (m.partition(".")[0] for m in modules):
                    assert module in sys.stdlib_module_names | {"torch", "transformers", "huggingface_hub"}, module


def test_a_saved_model_says_where_all_its_classes_are(tmp_path):
    """Reported in huggingface/transformers#20813 and #29714."""
    tiny_model("decoder-only").save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    heads = {"AutoConfig": vt.VanillaTransformerConfig}
    for auto in ("AutoModel", *(name for name in dir(transformers) if name.startswith("AutoModelFor"))):
        mapping = getattr(transformers, auto)._model_mapping
        if vt.VanillaTransformerConfig in mapping:
            heads[auto] = mapping[vt.VanillaTransformerConfig]
    assert written == AUTO_MAP == {a: f"{c.__module__.rpartition('.')[2]}.{c.__name__}" for a, c in heads.items()}
    assert {path.name for path in tmp_path.glob("*.py")} == CODE
    assert all((tmp_path / name).read_bytes() == (PACKAGE / name).read_bytes() for name in CODE)


def test_a_class_of_somebody_else_stays_registered(tmp_path):
    config = tiny_model("decoder-only").config
    config.auto_map = {"AutoModel": "mine.MyModel", "AutoModelForCausalLM": "modeling_vanilla_transformer.FSDPWrapped"}
    config.save_pretrained(tmp_path)
    assert config.auto_map == {**AUTO_MAP, "AutoModel": "mine.MyModel"}


def test_every_auto_class_loads_without_the_package_also_when_saved_again_and_again(tmp_path, snippets):
    """Reported in huggingface/transformers#20813 and #29714."""
    heads = {
        "AutoModel": ("encoder-decoder", vt.VanillaTransformerModel),
        "AutoModelForQuestionAnswering": ("encoder-only", vt.VanillaTransformerForQuestionAnswering),
        "AutoModelForSequenceClassification": ("encoder-decoder", vt.VanillaTransformerForSequenceClassification),
        "AutoModelForTokenClassification": ("decoder-only", vt.VanillaTransformerForTokenClassification),
        "AutoModelForSeq2SeqLM": ("encoder-decoder", LANGUAGE_MODELS["encoder-decoder"]),
        "AutoModelForCausalLM": ("decoder-only", LANGUAGE_MODELS["decoder-only"]),
        "AutoModelForMaskedLM": ("encoder-only", LANGUAGE_MODELS["encoder-only"]),
    }
    assert set(heads) | {"AutoConfig"} == set(AUTO_MAP)
    for auto, (architecture, head) in heads.items():
        model = tiny_model(architecture, "gated-rmsnorm-pre", head)
        model.save_pretrained(tmp_path / auto / "0" / "model")
        torch.save(answer(model), tmp_path / f"{auto}.pt")
    snippets(
        f"""{ANSWER}
for auto in {list(heads)}:
    for time in range(3 if auto in ("AutoModel", "AutoModelForCausalLM") else 1):
        folder = f"{tmp_path}/{{auto}}/{{time}}/model"
        model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
        assert torch.equal(answer(model), torch.load(f"{tmp_path}/{{auto}}.pt")), (auto, time)
        assert type(model).__module__.startswith("transformers_modules.model."), type(model)
        model.save_pretrained(f"{tmp_path}/{{auto}}/{{time + 1}}/model")
""",
        package=False,
    )
    for auto, (_, head) in heads.items():
        first, *others = (path / "model" for path in sorted((tmp_path / auto).iterdir()))
        assert others and all(content(other) == content(first) for other in others)
        last = others[-1]
        again = getattr(transformers, auto).from_pretrained(last)
        assert type(again) is head
        assert torch.equal(answer(again), torch.load(tmp_path / f"{auto}.pt"))


def test_every_folder_of_a_run_loads_without_the_package(finished, snippets):
    """Reported in huggingface/transformers#20813 and #29714."""
    folders = [finished, finished.parent / "mean", *finished.glob("checkpoint-*")]
    assert len(folders) > 3
    for folder in folders:
        torch.save(answer(AutoModelForSeq2SeqLM.from_pretrained(folder)), finished.parent / f"{folder.name}.pt")
    snippets(
        f"""{ANSWER}
from pathlib import Path
for folder in map(Path, {[str(folder) for folder in folders]}):
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(answer(model), torch.load(f"{finished.parent}/{{folder.name}}.pt"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model.generate(**tokenizer(["red dog", "cat"], return_tensors="pt", padding=True))
    assert model.generation_config.max_length_over_source == 2
config.save_pretrained("{finished.parent}/config")
""",
        package=False,
    )
    assert {path.name for path in (finished.parent / "config").iterdir()} == {"config.json", *CODE}


def test_a_model_loads_in_an_environment_that_does_not_have_the_package(saved, tmp_path):
    """Not one in which its import fails, but an environment of its own, with the packages of this one and not this.

    Reported in huggingface/transformers#20813 and #29714.
    """
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    # a folder on the path brings what stands in it, and not what an editable installation links to from there
    packages = str(Path(torch.__file__).parents[1])
    code = f"""{ANSWER}
import importlib.util
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

found = importlib.util.find_spec("vanilla_transformer")  # of the recipes, which an editable installation copies: no code
assert found is None or found.origin is None, "installed here otherwise than make test installs it"
folder = {str(saved)!r}
assert AutoConfig.from_pretrained(folder, trust_remote_code=True).model_type == "vanilla_transformer"
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
assert torch.equal(answer(model), torch.load({str(saved.parent / "answer.pt")!r}))
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model.save_pretrained({str(tmp_path / "again")!r})
tokenizer.save_pretrained({str(tmp_path / "again")!r})
"""
    done = subprocess.run(
        [environment / "bin" / "python", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": packages, "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again")
    assert torch.equal(answer(again), torch.load(saved.parent / "answer.pt"))


def test_without_package_and_trust_the_refusal_names_the_remedy_and_the_tokenizer_loads(saved, snippets):
    """Reported in huggingface/transformers#20813 and #29714."""
    said = snippets(
        f"""
        for trust in (None, False):
            try:
                transformers.AutoModelForSeq2SeqLM.from_pretrained({str(saved)!r}, trust_remote_code=trust)
            except ValueError as error:
                assert "trust_remote_code=True" in str(error) and {str(saved)!r} in str(error), error
            else:
                raise AssertionError("it ran code that nobody trusted")
        assert len(transformers.AutoTokenizer.from_pretrained({str(saved)!r}, trust_remote_code=False)) == 280
        """,
        package=False,
    )
    assert "Traceback" not in said


def test_with_the_package_its_own_classes_serve_whether_code_is_trusted_or_not(saved):
    """Reported in huggingface/transformers#25453 and #24760."""
    for _ in range(2):
        importlib.reload(vt)
    wanted = torch.load(saved.parent / "answer.pt")
    for trust in (None, False, True):
        model = AutoModelForSeq2SeqLM.from_pretrained(saved, trust_remote_code=trust)
        assert type(model) is vt.VanillaTransformerForConditionalGeneration
        assert type(AutoConfig.from_pretrained(saved, trust_remote_code=trust)) is vt.VanillaTransformerConfig
        assert torch.equal(answer(model), wanted)


def test_code_from_a_folder_and_the_package_live_in_one_process(saved, snippets):
    """Reported in huggingface/transformers#25453 and #24760."""
    snippets(
        f"""{ANSWER}
folder = {str(saved)!r}
remote = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
import vanilla_transformer
local = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
assert type(local) is vanilla_transformer.VanillaTransformerForConditionalGeneration
assert type(remote).__module__.startswith("transformers_modules.")
assert torch.equal(answer(remote), answer(local))
"""
    )


# ------------------------------------------------------------------------------------------------------------- weights


def test_pickled_weights_are_refused_unless_asked_for(saved, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    shutil.copytree(saved, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    for load in (AutoModelForSeq2SeqLM, type(model)):
        with pytest.raises(
            OSError, match=r"holds no model\.safetensors.* use_safetensors=False, which reads tensors alone, and save"
        ):
            load.from_pretrained(tmp_path / "pickled")
        asked = load.from_pretrained(tmp_path / "pickled", use_safetensors=False)
        assert torch.equal(answer(asked), answer(model))
    asked.save_pretrained(tmp_path / "again", safe_serialization=False)  # of transformers 4; there is no other form
    assert {path.name for path in (tmp_path / "again").iterdir()} == MODEL


def test_dtype_and_device_map(saved):
    wanted = torch.load(saved.parent / "answer.pt")
    half = AutoModelForSeq2SeqLM.from_pretrained(saved, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(answer(half).float(), wanted, atol=0.3, rtol=0.1)
    for device_map in ("auto", "cpu", {"": "cpu"}):
        spread = AutoModelForSeq2SeqLM.from_pretrained(saved, device_map=device_map)
        if spread.device.type == "cpu":
            assert torch.equal(answer(spread), wanted)
        assert spread.lm_head.weight is spread.model.decoder.embed_tokens.weight


# ------------------------------------------------------------------------------------------------- to the Hub and back


@uploads
def test_a_run_is_pushed_without_what_only_training_needs_and_loads_anywhere(finished, hub, snippets, upload):
    name = f"me/run-{upload}"
    said = snippets(
        f"""{UPLOADS[upload]}
from vanilla_transformer.cli import main
main(["push", {str(finished)!r}, {name!r}])
"""
    )
    about = {"README.md", "recipe.yaml", "metrics.json", "curves.png", "shortlist.safetensors"}
    pushed = hub.files(name)
    assert f"pushed: {hub.url}/{name}/commit/" in said
    assert set(pushed) == {".gitattributes", *MODEL, *TOKENIZER, *about}
    told = {"README.md", "recipe.yaml", "metrics.json"}
    assert all(pushed[p] == (finished / p).read_bytes() for p in pushed if p != ".gitattributes" and p not in told)
    # these say nothing of this machine's folders, and the lines of the card load what was pushed
    for path in told:
        assert str(finished.parent).encode() in (finished / path).read_bytes() or path == "README.md"
        assert str(finished.parent).encode() not in pushed[path], path
    assert yaml.safe_load(pushed["recipe.yaml"])["data"]["train"]["source"] == "train.source"
    assert json.loads(pushed["metrics.json"])["data"]["train"]["name"] == "train.source -> train.target"
    assert f'from_pretrained("{name}")'.encode() in pushed["README.md"] and b'"."' not in pushed["README.md"]
    assert len([r for r in hub.requests if "/commit/" in r[1]]) == 1
    large = [path for _, path, _ in hub.requests if path.startswith(("/lfs/", "/v1/xorbs/"))]
    assert {path.startswith("/v1/") for path in large} == {upload == "xet"}
    torch.save(answer(AutoModelForSeq2SeqLM.from_pretrained(finished)), finished.parent / "answer.pt")
    load = f"""{ANSWER}
model = transformers.AutoModelForSeq2SeqLM.from_pretrained({name!r}, trust_remote_code=TRUST)
assert torch.equal(answer(model), torch.load("{finished.parent}/answer.pt"))
assert len(transformers.AutoTokenizer.from_pretrained({name!r}, trust_remote_code=TRUST)) == 280
"""
    snippets(load.replace("TRUST", "True"), package=False)
    snippets("import vanilla_transformer\n" + load.replace("TRUST", "False"))


def test_models_and_tokenizers_push_themselves_with_the_package_and_without(saved, hub, snippets):
    for source, name, package in ((str(saved), "me/first", True), ("me/first", "me/second", False)):
        snippets(
            f"""
            model = transformers.AutoModelForSeq2SeqLM.from_pretrained({source!r}, trust_remote_code=True)
            model.push_to_hub({name!r})
            transformers.AutoTokenizer.from_pretrained({source!r}, trust_remote_code=True).push_to_hub({name!r})
            """,
            package=package,
        )
        pushed = hub.files(name)
        assert set(pushed) == {".gitattributes", "README.md", *MODEL, *TOKENIZER}
        for path in CODE | {"tokenizer.json", "model.safetensors", "config.json", "generation_config.json"}:
            assert pushed[path] == (saved / path).read_bytes(), path


def test_shards_revisions_and_weights_that_were_there_before(saved, hub, snippets, tmp_path):
    """A repository of shards that gets one file instead must not keep the shards, nor the other way round."""
    other = tiny_model(vocab_size=280, num_hidden_layers=1, decoder_layers=1, seed=5)
    other.save_pretrained(tmp_path / "sharded", max_shard_size="10KB")
    word_tokenizer().save_pretrained(tmp_path / "sharded")
    shards = {path.name for path in (tmp_path / "sharded").glob("model-*")}
    assert len(shards) > 2
    torch.save(answer(other), tmp_path / "other.pt")
    snippets(
        f"""{ANSWER}
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.hub import push_folder
one, other = {str(saved)!r}, "{tmp_path}/sharded"
first = push_folder(one, "me/both")
push_folder(other, "me/both", revision="v2")
push_folder(other, "me/both")
push_folder(one, "me/both")
wanted = {{one: torch.load({str(saved.parent / "answer.pt")!r}), other: torch.load("{tmp_path}/other.pt")}}
auto = transformers.AutoModelForSeq2SeqLM
for revision, folder in (("main", one), ("v2", other), (first.oid, one)):
    assert torch.equal(answer(auto.from_pretrained("me/both", revision=revision)), wanted[folder]), revision
    assert torch.equal(answer(TextGenerator.from_pretrained("me/both", revision=revision).model), wanted[folder])
try:
    auto.from_pretrained("me/both", revision="v3")
except OSError as error:
    assert "v3 is not a valid git identifier" in str(error)
else:
    raise AssertionError("there is no v3")
half = auto.from_pretrained("me/both", revision="v2", dtype="bfloat16", device_map="cpu")
assert half.dtype == torch.bfloat16
"""
    )
    main, v2 = set(hub.files("me/both")), set(hub.files("me/both", "v2"))
    assert "model.safetensors" in main and not main & {*shards, "model.safetensors.index.json"}
    assert v2 > {*shards, "model.safetensors.index.json"} and "model.safetensors" not in v2


def test_a_card_that_the_hub_refuses_is_not_pushed_and_the_reason_is_said(saved, hub, snippets, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("---\nlicense: mine\n---\n# A model\n", encoding="utf-8")
    said = snippets(PUSH.replace("FOLDER", repr(str(tmp_path / "model"))).replace("NAME", "'me/wrong-card'"), status=2)
    assert 'me/wrong-card: Invalid metadata in README.md. - "license" must be one of' in said.splitlines()[-1]
    assert set(hub.files("me/wrong-card")) == {".gitattributes"}


def test_commands_take_a_revision(saved, hub, snippets, tmp_path):
    (tmp_path / "in.txt").write_text("red dog\ncat\n")
    other = tiny_model(vocab_size=280, num_hidden_layers=1, decoder_layers=1, seed=7)
    other.save_pretrained(tmp_path / "other")
    word_tokenizer().save_pretrained(tmp_path / "other")
    source, folder = str(tmp_path / "in.txt"), str(tmp_path / "other")
    said = snippets(
        f"""
        from vanilla_transformer.cli import main
        from vanilla_transformer.hub import push_folder
        push_folder({str(saved)!r}, "me/versions")
        push_folder({folder!r}, "me/versions", revision="v2")
        def run(*arguments):
            try:
                main([*arguments])
            except SystemExit as end:
                assert not end.code, arguments
        def written(*options):
            run("generate", "--input", {source!r}, "--output", "{tmp_path}/out.txt", "--max-new-tokens", "8", *options)
            return open("{tmp_path}/out.txt").read()
        first, second = written("--model", "me/versions"), written("--model", "me/versions", "--revision", "v2")
        assert first == written("--model", {str(saved)!r}) and second == written("--model", {folder!r})
        assert first != second
        files = ["--source", {source!r}, "--target", {source!r}]
        run("evaluate", "--model", "me/versions", "--revision", "v2", "--output", "{tmp_path}/again.txt", *files)
        run("inspect", "--model", "me/versions", "--revision", "v2", "--output", "{tmp_path}/seen.png", "red dog", "cat")
        main(["generate", "--model", {folder!r}, "--revision", "v2", "--input", {source!r}])
        """,
        status=2,
    )
    assert "has no revision v2; leave it out, or give a Hub id" in said
    assert {"again.txt", "seen.png"} <= {path.name for path in tmp_path.iterdir()}


def test_private_repositories(saved, hub, snippets, tmp_path):
    said = snippets(
        f"""
        from vanilla_transformer.cli import main
        load = transformers.AutoModelForSeq2SeqLM.from_pretrained
        try:
            main(["push", {str(saved)!r}, "me/secret", "--private", "--token", {hub.TOKEN!r}])
        except SystemExit as end:
            assert not end.code
        load("me/secret", trust_remote_code=True)
        try:
            load("me/secret", token=False, cache_dir={str(tmp_path)!r})
        except OSError as error:
            assert "private repository, make sure to pass a token" in str(error)
        else:
            raise AssertionError("a stranger has read it")
        from vanilla_transformer.hub import push_folder
        push_folder({str(saved)!r}, "me/open")
        main(["push", {str(saved)!r}, "me/open", "--private", "--revision", "v2"])
        """,
        status=2,
    )
    # what is to be tried again must not become public by that
    assert f"`vanilla-transformer push {saved} me/open --private --revision v2`." in said
    assert hub.repositories["me/secret"].private and not hub.repositories["me/open"].private
    assert "me/open is there already and is public; make it private first" in said


def test_a_model_in_the_cache_loads_offline_and_one_that_is_not_says_so(saved, hub, snippets):
    snippets(
        f"""
        from vanilla_transformer.generation.text_generator import TextGenerator
        from vanilla_transformer.hub import push_folder
        push_folder({str(saved)!r}, "me/cached")
        push_folder({str(saved)!r}, "me/uncached")
        TextGenerator.from_pretrained("me/cached")
        """
    )
    asked = len(hub.requests)
    said = snippets(
        f"""{ANSWER}
import huggingface_hub.constants
huggingface_hub.constants.HF_HUB_OFFLINE = True  # what the environment variable sets
from vanilla_transformer.cli import main
from vanilla_transformer.generation.text_generator import TextGenerator
model = TextGenerator.from_pretrained("me/cached").model
assert torch.equal(answer(model), torch.load({str(saved.parent / "answer.pt")!r}))
main(["generate", "--model", "me/uncached", "--input", {str(saved / "README.md")!r}])
""",
        status=2,
    ).splitlines()[-1]
    assert said.startswith("error: me/uncached is not a folder here and not all of it is in the cache"), said
    assert "HF_HUB_OFFLINE is set; load it once without that" in said
    assert len(hub.requests) == asked


# -------------------------------------------------------------------------------------------------- when the Hub fails

QUICK = "import time; time.sleep = lambda seconds: None  # the client waits up to 24 seconds\n"
PUSH = f"""{QUICK}
from vanilla_transformer.cli import main
main(["push", FOLDER, NAME])
"""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (("POST", "/api/repos/create", 401), "does not let this token write there (HTTP 401)"),
        (("POST", "/commit/", 403), "does not let this token write there (HTTP 403)"),
        (("POST", "/preupload/", 404), "finds no such repository or branch (HTTP 404)"),
        (("POST", "/commit/", 429), "takes no more requests for now (HTTP 429)"),
        (("POST", "/commit/", 503), "failed"),
        (("POST", "/commit/", None), "failed"),
        (("PUT", "/lfs/", None), "failed"),
        (("PUT", "/lfs/", 500), "failed"),
        pytest.param(("POST", "/v1/xorbs/", None), "failed", marks=needs_xet),
        pytest.param(("POST", "/v1/shards", 500), "failed", marks=needs_xet),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_push_that_fails_leaves_both_sides_as_they_were_and_can_be_made_again(
    fault, sentence, saved, hub, snippets, tmp_path
):
    method, path, status = fault
    name = "me/failing-" + "".join(c for c in f"{path}{status}" if c.isalnum())
    upload = UPLOADS["lfs" if path == "/lfs/" else "xet"]
    code = upload + PUSH.replace("FOLDER", repr(str(tmp_path / "model"))).replace("NAME", repr(name))
    shutil.copytree(saved, tmp_path / "model")
    # bytes that no other test has uploaded
    weights = tiny_model(seed=len(hub.objects) + 100, vocab_size=280, num_hidden_layers=1, decoder_layers=1)
    weights.save_pretrained(tmp_path / "model")
    before = content(tmp_path)
    hub.fail(method, path, status, times=1000, cut=status is None)
    objects = set(hub.objects)
    said = snippets(code, status=2).splitlines()[-1]
    assert said.startswith(f"error: {tmp_path / 'model'} was not pushed to {name}: ") and sentence in said, said
    assert said.endswith(f"`vanilla-transformer push {tmp_path / 'model'} {name}`.")
    assert "It is whole on this machine" in said
    assert content(tmp_path) == before
    assert name not in hub.repositories or set(hub.files(name)) == {".gitattributes"}
    if path in ("/lfs/", "/v1/xorbs/"):
        assert set(hub.objects) == objects
    hub.heal()
    snippets(code)
    pushed = hub.files(name)
    assert {p: pushed[p] for p in model_files(tmp_path / "model")} == {
        p: file.read_bytes() for p, file in model_files(tmp_path / "model").items()
    }


@uploads
def test_a_connection_that_is_cut_once_and_a_busy_hub_are_waited_for(hub, snippets, tmp_path, upload):
    tiny_model(seed=len(hub.objects) + 1000).save_pretrained(tmp_path)
    hub.fail("PUT", "/lfs/", cut=True)
    hub.fail("POST", "/v1/xorbs/", cut=True)
    hub.fail("POST", "/api/repos/create", 429, Retry_After=7)
    hub.fail("POST", "/commit/", 429, RateLimit='"api";r=0;t=55')
    said = snippets(
        f"""{UPLOADS[upload]}
import time
waited, time.sleep = [], lambda seconds: waited.append(seconds)
from vanilla_transformer.hub import push_folder
push_folder({str(tmp_path)!r}, "me/patient-{upload}")
print("waited", waited)
"""
    )
    cut = [path for _, path, status in hub.requests if status == 0]
    assert len(cut) == 1 and ("/lfs/" if upload == "lfs" else "/v1/xorbs/") in cut[0]
    assert f"waited {[7, 1, 55] if upload == 'lfs' else [7, 55]}" in said
    assert hub.files(f"me/patient-{upload}")["model.safetensors"] == (tmp_path / "model.safetensors").read_bytes()


def test_a_download_that_is_cut_goes_on_and_leaves_nothing_half_written(saved, hub, snippets, tmp_path):
    snippets(f"from vanilla_transformer.hub import push_folder; push_folder({str(saved)!r}, 'me/cut')")
    code = f"""{ANSWER}{QUICK}
import vanilla_transformer
load = transformers.AutoModelForSeq2SeqLM.from_pretrained
model = load("me/cut", cache_dir={str(tmp_path / "cache")!r})
assert torch.equal(answer(model), torch.load({str(saved.parent / "answer.pt")!r}))
"""
    hub.fail("GET", "model.safetensors", times=1000, cut=True)
    snippets(code, status=1)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files and "model.safetensors" not in {path.name for path in files}
    blobs = [path.read_bytes() for path in files if path.parent.name == "blobs"]
    assert blobs and set(blobs) <= set(hub.files("me/cut").values()), "there is a file that is not whole"
    hub.heal()
    hub.fail("GET", "model.safetensors", cut=True)
    snippets(code)
    assert [status for _, path, status in hub.requests if path.endswith("model.safetensors")][-2:] == [0, 200]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "holds no whole model, as config.json is not there; name the folder of a finished run or saved model"),
        ({"config.json": "{}"}, "as model.safetensors is not there"),
        ({"config.json": "{}", "pytorch_model.bin": "-"}, "as model.safetensors is not there"),
        ({"config.json": "{}", "recipe.yaml": ""}, "finish its run with --resume, or push one of its checkpoints"),
        (
            {"config.json": "{}", "model.safetensors.index.json": '{"weight_map": {"a": "model-1-of-2.safetensors"}}'},
            "as model-1-of-2.safetensors is not there",
        ),
    ],
)
def test_what_is_no_whole_model_is_not_pushed(files, sentence, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FileNotFoundError, match=sentence.replace(".", r"\.")):
        model_files(tmp_path)


def test_all_files_of_a_tokenizer_are_pushed_and_kept_beside_a_mean(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = {"default": "one", "other": "two"}
    for folder in (tmp_path / "model", tmp_path / "model/target_tokenizer"):
        tokenizer.save_pretrained(folder)
    tiny_model().save_pretrained(tmp_path / "model")
    # of tokenizers of families that can be converted: those of BERT, GPT-2, T5, mBART, Marian and FSMT, and BERTweet's, ...
    names = {
        name
        for kind in ("bert", "gpt2", "t5", "mbart", "marian", "fsmt", "bertweet", "phobert", "bartpho", "myt5")
        for name in getattr(transformers, TOKENIZER_MAPPING_NAMES[kind]).vocab_files_names.values()
    }
    for name in names - {"tokenizer.json", "tokenizer_config.json"}:
        (tmp_path / "model" / name).write_text("{}")
    files = {p.relative_to(tmp_path / "model").as_posix() for p in (tmp_path / "model").rglob("*") if p.is_file()}
    assert {"additional_chat_templates/other.jinja", "target_tokenizer/additional_chat_templates/other.jinja"} < files
    assert model_files(tmp_path / "model").keys() == files
    average_checkpoints([tmp_path / "model"] * 2, tmp_path / "mean")
    assert model_files(tmp_path / "mean").keys() == files


def test_a_recipe_whose_aliases_would_fill_the_memory_is_not_followed(tmp_path):
    levels = [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9)]
    path = tmp_path / "recipe.yaml"
    path.write_text("\n".join(["a0: &a0 [x, x]", *levels]) + "\n")
    assert _content("recipe.yaml", path, "me/model") == str(path)
    path.write_text("data: {train: {source: /home/me/a.txt}}\n")
    assert b"/home" not in _content("recipe.yaml", path, "me/model")


SECRETS = [
    *(".env", ".hf_token.json", "api_token.json", "token.json", "my_tokens.json", "id_rsa", "vocabulary_private.txt"),
    *(
        "LICENSE_KEY",
        "optimizer.pt",
        "training_args.bin",
        "pytorch_model.bin",
        "model-1-of-1.safetensors",
        "mine.model",
    ),
    *("secrets_vanilla_transformer.py", "vocab.json~", "tokenizer.json.bak", "config.json.orig"),
]


def test_only_files_of_known_names_are_pushed_or_copied_and_the_others_are_named(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    tiny_model().save_pretrained(folder)
    for place in (folder, folder / "target_tokenizer", outside):
        word_tokenizer().save_pretrained(place)
        for name in SECRETS:
            (place / name).write_text("secret")
    wanted = {*MODEL, *TOKENIZER, *(f"target_tokenizer/{name}" for name in TOKENIZER)}
    # links that lead out of the folder, of a file and of whole folders
    (folder / "merges.txt").symlink_to(outside / "id_rsa")
    (folder / "target_tokenizer" / "vocab.txt").symlink_to("../../outside/id_rsa")
    (folder / "additional_chat_templates").symlink_to(outside)
    (outside / "x.jinja").write_text("secret")
    (folder / "vocab.txt").symlink_to("config.json")  # which does not
    (folder / "checkpoint-1").mkdir()
    assert model_files(folder).keys() == wanted | {"vocab.txt"}
    left = {*SECRETS, "merges.txt", "additional_chat_templates/", "checkpoint-1/", "target_tokenizer/vocab.txt"}
    assert left <= set(files_left_out(folder)) and not set(files_left_out(folder)) & wanted
    average_checkpoints([folder] * 2, tmp_path / "mean")
    copied = {
        path.relative_to(tmp_path / "mean").as_posix() for path in (tmp_path / "mean").rglob("*") if path.is_file()
    }
    assert copied == companion_files(folder).keys() | {"model.safetensors"}
    assert not any("secret" in path.read_text(errors="replace") for path in (tmp_path / "mean").rglob("*.txt"))

    (folder / "model.safetensors").rename(outside / "weights")
    (folder / "model.safetensors").symlink_to(outside / "weights")
    with pytest.raises(FileNotFoundError, match="model.safetensors is a link that leads out of its folder"):
        model_files(folder)
    # but the Hub's cache is made of links to its own files
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in MODEL:
        shutil.copy(folder / name, blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert model_files(snapshot).keys() == set(MODEL)


def test_a_dry_run_lists_the_files_and_asks_nobody(saved, capsys, monkeypatch):
    monkeypatch.setattr("vanilla_transformer.hub.push_folder", None)
    with pytest.raises(SystemExit) as end:
        main(["push", str(saved), "me/x", "--dry-run"])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    *lines, total = [line.split(maxsplit=1) for line in printed.out.splitlines()]
    files = model_files(saved)
    assert {name: int(size.replace(",", "")) for size, name in lines} == {
        n: p.stat().st_size for n, p in files.items()
    }
    assert total[1] == f"bytes in {len(files)} files would be pushed to me/x"


@pytest.mark.parametrize(
    ("given", "kept", "sentence"),
    [
        (None, None, "there is no access token; log in with `hf auth login`, or set HF_TOKEN, then"),
        ("hf_abcdefgh\nijkl", "x", "the access token holds a space, a line end"),
        ("hf_abcdefgh ijkl", "x", "the access token holds a space, a line end"),
        ("hf_abcdefgh\u00e9", "x", "the access token holds a space, a line end"),
    ],
)
def test_a_token_that_is_missing_or_broken_is_said_and_never_shown(saved, monkeypatch, given, kept, sentence):
    monkeypatch.setattr("vanilla_transformer.hub.get_token", lambda: kept)
    with pytest.raises(PushError, match=sentence) as error:
        push_folder(saved, "me/x", token=given)
    assert "abcdefgh" not in str(error.value)


# ---------------------------------------------------------------------------------------------------------- from a run


RUN = """
from vanilla_transformer.cli import main
main(["train", RECIPE, "training.push_to_hub=true", "training.hub_model_id=NAME", "training.eval_strategy=no",
      "training.save_strategy=no", "training.load_best_model_at_end=false", "training.max_steps=2", "averaging.last=0"])
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe_values(tmp_path)), encoding="utf-8")
    return lambda name: RUN.replace("RECIPE", repr(str(path))).replace("NAME", name)


def test_a_run_pushes_itself_at_its_end(recipe, hub, snippets, tmp_path):
    said = snippets(recipe("me/trained"))
    assert f"pushed: {hub.url}/me/trained/commit/" in said
    assert set(hub.files("me/trained")) == {".gitattributes", *model_files(tmp_path / "run")}
    assert {"README.md", "recipe.yaml", *MODEL, *TOKENIZER} <= set(hub.files("me/trained"))


def test_a_run_whose_push_fails_is_finished_all_the_same(recipe, hub, snippets, tmp_path):
    hub.fail("POST", "/commit/", times=1000, cut=True)
    said = snippets(QUICK + recipe("me/lost"))
    assert f"finished: {tmp_path / 'run'}" in said and "was not pushed to me/lost: the connection to" in said
    assert {"metrics.json", "README.md", *MODEL, *TOKENIZER} <= {path.name for path in (tmp_path / "run").iterdir()}
    hub.heal()
    snippets(PUSH.replace("FOLDER", repr(str(tmp_path / "run"))).replace("NAME", "'me/lost'"))
    assert set(hub.files("me/lost")) == {".gitattributes", *model_files(tmp_path / "run")}


def test_a_run_that_could_not_be_pushed_is_refused_before_it_trains(recipe, hub, snippets, tmp_path):
    hub.fail("POST", "/api/repos/create", 401)
    said = snippets(recipe("me/refused"), status=2)
    assert "error: a model that is not yet trained was not pushed to me/refused: the Hub does not let" in said
    assert said.rstrip().endswith("with the right to write, then start the run again.") and "whole on this" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("override", ["training.hub_token=hf_secret", "training.hub_strategy=every_save"])
def test_a_token_in_a_recipe_and_pushes_during_training_are_refused(override, tmp_path):
    with pytest.raises(RecipeError, match=override.partition("=")[0].replace(".", r"\.")):
        Recipe.from_dict(override_fields(recipe_values(tmp_path), [override]))


TRAINER = """
from transformers import Trainer, TrainingArguments
from runs import word_tokenizer
from tiny import tiny_model
from vanilla_transformer.data.streaming import TokenBudgetStream
from vanilla_transformer.trainer.trainer import TokenTrainer

rows = [{"input_ids": [5] * n, "labels": [5] * n} for n in range(4, 12)]
tokenizer = word_tokenizer()
options = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "max_steps": 2, "save_steps": 1}
arguments = TrainingArguments(FOLDER, push_to_hub=True, hub_model_id=NAME, **options)
import torch
def collate(rows):
    pad = torch.nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}
common = {"model": tiny_model("decoder-only", vocab_size=280), "args": arguments, "data_collator": collate,
          "processing_class": tokenizer}
if KIND is Trainer:
    trainer = Trainer(**common, train_dataset=rows)
else:
    trainer = TokenTrainer(**common, train_dataset=TokenBudgetStream(rows, max_tokens=30, pool_size=8, seed=1, repeat=True))
trainer.train()
try:
    trainer.push_to_hub()
except Exception as error:
    print("failed:", type(error).__name__, error)
"""


@pytest.mark.parametrize("kind", ["Trainer", "TokenTrainer"])
def test_trainers_push_and_lose_nothing_where_that_fails(kind, hub, snippets, tmp_path):
    name, folder = f"me/by-{kind}", tmp_path / "run"
    code = QUICK + TRAINER.replace("FOLDER", repr(str(folder))).replace("NAME", repr(name)).replace("KIND", kind)
    hub.fail("POST", "/commit/", times=1000, cut=True)
    said = snippets(code)
    assert "failed: " in said
    if kind == "TokenTrainer":
        assert f"failed: PushError {folder} was not pushed to {name}" in said
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (folder / "checkpoint-2" / "optimizer.pt").is_file()
    for saved in (folder, folder / "checkpoint-1", folder / "checkpoint-2"):
        assert {path.name for path in saved.glob("*.py")} == CODE
    hub.heal()
    shutil.rmtree(folder)
    assert "failed: " not in snippets(code)
    pushed = set(hub.files(name))
    assert {"README.md", *MODEL, *TOKENIZER} <= pushed
    assert not [
        path for path in pushed if path.startswith(("checkpoint-", "partial")) or path.endswith((".pt", ".pth"))
    ]
    if kind == "TokenTrainer":
        assert pushed == {".gitattributes", "README.md", *MODEL, *TOKENIZER}
    assert torch.equal(answer(AutoModelForCausalLM.from_pretrained(folder)), answer(model))
    assert type(AutoModel.from_pretrained(folder)) is vt.VanillaTransformerModel
