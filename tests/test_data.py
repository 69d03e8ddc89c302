"""Reading pairs with every fault reported, tokenising them, and cutting batches by token budget."""

import gzip
import json
import os
import pickle
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from vanilla_transformer.data import (
    ParallelData,
    TextData,
    TokenBudgetBatchSampler,
    iterate_texts,
    load_labelled_texts,
    load_parallel,
    load_tagged_tokens,
    load_texts,
    pair_lengths,
    tokenize_pairs,
)
from vanilla_transformer.data.preparation import TokenizerTexts
from vanilla_transformer.data.repeats import count_repeats
from vanilla_transformer.scoring.files import read_texts
from vanilla_transformer.tokenization import train_tokenizer
from vanilla_transformer.utils import text_files

SHARED = Path(__file__).resolve().parents[2] / "shared"

UNDECODABLE = "is not valid utf-8; convert the file, or name its encoding"

PAIRS = [(f"the {n} dogs", f"die {n} Hunde") for n in range(1, 31)]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    datasets.disable_progress_bars()
    # What reads a data set must leave nothing where it is run.
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield
    assert os.listdir(tmp_path / "work") == []


def write(path, lines, encoding="utf-8", end="\n"):
    data = "".join(line + end for line in lines).encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_text_pair(folder, pairs=PAIRS, suffix=""):
    source = write(folder / f"train.en{suffix}", [source for source, _ in pairs])
    target = write(folder / f"train.de{suffix}", [target for _, target in pairs])
    return {"source": str(source), "target": str(target)}


def texts(dataset):
    return [(row["source"], row["target"]) for row in dataset]


def reasons(report):
    return {reason: fault.first for reason, fault in report.faults.items()}


# Every way of storing pairs ------------------------------------------------------------------------------------------


def _store(kind, folder):
    if kind == "text":
        return write_text_pair(folder)
    if kind == "gzip":
        return write_text_pair(folder, suffix=".gz")
    if kind == "several files":
        first, second = folder / "1", folder / "2"
        first.mkdir(), second.mkdir()
        parts = [write_text_pair(first, PAIRS[:10]), write_text_pair(second, PAIRS[10:])]
        return {side: [part[side] for part in parts] for side in ("source", "target")}
    if kind == "tsv":
        return {"path": write(folder / "a.tsv", ["\t".join(pair) for pair in PAIRS])}
    if kind == "tsv fields":
        lines = [f"{n}\t{target}\tx\t{source}" for n, (source, target) in enumerate(PAIRS)]
        return {"path": write(folder / "a.tsv.gz", lines), "source_column": 3, "target_column": 1}
    if kind == "tsv header":
        lines = ["de\ten\tnote", *(f"{target}\t{source}\tx" for source, target in PAIRS)]
        return {"path": write(folder / "a.tsv", lines), "source_column": "en", "target_column": "de"}
    if kind == "tsv languages":
        lines = ["de\ten", *(f"{target}\t{source}" for source, target in PAIRS)]
        return {"path": write(folder / "a.tsv", lines), "source_language": "en", "target_language": "de"}
    records = [{"translation": {"de": target, "en": source}, "n": 1} for source, target in PAIRS]
    languages = {"source_language": "en", "target_language": "de"}
    if kind == "json":
        return {"path": write(folder / "a.jsonl", map(json.dumps, records)), **languages}
    flat = [{"text": source, "de": target, "n": 1} for source, target in PAIRS]
    if kind == "flat json":
        return {"path": write(folder / "a.json", map(json.dumps, flat)), "source": "text", "target": "de"}
    if kind == "flat json languages":
        lines = (json.dumps({"en": source, "de": target}) for source, target in PAIRS)
        return {"path": write(folder / "a.jsonl.gz", lines), **languages}
    table = datasets.Dataset.from_list(records)
    if kind == "parquet":
        table.to_parquet(folder / "a.parquet")
        return {"path": folder / "a.parquet", **languages}
    if kind == "flat parquet":
        datasets.Dataset.from_list(flat).to_parquet(folder / "a.parquet")
        return {"path": folder / "a.parquet", "source_column": "text", "target_column": "de"}
    if kind == "saved":
        datasets.DatasetDict({"train": table, "test": table.select(range(3))}).save_to_disk(folder / "saved")
        return {"path": folder / "saved", "source_column": "translation.en", "target_column": "translation.de"}
    if kind == "hub":
        # A folder laid out like a repository on the Hub; it goes the same way through `datasets`.
        (folder / "hub").mkdir()
        table.to_parquet(folder / "hub" / "train.parquet")
        table.select(range(3)).to_parquet(folder / "hub" / "test.parquet")
        return {"path": folder / "hub", "split": "train", **languages}
    raise AssertionError(kind)


