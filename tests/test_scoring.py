"""Scores apart from models: values, files, significance, and the modules and evaluators of the `evaluate` library."""

import gzip
import json
import random
import sys
from types import SimpleNamespace

import datasets
import evaluate
import pytest
import sacrebleu
from evaluate import evaluator
from transformers import pipeline

import vanilla_transformer as vt
from runs import WORDS, reversed_words, save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer import cli
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.scoring import METRICS, compare_systems, evaluators, modules, score_texts
from vanilla_transformer.scoring.scores import check_tokenizer
from vanilla_transformer.tokenization import train_tokenizer, train_wordpiece_tokenizer

REFERENCES = [target for _, target in reversed_words(40, 1)]
OTHERS = [text.replace("red", "crimson").replace("dog", "hound") for text in REFERENCES]


def with_errors(texts, share, seed=0):
    """The texts, a share of whose words are replaced by others."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else w for w in text.split()) for text in texts]


GOOD, BAD = with_errors(REFERENCES, 0.05), with_errors(REFERENCES, 0.6)


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, OTHERS]], ids=["one", "two"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_chrf_and_ter_are_those_of_sacrebleu(references, lowercase):
    hypotheses = [text.title() for text in BAD]
    scores = score_texts(hypotheses, references, lowercase=lowercase, metrics=METRICS)
    expected = {
        "bleu": sacrebleu.corpus_bleu(hypotheses, references, lowercase=lowercase),
        "chrf": sacrebleu.CHRF(lowercase=lowercase).corpus_score(hypotheses, references),
        "ter": sacrebleu.corpus_ter(hypotheses, references, case_sensitive=not lowercase),
    }
    for name, score in expected.items():
        assert scores[name] == round(score.score, 2), name
        signature = scores.metrics[name].signature
        assert f"nrefs:{len(references)}|" in signature and f"case:{'lc' if lowercase else 'mixed'}" in signature
    assert "tok:13a" in scores.metrics["bleu"].signature and "tok:words" in scores.metrics["wer"].signature


def edits(one, other):
    """Levenshtein's distance by its definition."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def test_error_rates_are_edits_over_what_the_references_hold():
    scores = score_texts(BAD, REFERENCES, metrics=METRICS)
    for name, split in (("wer", str.split), ("cer", list)):
        total = sum(edits(split(h), split(r)) for h, r in zip(BAD, REFERENCES, strict=True))
        assert scores[name] == round(total / sum(len(split(r)) for r in REFERENCES), 4)
    assert scores["exact_match"] == sum(h == r for h, r in zip(BAD, REFERENCES, strict=True)) / 40
    assert score_texts(["a b c d"], ["a"], metrics=["wer"])["wer"] == 3.0
    # nothing but an empty reference: one wrong text, or none
    assert score_texts(["", "x y"], ["", "x y"], metrics=["wer", "cer"])["cer"] == 0.0
    assert score_texts(["x"], [""], metrics=["wer"])["wer"] == 1.0


def test_each_text_counts_the_reference_that_it_is_nearest_to():
    references = [["a b c d", "x y"], ["a b", "y x"]]
    scores = score_texts(["a b", "y x"], references, metrics=METRICS)
    assert (scores["exact_match"], scores["wer"], scores["cer"]) == (1.0, 0.0, 0.0)
    assert score_texts(["a b e", "y x"], references, metrics=["wer"])["wer"] == 0.25


def test_scores_that_take_no_notice_of_case_say_so():
    scores = score_texts(["a house"], ["A HOUSE"], lowercase=True, metrics=METRICS)
    assert [scores[name] for name in METRICS] == [scores["bleu"], 100.0, 0.0, 1.0, 0.0, 0.0]
    assert all("case:lc" in score.signature for score in scores.metrics.values())
    assert score_texts(["a house"], ["A HOUSE"])["exact_match"] == 0.0


# Intervals and significance ------------------------------------------------------------------------------------------


