"""Language models and classifiers by recipe: rows, masks, labels, and whole runs."""

import json
import math
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, pipeline

from runs import reversed_words, run, run_on_two, weights
from tiny import tiny_model
from vanilla_transformer.data import TextData, load_labelled_texts, load_tagged_tokens, load_texts
from vanilla_transformer.data.token_datasets import CausalLMDataset, MaskedLMDataset
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.recipes.recipe import Recipe, RecipeError, field_type
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.scoring.chunks import chunk_scores
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.tasks.classification import encoded_words, first_pieces
from vanilla_transformer.tokenization import train_tokenizer, train_wordpiece_tokenizer
from vanilla_transformer.utils.schema import coerce_fields, override_fields
from warm_python import warm_python

ANIMALS = {"dog", "cat"}


def sentences(count, seed):
    return [source for source, _ in reversed_words(count, seed)]


def label_of(text):
    return "animal" if ANIMALS & set(text.split()) else "thing"


def tags_of(text):
    """Chunks of animals, of one token or of two that are neighbours."""
    tags = []
    for word in text.split():
        inside = word in ANIMALS
        tags.append("O" if not inside else "I-ANIMAL" if tags and tags[-1] != "O" else "B-ANIMAL")
    return tags


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def recipe(folder, task, times=1, **more):
    """A recipe of a few updates for one of the tasks; its data stands in `folder`."""
    folder.mkdir(exist_ok=True)
    sizes = {"train": (150, 0), "validation": (21, 1), "unseen": (16, 2)}
    data = {}
    for name, (count, seed) in sizes.items():
        texts = sentences(times * count, seed)
        if task == "sequence-classification":
            records = [{"text": text, "label": label_of(text)} for text in texts]
        elif task == "token-classification":
            records = [{"tokens": text.split(), "tags": tags_of(text)} for text in texts]
        else:
            records = [{"text": text} for text in texts]
        data[name] = {"path": write_lines(folder / f"{name}.jsonl", records)}
    values = {
        "task": task,
        "output_dir": str(folder / "run"),
        "data": {"language": "en", "train": data["train"], "validation": data["validation"]},
        "tokenizer": {"vocab_size": 50 if task == "token-classification" else 280},
        "model": {
            "preset": "transformer-tiny",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "dropout": 0.1,
        },
        "batches": {"max_tokens": 200},
        "training": {
            "learning_rate": 0.01,
            "max_steps": 9,
            "gradient_accumulation_steps": 2,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 4,
        },
        "averaging": {"last": 2},
    }
    values["data"]["test"] = {"unseen": data["unseen"]}
    # plain values, which can be written as JSON
    return coerce_fields(override_fields(values, more.pop("overrides", ())), field_type) | more


# Rows ----------------------------------------------------------------------------------------------------------------


def test_blocks_hold_every_token_once_and_the_one_that_follows():
    texts = [np.arange(10), np.arange(10, 23)]
    rows = CausalLMDataset(texts, block_size=5)
    assert rows.lengths.tolist() == [5, 5, 5, 5, 2]
    inputs = np.concatenate([rows[i]["input_ids"] for i in range(5)])
    following = np.concatenate([rows[i]["shift_labels"] for i in range(5)])
    assert inputs.tolist() == list(range(22)) and following.tolist() == list(range(1, 23))
    # nothing but the beginning of a text can follow the end of one
    rows = CausalLMDataset([np.array([1, 7, 2]), np.array([1, 8, 2])], block_size=5, bos_token_id=1)
    assert rows[0]["shift_labels"].tolist() == [7, 2, IGNORED, 8, 2]


def test_blocks_of_training_are_cut_elsewhere_in_each_epoch_and_again_alike():
    rows = CausalLMDataset([np.arange(1000)], block_size=50, seed=3)
    starts = []
    for epoch in range(8):
        rows.set_epoch(epoch)
        blocks = [rows[i]["input_ids"] for i in range(len(rows))]
        assert all(len(block) == 50 for block in blocks)
        assert np.concatenate(blocks).tolist() == list(range(blocks[0][0], blocks[0][0] + 50 * len(rows)))
        starts.append(int(blocks[0][0]))
    assert len(set(starts)) > 3 and max(starts) < 50
    rows.set_epoch(2)
    assert rows[0]["input_ids"][0] == starts[2]


