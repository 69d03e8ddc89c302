"""Recipes, schedule, metrics, averaging, and whole runs: finished, interrupted, resumed."""

import json
import math
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, EvalPrediction, Seq2SeqTrainingArguments

import vanilla_transformer as vt
from runs import (
    ROOT,
    equal_weights,
    history,
    recipe_values,
    reversed_words,
    run,
    run_on_two,
    weights,
    word_tokenizer,
)
from tiny import tiny_model
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.averaging import average_checkpoints, average_weights
from vanilla_transformer.runs.run import Run, run_recipe
from vanilla_transformer.scoring import score_texts
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.tasks.metrics import GenerationMetrics, decode_ids
from vanilla_transformer.trainer.checkpoints import find_checkpoints
from vanilla_transformer.trainer.schedules import inverse_sqrt_factor, inverse_sqrt_schedule, noam_peak
from vanilla_transformer.trainer.trainer import Seq2SeqTokenTrainer
from vanilla_transformer.utils.schema import override_fields
from warm_python import warm_python

RECIPES = [
    path for path in sorted((ROOT / "scripts" / "recipes").glob("*.yaml")) if "\nablation:" not in path.read_text()
]
RECIPES_FROM_SCRATCH = [path for path in RECIPES if "\nstart_from:" not in path.read_text()]