def test_a_clear_difference_is_significant_and_none_is_not():
    base, same, better = compare_systems({"base": BAD, "same": BAD, "better": GOOD}, REFERENCES, resamples=200)
    for name in METRICS:
        low, high = base.metrics[name].interval
        assert low < base[name] < high and base.metrics[name].p_value is None
        assert same.metrics[name].p_value == 1.0 and same.metrics[name].interval == (low, high)
        assert better.metrics[name].p_value < 0.05
        assert "bs:200|seed:12345" in better.metrics[name].signature
    assert base.metrics["exact_match"].interval[0] >= 0 and better.metrics["bleu"].interval[1] <= 100
    plain = compare_systems({"base": BAD, "better": GOOD}, REFERENCES, resamples=0)
    assert [s.metrics[m].interval or s.metrics[m].p_value for s in plain for m in METRICS] == [None] * 12
    assert [plain[1][name] for name in METRICS] == [better[name] for name in METRICS]


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, texts in (("good", GOOD), ("bad", BAD), ("ref", REFERENCES), ("short", REFERENCES[:39])):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (tmp_path / "other.gz").write_bytes(gzip.compress("".join(f"{text}\n" for text in OTHERS).encode()))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "mac").write_bytes(b"good\rbad\r")
    (tmp_path / "latin").write_bytes(b"good\ncaf\xe9\n")
    return tmp_path


