"""Runs that train an adapter: `adapter` in a recipe, from a saved model to one that anyone, or PEFT, can load."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from runs import equal_weights, log_of, power_cut, recipe_values, run, weights
from test_tasks import BLOCKS
from test_tasks import recipe as recipe_of_task
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.utils.schema import override_fields

peft = pytest.importorskip("peft")


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.filterwarnings("error", module="peft")
        yield


HEADS = {"seq2seq": AutoModelForSeq2SeqLM, "causal-lm": AutoModelForCausalLM}


def values_of(folder, task):
    if task == "seq2seq":
        values = recipe_values(folder)
        values["training"] |= {"predict_with_generate": True}
        return values
    return override_fields(recipe_of_task(folder, task), BLOCKS.get(task, ()))


@pytest.fixture(scope="module", params=["seq2seq", "causal-lm"])
def base(request, tmp_path_factory):
    """A model that was trained a little, and the recipe of a run that adapts it."""
    folder = tmp_path_factory.mktemp(request.param)
    values = values_of(folder, request.param)
    run(values, ["training.max_steps=2", "averaging.last=0", "data.test={}"])
    values |= {"start_from": values["output_dir"], "output_dir": str(folder / "adapted"), "adapter": {"r": 2}}
    values["training"]["learning_rate"] = 0.05
    values["model"] = {"dropout": 0.1}
    values.pop("tokenizer", None)
    return request.param, values


def logits_of(model, values):
    tokenizer = AutoTokenizer.from_pretrained(values["start_from"])
    ids = tokenizer("red dog", return_tensors="pt").input_ids
    inputs = {"decoder_input_ids": ids[:, :3]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **inputs).logits


def test_an_adapter_is_trained_resumed_and_loaded_by_peft(base, tmp_path):
    task, values = base
    values = {**values, "output_dir": str(tmp_path / "run"), "adapter": {"r": 2, "alpha": 4, "merge": False}}
    lines = []
    finished = run(values, log=lines.append)
    folder = finished.folder
    assert any("parameters are trained: an adapter (lora)" in line for line in lines)
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 4) and config["base_model_name_or_path"] == values["start_from"]
    assert set(config["target_modules"]) == {"q_proj", "v_proj"}
    assert all("lora" in name for name in weights(folder, "adapter_model.safetensors"))
    losses = [entry["loss"] for entry in log_of(folder) if "loss" in entry]
    assert losses[-1] < losses[0]

    head = HEADS[task]
    whole = head.from_pretrained(values["start_from"])
    plain = logits_of(whole, values)
    with warnings.catch_warnings():
        # PEFT 0.21 asks transformers for a property that has another name now; in runs it is kept from saying so
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        loaded = peft.PeftModel.from_pretrained(whole, folder)
        auto = getattr(peft, head.__name__.replace("AutoModel", "AutoPeftModel")).from_pretrained(folder)
    assert torch.equal(logits_of(loaded, values), logits_of(auto, values))
    assert (logits_of(loaded, values) - plain).abs().max() > 1e-3

    # interrupted and resumed, the same adapter; merged, the same model
    again = {**values, "output_dir": str(tmp_path / "again")}
    with power_cut(6):
        run(again)
    checkpoint = Path(again["output_dir"]) / "checkpoint-4"
    assert (checkpoint / "adapter_model.safetensors").is_file() and not (checkpoint / "model.safetensors").exists()
    with pytest.raises(RecipeError, match="adapter.r differs from its recipe.yaml"):
        run(again, ["adapter.r=3"], resume=True)
    run(again, resume=True)
    adapters = [weights(place, "adapter_model.safetensors") for place in (folder, again["output_dir"])]
    assert equal_weights(*adapters)
    merged = run(again, ["adapter.merge=true"], resume=True).folder
    model, found = head.from_pretrained(merged, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    assert torch.allclose(logits_of(model, values), logits_of(loaded, values), atol=1e-5)
    assert "lora" in (merged / "README.md").read_text()


def test_an_adapter_stays_until_the_merged_model_is_in_its_place(base, tmp_path, monkeypatch):
    task, values = base
    values = {**values, "output_dir": str(tmp_path / "run"), "adapter": {"r": 2, "merge": False}}
    folder = run(values, ["training.max_steps=1", "data.test={}", "averaging.last=0"]).folder
    adapter, replace = weights(folder, "adapter_model.safetensors"), Path.replace

    def failing(self, target):
        if self.name == "model.safetensors":
            raise OSError("the disk is gone")
        return replace(self, target)

    overrides = ["training.max_steps=1", "data.test={}", "averaging.last=0", "adapter.merge=true"]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is gone"):
        patch.setattr(Path, "replace", failing)
        run(values, overrides, resume=True)
    assert equal_weights(weights(folder, "adapter_model.safetensors"), adapter)
    assert (folder / "adapter_config.json").is_file() and not (folder / "model.safetensors").exists()
    run(values, overrides, resume=True)
    assert (folder / "model.safetensors").is_file() and not list(folder.glob("adapter_*"))


@pytest.mark.parametrize(
    "adapter",
    [
        {"kind": "lora", "target_modules": "all-linear", "dropout": 0.1, "options": {"use_rslora": True}},
        {"kind": "loha", "r": 2},
        {"kind": "ia3", "target_modules": ["k_proj", "v_proj"], "options": {"feedforward_modules": []}},
        {"r": 2, "modules_to_save": ["fc1"]},
    ],
    ids=["all-linear", "loha", "ia3", "modules"],
)
def test_kinds_of_adapters_are_trained_and_merged(base, tmp_path, adapter):
    task, values = base
    values = {**values, "output_dir": str(tmp_path / "run"), "adapter": adapter}
    values["averaging"] = {"last": 2, "ema": 0.5} if task == "seq2seq" else {"last": 2}
    folder = run(values, ["training.max_steps=8"]).folder
    model, found = HEADS[task].from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"] and not found["unexpected_keys"]
    before = HEADS[task].from_pretrained(values["start_from"]).state_dict()
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and not any("norm" in name or "embed" in name for name in changed)


def test_an_adapter_and_packed_token_batches_give_the_same_losses_as_padded_ones(base, tmp_path):
    _, values = base
    values = override_fields(values, ["model.dropout=0.0", "training.max_steps=1", "batches.max_tokens=100000"])
    losses = []
    for packing in ("false", "true"):
        place = tmp_path / packing
        done = run(values, [f"output_dir={place}", f"batches.packing={packing}", "averaging.last=0", "data.test={}"])
        losses.append(next(entry["loss"] for entry in log_of(done.folder) if "loss" in entry))
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


REFUSED = [
    (
        {"start_from": None, "model": {}},
        {"r": 2},
        "adapter goes into a model that is trained already; name it by start_from",
    ),
    ({}, {"kind": "lorra"}, "adapter.kind='lorra' is not a kind of PEFT that goes into layers; did you mean 'lora'?"),
    ({}, {"kind": "prefix_tuning"}, "adapter.kind='prefix_tuning' is not a kind of PEFT"),
    ({}, {"r": 0}, "adapter.r=0 must be at least 1"),
    ({}, {"alpha": float("inf")}, "adapter.alpha=inf must be at most 1,000,000"),
    ({}, {"dropout": 1.0}, "adapter.dropout=1.0 must be below 1"),
    ({}, {"target_modules": []}, r"adapter.target_modules=\[\] must be a list of names"),
    ({}, {"kind": "ia3", "r": 3}, "adapter.r has no effect for adapter.kind=ia3"),
    ({}, {"options": {"use_rslra": True}}, "unknown field adapter.options.use_rslra; did you mean 'use_rslora'?"),
    ({}, {"options": {"task_type": "x"}}, "adapter.options.task_type is set by task"),
    ({}, {"rank": 3}, "unknown field adapter.rank"),
]


@pytest.mark.parametrize(("others", "adapter", "sentence"), REFUSED)
def test_adapters_that_cannot_be_are_refused_before_anything_is_read(base, others, adapter, sentence):
    with pytest.raises(RecipeError, match=sentence):
        Recipe.from_dict({**base[1], **others, "adapter": adapter})


def test_modules_that_the_model_does_not_have_are_refused_before_training(base, tmp_path):
    values = {**base[1], "output_dir": str(tmp_path / "run"), "adapter": {"target_modules": ["query"]}}
    with pytest.raises(RecipeError, match="adapter: .*query.* not found in the base model"):
        run(values)
    assert not (tmp_path / "run").exists()
