"""Bad input of every kind ends in one sentence and status 2, in no time, with nothing left behind.

A row is a command as a shell takes it, or a recipe, or a damaged file, and what the sentence says of it: parts that follow
one another, in any case. Commands run in this process, in one folder (`workspace`) that has

- `model/` and `lm/` (a translator and a language model), `encoder/` (an encoder, which writes nothing), `run/` (with two
  checkpoints), `notokenizer/`, `folder/` (empty);
- `source.txt` and `target.txt` (nine lines), `short.txt` (eight), `empty.txt`, `latin1.txt`, `mac.txt`, `cut.gz`;
- `recipe.yaml` (translation), `lm.yaml`, `ablation.yaml`.

A row more is a line more.
"""

import gzip
import json
import shlex
import shutil
import sys
import time

import pytest
import yaml

from runs import recipe_values, reversed_words, save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer.cli import main

LONGEST = 5.0
"""Seconds of processor time that a row may take; most take a hundredth."""

COMMANDS = [
    # the command itself
    ("trian recipe.yaml", "No such command 'trian'"),
    # score and evaluate
    ("score --hypotheses short.txt --references target.txt", "target.txt has 9 lines but short.txt has 8"),
    ("score --hypotheses source.txt short.txt --references target.txt", "target.txt has 9 lines but short.txt has 8"),
    ("score --hypotheses gone.txt --references target.txt", "There is no file gone.txt"),
    ("score --hypotheses folder --references target.txt", "folder is a folder"),
    ("score --hypotheses empty.txt --references target.txt", "empty.txt is empty"),
    ("score --hypotheses latin1.txt --references target.txt", "latin1.txt, line 2: not valid UTF-8"),
    ("score --hypotheses mac.txt --references target.txt", "mac.txt ends its lines in carriage returns"),
    ("score --hypotheses cut.gz --references target.txt", "cut.gz cannot be unpacked"),
    ("score --hypotheses source.txt --references target.txt --tokenize foo", "no tokenizer 'foo'"),
    ("score --hypotheses source.txt --references target.txt --metrics blue", "no metric 'blue'; did you mean 'bleu'?"),
    ("score --hypotheses source.txt --references target.txt --resamples 1", "1 bootstrap resamples give no interval"),
    ("score --hypotheses source.txt --references target.txt --resamples -5", "--resamples"),
    ("score --hypotheses source.txt --references target.txt --comet x", "pip install unbabel-comet"),
    ("score --hypotheses source.txt --references target.txt -o gone/scores.json", "gone"),
    ("score --hypotheses source.txt", "Missing option '--references'"),
    ("evaluate -m gone --source source.txt --target target.txt --tokenize foo", "no tokenizer 'foo'"),
    ("evaluate -m gone --source source.txt --target short.txt", "source.txt has 9 lines but short.txt has 8"),
    ("evaluate --source source.txt --target target.txt", "give either a --model, or --hypotheses"),
    ("evaluate --source source.txt --target target.txt --hypotheses short.txt", "has 9 lines but short.txt has 8"),
    ("evaluate --source source.txt --target target.txt --hypotheses target.txt --device cpu", "only with --model"),
    # serve
    ("serve gone --port 0", "gone"),
    ("serve notokenizer --port 0 --device cpu", "holds no tokenizer"),
    ("serve model --port 0 --device cuda:7", "cuda:7"),
    ("serve model --port 0 --backend tensorflow", "no backend 'tensorflow'; there is torch"),
    ("serve model --port 70000", "--port"),
    ("serve model --port 0 --host 203.0.113.7", "cannot listen to port 0 of 203.0.113.7"),
    ("serve model --port 0 --timeout 0", "--timeout"),
    ("serve model --port 0 --timeout nan", "--timeout"),
    ("serve model --port 0 --timeout inf", "--timeout"),
]