@pytest.fixture
def command(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


def test_score_compares_files_of_several_systems_with_several_references(command, files):
    systems = ("--hypotheses", "bad", "good", "--references", "ref", "other.gz", "--resamples", 100)
    status, out, err = command("score", *systems)
    report = json.loads(out)
    expected = compare_systems({"bad": BAD, "good": GOOD}, [REFERENCES, OTHERS], resamples=100)
    assert status == 0 and report["references"] == ["ref", "other.gz"] and report["baseline"] == "bad"
    assert report["systems"] == [{"name": scores.name, **scores.to_dict()} for scores in expected]
    assert report["systems"][1]["bleu_p_value"] < 0.05 and "bleu_p_value" not in report["systems"][0]
    assert "40 sentences" in err and f"{report['systems'][1]['chrf']:.2f}" in err and "*" in err
    # the same, with each option as often as it has values; the JSON in a file, the table on the screen
    separate = ("--hypotheses", "bad", "--hypotheses=good", "--references", "ref", "--references", "other.gz")
    status, out, err = command("score", *separate, "--resamples", 100, "-o", "scores.json")
    assert (status, err) == (0, "") and json.loads((files / "scores.json").read_text()) == report
    assert "40 sentences" in out
    few = command("score", "--hypotheses", "good", "--references", "ref", "--metrics", "ter", "wer", "--resamples", 0)
    assert set(json.loads(few[1])["systems"][0]) == {
        "name", "ter", "wer", "sentences", "ter_signature", "wer_signature"
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("--hypotheses short --references ref", "ref has 40 lines but short has 39; line by line"),
        ("--hypotheses good --references ref short", "ref has 40 lines but short has 39"),
        ("--hypotheses good --references ref --source short", "ref has 40 lines but short has 39"),
        ("--hypotheses gone --references ref", "There is no file gone"),
        ("--hypotheses good --references .", ". is a folder, not a file"),
        ("--hypotheses empty --references ref", "empty is empty"),
        ("--hypotheses latin --references ref", "latin, line 2: not valid UTF-8"),
        ("--hypotheses mac --references ref", "mac ends its lines in carriage returns"),
        ("--hypotheses good good --references ref", "good is given 2 times"),
        ("--hypotheses gone --references ref --tokenize foo", "no tokenizer 'foo'; there are none, zh, 13a"),
        ("--hypotheses gone --references ref --tokenize int", "did you mean 'intl'?"),
        ("--hypotheses gone --references ref --metrics blue", "no metric 'blue'; did you mean 'bleu'?"),
        ("--hypotheses good --references ref --resamples 1", "1 bootstrap resamples give no interval"),
        ("--hypotheses good --references ref --resamples 1000000", "take at most 625,000"),
        ("--hypotheses gone --references ref --comet m.ckpt", "pip install unbabel-comet"),
        ("--hypotheses good --references ref -o gone/scores.json", "gone/scores.json"),
    ],
)
def test_score_refuses_what_it_cannot_score_in_one_sentence(command, files, arguments, sentence):
    status, out, err = command("score", *arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and sentence in err


def test_a_tokenizer_whose_packages_are_missing_is_refused_before_any_work(monkeypatch):
    def missing():
        raise RuntimeError("needs\n\nMeCab.")

    monkeypatch.setattr("sacrebleu.metrics.bleu._get_tokenizer", lambda name: missing)
    with pytest.raises(ValueError, match=r"'ja-mecab' cannot be used here \(needs MeCab\); install what it needs"):
        check_tokenizer("ja-mecab")


def test_comet_reads_source_output_and_reference(command, files, monkeypatch):
    """With a stand-in for the package, which has the two functions and the result of the real one."""
    asked = []

    class Model:
        def predict(self, rows, batch_size, gpus, progress_bar):
            asked.append(rows)
            return SimpleNamespace(system_score=sum(row["mt"] == row["ref"] for row in rows) / len(rows))

    (files / "model.ckpt").touch()
    loaded = []
    stand_in = SimpleNamespace(
        download_model=lambda name: f"cache/{name}", load_from_checkpoint=lambda path: loaded.append(path) or Model()
    )
    monkeypatch.setitem(sys.modules, "comet", stand_in)
    options = ("score", "--references", "ref", "--metrics", "exact_match", "--hypotheses", "bad", "good")
    status, out, err = command(*options, "--source", "bad", "--comet", "model.ckpt")
    systems = json.loads(out)["systems"]
    assert status == 0 and [system["comet"] for system in systems] == [system["exact_match"] for system in systems]
    assert asked[1][3] == {"src": BAD[3], "mt": GOOD[3], "ref": REFERENCES[3]} and "comet" in err
    assert command(*options, "--source", "bad", "--comet", "Unbabel/wmt22-comet-da")[0] == 0
    assert loaded == ["model.ckpt", "cache/Unbabel/wmt22-comet-da"]
    assert "give them with --source" in command(*options, "--comet", "model.ckpt")[2]
    several = (*options, "--references", "good", "--source", "bad", "--comet", "model.ckpt")
    assert "one reference, not 2" in command(*several)[2]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator(folder)
    return folder


def test_evaluate_writes_and_scores_a_line_for_each_line(command, files, translator):
    pairs = [("", "x"), *reversed_words(5, 3), ("red dog", ""), (" ", "")]
    for side, texts in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
        (files / side).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    model = ("--model", translator, "--source", "src", "--target", "tgt")
    status, out, err = command("evaluate", *model, "--output", "out", "--metrics", "bleu", "chrf", "wer")
    written = (files / "out").read_text().split("\n")
    outputs = [best[0].text for best in TextGenerator.from_pretrained(translator).generate([s for s, _ in pairs])]
    assert status == 0 and err == "8 lines, 3 of them with an empty side\n"
    assert written == [text.replace("\n", " ").replace("\r", " ") for text in outputs] + [""]
    assert written[0] == written[-2] == "" and all(written[1:6])
    # scored again from the file, it is the same
    scored = json.loads(command("score", "--hypotheses", "out", "--references", "tgt")[1])["systems"][0]
    assert {name: scored[name] for name in json.loads(out)} == json.loads(out)


def test_evaluate_takes_outputs_instead_of_a_model(command, files):
    given = ("--source", "bad", "--target", "ref", "other.gz", "--hypotheses", "bad", "good", "--resamples", 50)
    status, out, _ = command("evaluate", *given)
    report = json.loads(out)
    assert status == 0 and len(report["references"]) == 2 and report["systems"][1]["bleu_p_value"] < 0.05
    for wrong, sentence in (
        (("--model", "runs/none"), "give either a --model, or --hypotheses"),
        (("--num-beams", 2), "--num-beams has an effect only with --model"),
        (("--output", "x"), "--output has an effect only with --model"),
    ):
        assert sentence in command("evaluate", *given, *wrong)[2]
    # before the model is loaded, which is not there
    missing = ("evaluate", "--model", "gone", "--source", "good", "--target", "ref")
    assert "no tokenizer 'foo'" in command(*missing, "--tokenize", "foo")[2]
    assert "has 40 lines but short has 39" in command(*missing, "--target", "short")[2]
    assert "give either" in command("evaluate", "--source", "good", "--target", "ref")[2]


# The evaluate library ------------------------------------------------------------------------------------------------


def test_modules_give_the_scores_without_a_network():
    for name in METRICS:
        module = modules.load_metric(name)
        expected = score_texts(BAD, [REFERENCES, OTHERS], metrics=METRICS)
        references = [list(pair) for pair in zip(REFERENCES, OTHERS, strict=True)]
        assert module.compute(predictions=BAD, references=references) == {name: expected[name]}
        for hypothesis, reference in zip(BAD, REFERENCES, strict=True):
            module.add(prediction=hypothesis, reference=reference)
        given = module.compute(signature=True, lowercase=True)
        alone = score_texts(BAD, REFERENCES, metrics=METRICS, lowercase=True)
        assert given == {name: alone[name], "signature": alone.metrics[name].signature}
    with pytest.raises(ValueError, match="no metric 'blue'; there are bleu"):
        modules.load_metric("blue")
    with pytest.raises(ValueError, match="as many references"):
        modules.load_metric("bleu").compute(predictions=["a", "b"], references=[["a"], ["b", "c"]])


def test_modules_load_as_those_of_the_library_do(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path))
    loaded = evaluate.load(modules.__file__, "chrf", cache_dir=str(tmp_path))
    assert loaded.compute(predictions=BAD, references=REFERENCES) == {"chrf": score_texts(BAD, REFERENCES)["chrf"]}


