"""Other people's folders: no code of theirs runs, nobody is asked, and what is damaged is named with its remedy."""

import io
import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    pipeline,
)

from runs import recipe_values, reversed_words, run, save_translator, word_tokenizer
from tiny import VARIANTS, tiny_model
from vanilla_transformer.cli import main
from vanilla_transformer.conversion.convert import from_transformers
from vanilla_transformer.conversion.folders import convert_folder
from vanilla_transformer.generation.sentences import texts_within
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.loading import (
    TARGET_TOKENIZER,
    LoadingError,
    Source,
    check_device,
    load_config,
    load_model,
    load_tokenizer,
    locate,
    weight_files,
)
from vanilla_transformer.pipelines import TranslationPipeline
from vanilla_transformer.runs.averaging import average_weights
from vanilla_transformer.tokenization import train_tokenizer, train_wordpiece_tokenizer
from warm_python import warm_python

SOURCES = [source for source, _ in reversed_words(12, 6)]


def edit(name, **settings):
    def change(folder):
        path = folder / name
        values = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**values, **settings}))

    return change


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def cut(name, kept):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:kept])


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loading") / "translator"
    save_translator(folder)
    return folder


@pytest.fixture
def copy(translator, tmp_path):
    """A copy of the translator that a test may damage."""
    return Path(shutil.copytree(translator, tmp_path / "model"))


@pytest.fixture
def command(capfd, monkeypatch):
    def run_command(*arguments, stdin="y\n" * 50):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capfd.readouterr()
        status = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as error:
            status = error.code or 0
        out, err = capfd.readouterr()
        return status, out, err

    return run_command


# ------------------------------------------------------------------------------------------------------ code of others


EVIL = """
from pathlib import Path
Path({witness!r}).write_text("ran")
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, PreTrainedModel
class Config(PreTrainedConfig):
    model_type = "strange"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
def generate(model, **options):
    pass
"""


def with_own_model(folder):
    """The whole model needs its own code."""
    autos = ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForQuestionAnswering")
    code = {"AutoConfig": "strange.Config", **dict.fromkeys(autos, "strange.Model")}
    edit("config.json", model_type="strange", auto_map=code)(folder)


def with_own_tokenizer(folder):
    edit("tokenizer_config.json", tokenizer_class="Strange", auto_map={"AutoTokenizer": ["strange.Tokenizer", None]})(
        folder
    )
    edit("processor_config.json", auto_map={"AutoProcessor": "strange.Tokenizer"}, processor_class="Strange")(folder)


def with_own_target_tokenizer(folder):
    with_own_tokenizer(folder / TARGET_TOKENIZER)


def with_own_kernel(folder):
    edit("config.json", attn_implementation="strange/kernel")(folder)


def with_code_elsewhere(folder):
    edit("config.json", model_type="strange", auto_map={"AutoConfig": "someone/else--strange.Config"})(folder)