# Recipes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def values(tmp_path):
    return recipe_values(tmp_path)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("sed=1", "unknown field sed; did you mean 'seed'?"),
        ("data.trian={}", "unknown field data.trian; did you mean 'train'?"),
        ("data.train.sourc=x", "unknown field data.train.sourc; did you mean 'source'?"),
        ("data.test.unseen.taget=x", "unknown field data.test.unseen.taget; did you mean 'target'?"),
        ("tokenizer.vocabsize=9", "unknown field tokenizer.vocabsize; did you mean 'vocab_size'?"),
        ("model.hiden_size=9", "unknown field model.hiden_size; did you mean 'hidden_size'?"),
        ("batches.max_token=9", "unknown field batches.max_token; did you mean 'max_tokens'?"),
        ("training.lerning_rate=1", "unknown field training.lerning_rate; did you mean 'learning_rate'?"),
        ("averaging.lst=1", "unknown field averaging.lst; did you mean 'last'?"),
        ("evaluation.sentence=1", "unknown field evaluation.sentence; did you mean 'sentences'?"),
        ("generation.num_beam=1", "unknown field generation.num_beam; did you mean 'num_beams'?"),
        ("card.titel=x", "unknown field card.titel; did you mean 'title'?"),
        ("stop_on.update=1", "unknown field stop_on.update; did you mean 'updates'?"),
        ("task=seq2sec", "task: 'seq2sec' is unknown; did you mean 'seq2seq'?"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(values, override, sentence):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("seed=one", "seed='one'"),
        ("seed=true", "seed=True"),
        ("data.max_source_length=1.5", "data.max_source_length=1.5"),
        ("tokenizer.shared=1", "tokenizer.shared=1"),
        ("batches.max_tokens=null", "batches.max_tokens=None"),
        ("batches.max_tokens=0", "batches.max_tokens=0"),
        ("data.train=text", "data.train='text'"),
        ("model=tiny", "model='tiny'"),
        ("averaging=5", "averaging"),
        ("data.test.unseen=file", "data.test.unseen"),
        ("training.max_steps=many", "training.max_steps='many'"),
        ("training.learning_rate=fast", "training.learning_rate='fast'"),
        ("training.warmup_steps=[1]", "training.warmup_steps=[1]"),
        ("generation.num_beams=four", "generation.num_beams='four'"),
        ("generation.num_beams=0", "generation.num_beams=0"),
        ("generation.max_length_over_source=2.5", "generation.max_length_over_source=2.5"),
        ("evaluation.num_beams=0", "evaluation.num_beams=0"),
        ("stop_on.updates=0", "stop_on.updates=0"),
        ("stop_on.loss_over_median=1", "stop_on.loss_over_median=1.0"),
        ("stop_on.non_finite=1", "stop_on.non_finite=1"),
        ("stop_on.loss_over_median=.nan", "stop_on.loss_over_median=nan"),
        ("early_stopping.threshold=.nan", "early_stopping.threshold=nan"),
        ("max_minutes=.nan", "max_minutes=nan"),
        ("training.learning_rate=.nan", "training.learning_rate=nan"),
        ("training.learning_rate=-1", "training.learning_rate=-1"),
        ("training.dataloader_num_workers=-1", "training.dataloader_num_workers=-1"),
        ("training.max_steps=0", "training.max_steps"),
        ("training.num_train_epochs=0", "training.max_steps and training.num_train_epochs"),
        ("seed=-1", "seed=-1"),
        ("seed=4294967296", "seed=4294967296"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_by_name(values, override, named):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert str(error.value).startswith(named) and "\n" not in str(error.value)


def test_overrides_reach_into_sections_and_are_read_as_yaml(values):
    overrides = [
        "training.learning_rate=5e-3",
        "training.label_names=[labels]",
        "batches.max_sentences=null",
        'card.title="Words: reversed, 100%"',
        "data.test.more.path=more.tsv",
        "model.dropout=0",
        "tokenizer.shared=false",
        "seed=7",
    ]
    before = json.dumps(values)
    recipe = Recipe.from_dict(override_fields(values, overrides))
    assert recipe.training["learning_rate"] == 0.005
    assert recipe.training["label_names"] == ["labels"]
    assert recipe.batches.max_sentences is None
    assert recipe.card.title == "Words: reversed, 100%"
    assert recipe.data.test["more"] == {"path": "more.tsv"} and "unseen" in recipe.data.test
    assert (recipe.model["dropout"], recipe.tokenizer.shared, recipe.seed) == (0, False, 7)
    assert json.dumps(values) == before, "the given values were changed"


@pytest.mark.parametrize("override", ["seed", "=1", "seed.inner=1", "data.train=[1"])
def test_an_override_that_is_none_is_refused(values, override):
    with pytest.raises(RecipeError, match="override|cannot be set|not valid YAML"):
        Recipe.from_dict(override_fields({**values, "seed": 1}, [override]))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_the_project_load_and_survive_saving(path, tmp_path, monkeypatch):
    start = yaml.safe_load(path.read_text()).get("start_from")
    if start:  # what it starts from is the output of another recipe, whose model it must fit
        earlier = [other for other in map(Recipe.load, RECIPES_FROM_SCRATCH) if other.output_dir == start]
        assert len(earlier) == 1
        monkeypatch.chdir(tmp_path)
        earlier[0].config().save_pretrained(start)
    recipe = Recipe.load(path)
    recipe.save(tmp_path / "again.yaml")
    assert Recipe.load(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    "name", ["output_dir", "seed", "label_smoothing_factor", "per_device_train_batch_size", "generation_num_beams"]
)
def test_training_arguments_that_a_recipe_sets_elsewhere_are_refused(values, name):
    with pytest.raises(RecipeError, match=f"training.{name} is set by .* in a recipe"):
        Recipe.from_dict(override_fields(values, [f"training.{name}=1"]))


def test_a_recipe_needs_data_and_an_output_folder(values):
    for part in ("train", "validation"):
        with pytest.raises(RecipeError, match=f"data.{part} is missing"):
            Recipe.from_dict(override_fields(values, [f"data.{part}={{}}"]))
    with pytest.raises(RecipeError, match="output_dir is missing"):
        Recipe.from_dict({"data": values["data"]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("a: [1\nb: 2", "not valid YAML at line 2"), ("- 1", "must be a mapping"), ("", "must be a mapping")],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, sentence):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=sentence):
        Recipe.load(path)
    with pytest.raises(RecipeError, match="there is no recipe"):
        Recipe.load(tmp_path / "other.yaml")


def test_generation_settings_give_way_to_those_of_the_recipe(values):
    def settings(**generation):
        return Recipe.from_dict({**values, "generation": generation}).generation

    paper = {"length_penalty": 0.6, "length_penalty_form": "gnmt"}  # section 6.1
    assert settings() == {"num_beams": 4, "max_length_over_source": 50, **paper}
    assert settings(num_beams=1) == {"num_beams": 1, "max_length_over_source": 50}
    assert settings(max_length=30) == {"num_beams": 4, "max_length": 30, **paper}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.metric_for_best_model=blue", "'blue' is not a score; did you mean 'bleu'"),
        ("training.train_sampling_strategy=random", "has no effect"),
        (
            "training.prediction_loss_only=true",
            "contradicts how a recipe's run is evaluated, scored and resumed; leave",
        ),
        ("training.restore_callback_states_from_checkpoint=true", "contradicts how a recipe's run is"),
        ("training.predict_with_generate=false", "'bleu' is of generated text; set it to loss"),
        ("evaluation.tokenize=13b", "did you mean '13a'"),
        ("generation.length_penalty_form=gmnt", "must be 'power' or 'gnmt'"),
        ("model.preset=transformer-tinny", "did you mean 'transformer-tiny'"),
        ("model.norm_position=mid", "norm_position"),
        ("data.train.sorce=x", "unknown field data.train.sorce"),
    ],
)
def test_what_can_be_known_before_reading_data_is_refused_before(values, override, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Recipe.from_dict(override_fields(values, [override]))


def test_the_saved_recipe_says_all_that_the_run_depends_on(values, tmp_path):
    recipe = Recipe.from_dict(values)
    recipe.save(tmp_path / "recipe.yaml")
    saved = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert saved["training"]["adam_beta2"] == 0.98
    assert saved["model"]["label_smoothing"] == 0.1
    assert saved["generation"]["length_penalty_form"] == "gnmt"
    assert Recipe.load(tmp_path / "recipe.yaml") == recipe


def test_a_run_goes_on_only_as_it_was_begun(values):
    begun = Recipe.from_dict(values)

    def changed(*overrides):
        return Recipe.from_dict(override_fields(values, overrides)).changes_since(begun)

    assert changed("training.num_train_epochs=9", "max_minutes=5", "generation.num_beams=3", "averaging.last=1") == []
    assert changed("model.hidden_size=32", "batches.max_tokens=300", "seed=5") == [
        "batches.max_tokens",
        "model.hidden_size",
        "seed",
    ]


# Schedule ------------------------------------------------------------------------------------------------------------


def rates(scheduler, updates):
    """The learning rate of each of the next updates."""
    values = []
    for _ in range(updates):
        values.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    return values


def scheduler(warmup, peak):
    return inverse_sqrt_schedule(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=peak), warmup)