def test_modules_score_labels_tags_answers_and_generated_text():
    compute = {name: modules.load_metric(name).compute for name in ("labels", "tags", "answers", "generated_text")}
    assert compute["labels"](predictions=["a", "b", "b"], references=["a", "b", "c"]) == {
        "accuracy": pytest.approx(2 / 3),
        "macro_f1": pytest.approx((1 + 2 / 3) / 3),
    }
    assert compute["labels"](predictions=[0, 1], references=[0, 1])["macro_f1"] == 1.0
    tags = {"predictions": [["B-A", "I-A", "O", "B-B"]], "references": [["B-A", "I-A", "O", "O"]]}
    assert compute["tags"](**tags) == {
        "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "accuracy": 0.75
    }  # fmt: skip
    answers = [{"text": ["the Red, dog", "a cat"], "answer_start": [0, 9]}, {"text": [], "answer_start": []}]
    scores = compute["answers"](
        predictions=[{"id": "a", "prediction_text": "red dog house"}, {"id": "b", "prediction_text": ""}],
        references=[{"id": name, "answers": answer} for name, answer in zip("ab", answers, strict=True)],
    )
    assert scores == {"exact_match": 50.0, "f1": pytest.approx(100 * (2 * 2 / 5 + 1) / 2)}
    assert compute["generated_text"](data=["a b a b", "c"]) == {
        "words": 2.5, "distinct_1": 3 / 5, "distinct_2": 2 / 3
    }  # fmt: skip


@pytest.mark.parametrize("task, metric", [("translation", "bleu"), ("summarization", "chrf")])
def test_evaluators_score_texts_of_models_folders_and_pipelines(task, metric, translator):
    pairs = reversed_words(6, 0)
    sources, targets = map(list, zip(*pairs, strict=True))
    sources[0] = " ".join(["Red green."] * 40)  # longer than the model reads at once
    data = datasets.Dataset.from_dict({"text": sources, "label": targets})
    short = {"max_new_tokens": 4}
    made = pipeline(task, model=str(translator))
    key = "summary_text" if task == "summarization" else "translation_text"
    outputs = [record[key] for record in made(sources, **short)]
    for given in (str(translator), made.model, made):
        tokenizer = None if given is made else word_tokenizer()
        results = evaluator(task).compute(given, tokenizer=tokenizer, data=data, generation_kwargs=short)
        assert results[metric] == score_texts(outputs, targets)[metric] and results["samples_per_second"] > 0
    made = pipeline(task, model=str(translator), **short)
    results = evaluator(task).compute(made, data=data, metric="cer", strategy="bootstrap", n_resamples=30)["cer"]
    low, high = results["confidence_interval"]
    assert low <= results["score"] <= high
    one = evaluator(task).compute(made, data=data, metric="cer", generation_kwargs={"max_new_tokens": 1})
    assert one["cer"] != results["score"]
    # the options of one call are not those of the next
    assert evaluator(task).compute(made, data=data, metric="cer")["cer"] == results["score"]
    with pytest.raises(ValueError, match=f"cannot be evaluated as one for {task}"):
        made.task = "fill-mask"
        evaluator(task).compute(made, data=data)