STRANGE = {
    "model": with_own_model,
    "tokenizer": with_own_tokenizer,
    "target tokenizer": with_own_target_tokenizer,
    "attention": with_own_kernel,
    "elsewhere": with_code_elsewhere,
}


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Folders that run code where they are trusted, and the file that this code would write."""
    root = tmp_path_factory.mktemp("strangers")
    witness = root / "witness"
    folders = {}
    for name, change in STRANGE.items():
        folder = folders[name] = root / name.replace(" ", "-")
        separate = name == "target tokenizer"
        fields = {**VARIANTS["marian"], "norm_eps": 1e-5}  # so that it can be converted as well
        save_translator(folder, **fields, **({"target_vocab_size": 280} if separate else {}))
        if separate:
            word_tokenizer().save_pretrained(folder / TARGET_TOKENIZER)
        change(folder)
        for place in (folder, folder / TARGET_TOKENIZER, folder / "custom_generate"):
            place.mkdir(exist_ok=True) if place.name == "custom_generate" else None
            if place.is_dir():
                (place / "strange.py").write_text(EVIL.format(witness=str(witness)))
                (place / "generate.py").write_text(EVIL.format(witness=str(witness)))
    return folders, witness


def entries(folder, tmp_path):
    """All ways in: what to call, and whether it reads the model, its tokenizer and that of its target."""
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    for path in (source, target):
        path.write_text("\n".join(SOURCES) + "\n")
    values = recipe_values(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({k: v for k, v in values.items() if k not in ("tokenizer", "model")})
    )
    recipe = tmp_path / "recipe.yaml"
    all_of_it = {"model", "tokenizer", "target tokenizer", "attention", "elsewhere"}
    model_alone = {"model", "attention", "elsewhere"}
    tokenizers = {"tokenizer", "target tokenizer"}
    return {
        "generate": (("generate", "-m", folder, "-i", source), all_of_it),
        "generate from stdin": (("generate", "-m", folder), all_of_it),
        "evaluate": (("evaluate", "-m", folder, "--source", source, "--target", target), all_of_it),
        "inspect": (("inspect", "-m", folder, "red dog", "-o", tmp_path / "a.png"), all_of_it),
        "explain": (("explain", folder), model_alone),
        "convert": (("convert", folder, tmp_path / "new"), {"model", "attention", "elsewhere"}),
        "convert to transformers": (("convert", folder, tmp_path / "new", "--to-transformers"), all_of_it),
        "train start_from": (("train", recipe, f"start_from={folder}"), all_of_it),
        "train tokenizer.path": (("train", recipe, f"tokenizer.path={folder}"), tokenizers),
        "TextGenerator": (partial(TextGenerator.from_pretrained, folder, "cpu"), all_of_it),
        "convert_folder": (partial(convert_folder, folder, tmp_path / "new", to_transformers=True), all_of_it),
        "from_transformers": (partial(from_transformers, folder), model_alone),
        "load_config": (partial(load_config, folder), model_alone),
        "load_model": (partial(load_model, folder), model_alone),
        "load_tokenizer": (partial(load_tokenizer, folder), {"tokenizer"}),
        "pipeline": (partial(pipeline, "translation", str(folder)), all_of_it),
        "pipeline by languages": (partial(pipeline, task="translation_en_to_de", model=folder), all_of_it),
        "pipeline summarization": (partial(pipeline, "summarization", model=str(folder)), all_of_it),
        "pipeline question-answering": (partial(pipeline, "question-answering", model=str(folder)), model_alone),
        "pipeline target_tokenizer": (
            partial(
                pipeline,
                "translation",
                tiny_model(vocab_size=280),
                tokenizer=word_tokenizer(),
                target_tokenizer=str(folder),
            ),
            {"tokenizer"},
        ),
    }


@pytest.mark.parametrize("kind", STRANGE)
def test_no_code_of_a_stranger_runs_and_nobody_is_asked(kind, strangers, tmp_path, command, capfd, monkeypatch):
    """Every entry, with answers of `y` on stdin: a question would be answered by the text that is to be translated."""
    folders, witness = strangers
    asked = []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    for name, (call, reads) in entries(folders[kind], tmp_path).items():
        if kind not in reads and name in ("train tokenizer.path", "convert"):
            continue  # which would train for long, and would convert what is whole
        if callable(call):
            monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 50))
            try:
                call()
                sentence = ""
            except (ValueError, OSError) as error:
                sentence = str(error)
        else:
            status, out, err = command(*call)
            lines = [line for line in err.splitlines() if line.startswith("error: ")]
            assert (status, len(lines)) == ((2, 1) if kind in reads else (status, len(lines))), (name, err)
            assert "[y/N]" not in out + err, name
            sentence = lines[0] if lines else ""
        assert not witness.exists() and not asked, name
        if kind in reads:
            assert re.search("code of (its own|the Hub) .*not run unasked", sentence), (name, sentence)
            remedies = {
                "explain": "reads models of this package",
                "convert to transformers": "this package|--trust-remote-code",
                "convert_folder": "this package|--trust-remote-code",
                "train start_from": "models of this package only|a tokenizer that transformers has a class for",
                "train tokenizer.path": "give a tokenizer that transformers has a class for",
            }
            assert re.search(remedies.get(name, "--trust-remote-code .trust_remote_code=True in"), sentence), (
                name,
                sentence,
            )
            assert "\n" not in sentence and str(folders[kind]) in sentence, (name, sentence)
        shutil.rmtree(tmp_path / "new", ignore_errors=True)


def test_code_of_a_stranger_runs_where_it_is_trusted(strangers, command, tmp_path):
    folders, witness = strangers
    source = tmp_path / "source.txt"
    source.write_text("red\n")
    trusted = shutil.copytree(folders["tokenizer"], tmp_path / "trusted")
    shutil.rmtree(trusted / "custom_generate")
    try:
        status, _, err = command("generate", "-m", trusted, "-i", source, "--trust-remote-code")
        assert status == 0, err
        assert witness.read_text() == "ran"
    finally:
        witness.unlink(missing_ok=True)


def test_a_question_of_the_libraries_is_never_reached(strangers):
    """What transformers does where it is not told; it may change its words, but then this package's rules still hold."""
    folders, witness = strangers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", lambda question: (_ for _ in ()).throw(AssertionError(question)))
        with pytest.raises(ValueError, match="trust_remote_code"):
            AutoTokenizer.from_pretrained(folders["tokenizer"], trust_remote_code=False)
    assert not witness.exists()