def test_the_schedule_is_the_papers_formula_and_the_first_update_is_step_1():
    """Reported in huggingface/transformers#28835 and facebookresearch/fairseq#1341."""
    d_model, warmup = 512, 40
    formula = [d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in range(1, 101)]
    measured = rates(scheduler(warmup, noam_peak(d_model, warmup)), 100)
    assert measured == pytest.approx(formula, rel=1e-12)
    assert max(measured) == measured[warmup - 1] == pytest.approx(d_model**-0.5 * warmup**-0.5, rel=1e-12)


@pytest.mark.parametrize("warmup", [0, 1, 4000])
def test_the_schedule_is_finite_and_peaks_at_the_end_of_warm_up(warmup):
    """Reported in huggingface/transformers#28835 and facebookresearch/fairseq#1341."""
    end = max(warmup, 1)
    steps = [0, 1, 2, 3, max(warmup - 1, 0), warmup, warmup + 1, 10**9]
    factors = [inverse_sqrt_factor(step, warmup) for step in steps]
    assert all(math.isfinite(f) and 0 < f <= 1 for f in factors)
    assert inverse_sqrt_factor(end, warmup) == 1.0
    assert inverse_sqrt_factor(end + 1, warmup) < 1.0
    assert all(math.isfinite(rate) and rate > 0 for rate in rates(scheduler(warmup, 0.5), 4))


def test_the_peak_without_warm_up_is_refused():
    """Reported in huggingface/transformers#28835 and facebookresearch/fairseq#1341."""
    with pytest.raises(ValueError, match="warmup_steps of at least 1, not 512 and 0"):
        noam_peak(512, 0)


@pytest.mark.parametrize("stop", [3, 6, 15])
def test_a_saved_schedule_resumes_where_it_was(stop):
    """Reported in huggingface/transformers#28835 and facebookresearch/fairseq#1341."""
    unbroken = rates(scheduler(6, 0.5), 20)
    first = scheduler(6, 0.5)
    rates(first, stop)
    second = scheduler(6, 0.5)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert rates(second, 20 - stop) == unbroken[stop:]


# Metrics -------------------------------------------------------------------------------------------------------------


