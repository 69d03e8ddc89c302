"""What the README, the documents beside the code and the model cards show runs as it stands, on data and models of a few seconds."""

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import torch
import typer
import yaml
from transformers.pipelines import PIPELINE_REGISTRY

import reference_fairseq
import reference_opennmt
import vanilla_transformer as vt
from families import save_with_tokenizer
from runs import reversed_words, save_translator
from tiny import tiny_model
from vanilla_transformer import cli
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.ablation import Ablation
from vanilla_transformer.tokenization import train_tokenizer, train_wordpiece_tokenizer
from vanilla_transformer.utils.schema import override_fields, read_values

ROOT = Path(__file__).parents[1]

RECIPES = [p for p in sorted((ROOT / "scripts" / "recipes").glob("*.yaml")) if "ablation" not in read_values(p)]
CARDS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "model_cards").glob("[!R]*.md"))}
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "scripts/*.md", "model_cards/README.md", "vanilla_transformer/**/README.md")
    for path in sorted(ROOT.glob(pattern))
}

# The commands of the documents, with a model of one layer and a few updates where they would train a large one. What would
# install, log in, or need other machines is read by the tool that it is for, and goes no further.
SHELL = """
set -euo pipefail
make() { command make --dry-run --directory "$ROOT" "$@" > /dev/null; }
pip() { "$PYTHON" -c "$TOOL" pip "$@"; }
hf() { "$PYTHON" -m huggingface_hub.cli.hf "$@" --help > /dev/null; }
accelerate() { "$PYTHON" -c "$TOOL" accelerate "$@"; }
torchrun() { "$PYTHON" -c "$TOOL" torchrun "$@"; }
vanilla-transformer() {
  if [ "$1" = train ] || [ "$1" = ablate ]; then
    set -- "$@" tokenizer.vocab_size=280 training.max_steps=2 training.eval_strategy=no training.save_strategy=no \
      training.load_best_model_at_end=false model.num_hidden_layers=1 generation.num_beams=1 averaging.last=0
  fi
  if [ "$1" = serve ]; then exec "$PYTHON" -m vanilla_transformer.cli "$@"; fi  # in the background, to be stopped by its job
  "$PYTHON" -m vanilla_transformer.cli "$@"
}
"""

TOOL = """
import re, runpy, sys, tomllib
from pathlib import Path
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser
name, *arguments = sys.argv[1:]
if name == "pip":
    from pip._internal.commands import create_command
    options, packages = create_command(arguments[0]).parse_args(arguments[1:])
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in options.editables:
        assert re.fullmatch(r"\\.\\[(.*)\\]", package)[1] in extras, package
    assert all(Path(file).is_file() for file in options.constraints)
    sys.exit()
parser = get_args_parser() if name == "torchrun" else launch_command_parser()
parsed = parser.parse_args(arguments[name == "accelerate":])
assert Path(getattr(parsed, "config_file", None) or ".").exists()
if not Path("runs/launched").exists():  # one process stands for all of a block's
    quick = ["output_dir=runs/launched", "tokenizer.vocab_size=280", "training.max_steps=2", "averaging.last=0",
             "generation.num_beams=2", "training.eval_strategy=no", "training.save_strategy=no",
             "training.load_best_model_at_end=false", "model.num_hidden_layers=1"]
    sys.argv = [parsed.training_script, *parsed.training_script_args, *quick]
    run = runpy.run_module if parsed.module else runpy.run_path
    run(parsed.training_script, run_name="__main__")
"""


def blocks(language, text):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def shown(language):
    """All blocks of a language in all documents, for `pytest.mark.parametrize`."""
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name, text in DOCUMENTS.items()
        for number, block in enumerate(blocks(language, text))
    ]


def save_checkpoints(folder):
    """Of fairseq, with its dictionaries, and of OpenNMT-py."""
    args, opt = reference_fairseq.settings(), reference_opennmt.settings()
    model = reference_fairseq.TransformerModel(args, 14, 16)
    torch.save({"args": args, "model": model.state_dict()}, folder / "checkpoint_best.pt")
    for language, size in (("en", 10), ("de", 12)):
        (folder / f"dict.{language}.txt").write_text(
            "".join(f"w{n} {90 - n}\n" for n in range(size)), encoding="utf-8"
        )
    words = [f"w{n}" for n in range(10)]
    checkpoint = reference_opennmt.NMTModel(opt, 14, 14).checkpoint(opt, (words, words))
    torch.save(checkpoint, folder / "model_step_100000.pt")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as the reader of a document has it: text files, the project's scripts, models in runs/demo and runs/mine."""
    monkeypatch.chdir(tmp_path)
    for name in ("scripts", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "RECIPE.yaml").write_text(blocks("yaml", DOCUMENTS["scripts/README.md"])[0], encoding="utf-8")
    for name, count, seed in (("train", 120, 0), ("val", 20, 1), ("news", 12, 2)):
        for language, texts in zip(("en", "de"), zip(*reversed_words(count, seed), strict=True), strict=True):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
    for name in ("demo", "mine"):
        save_translator(tmp_path / "runs" / name)
    return tmp_path