def test_texts_by_themselves_are_compared_with_their_own_tokens():
    rows = CausalLMDataset([np.array([1, 7, 8, 2]), np.array([1, 9, 2])])
    assert rows.lengths.tolist() == [3, 2]
    assert rows[0]["input_ids"].tolist() == [1, 7, 8] and rows[0]["shift_labels"].tolist() == [7, 8, 2]


def test_too_few_tokens_for_a_block_are_refused():
    with pytest.raises(ValueError, match="5 tokens are too few for blocks of data.block_size=8"):
        CausalLMDataset([np.arange(5)], block_size=8, seed=1)
    assert len(CausalLMDataset([np.arange(16)], block_size=8, seed=1)) == 1


def test_masks_are_berts_and_the_same_for_the_same_epoch():
    tokenizer = train_tokenizer(sentences(100, 0), 290, mask_token=True)
    text = np.array([*(np.arange(200) % 250 + 20), tokenizer.eos_token_id])
    rows = MaskedLMDataset([text] * 100, tokenizer, share=0.15, seed=1)
    counts = {"mask": 0, "same": 0, "other": 0}
    others = set()
    for index in range(100):
        row = rows[index]
        chosen = row["labels"] != IGNORED
        assert chosen.sum() == 30 and not chosen[-1]  # the end of the text is never hidden
        assert (row["labels"][chosen] == text[chosen]).all()
        assert (row["input_ids"][~chosen] == text[~chosen]).all()
        shown = row["input_ids"][chosen]
        counts["mask"] += int((shown == tokenizer.mask_token_id).sum())
        counts["same"] += int((shown == text[chosen]).sum())
        other = (shown != tokenizer.mask_token_id) & (shown != text[chosen])
        counts["other"] += int(other.sum())
        others |= set(shown[other].tolist())
        assert not set(shown.tolist()) & (set(tokenizer.all_special_ids) - {tokenizer.mask_token_id})
    total = 3000
    assert sum(counts.values()) == total
    assert all(
        abs(counts[kind] / total - share) < 0.03 for kind, share in (("mask", 0.8), ("same", 0.1), ("other", 0.1))
    )
    assert len(others) > 100  # of all tokens, not one
    first = rows[5]["input_ids"].tolist()
    rows.set_epoch(1)
    assert rows[5]["input_ids"].tolist() != first
    rows.set_epoch(0)
    assert rows[5]["input_ids"].tolist() == first


def test_the_first_piece_of_each_word_carries_its_tag():
    tokenizer = train_tokenizer(sentences(100, 0), 280)
    text = "dog greenhouse , cat"
    encoded = tokenizer(text, return_offsets_mapping=True)
    words = encoded_words(text.split(" "), encoded["offset_mapping"])
    labels = first_pieces(words, [10, 11, 12, 13])
    assert [label for label in labels if label != IGNORED] == [10, 11, 12, 13]
    assert labels[-1] == IGNORED and words[-1] is None  # the end of the text
    pieces = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert "".join(p for p, w in zip(pieces, words, strict=True) if w == 1).replace("Ġ", "") == "greenhouse"


# Data ----------------------------------------------------------------------------------------------------------------


def test_texts_of_every_kind(tmp_path):
    plain = tmp_path / "a.txt"
    plain.write_bytes(b"one\n\ntwo \xff\nthree\n")
    data, report = load_texts(TextData(path=plain))
    assert data["text"] == ["one", "three"] and data["id"] == [1, 4]
    assert "dropped 1: empty text (line 2)" in str(
        report
    ) and "not valid utf-8; convert the file, or name its encoding (line 3)" in str(report)
    whole = tmp_path / "b.txt"
    whole.write_text("line 1\n\nline 2\n")
    assert load_texts(TextData(path=whole, unit="file"))[0]["text"] == ["line 1\n\nline 2\n"]
    halves = [load_texts(TextData(path=whole, unit="file", portion=p))[0]["text"][0] for p in ([0, 0.5], [0.5, 1])]
    assert "".join(halves) == whole.read_text() and len(halves[0]) == 7
    tokens = write_lines(tmp_path / "c.jsonl", [{"tokens": ["a", "b"]}, {"tokens": ["c"]}])
    assert load_texts(TextData(path=tokens))[0]["text"] == ["a b", "c"]