KINDS = [
    *["text", "gzip", "several files", "tsv", "tsv fields", "tsv header", "tsv languages", "json", "flat json"],
    *["flat json languages", "parquet", "flat parquet", "saved", "hub"],
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_pairs(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    config = ParallelData(**_store(kind, tmp_path))
    header = kind in ("tsv header", "tsv languages")
    digests = set()
    for streaming in (False, True):
        dataset, report = load_parallel(config, streaming=streaming)
        for _ in range(2):
            assert texts(dataset) == PAIRS
            assert [row["id"] for row in dataset] == [n + header for n in range(1, 31)]
            assert (report.read, report.kept, report.dropped) == (30, 30, 0)
            digests.add(report.sha256)
        assert header == ("first line read as a header, fields 2 and 1" in str(report))
        assert json.loads(json.dumps(report.to_dict()))["kept"] == 30
    assert len(digests) == 1
    reference, expected = load_parallel(ParallelData(**write_text_pair(tmp_path)))
    assert digests == {expected.sha256} and texts(reference) == PAIRS


# Faults --------------------------------------------------------------------------------------------------------------


def test_only_line_feeds_end_lines(tmp_path):
    """U+2028, form feeds and the like stand inside lines of real corpora."""
    inner = ["a\u2028b", "a\x0cb", "a\x0bb", "a\x85b", "a\u2029b", "a\x1cb", "a\rb", '"a', " a  b "]
    pairs = [(text, f"{n}") for n, text in enumerate(inner)]
    for config in (
        write_text_pair(tmp_path, pairs),
        {"path": write(tmp_path / "a.tsv", ["\t".join(p) for p in pairs])},
    ):
        dataset, report = load_parallel(ParallelData(**config))
        assert texts(dataset) == pairs
        assert report.dropped == 0


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    source = write(tmp_path / "a.en", ["\ufeffone", "two"], end="\r\n")
    target = write(tmp_path / "a.de", ["eins", "zwei"])
    dataset, report = load_parallel(ParallelData(source=source, target=target))
    assert texts(dataset) == [("one", "eins"), ("two", "zwei")]
    printed = str(report)
    assert "byte order mark of a.en" in printed and "Windows line ends of a.en left out on 2 lines" in printed


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.jsonl", "a.conll", "a.txt.gz", "whole.txt"])
def test_files_whose_lines_end_in_carriage_returns_alone_are_refused(tmp_path, name):
    path = tmp_path / name
    data = b"one\rtwo\rthree\n" if "whole" in name else b'{"text": "one"}\r{"text": "two"}\r'
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    load = load_tagged_tokens if ".conll" in name else load_texts
    with pytest.raises(ValueError, match=r"ends its lines in carriage returns without line feeds: convert it.*tr '"):
        load(TextData(path=path, unit="file" if "whole" in name else "line"))
    if "whole" not in name and ".conll" not in name:
        pairs = {"path": path} if name in ("a.tsv", "a.jsonl") else {"source": path, "target": path}
        with pytest.raises(ValueError, match="carriage returns without line feeds"):
            load_parallel(ParallelData(**pairs))


def test_carriage_returns_across_blocks_of_a_file_are_windows_line_ends(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * ((1 << 20) - 1) + b"\r\n" + b"y\r\n")
    dataset, report = load_parallel(ParallelData(source=path, target=path))
    assert len(dataset) == 2 and "carriage returns inside" not in str(report)


def test_no_line_end_at_the_end(tmp_path):
    (tmp_path / "a").write_text("one\ntwo")
    dataset, _ = load_parallel(ParallelData(source=tmp_path / "a", target=write(tmp_path / "b", ["eins", "zwei"])))
    assert texts(dataset) == [("one", "eins"), ("two", "zwei")]


def test_empty_and_undecodable_lines_are_dropped_and_reported(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_bytes(b"one\n\n three\nf\xfcnf\n\t \nsix\ngr\xfc\xdfe\n")
    target.write_bytes("eins\nzwei\n\u3000\nfünf\n\nsechs\n".encode() + b"\xff\n")
    for streaming in (False, True):
        dataset, report = load_parallel(ParallelData(source=source, target=target), streaming=streaming)
        for _ in range(2):
            assert [(row["id"], row["source"], row["target"]) for row in dataset] == [
                (1, "one", "eins"),
                (6, "six", "sechs"),
            ]
            assert reasons(report) == {
                "empty source": [2],
                "empty target": [3],
                f"source {UNDECODABLE}": [4],
                "empty pair": [5],
                f"pair {UNDECODABLE}": [7],
            }
            assert (report.read, report.kept, report.dropped) == (7, 2, 5)
    assert "dropped 1: empty target (line 3)" in str(report)
    assert report.to_dict()["dropped"]["empty target"] == {"count": 1, "first": ["3"]}


def test_lines_of_several_files_are_named_with_their_file(tmp_path):
    files = [write(tmp_path / name, lines) for name, lines in (("a", "1234"), ("b", ["5", "", "7"]), ("c", "890"))]
    dataset, report = load_parallel(ParallelData(source=files, target=files))
    assert dataset["id"][:] == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert "b | b:2" in str(report) and reasons(report) == {"empty pair": [6]}


def test_many_faults_are_counted_and_the_first_named(tmp_path):
    lines = ["x" if n % 2 else "" for n in range(1, 201)]
    source, target = write(tmp_path / "a", lines), write(tmp_path / "b", ["y"] * 200)
    _, report = load_parallel(ParallelData(source=source, target=target))
    assert report.faults["empty source"].count == 100
    assert report.faults["empty source"].first == list(range(2, 42, 2))
    assert "dropped 100: empty source (lines 2, 4," in str(report) and "40, …)" in str(report)


def test_another_encoding(tmp_path):
    source = write(tmp_path / "a", ["grüße"], "latin-1")
    dataset, _ = load_parallel(ParallelData(source=source, target=source, encoding="latin-1"))
    assert texts(dataset) == [("grüße", "grüße")]
    with pytest.raises(ValueError, match="No pair can be used.*pair is not valid utf-8"):
        load_parallel(ParallelData(source=source, target=source))
    marked = write(tmp_path / "c", ["one"], "utf-8-sig")
    assert texts(load_parallel(ParallelData(source=marked, target=marked, encoding="utf-8-sig"))[0]) == [
        ("one", "one")
    ]
    utf16 = write(tmp_path / "b", ["\ufeffone"], "utf-16")
    with pytest.raises(ValueError, match="b is in UTF-16, not utf-8: convert it"):
        load_parallel(ParallelData(source=utf16, target=utf16))


@pytest.mark.parametrize("encoding", ["utf9", "", "base64", "rot13"])
def test_unknown_encodings_are_refused(encoding):
    with pytest.raises(ValueError, match=f"encoding='{encoding}' is not a text encoding"):
        ParallelData(path="a.tsv", encoding=encoding)


@pytest.mark.parametrize("encoding", ["utf-16", "UTF-16LE", "utf-32", "cp037"])
def test_encodings_with_another_line_break_are_refused(encoding):
    with pytest.raises(ValueError, match=f"encoding='{encoding}' cannot be read.*line break: convert .* to UTF-8"):
        ParallelData(path="a.tsv", encoding=encoding)


@pytest.mark.parametrize("streaming", [False, True])
def test_unequal_line_counts_are_refused(tmp_path, streaming):
    source, target = write(tmp_path / "a.en", "abc"), write(tmp_path / "a.de", "ab")
    with pytest.raises(ValueError, match=r"a\.en has 3 lines but .*a\.de has 2"):
        load_parallel(ParallelData(source=source, target=target), streaming=streaming)
    with pytest.raises(ValueError, match="2 source files but 1"):
        load_parallel(ParallelData(source=[source, source], target=target), streaming=streaming)


def test_missing_and_empty_files(tmp_path):
    config = write_text_pair(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"Did you mean .*train\.de\?"):
        load_parallel(ParallelData(source=config["source"], target=tmp_path / "tran.de"))
    with pytest.raises(FileNotFoundError, match="folder .* does not exist"):
        load_parallel(ParallelData(path=tmp_path / "nowhere" / "a.tsv"))
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load_parallel(ParallelData(source=tmp_path, target=tmp_path))
    with pytest.raises(FileNotFoundError):
        load_parallel(ParallelData(path=str(tmp_path / "nowhere")))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty is empty"):
        load_parallel(ParallelData(source=tmp_path / "empty", target=tmp_path / "empty"))
    with pytest.raises(ValueError, match="what kind of file"):
        load_parallel(ParallelData(path=config["source"]))


def test_wrong_columns_name_those_there_are(tmp_path):
    path = write(tmp_path / "a.jsonl", [json.dumps({"translation": {"en": "a", "de": "b"}, "note": "x"})])
    with pytest.raises(ValueError, match=r"no column 'nota'. Did you mean 'note'\? There are: translation\.en, trans"):
        load_parallel(ParallelData(path=path, source="translation.en", target="nota"))
    with pytest.raises(ValueError, match=r"no column 'translation\.fr'.*There are: translation\.en, translation\.de"):
        load_parallel(ParallelData(path=path, source_language="en", target_language="fr"))
    with pytest.raises(ValueError, match="give source_column and target_column or the two languages. There are"):
        load_parallel(ParallelData(path=path))
    tsv = write(tmp_path / "a.tsv", ["en\tde", "a\tb"])
    with pytest.raises(ValueError, match="no column 'fr'.*There are: en, de"):
        load_parallel(ParallelData(path=tsv, source_column="en", target_column="fr"))
    datasets.Dataset.from_dict({"en": ["a"], "de": ["b"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="no column 'fr'.*There are: en, de"):
        load_parallel(ParallelData(path=tmp_path / "a.parquet", source_column="en", target_column="fr"))
    table = datasets.Dataset.from_dict({"en": ["a"], "de": ["b"]})
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="no split 'dev'; its splits are train"):
        load_parallel(ParallelData(path=tmp_path / "saved", split="dev", source="en", target="de"))


def test_faulty_records(tmp_path):
    lines = ['{"source": "a", "target": "b"}', "", "{", "[1]", '{"source": "a"}', '{"source": 1, "target": "b"}']
    dataset, report = load_parallel(ParallelData(path=write(tmp_path / "a.jsonl", lines)))
    assert texts(dataset) == [("a", "b")]
    assert reasons(report) == {
        "empty line": [2],
        "line is not a JSON object": [3, 4],
        "empty target": [5],
        "source is not text": [6],
    }
    lines = ['{"translation": null}', '{"translation": {"en": "a", "de": "b"}}', '{"translation": {"en": "a"}}']
    path = write(tmp_path / "b.jsonl", lines)
    dataset, report = load_parallel(ParallelData(path=path, source_language="en", target_language="de"))
    assert texts(dataset) == [("a", "b")]
    assert reasons(report) == {"empty pair": [1], "empty target": [3]}
    dataset, report = load_parallel(ParallelData(path=write(tmp_path / "a.tsv", ["", "a\tb\tc", " ", "a", "\tb"])))
    assert texts(dataset) == [("a", "b")]
    assert reasons(report) == {"empty line": [1, 3], "too few fields": [4], "empty source": [5]}
    assert "no header, fields 1 and 2 are source and target" in str(report)
    with pytest.raises(ValueError, match="one JSON list"):
        load_parallel(ParallelData(path=write(tmp_path / "c.json", ["[", '{"source": "a", "target": "b"}', "]"])))
    with pytest.raises(ValueError, match="no two fields"):
        load_parallel(ParallelData(path=write(tmp_path / "c.tsv", ["one field"])))


HALF = "holds half a character (a lone surrogate, as of a cut emoji)"


def test_pairs_with_half_a_character_are_left_out_and_named(tmp_path):
    records = [
        {"source": "a", "target": "b"},
        {"source": "\ud83d", "target": "b"},
        {"source": "a", "target": "\udc80 b"},
    ]
    dataset, report = load_parallel(ParallelData(path=write(tmp_path / "a.jsonl", map(json.dumps, records))))
    assert texts(dataset) == [("a", "b")]
    assert reasons(report) == {f"source {HALF}": [2], f"target {HALF}": [3]}
    # what a writer that checks nothing leaves of the same: bytes that are not UTF-8
    (tmp_path / "a.tsv").write_bytes(b"a\tb\n\xed\xa0\xbd\tb\n")
    dataset, report = load_parallel(ParallelData(path=tmp_path / "a.tsv"))
    assert texts(dataset) == [("a", "b")] and reasons(report) == {f"line {UNDECODABLE}": [2]}


@pytest.mark.parametrize("kind", ["parquet", "nested parquet", "hub", "saved"])
def test_texts_of_data_sets_that_are_not_valid_are_left_out_and_named(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    source = pa.array([b"ok", b"\xed\xa0\xbd x", b"fine"], pa.binary()).view(pa.string())
    target = pa.array(["a", "b", "c"])
    table = pa.table({"source": source, "target": target})
    if kind == "nested parquet":
        table = pa.table({"translation": pa.StructArray.from_arrays([source, target], ["source", "target"])})
    config = {"path": tmp_path / "a.parquet"}
    if "nested" in kind:
        config |= {"source": "translation.source", "target": "translation.target"}
    if kind == "hub":
        (tmp_path / "hub").mkdir()
        config = {"path": tmp_path / "hub"}
        pyarrow.parquet.write_table(table, tmp_path / "hub" / "train.parquet")
    elif kind == "saved":
        datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(tmp_path / "saved")
        config = {"path": tmp_path / "saved"}
    else:
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    dataset, report = load_parallel(ParallelData(**config))
    assert texts(dataset) == [("ok", "a"), ("fine", "c")]
    assert reasons(report) == {"source is not valid utf-8": [2]}


def test_a_data_set_of_json_with_half_a_character_names_the_way_around_it(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "hub").mkdir()
    write(tmp_path / "hub" / "train.jsonl", [json.dumps({"source": "\ud83d", "target": "b"})])
    with pytest.raises(ValueError, match="hub holds half a character .* give its files by path"):
        load_parallel(ParallelData(path=tmp_path / "hub"))


LOADS = {
    load_parallel: (ParallelData, {"source": "a", "target": "b"}),
    load_texts: (TextData, {"text": "a"}),
    load_labelled_texts: (TextData, {"text": "a", "label": "b"}),
    load_tagged_tokens: (TextData, {"tokens": ["a"], "tags": ["b"]}),
}


@pytest.mark.parametrize("load", LOADS)
def test_faults_of_json_lines_are_the_same_for_every_task(tmp_path, load):
    config, record = LOADS[load]
    good, name = json.dumps(record), next(iter(record))
    lines = ["", good, "{", "[1]", "3", f'{{"{name}": 1, {good[1:]}', f'{{"x": {{"y": 1, "y": 1}}, {good[1:]}']
    lines += ['{"a":' * 100_000, "[" * 100_000]
    path = write(tmp_path / "a.jsonl", lines)
    path.write_bytes(path.read_bytes() + b'{"\xff": 1}\n')
    dataset, report = load(config(path=path))
    assert list(dataset) == [{"id": 2, **record}]
    assert reasons(report) == {
        "empty line": [1],
        "line is not a JSON object": [3, 4, 5],
        "line has a key twice": [6, 7],
        "line is JSON nested too deeply": [8, 9],
        f"line {UNDECODABLE}": [10],
    }


@pytest.mark.parametrize("load", [load_parallel, load_texts, load_labelled_texts])
def test_faults_of_tsv_are_the_same_for_every_task(tmp_path, load):
    config, record = LOADS[load]
    names, values = "\t".join(record), "\t".join(record.values())
    path = write(tmp_path / "a.tsv", ["", f"x\t{names}", f"0\t{values}", " ", "0"])
    path.write_bytes(path.read_bytes() + b"0\ta\t\xff\n")
    dataset, report = load(config(path=path))
    assert list(dataset) == [{"id": 3, **record}]
    assert reasons(report) == {"empty line": [1, 4], "too few fields": [5], f"line {UNDECODABLE}": [6]}
    fields = "fields 2 and 3 are" if len(record) == 2 else "field 2 is"
    assert f"first line read as a header, {fields} {' and '.join(record)}" in str(report)


@pytest.mark.parametrize("load", LOADS)
def test_columns_that_no_record_has_are_named_whatever_is_null(tmp_path, load):
    config, record = LOADS[load]
    lines = [{"note": None}, {"note": "x"}]
    for records, found in ((lines[:1] * 3, "note"), (lines, "note"), ([*lines[:1], {"y": 1}], "y")):
        path = write(tmp_path / "a.jsonl", map(json.dumps, records))
        with pytest.raises(ValueError, match=f"does not tell which column.* There are: {found}"):
            load(config(path=path))
    dataset, report = load(config(path=write(tmp_path / "a.jsonl", map(json.dumps, [lines[0], record]))))
    assert list(dataset) == [{"id": 2, **record}] and report.dropped == 1


def test_files_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LARGEST_SURPRISE", 1 << 20)
    bomb = tmp_path / "a.gz"
    bomb.write_bytes(gzip.compress(b"one line\n" + b"\0" * (4 << 20)))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(ValueError, match=r"a\.gz unpacks to more than 200 times its size.*\(at line 2\)"):
        load_parallel(ParallelData(source=bomb, target=bomb))
    with pytest.raises(ValueError, match=r"a\.gz unpacks to more than 200 times its size"):
        load_texts(TextData(path=bomb, format="text", unit="file"))
    monkeypatch.setattr(text_files, "LONGEST_LINE", 2 << 20)
    long = write(tmp_path / "long", ["short", "x" * (3 << 20), "short"])
    with pytest.raises(ValueError, match="long has a line of more than 2 MiB, line 2: divide it into texts"):
        load_parallel(ParallelData(source=long, target=long))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["text", "several files", "tsv header", "json", "parquet"])
def test_portions_divide_pairs_without_overlap(tmp_path, kind, streaming):
    config = _store(kind, tmp_path)
    parts = [load_parallel(ParallelData(**config, portion=p), streaming=streaming) for p in ([0, 0.9], [0.9, 1])]
    first, second = (texts(dataset) for dataset, _ in parts)
    assert first + second == PAIRS and len(second) == 3
    assert parts[1][1].read == 3 and "[0.9 to 1]: 3 of 3 pairs kept" in str(parts[1][1])


def test_a_portion_that_is_none_is_refused(tmp_path):
    config = write_text_pair(tmp_path)
    with pytest.raises(ValueError, match="portion='half' must be two numbers"):
        ParallelData(**config, portion="half")
    with pytest.raises(ValueError, match="two shares that rise within 0 and 1"):
        ParallelData(**config, portion=[0.5, 1.5])
    with pytest.raises(ValueError, match=r"\[0 to 0.01\] holds no pair; take a larger portion"):
        load_parallel(ParallelData(**config, portion=[0, 0.01]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "two text files"),
        ({"source": "a"}, "two text files"),
        ({"source": "a", "target": "b", "split": "train"}, "split cannot be given"),
        ({"path": "a.tsv", "format": "csv"}, "Unknown data format 'csv'"),
        ({"path": "a.tsv", "source": "en"}, "both source_column and target_column"),
        ({"path": "a.tsv", "source": "en", "source_column": "de", "target": "x"}, "two different columns"),
        ({"path": "a.json", "source_column": 0, "target_column": 1}, "counts the fields of a TSV file"),
        ({"path": "a.tsv", "source_column": 0, "target_column": "b"}, "two names or two numbers"),
        ({"path": ["a.tsv", "a.json"], "source": "a", "target": "b"}, "of one kind"),
    ],
)
def test_contradictory_data_configs_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        load_parallel(ParallelData(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": 2016, "target": "b"}, "source=2016 must be a path or a list of paths"),
        ({"source": "a", "target": ["b", 1]}, r"target=\['b', 1\] must be a path"),
        ({"path": {"a": "b"}}, r"path=\{'a': 'b'\} must be a path"),
        ({"path": b"a"}, "path=b'a' must be a path"),
        ({"path": []}, r"path=\[\] must be a path"),
        ({"path": "a", "format": 1}, "format=1 must be text"),
        ({"path": "a", "source_language": False}, "source_language=False must be text; YAML"),
        ({"path": "a", "revision": 1234567}, "revision=1234567 must be text"),
        ({"path": "a", "source_column": 1.0, "target_column": 2}, "source_column=1.0 must be the name of a column or"),
        ({"path": "a", "source_column": True, "target_column": 2}, "source_column=True must be"),
        ({"path": "a", "encoding": None}, "encoding=None must be text"),
    ],
)
def test_wrong_types_are_refused_by_the_name_of_the_field(fields, message):
    with pytest.raises(ValueError, match=message):
        ParallelData(**fields)


@pytest.mark.parametrize("kind", ["cut short", "not gzipped", "damaged"])
def test_broken_gzip_files(tmp_path, kind):
    whole = write(tmp_path / "a.tsv.gz", [f"{n}\t{n * n}" for n in range(5000)]).read_bytes()
    broken = {
        "cut short": whole[:-100],
        "not gzipped": b"one\teins\n",
        "damaged": whole[:1000] + bytes(200) + whole[1200:],
    }
    (tmp_path / "a.tsv.gz").write_bytes(broken[kind])
    for config in ({"path": tmp_path / "a.tsv.gz"}, dict.fromkeys(("source", "target"), tmp_path / "a.tsv.gz")):
        with pytest.raises(ValueError, match=r"a\.tsv\.gz cannot be unpacked \(.+\): .* get it again"):
            load_parallel(ParallelData(**config))


def test_gzipped_files_are_known_by_how_they_begin(tmp_path):
    packed = write(tmp_path / "a.tsv.gz", ["one\teins", "two\tzwei"])
    plain = packed.rename(tmp_path / "a.tsv")
    pairs, _ = load_parallel(ParallelData(path=plain))
    assert list(pairs["target"]) == ["eins", "zwei"]
    assert read_texts(plain) == ["one\teins", "two\tzwei"]


@pytest.mark.parametrize("kind", ["cut short", "empty", "not Parquet", "damaged inside"])
def test_broken_parquet_files(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    table = datasets.Dataset.from_dict({"source": ["aä"] * 1000, "target": [str(n) for n in range(1000)]})
    table.to_parquet(folder / "a.parquet")
    table.to_parquet(folder / "b.parquet")
    whole = (folder / "b.parquet").read_bytes()
    broken = {
        "cut short": whole[:-50],
        "empty": b"",
        "not Parquet": b"one\teins\n",
        "damaged inside": whole[:10] + b"\xff" * 60 + whole[70:],
    }
    (folder / "b.parquet").write_bytes(broken[kind])
    configs = [ParallelData(path=[folder / "a.parquet", folder / "b.parquet"]), ParallelData(path=folder)]
    for config in configs:
        for streaming in (False, True):
            with pytest.raises(
                ValueError, match=f"{config.path if config is configs[1] else 'b.parquet'}.* cannot be read"
            ):
                list(load_parallel(config, streaming=streaming)[0])


def test_parquet_files_of_one_data_set_have_the_same_columns(tmp_path):
    for name, other in (("a", "target"), ("b", "note")):
        datasets.Dataset.from_dict({"source": ["x"], other: ["y"]}).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(
        ValueError, match=r"b\.parquet has the columns source, note, but .*a\.parquet has source, target"
    ):
        load_parallel(ParallelData(path=[tmp_path / "a.parquet", tmp_path / "b.parquet"]))


def test_data_sets_with_a_script_name_the_way_around_it(tmp_path):
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").touch()
    with pytest.raises(ValueError, match=r"scripted is read by a script .* revision='refs/convert/parquet'"):
        load_parallel(ParallelData(path=folder, source="a", target="b"))


# Tokenising ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for pair in PAIRS for text in pair], 280)


@pytest.mark.parametrize("how", ["memory", "two processes", "stream"])
def test_tokens_and_over_long_pairs(tmp_path, tokenizer, how):
    pairs = [*PAIRS[:5], ("long " * 20, "kurz"), ("short", "lang " * 20), *PAIRS[5:]]
    dataset, report = load_parallel(ParallelData(**write_text_pair(tmp_path, pairs)), streaming=how == "stream")
    limits = {"max_source_length": 20, "max_target_length": 24}
    prepared = tokenize_pairs(
        dataset, tokenizer, **limits, report=report, num_proc=2 if how == "two processes" else None
    )
    for _ in range(2):
        rows = list(prepared)
        assert len(rows) == report.kept == 30 and report.read == 32
        assert reasons(report) == {"source longer than 20 tokens": [6], "target longer than 24 tokens": [7]}
    for row, (source, target), pair_id in zip(rows, PAIRS, [*range(1, 6), *range(8, 33)], strict=True):
        assert row == {
            "id": pair_id,
            "input_ids": tokenizer(source).input_ids,
            "labels": tokenizer(text_target=target).input_ids,
            "source_length": len(row["input_ids"]),
            "target_length": len(row["labels"]),
        }
        assert row["labels"].count(tokenizer.eos_token_id) == 1
    if how == "memory":
        assert prepared.cache_files == []
        assert pair_lengths(prepared).tolist() == [[row["source_length"], row["target_length"]] for row in rows]


def test_exactly_the_longest_length_is_kept(tmp_path, tokenizer):
    dataset, report = load_parallel(ParallelData(**write_text_pair(tmp_path)))
    lengths = [len(tokenizer(source).input_ids) for source, _ in PAIRS]
    limits = {"max_source_length": min(lengths), "max_target_length": 100}
    kept = tokenize_pairs(dataset, tokenizer, **limits, report=report)
    assert len(kept) == lengths.count(min(lengths)) == report.kept
    with pytest.raises(ValueError, match="No pair is short enough"):
        tokenize_pairs(dataset, tokenizer, max_source_length=1, max_target_length=1, report=report)


def test_separate_vocabularies(tmp_path, tokenizer):
    dataset, report = load_parallel(ParallelData(**write_text_pair(tmp_path)))
    target_tokenizer = train_tokenizer(iterate_texts(dataset, "target"), 270, add_bos=True)
    limits = {"max_source_length": 100, "max_target_length": 100}
    row = tokenize_pairs(dataset, tokenizer, target_tokenizer, **limits, report=report)[3]
    assert row["input_ids"] == tokenizer(PAIRS[3][0]).input_ids
    assert row["labels"] == target_tokenizer(PAIRS[3][1]).input_ids and row["labels"][0] == 1


def test_texts_for_a_tokenizer(tmp_path):
    for streaming in (False, True):
        dataset, _ = load_parallel(ParallelData(**write_text_pair(tmp_path)), streaming=streaming)
        assert list(iterate_texts(dataset)) == [text for pair in PAIRS for text in pair]
        assert list(iterate_texts(dataset, "target")) == [target for _, target in PAIRS]


def test_what_is_too_long_for_training_does_not_shape_the_tokenizer():
    rows = [("one two", "eins zwei"), ("far too many words", "zu viele"), ("x" * 1001, "y"), ("three", "drei")]
    table = datasets.Dataset.from_dict(dict(zip(("source", "target"), zip(*rows, strict=True), strict=True)))
    kept = TokenizerTexts(table, ("source", "target"), "bpe", {"source": 3, "target": 3})
    assert list(kept) == ["one two", "eins zwei", " ", "y", "three", "drei"]
    assert kept.note() == (
        "left out of the training of the tokenizer: rows that are too long for training (1) and words of more than 1,000 "
        "characters (1)"
    )
    # a row goes with both its sides, whichever is asked for
    assert list(TokenizerTexts(table, ("target",), "bpe", {"source": 3})) == ["eins zwei", "y", "drei"]
    everything = TokenizerTexts(table, ("target",), "characters", {})
    assert list(everything) == [target for _, target in rows] and everything.note() is None
    assert list(TokenizerTexts(table, ("source",), "characters", {"source": 6})) == ["three"]


def test_rows_that_come_twice_are_counted(tmp_path):
    train_pairs = [("a", "1"), ("b", "2"), ("a", "1"), ("a", "3"), ("c", "4"), ("a", "1")]
    test_pairs = [("a", "1"), ("c", "5"), ("d", "1"), ("d", "1"), ("b", "2")]
    reports = []
    for name, pairs in (("train", train_pairs), ("test", test_pairs)):
        (tmp_path / name).mkdir()
        stream, report = load_parallel(ParallelData(**write_text_pair(tmp_path / name, pairs)), streaming=True)
        assert list(stream) and list(stream)  # a second pass begins to count again
        reports.append(report)
    train, test = reports
    count_repeats(train, [test])
    assert (train.repeats.rows, train.repeats.sources) == (2, 3)
    assert (test.repeats.rows, test.repeats.sources) == (2, 3)
    assert "2 pairs repeat an earlier one, and 3 by the source alone" in str(train)
    assert "2 pairs are in the training data, too, and 3 by the source alone" in str(test)
    assert test.to_dict()["repeats"] == {"rows": 2, "sources": 3}
    assert not train.row_hashes and not test.source_hashes, "memory that is no longer needed"
    _, alone = load_parallel(ParallelData(**write_text_pair(tmp_path, [("x", "y"), ("v", "w")])))
    count_repeats(alone, [])
    assert "earlier" not in str(alone) and alone.to_dict()["repeats"] == {"rows": 0, "sources": 0}


def test_report_can_be_pickled(tmp_path):
    _, report = load_parallel(ParallelData(**write_text_pair(tmp_path)))
    assert pickle.loads(pickle.dumps(report)) == report


# Batches by token budget ---------------------------------------------------------------------------------------------


def random_lengths(generator, count):
    longer = generator.geometric(1 / 12, size=count).clip(1, 60)
    return np.stack([longer, (longer * generator.uniform(0.5, 1.6, count)).astype(int).clip(1, 60)], axis=1)


def samplers():
    """Many data sets and settings, drawn at random."""
    generator = np.random.default_rng(0)
    for trial in range(60):
        lengths = random_lengths(generator, int(generator.integers(1, 400)))
        yield TokenBudgetBatchSampler(
            lengths,
            int(generator.integers(lengths.max(), 500)),
            max_sentences=[None, 1, 7][trial % 3],
            shuffle=trial % 5 > 0,
            seed=trial,
            pool_size=[1, 16, 1024][trial % 3],
        )


def test_every_index_once_and_budget_kept():
    for sampler in samplers():
        for epoch in range(3):
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler)
            assert sorted(index for batch in batches for index in batch) == list(range(len(sampler.lengths)))
            for batch in batches:
                assert len(batch) * sampler.lengths[batch].max() <= sampler.max_tokens
                assert sampler.max_sentences is None or len(batch) <= sampler.max_sentences
                assert all(type(index) is int for index in batch)


def test_batches_depend_on_seed_and_epoch_only():
    lengths = random_lengths(np.random.default_rng(1), 500)
    first, second = (TokenBudgetBatchSampler(lengths, 300, seed=3) for _ in range(2))
    list(second)
    for epoch in (0, 4, 0):
        first.set_epoch(epoch), second.set_epoch(epoch)
        assert list(first) == list(second) == list(first)
    other = TokenBudgetBatchSampler(lengths, 300, seed=4)
    assert list(first) != list(other)


def test_epochs_have_other_batches_but_as_many():
    sampler = TokenBudgetBatchSampler(random_lengths(np.random.default_rng(1), 5000), 300)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    # Not only the order of the batches is new, but which pairs share one.
    as_sets = [{frozenset(batch) for batch in batches if len(batch) > 1} for batches in epochs]
    assert len(as_sets[0] & as_sets[1]) < 0.1 * len(as_sets[0])
    # As many batches, of the same sizes.
    assert len({tuple(sorted(map(len, batches))) for batches in epochs}) == 1
    # The batches do not come in order of length.
    longest = [sampler.lengths[batch].max() for batch in epochs[0]]
    assert longest != sorted(longest) and longest != sorted(longest, reverse=True)


def test_without_shuffling_longest_first_and_always_the_same():
    sampler = TokenBudgetBatchSampler(random_lengths(np.random.default_rng(1), 500), 300, shuffle=False)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) == first
    longest = [sampler.lengths[batch].max() for batch in first]
    assert longest == sorted(longest, reverse=True)


def test_padding_share():
    sampler = TokenBudgetBatchSampler([(2, 4), (4, 4)], 8)
    assert sampler.padding_share() == pytest.approx(2 / 16)
    assert TokenBudgetBatchSampler([(3, 5)] * 7, 20).padding_share() == 0
    lengths = random_lengths(np.random.default_rng(1), 5000)
    bucketed = TokenBudgetBatchSampler(lengths, 2000)
    everything = TokenBudgetBatchSampler(lengths, 5000 * 60)
    assert bucketed.padding_share() < 0.2 < 0.5 < everything.padding_share()
    by_hand = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in bucketed)
    assert bucketed.padding_share() == pytest.approx(1 - lengths.sum() / by_hand)


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match=r"Pair 1 \(3 source and 9 target tokens\).*max_tokens=8.*at least 9"):
        TokenBudgetBatchSampler([(1, 1), (3, 9)], 8)
    with pytest.raises(ValueError, match="no pairs"):
        TokenBudgetBatchSampler(np.zeros((0, 2)), 8)
    with pytest.raises(ValueError, match="shape"):
        TokenBudgetBatchSampler([1, 2, 3], 8)
    with pytest.raises(ValueError, match="max_sentences must be at least 1"):
        TokenBudgetBatchSampler([(1, 1)], 8, max_sentences=0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_shards_of_two_and_three_processes(drop_last):
    lengths = random_lengths(np.random.default_rng(2), 300)
    for processes in (2, 3):
        for budget in (200, 230, 260, 5000):
            whole = TokenBudgetBatchSampler(lengths, budget, drop_last=drop_last)
            parts = []
            for rank in range(processes):
                # Each process makes its own sampler.
                sampler = TokenBudgetBatchSampler(lengths, budget, drop_last=drop_last)
                shard = BatchSamplerShard(sampler, processes, rank)
                parts.append(list(shard))
                assert len(parts[-1]) == len(shard)
            assert len({len(part) for part in parts}) == 1
            dealt = [batch for step in zip(*parts, strict=True) for batch in step]
            batches = list(whole)
            if drop_last:
                assert dealt == batches[: len(batches) // processes * processes]
            else:
                assert dealt[: len(batches)] == batches and len(dealt) - len(batches) < processes


def test_interrupted_epoch_continues_at_the_next_batch(tokenizer):
    rows = [{"input_ids": [5] * (n % 9 + 1), "labels": [6] * (n % 7 + 1)} for n in range(200)]
    lengths = [(len(row["input_ids"]), len(row["labels"])) for row in rows]

    def loader():
        sampler = TokenBudgetBatchSampler(lengths, 64, seed=5)
        collate = DataCollatorForSeq2Seq(tokenizer)
        return prepare_data_loader(DataLoader(rows, batch_sampler=sampler, collate_fn=collate))

    unbroken = loader()
    epochs = [[batch["input_ids"] for batch in unbroken] for _ in range(3)]
    assert len({len(epoch) for epoch in epochs}) == 1
    # The loader tells the sampler its epoch.
    assert any(a.shape != b.shape for a, b in zip(epochs[0], epochs[1], strict=True))
    resumed = loader()
    skipping = skip_first_batches(resumed, 4)
    # As Trainer does: the loader and the sampler below the one that skips.
    skipping.set_epoch(2)
    skipping.batch_sampler.batch_sampler.set_epoch(2)
    rest = [batch["input_ids"] for batch in skipping]
    assert len(rest) == len(skipping) == len(epochs[2]) - 4
    assert all(torch.equal(a, b) for a, b in zip(rest, epochs[2][4:], strict=True))


def test_library_collator_pads_the_batches(tmp_path, tokenizer):
    """`DataCollatorForSeq2Seq` is used as it is: labels padded with -100, masks that tell the padding."""
    dataset, report = load_parallel(ParallelData(**write_text_pair(tmp_path)))
    prepared = tokenize_pairs(dataset, tokenizer, max_source_length=99, max_target_length=99, report=report)
    sampler = TokenBudgetBatchSampler(pair_lengths(prepared), 200)
    columns = prepared.select_columns(["input_ids", "labels"])
    loader = DataLoader(columns, batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(tokenizer))
    for batch, indices in zip(loader, sampler, strict=True):
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        assert max(batch["input_ids"].numel(), batch["labels"].numel()) <= 200
        for row, index in enumerate(indices):
            source, target = columns[index]["input_ids"], columns[index]["labels"]
            assert batch["input_ids"][row, : len(source)].tolist() == source
            assert batch["attention_mask"][row].sum() == len(source)
            assert (batch["input_ids"][row, len(source) :] == tokenizer.pad_token_id).all()
            assert batch["labels"][row, : len(target)].tolist() == target
            assert (batch["labels"][row, len(target) :] == -100).all()


# Real text -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the corpora in ../shared")
def test_real_corpus(tmp_path):
    folder = SHARED / "data" / "multi30k"
    config = ParallelData(source=folder / "train.en", target=folder / "train.de")
    dataset, report = load_parallel(config)
    assert len(dataset) == report.kept == 29_000 and report.dropped == 0
    dataset = dataset.select(range(5000))
    tokenizer = train_tokenizer(iterate_texts(dataset), 4000)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    for side in ("source", "target"):
        ids = loaded(dataset[side][:]).input_ids
        assert loaded.batch_decode(ids, skip_special_tokens=True) == dataset[side][:]
        assert all(row[-1] == 2 and min(row[:-1]) > 3 for row in ids)

    prepared = tokenize_pairs(dataset, tokenizer, max_source_length=100, max_target_length=100, report=report)
    lengths = np.tile(pair_lengths(prepared), (6, 1))
    sampler = TokenBudgetBatchSampler(lengths, 4096)
    count = sum(len(batch) for batch in sampler)
    assert count == len(lengths)
    assert sampler.padding_share() < 0.1
