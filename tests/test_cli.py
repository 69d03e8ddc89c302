"""The command line: what comes out, in which order, and one clear sentence for every mistake."""

import io
import json
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig

from runs import ROOT, recipe_values, reversed_words, save_translator, word_tokenizer, write_pairs
from tiny import LANGUAGE_MODELS, tiny_config, tiny_model
from vanilla_transformer import VanillaTransformerConfig, cli
from vanilla_transformer.decoding import FastDecoding, Shortlist
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.recipes.known_fields import known_fields
from vanilla_transformer.scoring import METRICS, score_texts
from vanilla_transformer.tasks.seq2seq import Seq2Seq
from vanilla_transformer.trainer.trainer import Seq2SeqTokenTrainer
from vanilla_transformer.utils.errors import report_bug
from warm_python import warm_python

SOURCES = [source for source, _ in reversed_words(9, 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return [
        best[0].text.replace("\n", " ").replace("\r", " ")
        for best in TextGenerator.from_pretrained(folder).generate(SOURCES)
    ]


@pytest.fixture
def command(capsys):
    """Runs a command in this process; gives its status, output and messages."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def refused(command):
    """The one sentence in which a command is refused."""

    def run(*arguments):
        status, out, err = command(*arguments)
        lines = [line for line in err.splitlines() if line]
        assert (status, out) == (2, ""), err
        assert "Traceback" not in err and lines[-1].startswith("error: "), err
        assert len([line for line in lines if line.startswith("error: ")]) == 1
        return lines[-1]

    return run


@pytest.fixture
def source_file(tmp_path):
    path = tmp_path / "source.txt"
    path.write_text("".join(f"{source}\n" for source in SOURCES), encoding="utf-8")
    return path


# generate ------------------------------------------------------------------------------------------------------------


def test_generate_writes_a_line_for_each_line_in_order(command, folder, tmp_path, expected):
    lines = ["", *SOURCES[:4], " ", *SOURCES[4:], ""]
    path = tmp_path / "source.txt"
    # a byte order mark, Windows line ends, and no line end after the last
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*lines, SOURCES[0]]).encode())
    status, out, err = command("generate", "--model", folder, "--input", path, "--batch-tokens", 30)
    assert (status, err) == (0, "")
    assert out.split("\n") == ["", *expected[:4], "", *expected[4:], "", expected[0], ""]


def test_generate_writes_n_best_and_scores(command, folder, source_file, expected):
    status, out, _ = command("generate", "-m", folder, "-i", source_file, "--n-best", 2, "--num-beams", 3)
    rows = [line.split(" ||| ") for line in out.rstrip("\n").split("\n")]
    assert status == 0 and [int(row[0]) for row in rows] == [n for n in range(9) for _ in range(2)]
    scores = [float(row[-1]) for row in rows]
    assert all(first >= second for first, second in zip(scores[::2], scores[1::2], strict=True))
    status, out, _ = command("generate", "-m", folder, "-i", source_file, "--scores")
    texts, scores = zip(*(line.rsplit("\t", 1) for line in out.rstrip("\n").split("\n")), strict=True)
    assert status == 0 and list(texts) == expected and all(float(score) < 0 for score in scores)


def test_generate_prints_no_warning_whatever_the_beams(command, folder, source_file):
    for beams in (1, 2):
        options = ("--num-beams", beams, "--length-penalty", 0.8, "--max-new-tokens", 2)
        assert command("generate", "-m", folder, "-i", source_file, *options)[2] == ""


def test_generate_writes_its_file_whole_or_not_at_all(command, refused, folder, source_file, tmp_path, expected):
    output = tmp_path / "out.txt"
    assert command("generate", "-m", folder, "-i", source_file, "-o", output)[:2] == (0, "")
    assert output.read_text() == "".join(f"{text}\n" for text in expected)
    with source_file.open("ab") as stream:
        stream.write(b"caf\xe9\n")
    sentence = refused("generate", "-m", folder, "-i", source_file, "-o", tmp_path / "new.txt", "--read-ahead", 2)
    assert "source.txt, line 10: not valid UTF-8" in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "source.txt"]


def test_generate_from_standard_input(command, folder, monkeypatch, expected):
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(SOURCES).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert command("generate", "-m", folder)[1] == "".join(f"{text}\n" for text in expected)


def test_generate_answers_a_line_before_the_next_and_is_quiet_when_nobody_reads(folder, expected):
    process = subprocess.Popen(
        [warm_python(), "-m", "vanilla_transformer.cli", "generate", "-m", str(folder), "--read-ahead", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for source, text in zip(SOURCES[:2], expected[:2], strict=True):
        process.stdin.write(f"{source}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == f"{text}\n"
    process.stdout.close()
    process.stdin.write(f"{SOURCES[2]}\n".encode())
    process.stdin.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 1


def test_generate_of_an_empty_file_is_empty(command, folder, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    assert command("generate", "-m", folder, "-i", tmp_path / "empty.txt") == (0, "", "")


def test_a_language_model_goes_on_with_each_line(command, tmp_path):
    tiny_model("decoder-only", vocab_size=280).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "prompts").write_text("red dog\nred dog tree river stone\nred dog\n")
    options = ("-m", tmp_path, "-i", tmp_path / "prompts", "--max-new-tokens", 8)
    status, together, _ = command("generate", *options)
    assert status == 0 and len(together.splitlines()) == 3
    translator = TextGenerator.from_pretrained(tmp_path)
    ids = translator.tokenizer("red dog", add_special_tokens=False, return_tensors="pt")["input_ids"]
    alone = translator.model.generate(ids, max_new_tokens=8)[0, ids.shape[1] :]
    expected = translator.tokenizer.decode(alone, skip_special_tokens=True).replace("\n", " ").replace("\r", " ")
    assert together.split("\n")[0] == together.split("\n")[2] == expected
    drawn = [command("generate", *options, "--sample", "--seed", seed)[1] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_generate_and_evaluate_in_a_dtype(command, refused, folder, source_file, tmp_path, monkeypatch, expected):
    dtypes, decode = [], FastDecoding.decode.__func__

    def recorded(cls, model, *arguments, **options):
        dtypes.append(model.decoding_dtype)
        return decode(cls, model, *arguments, **options)

    monkeypatch.setattr(FastDecoding, "decode", classmethod(recorded))
    generate = ("generate", "-m", folder, "-i", source_file)
    assert command(*generate, "--dtype", "float32") == (0, "".join(f"{text}\n" for text in expected), "")
    status, out, err = command(*generate, "--dtype", "int8")
    assert (status, len(out.splitlines()), err) == (0, len(expected), "")
    evaluate = ("evaluate", "-m", folder, "--source", source_file, "--target", source_file)
    assert command(*evaluate, "--dtype", "int8")[0] == 0
    assert dtypes[0] == "float32" and set(dtypes[1:]) == {"int8"}
    assert "dtype='int4' is not one of" in refused(*generate, "--dtype", "int4")
    # what the ordinary path decodes is not rounded, and other models have no fast one
    monkeypatch.setattr("vanilla_transformer.decoding.backend.examine_model", lambda model: ("it is hooked", []))
    assert "warning: --dtype int8 had no effect, since it is hooked." in command(*generate, "--dtype", "int8")[2]
    bart = BartConfig(vocab_size=280, d_model=16, encoder_layers=1, decoder_layers=1)
    BartForConditionalGeneration(bart).save_pretrained(tmp_path / "bart")
    word_tokenizer().save_pretrained(tmp_path / "bart")
    sentence = refused("generate", "-m", tmp_path / "bart", "-i", source_file, "--dtype", "int8")
    assert "--dtype has no effect for a BartForConditionalGeneration; leave it out." in sentence


def test_generate_with_a_shortlist(command, refused, folder, source_file, tmp_path, expected):
    sentence = refused("generate", "-m", folder, "-i", source_file, "--shortlist")
    assert "holds no shortlist.safetensors, as runs on pairs of texts save it; leave --shortlist out" in sentence
    shutil.copytree(folder, tmp_path / "with")
    ids = AutoTokenizer.from_pretrained(folder)(SOURCES)["input_ids"]
    sizes = {"source_vocab_size": 280, "target_vocab_size": 280, "special_tokens": [], "copies": True}
    Shortlist.count(zip(ids, ids, strict=True), **sizes).save(tmp_path / "with")
    status, out, err = command("generate", "-m", tmp_path / "with", "-i", source_file, "--shortlist")
    assert (status, out.splitlines(), err) == (0, expected, "")


def test_generate_refuses_what_it_cannot_use(command, refused, folder, source_file, tmp_path):
    def generate(model, *options):
        return refused("generate", "-m", model, "-i", source_file, *options)

    assert "there is no input file gone.txt" in refused("generate", "-m", folder, "-i", "gone.txt")
    assert "./gone is not there" in generate("./gone")
    assert "at least as many beams" in generate(folder, "--n-best", 3, "--num-beams", 2)

    model = LANGUAGE_MODELS["encoder-only"](tiny_config("encoder-only", vocab_size=280))
    model.save_pretrained(tmp_path / "encoder")
    assert "holds no tokenizer" in generate(tmp_path / "encoder")
    word_tokenizer().save_pretrained(tmp_path / "encoder")
    assert "is an encoder, which writes no text" in generate(tmp_path / "encoder")
    assert "only with --sample" in generate(folder, "--seed", 1)

    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["<one>", "<two>"])
    save_translator(tmp_path / "small", vocab_size=280)
    tokenizer.save_pretrained(tmp_path / "small")
    sentence = generate(tmp_path / "small")
    assert "282" in sentence and "280" in sentence

    tiny_model(vocab_size=280, position_encoding="learned", max_position_embeddings=8).save_pretrained(
        tmp_path / "short"
    )
    word_tokenizer().save_pretrained(tmp_path / "short")
    with source_file.open("w") as stream:
        stream.write("red\n" + "red " * 20 + "\n")
    status, out, warning = command("generate", "-m", tmp_path / "short", "-i", source_file)
    assert (
        status == 0 and out.count("\n") == 2 and "warning: line 2 has a sentence of more than the 8 tokens" in warning
    )

    weights = tmp_path / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])
    assert "are damaged" in generate(tmp_path / "short")


# the other commands --------------------------------------------------------------------------------------------------


def test_evaluate_prints_scores_with_signatures(command, refused, folder, tmp_path, expected):
    pairs = reversed_words(9, 6)
    files = write_pairs(tmp_path, "test", pairs)
    options = ("--model", folder, "--source", files["source"], "--target", files["target"])
    status, out, err = command("evaluate", *options, "--output", tmp_path / "out.txt")
    assert (status, err) == (0, "9 lines\n")
    scores = json.loads(out)
    targets = [target for _, target in pairs]
    assert scores == score_texts(expected, targets, metrics=METRICS, resamples=1000).to_dict()
    assert "tok:13a" in scores["bleu_signature"] and (tmp_path / "out.txt").read_text().split("\n")[:-1] == expected
    assert "case:lc" in json.loads(command("evaluate", *options, "--lowercase")[1])["bleu_signature"]

    with open(files["target"], "a") as stream:
        stream.write("one more\n")
    assert "test.source has 9 lines but" in refused("evaluate", *options)
    (tmp_path / "test.source").write_bytes(b"")
    assert "is empty" in refused("evaluate", *options)


def test_train_tokenizer_saves_what_auto_tokenizer_loads(command, refused, source_file, tmp_path):
    status, _, err = command("train-tokenizer", source_file, "-o", tmp_path / "tokenizer", "--vocab-size", 265)
    assert status == 0 and "265 entries" in err
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert len(tokenizer) == 265
    assert tokenizer.decode(tokenizer(SOURCES[0])["input_ids"], skip_special_tokens=True) == SOURCES[0]
    assert "9999" in refused("train-tokenizer", source_file, "-o", tmp_path / "t2", "--vocab-size", 9999)
    assert "gone.txt" in refused("train-tokenizer", "gone.txt", "-o", tmp_path / "t2")
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    assert "bad.txt, line 2: not valid UTF-8" in refused(
        "train-tokenizer", tmp_path / "bad.txt", "-o", tmp_path / "t2"
    )
    assert not (tmp_path / "t2").exists()


def test_average_of_a_run_or_of_checkpoints(command, refused, tmp_path):
    for number in (1, 2, 3):
        folder = tmp_path / "run" / f"checkpoint-{number}"
        save_translator(folder, seed=number)
        (folder / "trainer_state.json").write_text("{}")
    status, _, err = command("average", tmp_path / "run", "--last", 2, "-o", tmp_path / "averaged")
    assert status == 0 and "checkpoint-2, checkpoint-3" in err
    weights = [
        TextGenerator.from_pretrained(tmp_path / place).model.lm_head.weight
        for place in ("averaged", "run/checkpoint-2", "run/checkpoint-3")
    ]
    assert torch.allclose(weights[0], (weights[1] + weights[2]) / 2)
    assert "not empty" in refused("average", tmp_path / "run", "-o", tmp_path / "averaged")
    assert "holds no checkpoint-N folders" in refused("average", tmp_path / "averaged", "-o", tmp_path / "other")
    truncated = tmp_path / "run" / "checkpoint-1" / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:3000])
    assert "checkpoint-1" in refused("average", tmp_path / "run", "-o", tmp_path / "other")


def test_inspect_draws_a_picture(command, refused, folder, tmp_path):
    status, _, err = command("inspect", "-m", folder, "red dog", "dog red", "-o", tmp_path / "attention.png")
    assert status == 0 and "attention.png" in err
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "--kind both is unknown" in refused("inspect", "-m", folder, "red", "--kind", "both")


def test_train_refuses_a_recipe_that_is_wrong(refused, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values(tmp_path)))  # JSON is YAML
    assert "there is no recipe" in refused("train", tmp_path / "gone.yaml")
    assert "did you mean 'dropout'" in refused("train", path, "model.dropuot=0.1")
    assert "Did you mean" in refused("train", path, f"data.train.source={tmp_path / 'trian.source'}")
    assert "give one of them" in refused("train", path, "--resume", "--overwrite")


def test_an_interrupt_ends_in_one_sentence_and_status_130(command, tmp_path, monkeypatch):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values(tmp_path)))

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Seq2SeqTokenTrainer, "training_step", interrupted)
    status, _, err = command("train", path)
    assert status == 130 and "Traceback" not in err
    resume = f"resume with: vanilla-transformer train {tmp_path / 'run' / 'recipe.yaml'} --resume"
    last = err.rstrip().split("\n")[-1]
    assert last == f"interrupted at update 0 by SIGINT; no checkpoint was saved yet; {resume}"
    # before training there is nothing to keep
    monkeypatch.setattr(Seq2Seq, "read", interrupted)
    status, _, err = command("train", path, "--overwrite")
    assert status == 130 and "Traceback" not in err


def test_explain_says_what_differs_and_where_parameters_are(command, folder):
    status, out, err = command("explain", "gpt2")
    assert (status, err) == (0, "")
    assert out.startswith(VanillaTransformerConfig.from_preset("gpt2").explain() + "\n\n")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    counts = {part: count for part, count, _ in rows}
    assert counts["positions"] == "786,432" and counts["feed-forward"] == "56,669,184"
    assert counts["total"] == "124,439,808"
    assert command("explain", folder)[1].startswith(VanillaTransformerConfig.from_pretrained(folder).explain())


def test_explain_lists_presets_with_source_and_parameters(command):
    status, out, _ = command("explain", "--list")
    text = " ".join(out.replace("│", " ").split())
    for name in VanillaTransformerConfig.presets():
        assert f" {name} {VanillaTransformerConfig.from_preset(name).num_parameters():,} " in text
    assert status == 0 and "Vaswani et al. 2017" in text and "openai-community/gpt2-xl" in text


def test_explain_refuses_what_it_cannot_explain(refused, tmp_path):
    assert "'gpt3' is neither a preset nor a folder; did you mean 'gpt2'?" in refused("explain", "gpt3")
    assert "--list shows the presets" in refused("explain", "nothing-like-it")
    for name in ("./none", tmp_path / "none", "a/b/none"):
        assert f"{name} is not there" in refused("explain", name)
    assert "or --list" in refused("explain")
    assert "or --list" in refused("explain", "gpt2", "--list")
    assert "holds no config.json" in refused("explain", tmp_path)
    BertConfig().save_pretrained(tmp_path)
    assert "a model of type bert" in refused("explain", tmp_path)


def test_recipes_that_come_along_are_listed_printed_and_explained(command):
    _, listed, _ = command("recipe", "--list")
    files = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
    assert [line.split()[0] for line in listed.splitlines()] == [path.stem for path in files] != []
    for path in files:
        assert command("recipe", path.stem)[:2] == (0, path.read_text())
    fields = dict(line.split(": ", 1) for line in command("recipe", "--fields")[1].splitlines())
    assert fields["batches.max_tokens"].startswith("4096  # sentences times the longest")
    assert fields["output_dir"].startswith("required  #") and "model.hidden_size" in fields
    assert fields["seed"].startswith("1  #") and fields["averaging.best"].startswith("0  #")
    assert fields["batches.packing"].startswith("false  #") and fields["max_minutes"].startswith("null  #")
    splits = {name.removeprefix("data.train.") for name in fields if name.startswith("data.train.")}
    assert splits == known_fields("data.train") and "For seq2seq: " in fields["data.train.source"]
    assert not [name for name, rest in fields.items() if "  # " not in rest]


def test_help_names_every_command(command):
    status, out, _ = command("--help")
    assert status == 0
    for name in ("train", "train-tokenizer", "generate", "evaluate", "average", "inspect", "explain", "demo"):
        assert name in out


def test_the_report_of_a_bug_shows_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    arguments = ["serve", "model", "--api-key", "open-sesame", "--token=hf_abcdefgh1234"]
    assert "this is a bug" in report_bug(RuntimeError("broken"), arguments)
    (report,) = tmp_path.iterdir()
    text = report.read_text()
    assert "broken" in text and "--api-key ***" in text
    assert "sesame" not in text and "abcdefgh" not in text


@pytest.mark.parametrize(("name", "status", "word"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_signal_ends_any_command_with_a_word_and_its_status(tmp_path, monkeypatch, capsys, name, status, word):
    def signalled(*args, **kwargs):
        signal.raise_signal(getattr(signal, name))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr("vanilla_transformer.runs.averaging.average_checkpoints", signalled)
        with pytest.raises(SystemExit) as ended:
            cli.main(["average", str(tmp_path / "checkpoint-1"), "-o", str(tmp_path / "mean")])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == status and capsys.readouterr().err.strip() == f"{word}."