def test_labels_of_every_kind(tmp_path):
    records = [{"sentence": "a", "label": 1}, {"sentence": "b", "label": "x"}, {"sentence": "c", "label": None}]
    data, report = load_labelled_texts(TextData(path=write_lines(tmp_path / "a.jsonl", records)))
    assert data["text"] == ["a", "b"] and data["label"] == ["1", "x"]
    assert "label is missing, or not a name or whole number (line 3)" in str(report)
    table = tmp_path / "a.tsv"
    table.write_text("label\ttext\nyes\tit's \"so\nno\tnot so\n")
    data, _ = load_labelled_texts(TextData(path=table))
    assert data["text"] == ["it's \"so", "not so"] and data["label"] == ["yes", "no"]
    with pytest.raises(ValueError, match="give both text and label as numbers of fields"):
        load_labelled_texts(TextData(path=table, text=1))
    table.write_text("a\t0\nb\t1\n")
    assert load_labelled_texts(TextData(path=table))[0]["label"] == ["0", "1"]
    with pytest.raises(ValueError, match="no column 'lable'. Did you mean 'label'"):
        load_labelled_texts(TextData(path=write_lines(tmp_path / "b.jsonl", records), label="lable"))
    with pytest.raises(ValueError, match="plain text, which holds no labels"):
        load_labelled_texts(TextData(path=tmp_path / "a.txt"))


def test_a_hub_data_set_gives_the_names_of_its_classes(tmp_path):
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).save_to_disk(tmp_path / "d")
    assert load_labelled_texts(TextData(path=str(tmp_path / "d")))[0]["label"] == ["pos", "neg"]


def test_tags_of_every_kind(tmp_path):
    conll = tmp_path / "a.conll"
    conll.write_text("-DOCSTART- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nbroken\n\nPeter\xa0P. NNP B-PER\n")
    data, report = load_tagged_tokens(TextData(path=conll))
    assert data["tokens"] == [["EU", "rejects"], ["Peter\xa0P."]] and data["tags"] == [["B-ORG", "O"], ["B-PER"]]
    assert data["id"] == [3, 8] and "dropped 1: too few fields (line 6)" in str(report)
    assert load_tagged_tokens(TextData(path=conll, label=1))[0]["tags"][0] == ["NNP", "VBZ"]
    bad = [
        {"tokens": ["a"], "tags": ["O", "O"]},
        {"tokens": ["  "], "tags": ["O"]},
        {"tokens": ["a b"], "tags": ["O"]},
    ]
    data, report = load_tagged_tokens(TextData(path=write_lines(tmp_path / "b.jsonl", bad)))
    assert data["tokens"] == [["a b"]]
    assert "not as many tags as tokens (line 1)" in str(report) and "a token is empty or is not text" in str(report)


def test_fields_of_conll_files_are_what_stands_between_tabs(tmp_path):
    conll = tmp_path / "a.conll"
    conll.write_text("New York\tB-LOC\nhas\tO\n10 000 \tB-NUM\n\nParis\tO\t\n\n\tO\n\nno tab O\n")
    data, report = load_tagged_tokens(TextData(path=conll))
    assert data["tokens"] == [["New York", "has", "10 000"], ["no"]]
    assert data["tags"] == [["B-LOC", "O", "B-NUM"], ["O"]]
    assert "a tag is missing, or not a name or whole number (line 5)" in str(report)
    assert "a token is empty or is not text (line 7)" in str(report)


def test_a_token_that_holds_spaces_carries_one_tag():
    tokens = ["new dog", "cat", "10 000"]
    tokenizer = train_wordpiece_tokenizer(["new dog cat 10 000"] * 3, 25)
    text = " ".join(tokens)
    encoded = tokenizer(text, return_offsets_mapping=True)
    words = encoded_words(tokens, encoded["offset_mapping"])
    pieces = [(text[start:end], word) for (start, end), word in zip(encoded["offset_mapping"], words, strict=True)]
    assert {(piece, word) for piece, word in pieces if word is not None} >= {("new", 0), ("dog", 0), ("cat", 1)}
    assert [label for label in first_pieces(words, [7, 8, 9]) if label != IGNORED] == [7, 8, 9]