# ----------------------------------------------------------------------------------------------------- damaged folders


def index(**values):
    def change(folder):
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(values))

    return change


def pickled(content):
    def change(folder):
        (folder / "model.safetensors").unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return change


def remove_weight(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.decoder.layers.0.self_attn.k_proj.bias")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def as_adapter(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/etc", "peft_type": "LORA"}))


DAMAGED = {
    "config is a number": (write("config.json", "3"), "config.json of .* holds a number and not an object"),
    "config is cut": (cut("config.json", 40), "config.json of .* is not valid JSON .*copy it again"),
    "config is empty": (write("config.json", ""), "config.json of .* is not valid JSON"),
    "config is nested": (
        write("config.json", "[" * 100_000),
        "config.json of .* is not valid JSON .nested too deeply",
    ),
    "config is not text": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        "config.json of .* is not valid JSON",
    ),
    "config lacks": (lambda f: (f / "config.json").unlink(), "holds no config.json"),
    "no model type": (write("config.json", "{}"), "names no model_type"),
    "model type": (
        edit("config.json", model_type="nothing", auto_map=None),
        "has the model_type 'nothing', so transformers does not know",
    ),
    "model type is a list": (edit("config.json", model_type=[], auto_map={}), "has the model_type "),
    "auto_map is a list": (edit("config.json", auto_map=[1]), "auto_map=.1. is not an object"),
    "dtype": (
        edit("config.json", dtype="float99"),
        "dtype='float99', which is not a type of torch; set it to float32",
    ),
    "dtype is a number": (edit("config.json", dtype=16), "dtype=16, which is not a type"),
    "other configuration": (edit("config.json", configuration_files=["../config.1.0.0.json"]), "outside its folder"),
    "layers": (
        edit("config.json", decoder_layers=2),
        "model.decoder.layers has 1 layers in the weights and 2 by config",
    ),
    "layer count": (edit("config.json", num_hidden_layers=10**9), "num_hidden_layers=1000000000, more than 10000"),
    "vocabulary": (
        edit("config.json", vocab_size=300),
        "embed_tokens.weight is 280 x 16 in the weights and 300 x 16 by",
    ),
    "width": (edit("config.json", hidden_size=32), "is 16 in the weights and 32 by config.json"),
    "enormous width": (
        edit("config.json", hidden_size=10**9),
        "in the weights and 1000000000|config.json or the weights",
    ),
    "a string as width": (edit("config.json", hidden_size="wide"), "config.json of .*hidden_size"),
    "weight lacks": (remove_weight, "are not those of the model: model.decoder.layers.0.self_attn.k_proj.bias lacks"),
    "weights are cut": (cut("model.safetensors", 3000), "the weights in .* are damaged"),
    "weights are pickled": (
        pickled({}),
        "Pickled weights .*, a format that can carry code, are read only when asked for",
    ),
    "index is a list": (lambda f: (index()(f), write("model.safetensors.index.json", "[]")(f)), "holds a list"),
    "index without weight_map": (index(other={}), "has no weight_map"),
    "index above": (
        index(weight_map={"a": "../../x.safetensors"}),
        "'../../x.safetensors', which is not a safetensors file",
    ),
    "index of root": (index(weight_map={"a": "/x.safetensors"}), "'/x.safetensors', which is not a safetensors file"),
    "index of a pickle": (index(weight_map={"a": "x.bin"}), "'x.bin', which is not a safetensors file"),
    "index of nothing": (index(weight_map={"a": "x.safetensors"}), "names x.safetensors, which is not there"),
    "tokenizer_config is a list": (write("tokenizer_config.json", "[]"), "tokenizer_config.json of .* holds a list"),
    "tokenizer_config auto_map": (edit("tokenizer_config.json", auto_map=3), "auto_map=3"),
    "tokenizer is empty": (write("tokenizer.json", "{}"), "tokenizer.json of .* is damaged, as it has no model"),
    "tokenizer is cut": (cut("tokenizer.json", 2000), "tokenizer.json of .* is damaged, as it is not valid JSON"),
    "tokenizer model": (edit("tokenizer.json", model={"type": "X"}), "the tokenizer of .* is damaged"),
    "no tokenizer": (lambda f: [path.unlink() for path in f.glob("tok*")], "holds no tokenizer"),
    "generation_config is not JSON": (
        write("generation_config.json", "{nope"),
        "generation_config.json of .* not valid JSON",
    ),
    "generation_config is a list": (
        write("generation_config.json", "[]"),
        "generation_config.json of .* holds a list",
    ),
    "beams": (edit("generation_config.json", num_beams="x"), "num_beams='x' must be a whole number from 1 on"),
    "no beams": (edit("generation_config.json", num_beams=0), "num_beams=0 must be a whole number from 1 on"),
    "length penalty": (
        edit("generation_config.json", length_penalty="a"),
        "length_penalty='a' must be a finite number",
    ),
    "pad": (edit("generation_config.json", pad_token_id="x"), "pad_token_id='x' must be the number of a token"),
    "switch": (edit("generation_config.json", do_sample="no"), "do_sample='no' must be true or false"),
    "adapter": (as_adapter, "holds no config.json; it is an adapter of PEFT, which needs its base model; load both"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_folder_is_named_with_its_remedy(name, copy, command, tmp_path):
    change, said = DAMAGED[name]
    change(copy)
    status, out, err = command("generate", "-m", copy, stdin="red\n")
    errors = [line for line in err.splitlines() if line]
    assert status == 2 and out == "" and len(errors) == 1, err
    assert errors[0].startswith("error: ") and re.search(said, errors[0]), errors[0]
    assert "weights_only" not in err and "Traceback" not in err


def test_an_index_never_leads_out_of_its_folder(copy, tmp_path):
    """Averaging reads weights without transformers."""
    (tmp_path / "x.safetensors").write_bytes((copy / "model.safetensors").read_bytes())
    index(weight_map={"a": "../x.safetensors"})(copy)
    for read in (weight_files, lambda folder: average_weights([folder])):
        with pytest.raises(LoadingError, match="not a safetensors file in the same folder"):
            read(copy)


def test_a_name_is_a_folder_or_an_id_and_the_nearest_folder_is_named(copy, tmp_path, monkeypatch):
    assert locate(copy).folder == copy and locate("me/model").folder is None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\./mymodel is not there.*did you mean './model'"):
        locate("./mymodel")
    with pytest.raises(LoadingError, match="neither a folder here nor a Hub id"):
        locate("a b c")
    with pytest.raises(FileNotFoundError, match="is a file"):
        locate(copy / "config.json")
    with pytest.raises(LoadingError, match="has no revision main"):
        locate(copy, revision="main")
    with pytest.raises(LoadingError, match="NUL"):
        locate("a\0b")
    (tmp_path / "run" / "checkpoint-10").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-9").mkdir()
    with pytest.raises(FileNotFoundError, match="its run is not finished: .*checkpoint-10"):
        locate(tmp_path / "run")


def test_devices_that_are_not_here_are_refused_before_anything_is_loaded(copy, command):
    for device in ("cuda:7", "meta", "nothing", "cpu:3"):
        status, _, err = command("generate", "-m", "./nowhere", "--device", device)
        assert status == 2 and repr(device) in err and "cpu" in err
    check_device("cpu")
    check_device(None)


@pytest.mark.parametrize(
    "options",
    [
        ("--length-penalty", "1e308"),
        ("--length-penalty", "nan"),
        ("--length-penalty", "-inf"),
        ("--sample", "--temperature", "nan"),
        ("--sample", "--temperature", "0"),
        ("--max-new-tokens", 10**30),
        ("--num-beams", 10**9),
    ],
)
def test_values_that_nothing_can_follow_are_refused_before_anything_is_loaded(options, command):
    status, _, err = command("generate", "-m", "./nowhere", *options)
    assert status == 2 and options[-2] in err and "nowhere" not in err


def test_values_of_a_call_are_checked_as_well(translator):
    loaded = TextGenerator.from_pretrained(translator, "cpu")
    for name, value in (("num_beams", 0), ("length_penalty", float("nan")), ("num_beams", "x"), ("num_beams", True)):
        with pytest.raises(ValueError, match=f"{name}=.* must be a number from"):
            next(loaded.generate(["red"], **{name: value}))


# ------------------------------------------------------------------------ texts longer than the model was trained with


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A translator whose run says that its texts had at most 12 tokens."""
    folder = tmp_path_factory.mktemp("short")
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 12
    save_translator(folder, tokenizer)
    return folder


def test_a_long_text_is_read_sentence_by_sentence_and_nothing_is_lost(short, command, tmp_path):
    loaded = TextGenerator.from_pretrained(short, "cpu")
    long = "Red dog.  Blue sun.\u2003Big cat!"
    parts = texts_within(long, lambda text: len(loaded.tokenizer(text)["input_ids"]) <= 12)
    assert len(parts) > 1 and "".join(gap + part for gap, part in parts) == long
    alone = [best for (best,) in loaded.generate([part for _, part in parts], scores=True)]
    said = []
    (best,), (other,) = loaded.generate([long, parts[0][1]], scores=True, log=said.append)
    assert best.text == "".join(gap + part.text for (gap, _), part in zip(parts, alone, strict=True))
    assert best.score == pytest.approx(sum(part.score for part in alone), rel=1e-5) and other.text == alone[0].text
    assert said == [
        "line 1 is longer than the 12 tokens that the model was trained with: split at sentences, and the outputs joined."
    ]

    source = tmp_path / "source.txt"
    source.write_text(f"{long}\n{parts[0][1]}\n")
    status, out, err = command("generate", "-m", short, "-i", source)
    assert (status, out.splitlines()) == (0, [best.text, other.text]) and "line 1 is longer" in err
    status, out, err = command("evaluate", "-m", short, "--source", source, "--target", source)
    assert status == 0 and "line 1 is longer" in err


def test_a_sentence_that_is_too_long_is_cut_behind_clauses_or_words_with_a_warning(short, tmp_path, command):
    loaded = TextGenerator.from_pretrained(short, "cpu")

    def fits(text):
        return len(loaded.tokenizer(text)["input_ids"]) <= 12

    for text in (
        "red dog blue sun big cat red dog blue sun",
        "Big cat. red dog, blue sun: big cat,  red dog. Red sun. ",
        "x" * 40,
        "Red, " + "猫" * 30 + "，猫。",
    ):
        cut = []
        parts = texts_within(text, fits, on_cut=cut.append)
        assert len(cut) == 1 and all(fits(part) for _, part in parts)
        assert "".join(gap + part for gap, part in parts) == text.rstrip()
    assert [part for _, part in texts_within("Red dog blue, big sun, cat", fits, on_cut=cut.append)][
        0
    ] == "Red dog blue,"

    words = "red dog blue sun big cat red dog blue sun"
    source = tmp_path / "source.txt"
    source.write_text(f"{words}\n\nRed dog. Blue sun. Big cat.\nRed. {words}\n")
    status, out, err = command("generate", "-m", short, "-i", source)
    assert status == 0 and len(out.splitlines()) == 4 and out.splitlines()[1] == ""
    assert "line 3 is longer than the 12 tokens" in err
    assert "warning: lines 1, 4 have a sentence of more than the 12 tokens" in err and "cut within it" in err


def test_what_cannot_be_split_is_read_as_a_whole_with_a_warning(short, tmp_path):
    loaded = TextGenerator.from_pretrained(short, "cpu")
    said = []
    results = list(loaded.generate(["Red dog. Blue sun. Big cat."], n_best=2, num_beams=2, log=said.append))
    assert len(results[0]) == 2 and "line 1 is read as a whole with more than the 12 tokens" in said[0]

    tokenizer = word_tokenizer()
    tokenizer.model_max_length = 4
    model = tiny_model("decoder-only", vocab_size=280)
    said.clear()
    list(TextGenerator(model, tokenizer).generate(["red dog. blue sun."], max_new_tokens=2, log=said.append))
    assert len(said) == 1 and "read as a whole" in said[0] and "shorten what it continues" in said[0]


# ---------------------------------------------------------------------------------------------------------- tokenizers


def test_a_tokenizer_without_a_padding_token_serves_one_text_and_many(tmp_path, command):
    tokenizer = word_tokenizer()
    tokenizer.pad_token = None
    config = GPT2Config(
        vocab_size=280,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).pad_token_id is None
    loaded = TextGenerator.from_pretrained(tmp_path, "cpu")
    options = {"max_new_tokens": 5, "do_sample": False}
    alone = [best[0] for text in SOURCES[:4] for best in loaded.generate([text], scores=True, **options)]
    together = [best[0] for best in loaded.generate(SOURCES[:4], scores=True, **options)]
    assert [best.text for best in together] == [best.text for best in alone]
    assert [best.score for best in together] == pytest.approx([best.score for best in alone], rel=1e-4)
    (tmp_path / "in.txt").write_text("\n".join(SOURCES[:4]) + "\n")
    status, out, err = command("generate", "-m", tmp_path, "-i", tmp_path / "in.txt", "--max-new-tokens", 5)
    assert status == 0 and len(out.splitlines()) == 4 and err == ""


def test_special_tokens_in_texts_of_users_are_text_in_every_call_of_the_package(translator):
    """And tokens elsewhere, as chat templates and TRL need it."""
    tokenizer = load_tokenizer(translator)
    assert tokenizer.split_special_tokens is False and tokenizer("</s>", add_special_tokens=False)["input_ids"] == [2]
    tokenizer.add_tokens(["<turn>"], special_tokens=True)
    tokenizer.chat_template = "{% for m in messages %}<turn>{{ m['content'] }}</s>{% endfor %}"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "red"}], tokenize=True, return_dict=False)
    assert ids[0] == tokenizer.convert_tokens_to_ids("<turn>") and 2 in ids

    loaded = TextGenerator.from_pretrained(translator, "cpu")
    assert loaded._encoded("red</s>")[-1:] == [2] and loaded._encoded("red</s>").count(2) == 1
    use = TranslationPipeline(loaded.model, loaded.tokenizer)
    (part,) = use.preprocess("red</s>")
    assert part["input_ids"][0].tolist() == loaded._encoded("red</s>")


def test_models_trained_on_rows_that_end_in_a_written_end_token_stop():
    """As other trainers append it: as text."""
    texts = ["to be or not", "the red dog", "a blue sun"]
    for train in (train_tokenizer, train_wordpiece_tokenizer):
        tokenizer = train(texts * 20, 275 if train is train_tokenizer else 38, add_eos=False)
        rows = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in texts]
        assert all(row.count(2) == 1 and row[-1] == 2 and 3 not in row for row in rows)
        model = tiny_model("decoder-only", vocab_size=len(tokenizer)).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(60):
            for row in rows:
                ids = torch.tensor([row])
                model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for text, row in zip(texts, rows, strict=True):
            written = model.generate(torch.tensor([row[:2]]), max_new_tokens=40, do_sample=False)[0].tolist()
            assert written == row, text


def test_a_run_says_how_long_its_texts_were_and_its_tokenizer_loads_without_the_package(tmp_path):
    """In a process without the package, with `y` on stdin: nothing is asked and nothing is printed but the ids."""
    values = recipe_values(tmp_path)
    values["data"] |= {"max_source_length": 20, "max_target_length": 30}
    values["tokenizer"]["shared"] = False
    values["training"] |= {"max_steps": 1}
    folder = run(values, ["averaging.last=0"]).folder
    code = (
        "import sys\nfrom transformers import PreTrainedTokenizerFast as T\n"
        f"a, b = T.from_pretrained({str(folder)!r}), T.from_pretrained({str(folder / TARGET_TOKENIZER)!r})\n"
        "assert 'vanilla_transformer' not in sys.modules\n"
        "print(a('red dog').input_ids, a.model_max_length, b.model_max_length, a.split_special_tokens)"
    )
    ended = subprocess.run(
        [warm_python(), "-c", code],
        input="y\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    ids = load_tokenizer(folder)("red dog")["input_ids"]
    assert (ended.stdout, ended.stderr) == (f"{ids} 20 30 False\n", "")


def test_iterators_of_all_kinds_can_be_given_to_pipelines(translator):
    use = pipeline("translation", model=str(translator), device="cpu")
    expected = use(SOURCES[:3])
    for texts in (iter(SOURCES[:3]), map(str, SOURCES[:3]), (text for text in SOURCES[:3])):
        assert [record for (record,) in use(texts)] == expected
    with pytest.raises(TypeError, match="not one text"):
        next(TextGenerator(use.model, use.tokenizer).generate("red"))


def test_an_adapter_on_the_hub_does_not_lead_to_the_model_that_it_names(translator, tmp_path, monkeypatch):
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(json.dumps({"base_model_name_or_path": str(translator), "peft_type": "LORA"}))
    files = {"config.json": translator / "config.json", "adapter_config.json": adapter}
    monkeypatch.setattr(Source, "file", lambda source, name: files.get(name))
    with pytest.raises(LoadingError, match="me/model is not a whole model: it is an adapter of PEFT"):
        load_model(Source("me/model"), config=load_config(translator))