TEXTS = [source for source, _ in reversed_words(100, 0)]


def test_evaluators_score_classifiers_answers_and_language_models():
    tokenizer = train_tokenizer(TEXTS, 280)
    heads = {"vocab_size": len(tokenizer)}
    classifier = tiny_model("encoder-only", model_class=vt.VanillaTransformerForSequenceClassification, **heads)
    labels = [
        record["label"] for record in pipeline("text-classification", model=classifier, tokenizer=tokenizer)(TEXTS[:6])
    ]
    wrong = [{"LABEL_0": "LABEL_1", "LABEL_1": "LABEL_0"}[label] for label in labels[:2]]
    data = datasets.Dataset.from_dict({"text": TEXTS[:6], "label": wrong + labels[2:]})
    results = evaluator("text-classification").compute(classifier, tokenizer=tokenizer, data=data)
    assert results["accuracy"] == pytest.approx(4 / 6)
    data = datasets.Dataset.from_dict({"text": TEXTS[:6], "label": [int(label[-1]) for label in labels]})
    mapping = {"LABEL_0": 0, "LABEL_1": 1}
    results = evaluator("text-classification").compute(
        classifier, tokenizer=tokenizer, data=data, label_mapping=mapping
    )
    assert (results["accuracy"], results["macro_f1"]) == (1.0, 1.0)

    reader = tiny_model("encoder-only", model_class=vt.VanillaTransformerForQuestionAnswering, **heads)
    questions, contexts = ["red dog", "cat"], ["green red dog house", "blue cat sun"]
    found = pipeline("question-answering", model=reader, tokenizer=tokenizer)(question=questions, context=contexts)
    answers = [{"text": [found[0]["answer"]], "answer_start": [0]}, {"text": ["nothing"], "answer_start": [0]}]
    columns = {"question": questions, "context": contexts, "id": ["a", "b"], "answers": answers}
    data = datasets.Dataset.from_dict(columns)
    results = evaluator("question-answering").compute(reader, tokenizer=tokenizer, data=data, squad_v2_format=False)
    assert results["exact_match"] == 50.0

    words = train_wordpiece_tokenizer(TEXTS, 50)
    names = {0: "O", 1: "B-A"}
    options = {"vocab_size": len(words), "id2label": names, "label2id": {name: i for i, name in names.items()}}
    tagger = tiny_model("encoder-only", model_class=vt.VanillaTransformerForTokenClassification, **options)
    tokens = [text.split() for text in TEXTS[:6]]
    rows = pipeline("token-classification", model=tagger, tokenizer=words, ignore_labels=[])(TEXTS[:6])
    tags = [[record["entity"] for record in row] for row in rows]
    assert [len(row) for row in tags] == [len(row) for row in tokens], "a piece a word"
    kinds = {
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-A"])),
    }
    for features in (None, datasets.Features(kinds)):
        data = datasets.Dataset.from_dict({"tokens": tokens, "ner_tags": tags}, features=features)
        results = evaluator("token-classification").compute(tagger, tokenizer=words, data=data)
        assert (results["f1"], results["accuracy"]) == (1.0, 1.0)
    flat = datasets.Dataset.from_dict({"tokens": TEXTS[:6], "ner_tags": tags})
    with pytest.raises(ValueError, match="the column tokens must hold a list"):
        evaluator("token-classification").compute(tagger, tokenizer=words, data=flat)

    open_ended = train_tokenizer(TEXTS, 280, add_eos=False)
    model = tiny_model("decoder-only", vocab_size=len(open_ended))
    made = pipeline("text-generation", model=model, tokenizer=open_ended, max_new_tokens=5, do_sample=False)
    data = datasets.Dataset.from_dict({"text": TEXTS[:3]})
    results = evaluator("text-generation").compute(made, data=data)
    expected = modules.load_metric("generated_text").compute(
        data=[record[0]["generated_text"] for record in made(TEXTS[:3])]
    )
    assert {name: results[name] for name in expected} == expected


def test_every_task_of_the_evaluators_is_one_of_the_library():
    for task, (implementation, metric) in evaluators.EVALUATORS.items():
        assert type(evaluator(task)) is implementation and metric in modules.MODULES
        with pytest.raises(ValueError, match="needs a model, a folder or a pipeline"):
            evaluator(task).prepare_pipeline(None)