@pytest.mark.parametrize("load", [load_texts, load_labelled_texts, load_tagged_tokens])
def test_rows_with_half_a_character_are_left_out_and_named(tmp_path, load):
    half = "\ud83d"
    if load is load_tagged_tokens:
        bad = [{"tokens": ["a", half], "tags": ["O", "O"]}, {"tokens": ["a"], "tags": [half]}]
        good = {"tokens": ["a"], "tags": ["O"]}
    else:
        bad = [{"text": f"a {half}", "label": "x"}, {"text": "a", "label": half}]
        good = {"text": "a", "label": "x"}
    if load is load_texts:
        bad[1]["text"] = half
    data, report = load(TextData(path=write_lines(tmp_path / "a.jsonl", [*bad, good])))
    assert data["id"] == [3] and report.kept == 1
    first, second = {
        load_texts: ("text", "text"),
        load_labelled_texts: ("text", "label"),
        load_tagged_tokens: ("a token", "a tag"),
    }[load]
    half = "holds half a character (a lone surrogate, as of a cut emoji)"
    assert set(report.faults) == {f"{first} {half}", f"{second} {half}"} and report.dropped == 2


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"path": "a", "portion": [0.5, 0.5]}, "must be two shares that rise"),
        ({"path": "a", "portion": 0.5}, "must be two numbers"),
        ({"path": "a.jsonl", "unit": "file"}, "for plain text files"),
        ({"path": "a", "format": "csv"}, "Unknown data format 'csv'"),
        ({"path": ["a.txt", "b.jsonl"]}, "must be of one kind"),
        ({"path": "a", "unit": "page"}, "'line' or 'file'"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        TextData(**fields).describe()


# Recipes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "override", "sentence"),
    [
        ("causal-lm", "data.source_language=en", "data.source_language has no effect for task causal-lm"),
        ("masked-lm", "generation.num_beams=2", "generation has no effect for task masked-lm"),
        ("causal-lm", "evaluation.num_beams=2", "evaluation.num_beams has no effect for task causal-lm"),
        ("causal-lm", "tokenizer.shared=false", "tokenizer.shared has no effect for task causal-lm"),
        ("causal-lm", "model.architecture=encoder-only", "needs model.architecture=decoder-only, not encoder-only"),
        ("token-classification", "data.block_size=8", "data.block_size has no effect for task token-classification"),
        ("masked-lm", "data.masked_share=1.5", "data.masked_share=1.5 must be between 0 and 1"),
        ("masked-lm", "training.metric_for_best_model=bleu", "'bleu' is not a score"),
        ("masked-lm", "training.dataloader_persistent_workers=true", "would show a language model the first epoch's"),
        ("causal-lm", "tokenizer.kind=letters", "'bpe', 'wordpiece'"),
        ("causal-lm", "data.train.txt=x", "unknown field data.train.txt; did you mean 'text'?"),
        ("causal-lm", "data.train.label=x", "unknown field data.train.label"),
        ("causal-lm", "generation.max_length_over_source=3", "unknown field generation.max_length_over_source"),
        ("causal-lm", "start_from=/nowhere", "start_from: /nowhere is not there"),
        ("causal-lm", "start_from=runs/nowhere/", "start_from: runs/nowhere/ is not there"),
        ("causal-lm", "data.block_size=300", "data.block_size=300 is above batches.max_tokens=200"),
        ("sequence-classification", "training.predict_with_generate=true", "unknown field training.predict_with_gen"),
    ],
)
def test_what_has_no_effect_for_a_task_is_refused(tmp_path, task, override, sentence):
    values = recipe(tmp_path, task)
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert sentence in str(error.value) and "\n" not in str(error.value)


# Runs ----------------------------------------------------------------------------------------------------------------

BLOCKS = {"causal-lm": ["data.block_size=8"]}


