"""Named presets of recipes: what they set, what wins over them, and the paper's learning rate with a factor."""

import json
import math
from dataclasses import fields

import pytest
import torch
import yaml
from transformers import TrainingArguments

from runs import recipe_values
from vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.recipes.presets import PRESETS
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.arguments import training_arguments
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.trainer.schedules import inverse_sqrt_schedule, noam_factor
from vanilla_transformer.utils.schema import override_fields


@pytest.fixture
def values(tmp_path):
    """A recipe that says as little as one can."""
    full = recipe_values(tmp_path)
    return {"output_dir": full["output_dir"], "data": full["data"]}


def recipe(values, *overrides):
    return Recipe.from_dict(override_fields(values, overrides))


def test_the_default_is_the_papers_recipe(values):
    paper, default = recipe(values, "preset=paper"), recipe(values)
    assert paper.training == default.training and paper.generation == default.generation
    assert paper.averaging == default.averaging
    assert paper.config().to_dict() == default.config().to_dict()


# section, field, and what the sources have; written down apart from the presets, so that a slip there is noticed
SOURCES = {
    "paper": {  # sections 5.3, 5.4, 6.1
        "training": {"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-9, "warmup_steps": 4000},
        "model": {"dropout": 0.1, "attention_dropout": 0.0, "label_smoothing": 0.1, "norm_position": "post"},
        "averaging": {"last": 5},
        "generation": {"num_beams": 4, "length_penalty": 0.6, "max_length_over_source": 50},
    },
    "t2t": {  # transformer_base_v3
        "training": {"adam_beta2": 0.997, "adam_epsilon": 1e-9, "warmup_steps": 8000, "max_grad_norm": 0.0},
        "model": {
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
            "norm_position": "pre",
            "init_scheme": "paper",
            "attention_bias": False,
            "sinusoidal_form": "fairseq",
        },
        "averaging": {"last": 8},
    },
    "fairseq": {  # examples/scaling_nmt
        "training": {"learning_rate": 5e-4, "adam_epsilon": 1e-8, "weight_decay": 0.0, "max_grad_norm": 0.0},
        "model": {"dropout": 0.3, "init_scheme": "fairseq", "norm_eps": 1e-5, "norm_position": "post"},
        "generation": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_form": "power"},
    },
    "fairseq-iwslt": {  # examples/translation
        "training": {"learning_rate": 5e-4, "weight_decay": 1e-4, "adam_beta2": 0.98, "warmup_steps": 4000},
        "model": {"dropout": 0.3, "label_smoothing": 0.1},
        "generation": {"num_beams": 5, "length_penalty": 1.0},
        "averaging": {"last": 0},
    },
    "transformers": {
        "training": {"lr_scheduler_type": "linear", "max_grad_norm": 1.0, "adam_beta2": 0.999, "warmup_steps": 0},
        "model": {"init_scheme": "normal", "initializer_range": 0.02, "label_smoothing": 0.0},
        "averaging": {"last": 0},
    },
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_sets_what_its_source_has(values, preset):
    built = recipe(values, f"preset={preset}").to_dict()
    for section, expected in SOURCES[preset].items():
        assert {name: built[section][name] for name in expected} == expected, section
    assert PRESETS[preset].source


def test_the_preset_of_transformers_is_its_default_arguments():
    defaults = {f.name: f.default for f in fields(TrainingArguments)}
    for name, value in PRESETS["transformers"].training.items():
        expected = defaults[name]
        assert value == getattr(expected, "value", expected), name


@pytest.mark.parametrize("preset", PRESETS)
def test_the_recipes_own_values_win(values, preset):
    own = ["model.dropout=0.25", "training.adam_beta2=0.95", "averaging.last=3", "generation.num_beams=2"]
    built = recipe(values, f"preset={preset}", *own)
    assert (built.config().dropout, built.training["adam_beta2"]) == (0.25, 0.95)
    assert (built.averaging.last, built.generation["num_beams"]) == (3, 2)
    assert recipe(values, f"preset={preset}", "averaging.ema=0.99").averaging.last == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_the_saved_recipe_says_everything_itself(values, preset, tmp_path):
    built = recipe(values, f"preset={preset}")
    built.save(tmp_path / "recipe.yaml")
    assert Recipe.load(tmp_path / "recipe.yaml") == built
    alone = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    del alone["preset"]
    alone = Recipe.from_dict(alone)
    assert {**alone.to_dict(), "preset": preset} == built.to_dict()
    assert alone.changes_since(built) == []


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_task_takes_every_preset(values, preset, task):
    if task != "seq2seq":
        values = {**values, "data": {"train": {"path": "a.jsonl"}, "validation": {"path": "b.jsonl"}}}
    built = recipe(values, f"preset={preset}", f"task={task}")
    arguments = training_arguments(built)
    assert arguments.adam_beta2 == PRESETS[preset].training["adam_beta2"]
    assert math.isfinite(arguments.learning_rate) and arguments.learning_rate > 0
    assert built.config().init_scheme == PRESETS[preset].model["init_scheme"]


def test_a_preset_leaves_the_architecture_of_a_model_to_start_from(values, tmp_path):
    recipe(values, "model.preset=transformer-tiny").config().save_pretrained(tmp_path / "start")
    config = recipe(values, "preset=t2t", f"start_from={tmp_path / 'start'}").config()
    assert (config.norm_position, config.activation_dropout) == ("post", 0.1)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_leaves_the_architecture_of_a_published_model(values, preset):
    published = VanillaTransformerConfig.from_preset("bart-base")
    config = recipe(values, f"preset={preset}", "model={preset: bart-base}").config()
    for name in ("norm_position", "norm_eps", "attention_bias", "position_encoding", "sinusoidal_form"):
        assert getattr(config, name) == getattr(published, name)
    assert config.dropout == PRESETS[preset].model["dropout"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fairsec", "preset: 'fairsec' is unknown; did you mean 'fairseq'?"),
        ("transformer-base", "preset: 'transformer-base' is unknown; an architecture is named by model.preset."),
        ("[5]", "preset=[5] is of the wrong type: it must be text or null."),
    ],
)
def test_a_preset_that_is_none_is_refused(values, name, sentence):
    with pytest.raises(RecipeError) as error:
        recipe(values, f"preset={name}")
    assert str(error.value) == sentence


# The paper's learning rate with a factor ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "factor"),
    [("noam", 1.0), ("noam * 2.0", 2.0), ("noam*2", 2.0), ("noam * .5", 0.5), (0.1, None), ("fast", None)]
    + [(text, None) for text in ("noam *", "noam + 1", "noam * -1", "noam * two")],
)
def test_the_factor_is_read(text, factor):
    assert noam_factor(text) == factor