RECIPES = [
    # overrides of recipe.yaml, by section
    ("task=seq2sec", "task: 'seq2sec' is unknown; did you mean 'seq2seq'?"),
    ("output_dir=null", "output_dir=None is of the wrong type: it must be text"),
    ("data.train=[1", "data.train='[1' is not valid YAML"),
    ("data.train.portion=[0.5,0.2]", "data.train: portion=[0.5, 0.2] must be two shares that rise"),
    ("data.train.source=gone.en", "There is no file gone.en"),
    ("data.train.source=mac.txt", "mac.txt ends its lines in carriage returns"),
    ("data.train.source=cut.gz", "cut.gz cannot be unpacked"),
    ("data.train='{path: latin1.txt}'", "what kind of file latin1.txt is"),
    ("tokenizer.min_frequency=-1", "tokenizer.min_frequency=-1 must not be negative"),
    ("tokenizer.vocab_size=1000000000", "tokenizer.vocab_size=1000000000 must be at most 2,000,000"),
    ("model.hidden_size=1000000000", "parameters need", "GB for weights", "make the model smaller"),
    ("model.attn_implementation=eagr", "did you mean 'eager'?"),
    ("model.qqqqqq=1", "unknown field model.qqqqqq; no field has a name like it"),
    ("training.learning_rate=5,0e-4", "must be a number, such as 0.0005 or 5e-4"),
    ("training.max_steps=1000000000000000000000000000000", "training.max_steps=1e+30 must be at most"),
    ("training.num_train_epochs=.inf", "training.num_train_epochs=inf must be at most 1,000,000"),
    ("training.dataloader_num_workers=99999", "must be at most 256"),
    ("training.neftune_noise_alpha=-5", "must not be negative"),
    ("training.adam_beta2=1.5", "training.adam_beta2=1.5 must be below 1"),
    ("training.save_steps=0", "training.save_steps=0 must be above 0"),
    ("training.eval_steps=0", "training.eval_steps=0 must be above 0"),
    ("training.logging_steps=-1", "training.logging_steps=-1 must be above 0"),
    ("generation.max_length=-4", "generation.max_length=-4 must be at least 1"),
    ("lm: data.train.portion=half", "data.train: portion='half' must be two numbers"),
    ("lm: data.train.path=mac.txt", "mac.txt ends its lines in carriage returns"),
    ("lm: training.fp16_opt=1", "unknown field training.fp16_opt"),
]

ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
"""500 bytes that stand for 400 million values."""

RECIPE_FILES = [
    ("3", "must be a mapping"),
    ("- a\n- b\n", "given.yaml holds no recipe: it must be a mapping"),
    ("[" * 5000, "given.yaml is nested more than 50 levels deep"),
    ("{a: " * 5000, "given.yaml is nested more than 50 levels deep"),
    (ALIAS_BOMB, "given.yaml holds more than 100,000 values, its aliases followed"),
    ("a: &a [*a]", "the alias *a at line 1 within what it stands for"),
    ("seed: 1\ntask: seq2seq\nseed: 2\n", "the key 'seed' twice, at line 1 and line 3"),
    ("a: !!python/object/apply:os.system [id]", "has the tag", "tags are not read"),
    ('output_dir: "\\ud83d"', "half a character (a lone surrogate, as of a cut emoji) at line 1"),
    ('output_dir: "a\\0b"', "holds a NUL character at line 1"),
    (b"card: {title: gr\xfc\xdfe}", "given.yaml is not valid UTF-8"),
    ("a: 1\n---\nb: 2\n", "holds several documents"),
    ("a: [1\nb: 2", "given.yaml is not valid YAML at line 2"),
    ("", "given.yaml holds no recipe"),
    ("#" * (2 << 20), "given.yaml is larger than 1 MiB"),
]