@pytest.fixture(
    scope="module", params=[name for name in TASKS if name not in ("seq2seq", "constituency-parsing")]
)  # which have tests of their own
def finished(request, tmp_path_factory):
    """A run of each task in a process of its own, and what the process printed."""
    folder = tmp_path_factory.mktemp(request.param)
    values = recipe(folder, request.param, overrides=BLOCKS.get(request.param, ()))
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(values))
    done = subprocess.run(
        [warm_python(), "-m", "vanilla_transformer", "train", path, "--task", request.param],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return Path(values["output_dir"]), values, done


def test_a_normal_run_prints_progress_and_no_warning(finished):
    folder, values, done = finished
    for sign in ("Warning", "warning", "[transformers]", "Traceback", "deprecated", "not initialized", "missing"):
        assert sign not in done.stderr, done.stderr
    assert "validation, best checkpoint" in done.stderr and "unseen: " in done.stderr
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["task"] == values["task"] and metrics["training"]["updates"] == 9
    assert metrics["training"]["tokens_per_second"] > 0 and metrics["test"]["unseen"]
    assert (folder / "curves.png").stat().st_size > 1000


def test_the_card_is_valid_and_its_lines_run(finished, monkeypatch):
    folder, values, _ = finished
    card = ModelCard.load(folder / "README.md")
    assert card.data.eval_results[0].dataset_name == "unseen"
    assert card.data.pipeline_tag == TASKS[values["task"]].pipeline_tag
    code = card.text.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {})


def test_a_saved_model_gives_the_scores_of_the_run_again(finished, tmp_path):
    """Started from its own weights and trained with a learning rate of zero, it scores as it did."""
    folder, values, _ = finished
    again = override_fields(values, [f"start_from={folder}", f"output_dir={tmp_path / 'again'}"])
    del again["model"]["preset"]
    result = run(again, ["training.learning_rate=0", "training.max_steps=1", "averaging.last=0"])
    assert result.metrics["test"] == json.loads((folder / "metrics.json").read_text())["test"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["causal-lm", "token-classification"])
def test_two_processes_score_like_one(tmp_path, task):
    values = recipe(tmp_path, task, overrides=BLOCKS.get(task, ()))
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(values))
    run_on_two("-m", "vanilla_transformer.cli", "train", path)
    folder = Path(values["output_dir"])
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["training"]["processes"] == 2
    again = override_fields(values, [f"start_from={folder}", f"output_dir={tmp_path / 'again'}"])
    del again["model"]["preset"]
    result = run(again, ["training.learning_rate=0", "training.max_steps=1", "averaging.last=0"])
    assert result.metrics["test"] == metrics["test"]


def test_classifiers_learn(tmp_path):
    """On data that a small model can learn to the last label: the labels and losses go where they belong."""
    longer = [f"training.{name}=300" for name in ("max_steps", "eval_steps", "save_steps")] + ["averaging.last=0"]
    wider = ["model.dropout=0", "model.position_encoding=rope", "model.hidden_size=32", "training.warmup_steps=30"]
    scores = {}
    for task in ("sequence-classification", "token-classification"):
        scores |= {task: run(recipe(tmp_path / task, task, times=8), [*longer, *wider]).metrics["test"]["unseen"]}
    assert scores["sequence-classification"]["accuracy"] == 1.0
    assert scores["token-classification"]["f1"] > 0.95


def test_a_classifier_starts_from_a_language_model_and_says_what_is_new(tmp_path):
    said = []
    run(recipe(tmp_path / "masked", "masked-lm"))
    start = tmp_path / "masked" / "run"
    values = recipe(tmp_path / "classes", "sequence-classification", start_from=str(start))
    result = run_recipe(Recipe.from_dict(values), log=said.append)
    assert any(line.startswith(f"starting from {start}, new: score.bias, score.weight") for line in said), said
    assert AutoTokenizer.from_pretrained(result.folder).get_vocab() == AutoTokenizer.from_pretrained(start).get_vocab()
    with pytest.raises(RecipeError, match="has hidden_size=16 and not 32"):
        run(values, ["model.hidden_size=32", f"output_dir={tmp_path / 'other'}"])
    with pytest.raises(RecipeError, match="has norm_position='post' and not 'pre'"):
        run(values, ["model.norm_position=pre", f"output_dir={tmp_path / 'other'}"])