def padded(rows, value):
    width = max(map(len, rows))
    return np.array([row + [value] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("filler", [-100, 0])
def test_scores_of_joined_batches_are_those_of_the_texts(filler):
    """Reported in huggingface/transformers#22693 and #27714."""
    tokenizer = word_tokenizer()
    pairs = reversed_words(11, 3)
    hypotheses = [target if i % 3 else source for i, (source, target) in enumerate(pairs)]
    references = [target for _, target in pairs]
    prediction = EvalPrediction(
        predictions=padded([[1, *tokenizer(text)["input_ids"]] for text in hypotheses], filler),
        label_ids=padded([tokenizer(text)["input_ids"] for text in references], -100),
    )
    assert decode_ids(prediction.predictions, tokenizer) == hypotheses
    scores = score_texts(hypotheses, references)
    assert GenerationMetrics(tokenizer, 11)(prediction) == {
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
        "exact_match": scores["exact_match"],
    }


def evaluation_trainer(folder, pairs, batch_size):
    tokenizer = word_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer), num_hidden_layers=1, decoder_layers=1)
    # the outputs of random weights do not end by themselves: these end at various lengths
    model.generation_config.max_length_over_source = -2
    data = [
        {"input_ids": tokenizer(s)["input_ids"], "labels": tokenizer(text_target=t)["input_ids"]} for s, t in pairs
    ]
    metrics = GenerationMetrics(tokenizer, len(pairs))
    seen = []

    def compute(prediction):
        seen.append(decode_ids(prediction.predictions, tokenizer))
        assert len(prediction.predictions) == len(prediction.label_ids) == len(pairs)
        return metrics(prediction)

    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        per_device_eval_batch_size=batch_size,
        predict_with_generate=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Seq2SeqTokenTrainer(
        model=model,
        args=arguments,
        eval_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=compute,
    )
    return trainer, seen, TextGenerator(model, tokenizer)


def test_evaluation_in_batches_of_unequal_length_equals_sample_by_sample(tmp_path):
    """Reported in huggingface/transformers#22693 and #27714."""
    pairs = reversed_words(11, 4)
    trainer, seen, translator = evaluation_trainer(tmp_path, pairs, batch_size=4)
    settings = trainer.model.generation_config.to_dict()
    measured = trainer.evaluate()
    alone = [best[0].text for best in translator.generate([s for s, _ in pairs], read_ahead=1)]
    assert len(set(map(len, alone))) > 3, "the outputs should differ in length"
    assert seen == [alone]
    scores = score_texts(alone, [target for _, target in pairs])
    assert measured["eval_chrf"] == scores["chrf"] and measured["eval_bleu"] == scores["bleu"]
    assert trainer.model.generation_config.to_dict() == settings, "evaluation changed the model's settings"


def test_scores_need_as_many_outputs_as_references():
    with pytest.raises(ValueError, match="1 outputs for 2 references"):
        score_texts(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="no text"):
        score_texts([], [])


# Averaging -----------------------------------------------------------------------------------------------------------


def save_checkpoints(run_folder, seeds, **options):
    """Checkpoints of one model with other weights each, as `Trainer` names them."""
    folders = []
    for number, seed in enumerate(seeds, start=9):  # 10 comes after 9, not before
        folder = run_folder / f"checkpoint-{number}"
        tiny_model(seed=seed).save_pretrained(folder, **options)
        (folder / "trainer_state.json").write_text("{}")
        folders.append(folder)
    return folders


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "10KB"}], ids=["one-file", "sharded"])
def test_the_average_is_the_mean_of_every_weight(tmp_path, shards):
    folders = save_checkpoints(tmp_path / "run", [1, 2, 3], **shards)
    assert (len(list(folders[0].glob("*.safetensors"))) > 1) == bool(shards)
    assert find_checkpoints(tmp_path / "run") == folders
    output = average_checkpoints(folders, tmp_path / "averaged")
    averaged = vt.VanillaTransformerForConditionalGeneration.from_pretrained(output)
    models = [vt.VanillaTransformerForConditionalGeneration.from_pretrained(folder) for folder in folders]
    for name, weight in averaged.state_dict().items():
        mean = np.mean([model.state_dict()[name].double().numpy() for model in models], axis=0)
        assert np.array_equal(weight.numpy(), mean.astype(np.float32)), name
    assert averaged.lm_head.weight is averaged.get_input_embeddings().weight
    assert load_file(output / "model.safetensors").keys() == average_weights(folders).keys()