@pytest.fixture
def hub(server, folder):
    """With a Hub that has a model, and one of another family."""
    save_with_tokenizer("marian", folder / "marian")
    for name, model in (("me/en-de", "runs/mine"), ("Helsinki-NLP/opus-mt-en-de", "marian")):
        server.put(name, {path.name: path.read_bytes() for path in (folder / model).iterdir()}, private=True)


@pytest.mark.parametrize("block", shown("python"))
def test_python_blocks_run(block, folder, hub, python):
    """Reported in huggingface/transformers#43256 and #43827."""
    if "from peft" in block:
        pytest.importorskip("peft")
    python.run(block, package="trust_remote_code" not in block, folder=folder)


@pytest.mark.parametrize("block", shown("bash"))
def test_commands_run(block, folder, hub, python):
    trains = "vanilla-transformer train " in block
    if trains:
        shutil.rmtree(folder / "runs" / "mine")
    if "--kind" in block:
        save_checkpoints(folder)
    if "curl" in block:  # the port that it names may be taken here
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            block = block.replace("5000", str(free.getsockname()[1]))
    names = {"ROOT": str(ROOT), "PYTHON": python.executable, "TOOL": TOOL}
    environment = python.environment | names
    done = subprocess.run(["bash", "-c", SHELL + block], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "curl" in block:
        health, _, rest = done.stdout.partition('{"translatedText')
        translation, _, metrics = rest.partition("# HELP")
        assert json.loads(health)["status"] == "ok" and '"alternatives":[[' in translation
        assert 'path="/translate",status="200"} 1.0' in metrics
    if trains or "RECIPE" in block:
        assert (folder / "runs" / ("mine" if trains else "launched") / "model.safetensors").is_file()
    if "vanilla-transformer ablate" in block:
        text = (folder / "runs" / "choices" / "ablation.md").read_text(encoding="utf-8")
        recipe = yaml.safe_load((ROOT / "scripts" / "recipes" / "multi30k_ablation.yaml").read_text())
        assert all(f"| {name} |" in text for name in ("baseline", *recipe["ablation"]["cells"]))
        assert "failed" not in text


def test_the_recipes_shown_are_valid(folder):
    tiny_model("encoder-only").save_pretrained("runs/my-masked-lm")
    first, second, section = map(yaml.safe_load, blocks("yaml", DOCUMENTS["scripts/README.md"]))
    translator, classifier = Recipe.from_dict(first), Recipe.from_dict(second)
    assert translator.generation["max_length_over_source"] == 50
    assert classifier.config().num_hidden_layers == 2 and classifier.config().dropout == 0.3
    table = Ablation.from_dict({**first, **section})
    assert len(table.cells) == 1 + 2 + 4 and table.seeds == [1, 2, 3]


def test_every_block_of_the_documents_is_run_or_read():
    """In a language that one of these tests knows; YAML stands in one document, and a tree is held against the folders elsewhere."""
    for name, text in DOCUMENTS.items():
        languages = set(re.findall(r"^```(.+)$", text, flags=re.M))
        assert languages <= {"bash", "python", "text"} | ({"yaml"} if name == "scripts/README.md" else set()), name


def test_links_lead_to_files_and_headings_that_are_there():
    for name, text in DOCUMENTS.items() | {f"model_cards/{stem}.md": text for stem, text in CARDS.items()}.items():
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
            path, _, heading = link.partition("#")
            target = (ROOT / name).parent / path if path else ROOT / name
            assert target.exists(), (name, link)
            if heading:
                titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.M)
                anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
                assert heading in anchors, (name, link)