def test_a_classifier_goes_on_with_its_own_labels_only(tmp_path):
    values = recipe(tmp_path, "sequence-classification")
    start = run(values).folder
    still = ["training.learning_rate=0", "training.max_steps=1", "averaging.last=0"]
    again = [f"start_from={start}", *still]
    swapped = {"animal": "zoo", "thing": "object"}
    for name, (count, seed) in {"train": (150, 0), "validation": (21, 1), "unseen": (16, 2)}.items():
        texts = sentences(count, seed)
        write_lines(tmp_path / f"{name}.jsonl", [{"text": t, "label": swapped[label_of(t)]} for t in texts])
    del values["model"]["preset"]
    with pytest.raises(RecipeError, match="is a classifier of the labels animal, thing, but the data has object, zoo"):
        run(values, [*again, f"output_dir={tmp_path / 'again'}"])


@pytest.mark.parametrize("task", ["causal-lm", "token-classification"])
def test_the_loss_of_an_evaluation_is_the_mean_over_tokens(tmp_path, task):
    """In batches of texts of unequal length the mean of the batches' means would be another number."""
    result = run(recipe(tmp_path, task, overrides=["training.per_device_eval_batch_size=4"]))
    automatic = AutoModelForCausalLM if task == "causal-lm" else AutoModelForTokenClassification
    model = automatic.from_pretrained(result.folder)
    tokenizer = AutoTokenizer.from_pretrained(result.folder)
    total, count = 0.0, 0
    for text in sentences(16, 2):
        if task == "causal-lm":
            ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
            labels, items = ids, ids.shape[1] - 1
        else:
            encoded = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
            ids = encoded["input_ids"]
            words = encoded_words(text.split(" "), encoded["offset_mapping"][0].tolist())
            tags = [model.config.label2id[tag] for tag in tags_of(text)]
            labels, items = torch.tensor([first_pieces(words, tags)]), len(tags)
        with torch.no_grad():
            total += model(input_ids=ids, labels=labels).loss.item() * items
        count += items
    scores = result.metrics["test"]["unseen"]
    assert scores["loss"] == pytest.approx(total / count, abs=1e-4)
    if task == "causal-lm":
        assert scores["tokens"] == count
        assert scores["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-3)


def test_labels_of_a_test_are_scored_and_change_nothing_else(tmp_path):
    values = recipe(tmp_path, "token-classification")
    before = run(values)
    write_lines(tmp_path / "unseen.jsonl", [{"tokens": ["dog", "sun"], "tags": ["B-ANIMAL", "B-STAR"]}])
    said = []
    result = run_recipe(Recipe.from_dict(values), overwrite=True, log=said.append)
    assert any("labels that training never sees: B-STAR" in line for line in said)
    assert result.metrics["test"]["unseen"]["recall"] <= 0.5
    assert before.metrics["model"]["validation"] == result.metrics["model"]["validation"]


def test_chunks_are_counted_as_by_hand():
    reference = [["B-X", "I-X", "O", "B-Y"], ["B-X", "O"]]
    output = [["B-X", "I-X", "O", "B-X"], ["B-X", "B-Y"]]
    precision, recall, f1 = chunk_scores(reference, output)  # 2 of 4 found are right, of 3 there are
    assert (precision, recall, f1) == pytest.approx((1 / 2, 2 / 3, 4 / 7))
    bilou = [["U-X", "U-X", "B-X", "L-X", "U-X"]]
    assert chunk_scores(bilou, bilou) == (1.0, 1.0, 1.0)
    assert chunk_scores(bilou, [["U-X", "O", "B-X", "L-X", "O"]]) == pytest.approx((1.0, 0.5, 2 / 3))


def test_tags_that_mark_no_chunks_are_scored_one_by_one(tmp_path):
    values = recipe(tmp_path, "token-classification")
    for name, (count, seed) in {"train": (150, 0), "validation": (21, 1), "unseen": (16, 2)}.items():
        rows = [text.split() for text in sentences(count, seed)]
        records = [{"tokens": row, "tags": ["N" if w in ANIMALS else "V" for w in row]} for row in rows]
        write_lines(tmp_path / f"{name}.jsonl", records)
    said = []
    scores = run_recipe(Recipe.from_dict(values), log=said.append).metrics["test"]["unseen"]
    assert any("unseen: macro F1" in line for line in said)
    assert 0 <= scores["f1"] <= 1 and scores["accuracy"] >= 0.5


@pytest.mark.parametrize("architecture", ["decoder-only", "encoder-decoder"])
def test_texts_are_classified_by_every_architecture(tmp_path, architecture):
    values = recipe(tmp_path, "sequence-classification", overrides=[f"model.architecture={architecture}"])
    result = run(values)
    classify = pipeline("text-classification", model=str(result.folder))
    texts = sentences(16, 2)
    found = [answer["label"] for answer in classify(texts, batch_size=4)]
    accuracy = np.mean([label == label_of(text) for label, text in zip(found, texts, strict=True)])
    assert accuracy == pytest.approx(result.metrics["test"]["unseen"]["accuracy"], abs=1e-4)


def test_long_texts_are_cut_said_and_leave_no_trace_in_the_tokenizer(tmp_path):
    said = []
    values = recipe(tmp_path, "sequence-classification", overrides=["data.max_length=4"])
    folder = run_recipe(Recipe.from_dict(values), log=said.append).folder
    assert any("texts cut to their first 4 tokens" in line for line in said)
    assert json.loads((folder / "tokenizer.json").read_text())["truncation"] is None


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm"])
def test_characters_in_blocks(tmp_path, task):
    values = recipe(tmp_path, task, overrides=["data.block_size=16", "tokenizer.kind=characters"])
    del values["tokenizer"]["vocab_size"]
    folder = run(values).folder
    letters = set("".join(sentences(150, 0)))
    specials = 5 if task == "masked-lm" else 4
    assert len(AutoTokenizer.from_pretrained(folder)) == len(letters) + specials


@pytest.mark.parametrize("task", ["causal-lm", "masked-lm", "sequence-classification", "token-classification"])
def test_eight_rows_are_four_and_four(tmp_path, task):
    """Accumulated batches give the same weights as one batch of all rows, whatever the rows' numbers of labels."""
    values = recipe(tmp_path, task, overrides=["model.dropout=0", "averaging.last=0"])
    write_lines(
        tmp_path / "train.jsonl",
        [
            {"text": t, "label": label_of(t)}
            if task != "token-classification"
            else {"tokens": t.split(), "tags": tags_of(t)}
            for t in [*sentences(10, 0)[:8]]
        ],
    )
    update = ["training.max_steps=1", "training.optim=sgd", "training.eval_strategy=no", "training.save_strategy=no"]
    update += ["training.load_best_model_at_end=false", "training.max_grad_norm=0"]
    update += [f"tokenizer.vocab_size={34 if task == 'token-classification' else 261}"]
    whole = run(values, [*update, "batches.max_sentences=8", "training.gradient_accumulation_steps=1"])
    first = weights(whole.folder)
    halves = run(values, [*update, "batches.max_sentences=4"], overwrite=True)
    second = weights(halves.folder)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-4, atol=1e-6)