def test_what_is_no_checkpoint_of_the_same_model_is_not_averaged(tmp_path):
    first = save_checkpoints(tmp_path, [1])[0]
    tiny_model(hidden_size=8).save_pretrained(tmp_path / "narrow")
    tiny_model(decoder_layers=2).save_pretrained(tmp_path / "shallow")
    for other in ("narrow", "shallow"):
        with pytest.raises(ValueError, match=f"{other} does not fit .*checkpoint-9"):
            average_checkpoints([first, tmp_path / other], tmp_path / "averaged")
    with pytest.raises(FileNotFoundError, match="holds no model.safetensors"):
        average_checkpoints([first, tmp_path], tmp_path / "averaged")
    with pytest.raises(ValueError, match="no checkpoints"):
        average_checkpoints([], tmp_path / "averaged")
    with pytest.raises(FileExistsError, match="not empty"):
        average_checkpoints([first], tmp_path / "narrow")
    assert not (tmp_path / "averaged").exists()


def test_an_average_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    folders = save_checkpoints(tmp_path / "run", [1, 2])

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vanilla_transformer.runs.averaging.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        average_checkpoints(folders, tmp_path / "averaged")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_checkpoint_without_its_last_file_is_not_found(tmp_path):
    whole, partial = save_checkpoints(tmp_path, [1, 2])
    (partial / "trainer_state.json").write_text('{"global_step": ')
    (tmp_path / "checkpoint-best").mkdir()
    assert find_checkpoints(tmp_path) == [whole]