def test_every_document_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(([^)#]+)", DOCUMENTS["README.md"]))
    assert {*DOCUMENTS} - {"README.md"} <= linked


def test_files_named_in_documents_exist():
    for name, text in DOCUMENTS.items() - {("CHANGELOG.md", DOCUMENTS["CHANGELOG.md"])}:  # which names those that went
        for path in re.findall(r"\b(?:scripts|tests|vanilla_transformer)/[\w/.-]+\.(?:py|yaml)\b", text):
            assert (ROOT / path).is_file(), (name, path)


# of accelerate, fairseq, lm-eval and pip
OPTIONS_OF_OTHERS = {
    "--arch",
    "--config_file",
    "--cpu",
    "--extra-index-url",
    "--model_args",
    "--multi_gpu",
    "--num_processes",
}


def test_options_named_in_documents_exist():
    commands = typer.main.get_command(cli.app).commands.values()
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    for name, text in DOCUMENTS.items():
        inline = " ".join(re.findall(r"`[^`\n]+`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))
        assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", inline)) <= options | OPTIONS_OF_OTHERS, name


def test_the_readme_is_short():
    assert len(DOCUMENTS["README.md"].splitlines()) <= 180


def test_no_document_names_a_removed_pipeline():
    """Reported in huggingface/transformers#43256 and #43827."""
    template = (ROOT / "vanilla_transformer" / "runs" / "model_card_template.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "vanilla_transformer").rglob("*.py"))
    for text in (*DOCUMENTS.values(), *CARDS.values(), template, code):
        named = set(re.findall(r"pipeline\([\"']([a-z0-9-]+)", text))
        assert named <= {task.split("_")[0] for task in PIPELINE_REGISTRY.get_supported_tasks()}
        assert "text2text-generation" not in named


HEADS = {
    "text-generation": ("decoder-only", vt.VanillaTransformerForCausalLM),
    "fill-mask": ("encoder-only", vt.VanillaTransformerForMaskedLM),
    "text-classification": ("encoder-only", vt.VanillaTransformerForSequenceClassification),
    "token-classification": ("encoder-only", vt.VanillaTransformerForTokenClassification),
}


@pytest.mark.parametrize("name", CARDS)
def test_python_blocks_of_cards_run(name, tmp_path, monkeypatch):
    """In the folder of a model of the card's kind, which is also the folder that the card names.

    Reported in huggingface/transformers#43256 and #43827.
    """
    monkeypatch.chdir(tmp_path)
    task = yaml.safe_load(CARDS[name].split("---")[1])["pipeline_tag"]
    code = blocks("python", CARDS[name])
    assert code
    for block in code:
        for folder in {".", *re.findall(r"\"(runs/[^\"]*)\"", block)}:
            if task == "translation":
                save_translator(tmp_path / folder)
                continue
            texts = [source for source, _ in reversed_words(100, 0)]
            tokenizer = train_tokenizer(texts, 280, mask_token=task == "fill-mask", add_eos=task != "text-generation")
            if task == "token-classification":
                tokenizer = train_wordpiece_tokenizer(texts, 50)
            architecture, head = HEADS[task]
            tiny_model(architecture, model_class=head, vocab_size=len(tokenizer)).save_pretrained(tmp_path / folder)
            tokenizer.save_pretrained(tmp_path / folder)
        exec(compile(block, name, "exec"), {"__name__": "__main__"})


def write_data(values):
    """A few lines in the place of each file that a recipe names."""
    parts = [values["data"]["train"], values["data"]["validation"], *values["data"]["test"].values()]
    # training last, as others may be portions of its file
    for number, part in reversed(list(enumerate(parts))):
        pairs = list(reversed_words(6 if number else 60, number))
        for field, file in part.items():
            if field not in ("path", "source", "target"):
                continue
            for path in map(Path, file if isinstance(file, list) else [file]):
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [target if field == "target" else source for source, target in pairs]
                if path.suffix == ".jsonl" and values["task"] == "sequence-classification":
                    lines = [json.dumps({"text": line, "label": len(line) % 2}) for line in lines]
                elif path.suffix == ".jsonl":
                    tagged = [{"tokens": line.split(), "tags": ["B-NP", *["O"] * line.count(" ")]} for line in lines]
                    lines = [json.dumps(record | {"text": " ".join(record["tokens"])}) for record in tagged]
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def train(path, *overrides):
    """Two updates of a recipe; the values of the whole recipe."""
    values = override_fields(read_values(path), overrides)
    if values.get("start_from"):
        (earlier,) = [p for p in RECIPES if read_values(p).get("output_dir") == values["start_from"]]
        train(earlier)
    whole = Recipe.from_dict(values)
    write_data(whole.to_dict())
    quick = ["max_steps=2", "eval_strategy=no", "save_strategy=no", "load_best_model_at_end=false", "logging_steps=1"]
    command = ["train", str(path), *overrides, *(f"training.{field}" for field in quick), "averaging.last=0"]
    if whole.start_from is None and whole.tokenizer.kind != "characters":
        command.append(f"tokenizer.vocab_size={280 if whole.tokenizer.kind == 'bpe' else 50}")
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 0
    return whole.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_the_command_of_a_card_trains_by_the_recipe_in_the_card(name, tmp_path, monkeypatch):
    """On a few lines instead of the corpora. Reported in huggingface/transformers#43256 and #43827."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (block,) = blocks("bash", CARDS[name])
    command, action, path, *overrides = block.split()
    assert (command, action) == ("vanilla-transformer", "train")
    trained = train(ROOT / path, *overrides)
    (recipe,) = blocks("yaml", CARDS[name])
    assert Recipe.from_dict(yaml.safe_load(recipe)).to_dict() == trained
    run = Path(trained["output_dir"])
    assert run.name == name and json.loads((run / "metrics.json").read_text())["training"]["updates"] == 2