def test_a_command_for_one_task_refuses_the_recipe_of_another(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe(tmp_path, "masked-lm")))
    command = [warm_python(), "-m", "vanilla_transformer", "train", path, "--task", "causal-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {path} is a recipe for masked-lm, not for causal-lm."


@pytest.mark.parametrize("task", ["fill-mask", "text-generation"])
def test_pipelines_take_the_models_of_runs(tmp_path, task):
    kind = {"fill-mask": "masked-lm", "text-generation": "causal-lm"}[task]
    folder = run(recipe(tmp_path, kind)).folder
    use = pipeline(task, model=str(folder))
    if task == "fill-mask":
        assert len(use("red <mask> tree")) == 5
    else:
        assert use("red", max_new_tokens=3, do_sample=False)[0]["generated_text"].startswith("red")


def test_the_pipeline_finds_the_chunks_that_were_scored(tmp_path):
    """With a vocabulary that cuts words in pieces, and with words and characters that training never saw."""
    values = recipe(
        tmp_path, "token-classification", times=8, overrides=["averaging.last=0", "model.position_encoding=rope"]
    )
    steps = [f"training.{name}=150" for name in ("max_steps", "eval_steps", "save_steps")]
    rows = [[*text.split(), "?", "日本語", "dogs"] for text in sentences(16, 2)]
    records = [{"tokens": row, "tags": tags_of(" ".join(row))} for row in rows]
    write_lines(tmp_path / "unseen.jsonl", records)
    result = run(values, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tag = pipeline("token-classification", model=str(result.folder), aggregation_strategy="first")
        found = tag([" ".join(row) for row in rows])
    outputs = []
    for row, entities in zip(rows, found, strict=True):
        starts = np.cumsum([0, *(len(word) + 1 for word in row)])
        tags = ["O"] * len(row)
        for entity in entities:
            first, last = np.searchsorted(starts, [entity["start"], entity["end"] - 1], side="right") - 1
            assert (starts[first], starts[last] + len(row[last])) == (entity["start"], entity["end"])  # whole words
            tags[first : last + 1] = ["B-" + entity["entity_group"]] + ["I-" + entity["entity_group"]] * (last - first)
        outputs.append(tags)
    references = [record["tags"] for record in records]
    expected = result.metrics["test"]["unseen"]
    assert 0 < expected["f1"] < 1
    assert chunk_scores(references, outputs)[2] == pytest.approx(expected["f1"], abs=1e-4)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "config.json").write_text("[]"), "holds a list and not an object"),
        (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer.json of .* is damaged, as it is not valid JSON"),
        (lambda f: [path.unlink() for path in f.glob("tokenizer*")], "holds no tokenizer; save it there"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 900), "are damaged"),
    ],
)
def test_what_cannot_be_started_from_is_refused_in_one_sentence(tmp_path, damage, sentence):
    tiny_model("encoder-only", vocab_size=280).save_pretrained(tmp_path / "start")
    train_tokenizer(sentences(100, 0), 280, mask_token=True).save_pretrained(tmp_path / "start")
    values = recipe(tmp_path / "run", "masked-lm", start_from=str(tmp_path / "start"))
    values["model"] = {}
    damage(tmp_path / "start")
    with pytest.raises(RecipeError, match=sentence) as error:
        run(values)
    assert "\n" not in str(error.value) and "start" in str(error.value)