# A finished run ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run as a user starts it, by the command and a file; its folder, its recipe and what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    values = recipe_values(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "vanilla_transformer", "train", str(folder / "recipe.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return Path(values["output_dir"]), values, done


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    """A run with separate vocabularies from TSV and JSON lines; its result and what its model wrote before saving."""
    folder = tmp_path_factory.mktemp("separate")
    values = recipe_values(folder)
    (folder / "train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in reversed_words(120, 0)))
    records = [json.dumps({"translation": {"en": s, "xx": t}}) for s, t in reversed_words(21, 1)]
    (folder / "validation.jsonl").write_text("\n".join(records))
    values["data"] |= {
        "target_language": "xx",
        "train": {"path": str(folder / "train.tsv")},
        "validation": {"path": str(folder / "validation.jsonl")},
    }
    sources = [source for source, _ in reversed_words(6, 5)]
    before = {}
    finish = Run.finish

    def finish_and_remember(self):
        before["ids"] = generated(self.trainer.model, AutoTokenizer.from_pretrained(self.folder), sources)
        finish(self)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        patch.setattr(Run, "finish", finish_and_remember)
        result = run(values, ["tokenizer.shared=false"])
    return result, before["ids"], sources, raised


def generated(model, tokenizer, sources):
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    return model.generate(**inputs).tolist()


def test_a_normal_run_prints_progress_and_no_warning(finished):
    _, _, done = finished
    printed = done.stdout + done.stderr
    for sign in ("Warning", "warning", "[transformers]", "Traceback", "deprecated", "not initialized", "missing"):
        assert sign not in printed, printed
    assert done.stdout == ""
    for sentence in (
        "120 of 120 pairs kept",
        "parameters, encoder-decoder",
        "validation, best checkpoint",
        "finished",
    ):
        assert sentence in done.stderr


def test_no_library_warns_of_how_it_is_used(separate):
    assert [str(warning.message) for warning in separate[3]] == []


def test_the_folder_of_a_run_holds_everything(finished):
    folder, values, _ = finished
    files = {path.name for path in folder.iterdir() if path.is_file()}
    assert files == {
        "README.md",
        "config.json",
        "configuration_vanilla_transformer.py",
        "curves.png",
        "shortlist.safetensors",
        "generation_config.json",
        "generation_vanilla_transformer.py",
        "kernels_vanilla_transformer.py",
        "losses_vanilla_transformer.py",
        "metrics.json",
        "model.safetensors",
        "modeling_vanilla_transformer.py",
        "positions_vanilla_transformer.py",
        "recipe.yaml",
        "sequences_vanilla_transformer.py",
        "tokenizer.json",
        "tokenizer_config.json",
        "train.log",
        "trainer_state.json",
    }
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    for saved in (folder, folder / "checkpoint-8"):  # Trainer turns it off for training
        assert json.loads((saved / "config.json").read_text())["use_cache"] is True
    generation = json.loads((folder / "generation_config.json").read_text())
    assert {name: generation[name] for name in ("num_beams", "length_penalty", "max_length_over_source")} == {
        "num_beams": 2,
        "length_penalty": 0.6,
        "max_length_over_source": 2,
    }
    assert not generation.keys() & {"max_length", "max_new_tokens", "min_length"}
    checkpoint_generation = json.loads((folder / "checkpoint-8" / "generation_config.json").read_text())
    assert checkpoint_generation == generation
    assert Recipe.load(folder / "recipe.yaml") == Recipe.from_dict(values)
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 9
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert weights.metadata() == {"format": "pt"}


def test_the_metrics_of_a_run(finished):
    metrics = json.loads((finished[0] / "metrics.json").read_text())
    assert metrics["training"]["updates"] == 9 and metrics["training"]["epochs"] == 3.0
    assert metrics["training"]["examples"] == metrics["data"]["train"]["kept"] == 120
    learned = {source for source, _ in reversed_words(120, 0)}
    known = sum(source in learned for source, _ in reversed_words(16, 2))
    assert metrics["data"]["unseen"]["repeats"] == {"rows": known, "sources": known} and known > 0
    assert metrics["training"]["tokens_per_second"] > 0
    assert metrics["data"].keys() == {"train", "validation", "unseen"}
    assert metrics["test"]["unseen"]["sentences"] == 16
    assert "tok:13a" in metrics["test"]["unseen"]["bleu_signature"]
    assert metrics["model"]["weights"] in ("best", "average")
    assert metrics["model"]["averaged_checkpoints"] == ["checkpoint-8", "checkpoint-9"]


def test_the_model_card_is_valid_and_shows_the_scores(finished):
    folder = finished[0]
    card = ModelCard.load(folder / "README.md")
    data = card.data.to_dict()
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == "translation"
    assert data["language"] == ["en", "en"] or data["language"] == ["en"]
    results = card.data.eval_results
    assert {result.metric_type for result in results} == {"bleu", "chrf"}
    scores = json.loads((folder / "metrics.json").read_text())["test"]["unseen"]
    assert {result.metric_value for result in results} == {scores["bleu"], scores["chrf"]}
    assert scores["bleu_signature"].replace("|", "\\|") in card.text and "![" in card.text and "{{" not in card.text


def test_the_best_checkpoint_is_loaded_with_its_ties(finished):
    """Reported in huggingface/transformers#27972 and #29128."""
    folder = finished[0]
    state = json.loads((folder / "trainer_state.json").read_text())
    metrics = json.loads((folder / "metrics.json").read_text())["model"]
    best = max(entry["eval_bleu"] for entry in state["log_history"] if "eval_bleu" in entry)
    assert state["best_metric"] == best
    model = vt.VanillaTransformerForConditionalGeneration.from_pretrained(folder)
    embeddings = {w.data_ptr() for n, w in model.state_dict().items() if "embed_tokens" in n or "lm_head" in n}
    assert len(embeddings) == 1
    sources = {
        "best": [folder / metrics["best_checkpoint"]],
        "average": [folder / name for name in metrics["averaged_checkpoints"]],
    }[metrics["weights"]]
    expected = average_weights(sources)
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


def test_training_loads_the_best_checkpoint_and_reports_nothing_missing(tmp_path, caplog):
    """Reported in huggingface/transformers#27972 and #29128."""
    values = recipe_values(tmp_path)
    result = run(values, ["averaging.last=0", "generation.num_beams=1", "training.metric_for_best_model=chrf"])
    best = result.metrics["model"]["best_checkpoint"]
    assert result.metrics["model"]["weights"] == "best"
    saved, expected = (
        load_file(result.folder / "model.safetensors"),
        load_file(result.folder / best / "model.safetensors"),
    )
    assert all(torch.equal(saved[name], expected[name]) for name in expected)
    state = json.loads((result.folder / "trainer_state.json").read_text())
    # greedy here as in the evaluations, so the score of the weights that were kept is the best one seen
    assert result.metrics["model"]["validation"]["best"]["chrf"] == state["best_metric"]
    assert "missing" not in caplog.text


def test_a_saved_run_gives_the_same_tokens_in_a_fresh_process(separate):
    result, before, sources, _ = separate
    program = """
import json, sys
import vanilla_transformer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, sources = sys.argv[1], json.loads(sys.argv[2])
model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
ids = model.generate(**tokenizer(sources, return_tensors="pt", padding=True)).tolist()
assert not [name for name in sys.modules if name.startswith("vanilla_transformer.errors")]
print(json.dumps(ids))
"""
    command = [warm_python(), "-c", program, str(result.folder), json.dumps(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == before


def test_separate_vocabularies_go_with_the_run_and_every_checkpoint(separate):
    folder = separate[0].folder
    for place in (folder, folder / "checkpoint-9"):
        translator = TextGenerator.from_pretrained(place)
        assert translator.model.config.target_vocab_size == len(translator.target_tokenizer) == 280
        assert translator.target_tokenizer is not translator.tokenizer
    averaged = average_checkpoints(find_checkpoints(folder), folder.parent / "averaged")
    assert (
        TextGenerator.from_pretrained(averaged).target_tokenizer.get_vocab() == translator.target_tokenizer.get_vocab()
    )


def test_the_files_were_read_as_what_they_are(separate):
    data = separate[0].metrics["data"]
    assert data["train"]["read"] == 120 and "train.tsv" in data["train"]["name"]
    assert data["validation"]["read"] == 21 and "validation.jsonl" in data["validation"]["name"]


# Interrupted and resumed ---------------------------------------------------------------------------------------------


def test_old_checkpoints_are_told_by_their_updates_and_not_by_file_times(tmp_path, monkeypatch, caplog):
    values = recipe_values(tmp_path)
    values["averaging"]["last"] = 0
    values["training"] |= {"eval_strategy": "no", "load_best_model_at_end": False, "save_total_limit": 1}
    monkeypatch.setattr("os.path.getmtime", lambda path: 0.0)  # as after a copy that keeps no times
    result = run(values, ["training.save_steps=2"])
    assert [path.name for path in find_checkpoints(result.folder)] == ["checkpoint-9"]
    assert "mtime" not in caplog.text
    monkeypatch.setattr("os.path.getmtime", lambda path: -1e9 * int(str(path).rpartition("-")[2]))
    result = run(values, ["training.save_steps=3"], overwrite=True)
    assert [path.name for path in find_checkpoints(result.folder)] == ["checkpoint-9"]


def test_the_time_limit_ends_a_run_with_one_evaluation_and_a_checkpoint(tmp_path):
    values = recipe_values(tmp_path)
    result = run(values, ["max_minutes=1e-9", "averaging.last=0"])
    assert result.metrics["training"]["updates"] == 1
    state = json.loads((result.folder / "trainer_state.json").read_text())
    assert len([entry for entry in state["log_history"] if "eval_loss" in entry]) == 1
    assert [path.name for path in find_checkpoints(result.folder)] == ["checkpoint-1"]


# Output folders ------------------------------------------------------------------------------------------------------


def test_an_occupied_output_folder_is_not_touched(finished, tmp_path):
    values = {**finished[1], "output_dir": str(tmp_path / "taken")}
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(RecipeError, match="is not empty and holds no run; name another"):
            run(values, **options)
    assert (folder / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RecipeError, match="is a file"):
        run({**values, "output_dir": str(folder / "thesis.tex")})
    with pytest.raises(RecipeError, match="give one of them"):
        run(values, resume=True, overwrite=True)


def test_a_run_is_overwritten_only_when_all_else_is_in_order(finished, tmp_path):
    values = {**finished[1], "output_dir": str(tmp_path / "run")}
    folder = tmp_path / "run"
    (folder / "checkpoint-77").mkdir(parents=True)
    (folder / "checkpoint-77" / "trainer_state.json").write_text("{}")
    (folder / "recipe.yaml").write_text("task: seq2seq")
    with pytest.raises(RecipeError, match="is not empty; give --resume .* --overwrite"):
        run(values)
    for override in ("data.train.source=gone.txt", "model.preset=transformer-tinny", "tokenizer.vocab_size=100000"):
        with pytest.raises((ValueError, FileNotFoundError)):
            run(values, [override], overwrite=True)
        assert (folder / "checkpoint-77").is_dir()
    result = run(values, ["training.max_steps=1", "averaging.last=0", "evaluation.sentences=2"], overwrite=True)
    assert not (folder / "checkpoint-77").exists() and result.metrics["training"]["updates"] == 1


def test_resuming_where_nothing_is_yet_starts_from_the_first_update(finished, tmp_path):
    values = {**finished[1], "output_dir": str(tmp_path / "new")}
    said = []
    recipe = Recipe.from_dict(override_fields(values, ["training.max_steps=1", "averaging.last=0"]))
    run_recipe(recipe, resume=True, log=said.append)
    assert any("no checkpoint yet" in line for line in said)


# Tokenizer and model -------------------------------------------------------------------------------------------------


def test_a_tokenizer_larger_than_the_vocabulary_is_refused_before_training(finished, tmp_path):
    """Reported in huggingface/transformers#11102 and #12763."""
    values = {**finished[1], "output_dir": str(tmp_path / "run")}
    with pytest.raises(RecipeError, match="the tokenizer has 280 tokens but model.vocab_size is 279"):
        run(values, ["model.vocab_size=279"])
    tokenizer = AutoTokenizer.from_pretrained(finished[0])
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(RecipeError, match="the tokenizer has 282 tokens but model.vocab_size is 280"):
        run(values, [f"tokenizer.path={tmp_path / 'tokenizer'}", "model.vocab_size=280"])
    assert not (tmp_path / "run").exists()
    overrides = [f"tokenizer.path={tmp_path / 'tokenizer'}", "model.vocab_size=288", "training.max_steps=1"]
    result = run(values, [*overrides, "averaging.last=0", "evaluation.sentences=2"])
    translator = TextGenerator.from_pretrained(result.folder)
    assert (len(translator.tokenizer), translator.model.config.vocab_size) == (282, 288)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.architecture=decoder-only", "task seq2seq needs model.architecture=encoder-decoder"),
        ("model.hidden_size=15", "hidden_size=15 is not a multiple"),
        ("training.warmup_steps=0", "needs a number of updates of at least 1"),
        ("training.eval_strategy=never", "training: never is not a valid"),
        ("batches.max_tokens=3", "max_tokens=3"),
        ("data.max_source_length=1", "No row is short enough to train on .at most source of 0 words"),
        ("tokenizer.path=/nowhere/tokenizer", "/nowhere/tokenizer"),
    ],
)
def test_what_cannot_be_run_is_refused_before_training(finished, tmp_path, override, sentence):
    values = {**finished[1], "output_dir": str(tmp_path / "run")}
    with pytest.raises((ValueError, OSError), match=sentence):
        run(values, [override, "training.learning_rate=noam"])
    assert not (tmp_path / "run").exists()


# Several processes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_evaluate_like_one_and_agree_on_a_run(tmp_path):
    """And a run of two processes that is stopped in the middle of an epoch is resumed with the right batches.

    Reported in huggingface/transformers#22693 and #27714.
    """
    values = recipe_values(tmp_path)
    values["training"] |= {"gradient_accumulation_steps": 1, "save_steps": 5, "eval_steps": 5, "max_steps": 7}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    command = ("-m", "vanilla_transformer", "train", tmp_path / "recipe.yaml")
    done = run_on_two(*command)
    folder = Path(values["output_dir"])
    assert done.stderr.count("finished: ") == 1, "only the first process speaks"
    assert json.loads((folder / "metrics.json").read_text())["training"]["processes"] == 2
    trained = weights(folder / "checkpoint-7")

    # one process, the same weights: the same scores of the same 21 sentences
    logged = [entry for entry in history(folder) if entry["step"] == 7 and "eval_loss" in entry][0]
    translator = TextGenerator.from_pretrained(folder / "checkpoint-7")
    pairs = reversed_words(21, 1)
    outputs = [best[0].text for best in translator.generate([s for s, _ in pairs], num_beams=1)]
    scores = score_texts(outputs, [target for _, target in pairs])
    assert (logged["eval_bleu"], logged["eval_chrf"]) == (scores["bleu"], scores["chrf"])

    shutil.rmtree(folder / "checkpoint-7")
    run_on_two(*command, "--resume")
    assert equal_weights(weights(folder / "checkpoint-7"), trained)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_defaults_of_training_are_fields_of_transformers(task):
    assert task.training_defaults.keys() <= task.arguments_class.__dataclass_fields__.keys()