@pytest.mark.parametrize("override", ["noam *", "noam * two", "noam * -1"])
def test_what_is_no_factor_is_refused(values, override):
    with pytest.raises(RecipeError, match="training.learning_rate='noam"):
        recipe(values, f"training.learning_rate={override}")
    with pytest.raises(RecipeError, match="warmup_steps=0: learning_rate noam needs"):
        recipe(values, "training.learning_rate=noam * 2", "training.warmup_steps=0")


def test_the_schedule_of_a_preset_is_its_formula(values):
    """tensor2tensor's "constant*linear_warmup*rsqrt_decay*rsqrt_hidden_size"."""
    arguments = training_arguments(recipe(values, "preset=t2t", "training.warmup_steps=8"))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=arguments.learning_rate)
    scheduler = inverse_sqrt_schedule(optimizer, int(arguments.warmup_steps))
    for step in range(1, 30):
        formula = 2.0 * min(1.0, step / 8) / math.sqrt(max(step, 8)) / math.sqrt(512)
        assert scheduler.get_last_lr()[0] == pytest.approx(formula, rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_run_trains_by_its_preset(tmp_path):
    values = recipe_values(tmp_path)
    for name in ("learning_rate", "max_grad_norm"):
        del values["training"][name]
    values["training"] |= {"num_train_epochs": 1, "warmup_steps": 2}
    del values["averaging"], values["model"]["dropout"]
    result = run_recipe(recipe(values, "preset=t2t"), log=lambda line: None)
    log = json.loads((result.folder / "trainer_state.json").read_text())["log_history"]
    rates = [entry["learning_rate"] for entry in log if "learning_rate" in entry]
    assert rates == pytest.approx([2 * 16**-0.5 * min(s**-0.5, s * 2**-1.5) for s in (1, 2, 3)], rel=1e-9)
    config = json.loads((result.folder / "config.json").read_text())
    assert (config["norm_position"], config["activation_dropout"]) == ("pre", 0.1)
    assert "preset: t2t" in (result.folder / "README.md").read_text()