def test_a_classifier_refuses_what_it_cannot_start_from_or_learn(tmp_path):
    tiny_model(target_vocab_size=43).save_pretrained(tmp_path / "two")
    values = recipe(tmp_path / "run", "sequence-classification", start_from=str(tmp_path / "two"))
    values["model"] = {}
    with pytest.raises(RecipeError, match="has separate vocabularies"):
        run(values)
    values = recipe(tmp_path / "run", "sequence-classification")
    for name in ("train", "validation"):
        write_lines(tmp_path / "run" / f"{name}.jsonl", [{"text": "dog", "label": "x"}] * 9)
    with pytest.raises(ValueError, match="has one label only, 'x'"):
        run(values, ["tokenizer.vocab_size=261"])


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.id2label={0: a}", "model.id2label follows from the data"),
        ("model.num_labels=7", "model.num_labels follows from the data"),
        ("training.gradient_accumulation_steps=0", "training.gradient_accumulation_steps=0 must be at least 1"),
        ("batches.max_sentences=0", "batches.max_sentences=0 must be at least 1"),
        ("max_minutes=0", "max_minutes=0.0 must be above 0"),
        ("averaging.last=-3", "averaging.last=-3 must not be negative"),
        ("data.train.text=-1", "text=-1 must not be negative"),
        ("tokenizer.kind=characters", "tokenizer.vocab_size has no effect for tokenizer.kind=characters"),
    ],
)
def test_values_that_cannot_be_are_refused_before_data_is_read(tmp_path, override, sentence):
    values = recipe(tmp_path, "sequence-classification")
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert sentence in str(error.value)


def test_the_parameters_said_are_those_there_are(tmp_path):
    result = run(recipe(tmp_path, "token-classification"))
    model = AutoModelForTokenClassification.from_pretrained(result.folder)
    assert result.metrics["training"]["parameters"] == sum(p.numel() for p in model.parameters())