DAMAGED = [
    # a command on a copy of model/, the file in it that is replaced, and by what
    ("explain damaged", "config.json", "3", "config.json"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    save_translator(folder / "model")
    tokenizer = word_tokenizer()
    tiny_model("decoder-only", vocab_size=280).save_pretrained(folder / "lm")
    tiny_model("encoder-only", vocab_size=280).save_pretrained(folder / "encoder")
    tiny_model("decoder-only", vocab_size=280).save_pretrained(folder / "notokenizer")
    for name in ("lm", "encoder"):
        tokenizer.save_pretrained(folder / name)
    for number in (1, 2):
        save_translator(folder / "run" / f"checkpoint-{number}", tokenizer)
        (folder / "run" / f"checkpoint-{number}" / "trainer_state.json").write_text('{"log_history": []}')
    (folder / "folder").mkdir()
    pairs = reversed_words(9, 6)
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        (folder / f"{side}.txt").write_text("".join(f"{text}\n" for text in texts))
    (folder / "short.txt").write_text("one\n" * 8)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin1.txt").write_bytes(b"good\ncaf\xe9\n")
    (folder / "mac.txt").write_bytes(b"one\rtwo\rthree\r")
    (folder / "cut.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 1000)[:-20])
    values = recipe_values(folder / "data", "../out")
    values["output_dir"] = "out"
    write = (folder / "recipe.yaml").write_text
    write(yaml.safe_dump(values))
    (folder / "ablation.yaml").write_text(
        yaml.safe_dump({**values, "ablation": {"cells": {"post": {"model.dropout": 0.2}}}})
    )
    texts = {"path": "source.txt"}
    lm = {"task": "causal-lm", "output_dir": "out", "data": {"train": texts, "validation": texts}}
    (folder / "lm.yaml").write_text(
        yaml.safe_dump({**lm, "model": {"preset": "transformer-tiny", "architecture": "decoder-only"}})
    )
    rows = {}
    yield folder, rows
    if rows:
        slowest = max(rows, key=rows.get)
        print(f"\n{len(rows)} rows of bad input; slowest {rows[slowest]:.2f} s: {slowest}", file=sys.__stderr__)


def snapshot(folder):
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def refused(workspace, capsys, monkeypatch):
    """Runs a command that must be refused; gives its sentence."""
    folder, rows = workspace
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(command, name=None):
        before, start = snapshot(folder), time.process_time()
        with pytest.raises(SystemExit) as end:
            main(shlex.split(command))
        seconds = time.process_time() - start
        printed = capsys.readouterr()
        rows[name or command] = seconds
        lines = printed.err.splitlines()
        assert end.value.code == 2, printed.err or printed.out
        assert len(lines) == 1 and lines[0].startswith("error: ") and printed.out == "", printed.err
        assert "Traceback" not in lines[0] and len(lines[0]) < 600, lines[0]
        assert snapshot(folder) == before
        assert seconds < LONGEST
        return lines[0]

    return run


def assert_says(sentence, parts):
    position = 0
    for part in parts:
        found = sentence.lower().find(part.lower(), position)
        assert found >= 0, f"{part!r} is not in {sentence!r}"
        position = found + len(part)


@pytest.mark.parametrize(
    ("command", "parts"), [(row[0], row[1:]) for row in COMMANDS], ids=lambda value: str(value)[:80]
)
def test_commands(refused, command, parts):
    assert_says(refused(command), parts)


@pytest.mark.parametrize(
    ("overrides", "parts"), [(row[0], row[1:]) for row in RECIPES], ids=lambda value: str(value)[:80]
)
def test_fields_of_recipes(refused, overrides, parts):
    recipe = "lm.yaml" if overrides.startswith("lm: ") else "recipe.yaml"
    assert_says(refused(f"train {recipe} {overrides.removeprefix('lm: ')}"), parts)


@pytest.mark.parametrize(
    ("text", "parts"), [(row[0], row[1:]) for row in RECIPE_FILES], ids=lambda value: str(value)[:40]
)
def test_files_of_recipes(refused, workspace, text, parts):
    (workspace[0] / "given.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_says(refused("train given.yaml", f"recipe {text[:40]!r}"), parts)


@pytest.mark.parametrize(
    ("command", "file", "content", "parts"),
    [(*row[:3], row[3:]) for row in DAMAGED],
    ids=lambda value: str(value)[:40],
)
def test_damaged_folders(refused, workspace, command, file, content, parts):
    """`content` is text, a list of fields to change in a JSON file, or None for no file."""
    damaged = workspace[0] / "damaged"
    shutil.copytree(workspace[0] / "model", damaged)
    try:
        path = damaged / file
        if content is None:
            path.unlink()
        elif isinstance(content, dict):
            values = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**values, **content}))
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert_says(refused(command, f"{command} with {file}={str(content)[:30]}"), parts)
    finally:
        shutil.rmtree(damaged)
