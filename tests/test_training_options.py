"""Options of transformers' training on these models: clipping, mixed precision, recomputation, compilation, early stopping."""

import json
import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from runs import equal_weights, every_update, logged, power_cut, recipe_values, run, scripted, weights
from test_tasks import recipe as recipe_of_task
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.run import Run
from vanilla_transformer.trainer.checkpoints import find_checkpoints
from vanilla_transformer.trainer.trainer import Seq2SeqTokenTrainer, TokenTrainer
from vanilla_transformer.utils.schema import override_fields


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A run of four updates, and its folder."""
    values = recipe_values(tmp_path_factory.mktemp("short"))
    values["training"]["max_steps"] = 4
    values["evaluation"] = {"sentences": 2}
    return values, run(values).folder


def losses(folder):
    return list(logged(folder, "loss").values())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without any option; its recipe, losses and weights after the last update."""
    values = recipe_values(tmp_path_factory.mktemp("plain"))
    values["data"]["test"] = {}
    values["averaging"] = {"last": 0}
    values["training"] |= {"max_grad_norm": 0.0}
    result = run(values)
    measured = losses(result.folder)
    assert measured[-1] < measured[0] - 1
    return values, measured, weights(result.folder / "checkpoint-9")


def other(plain, folder, *overrides):
    """The same run with other settings."""
    result = run({**plain[0], "output_dir": str(folder / "run")}, overrides)
    return losses(result.folder), weights(result.folder / "checkpoint-9")


def test_fused_adam_is_adam(plain, tmp_path):
    measured, final = other(plain, tmp_path, "training.optim=adamw_torch", "training.adam_epsilon=1e-9")
    assert measured == pytest.approx(plain[1], rel=1e-4)
    # the gradient of a bias of keys is zero but for rounding, whose sign Adam takes for a direction
    for name in (name for name in final if not name.endswith("k_proj.bias")):
        assert torch.allclose(final[name], plain[2][name], rtol=0, atol=1e-3), name


def test_gradients_are_clipped_to_their_norm(plain, tmp_path):
    """One step of plain gradient descent with rate 1 moves the weights by the norm of the gradient, or what it is cut to."""
    moved = {}
    original = Seq2SeqTokenTrainer.training_step
    for norm in (0.0, 0.25):
        before = {}

        def training_step(self, *args, before=before, **kwargs):
            before or before.update({n: p.detach().clone() for n, p in self.model.named_parameters()})
            return original(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Seq2SeqTokenTrainer, "training_step", training_step)
            options = ("optim=sgd", "learning_rate=1.0", "warmup_steps=0", "max_steps=1", f"max_grad_norm={norm}")
            result = run(
                {**plain[0], "output_dir": str(tmp_path / str(norm))},
                ["evaluation.sentences=2", *(f"training.{option}" for option in options)],
            )
        after = weights(result.folder / "checkpoint-1")
        moved[norm] = torch.stack([(after[n] - w).norm() for n, w in before.items() if n in after]).norm().item()
    assert moved[0.25] == pytest.approx(0.25, rel=1e-3) and moved[0.0] > 0.5


def test_bf16_computes_in_bfloat16_and_keeps_weights_in_float32(plain, tmp_path, monkeypatch):
    seen = set()
    original = Run.choose_weights

    def choose_weights(self):
        trainer = self.trainer
        ids = torch.tensor([[5, 6]])
        hook = trainer.model.model.encoder.layers[0].register_forward_hook(lambda m, i, o: seen.add(o.dtype))
        logits = trainer.model(input_ids=ids, decoder_input_ids=ids).logits
        fresh = type(trainer.model)(trainer.model.config).eval()
        fresh.load_state_dict(trainer.model.state_dict())
        assert torch.equal(logits, fresh(input_ids=ids, decoder_input_ids=ids).logits), "scored under autocast"
        hook.remove()
        return original(self)

    dtypes = set()
    step = Seq2SeqTokenTrainer.training_step

    def training_step(self, *args, **kwargs):
        projection = self.model.model.encoder.layers[0].self_attn.q_proj
        hook = projection.register_forward_hook(lambda m, i, o: dtypes.add(o.dtype))
        loss = step(self, *args, **kwargs)
        hook.remove()
        return loss

    monkeypatch.setattr(Seq2SeqTokenTrainer, "training_step", training_step)
    monkeypatch.setattr(Run, "choose_weights", choose_weights)
    measured, final = other(plain, tmp_path, "training.bf16=true")
    assert dtypes == {torch.bfloat16} and seen == {torch.float32}
    assert measured != plain[1] and measured == pytest.approx(plain[1], abs=0.05)
    assert {tensor.dtype for tensor in final.values()} == {torch.float32}


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_fp16_needs_an_accelerator(plain, tmp_path):
    with pytest.raises(RecipeError) as error:
        other(plain, tmp_path, "training.fp16=true")
    assert str(error.value) == "training.fp16 needs an accelerator, and there is none here; set training.bf16 instead."


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_recomputed_activations_give_the_same_run_without_a_warning(plain, tmp_path, name, monkeypatch):
    recomputed = []
    step = Seq2SeqTokenTrainer.training_step

    def training_step(self, *args, **kwargs):
        calls = []
        # transformers recomputes what is within a layer
        attention = self.model.model.encoder.layers[0].self_attn
        hook = attention.register_forward_pre_hook(lambda *a: calls.append(1))
        loss = step(self, *args, **kwargs)
        hook.remove()
        recomputed.append(len(calls))
        return loss

    monkeypatch.setattr(Seq2SeqTokenTrainer, "training_step", training_step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measured, final = other(plain, tmp_path, f"training.{name}=true")
    assert measured == plain[1], "dropout was drawn anew"
    assert equal_weights(final, plain[2])
    assert set(recomputed) == {2}, "each layer should have run forward twice"


# Compilation ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_compilation_without_a_compiler_is_refused(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(RecipeError, match=r"torch_compile needs the C\+\+ compiler /nowhere/g\+\+, which is not here"):
        other(plain, tmp_path, "training.torch_compile=true")


@pytest.mark.slow
def test_a_compiled_run_on_batches_of_all_sizes_is_compiled_twice_and_resumed(tmp_path):
    """Once for the first batch and once for any: with the backend that only traces, so that no compiler is needed."""
    texts = [("good " * (1 + n % 9) if n % 2 else "bad " * (1 + n % 7)) + "film" for n in range(96)]
    for name, rows in (("train", texts), ("validation", texts[:12])):
        records = [json.dumps({"text": text, "label": text.split()[0]}) for text in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(records))
    values = {
        "task": "sequence-classification",
        "output_dir": str(tmp_path / "run"),
        "data": {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in ("train", "validation")},
        "tokenizer": {"vocab_size": 270},
        "model": recipe_values(tmp_path)["model"],
        "batches": {"max_tokens": 100},
        "averaging": {"last": 2},
        "training": {
            "learning_rate": 0.01,
            "max_steps": 8,
            "logging_steps": 1,
            "torch_compile_backend": "eager",
            "lr_scheduler_type": "constant",
            "eval_strategy": "steps",
            "save_strategy": "steps",
            "eval_steps": 4,
            "save_steps": 4,
        },
    }
    torch._dynamo.reset()
    counters.clear()
    shapes = set()
    original = TokenTrainer.training_step

    def training_step(self, model, inputs, *args, **kwargs):
        shapes.add(tuple(inputs["input_ids"].shape))
        return original(self, model, inputs, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenTrainer, "training_step", training_step)
        result = run(values)
    assert len(shapes) > 4 and counters["frames"]["ok"] == counters["frames"]["total"]
    traced = counters["stats"]["unique_graphs"]
    with power_cut(6):
        run({**values, "output_dir": str(tmp_path / "again")})
    resumed = run({**values, "output_dir": str(tmp_path / "again")}, resume=True)
    assert traced <= 6, "a graph for each of training and evaluation, before and after sizes were known to vary"
    measured = losses(result.folder)
    assert measured[-1] < measured[0]
    for folder in (result.folder / "checkpoint-8", result.folder):
        assert not [name for name in weights(folder) if "_orig_mod" in name]
    for place in (".", "checkpoint-8"):
        one, two = weights(result.folder / place), weights(resumed.folder / place)
        assert equal_weights(one, two), place


# Early stopping ------------------------------------------------------------------------------------------------------


def test_training_stops_where_bleu_no_longer_improves(tmp_path, monkeypatch):
    scripted(monkeypatch, [1.0, 3.0, 3.4, 2.0, 9.0])
    said = []
    values = every_update(tmp_path, max_steps=9, eval_steps=2, save_steps=4)
    values |= {"early_stopping": {"patience": 2, "threshold": 0.5}, "averaging": {"last": 0}}
    result = run(values, log=said.append)
    sentence = "stopped at update 8: bleu has not improved by more than 0.5 for 2 evaluations"
    assert f"training {sentence}" in said and result.metrics["training"]["stopped"] == sentence
    assert result.metrics["training"]["updates"] == 8
    assert f"- Training {sentence}." in (result.folder / "README.md").read_text()


def test_training_stops_by_the_loss_with_a_checkpoint_also_between_two(tmp_path):
    values = every_update(tmp_path, max_steps=9, eval_steps=1, save_steps=9, metric_for_best_model="loss")
    values["training"] |= {"learning_rate": 0.0, "lr_scheduler_type": "constant"}
    values |= {"early_stopping": {"patience": 1}, "averaging": {"last": 0}}
    result = run(values)
    assert result.metrics["training"]["stopped"] == "stopped at update 2: loss has not improved for 1 evaluation"
    assert [path.name for path in find_checkpoints(result.folder)] == ["checkpoint-2"]


def test_a_run_that_goes_to_its_end_does_not_speak_of_stopping(plain):
    metrics = json.loads((Path(plain[0]["output_dir"]) / "metrics.json").read_text())
    assert metrics["training"]["stopped"].startswith("ended at update ")
    assert "stopped" not in (Path(plain[0]["output_dir"]) / "README.md").read_text()


def test_the_count_goes_on_in_a_resumed_run_and_a_stopped_run_does_not_train_again(tmp_path, monkeypatch):
    scripted(monkeypatch, [5.0, 4.0, 3.0, 2.0, 1.0, 6.0, 7.0, 8.0, 9.0])
    values = every_update(tmp_path, max_steps=9)
    values |= {"early_stopping": {"patience": 4}, "averaging": {"last": 0}}
    with power_cut(3):
        run(values)
    result = run(values, resume=True)
    sentence = "stopped at update 5: bleu has not improved for 4 evaluations"
    assert result.metrics["training"]["stopped"] == sentence
    kept = weights(result.folder)
    best = weights(result.folder / "checkpoint-1")
    assert equal_weights(kept, best)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2SeqTokenTrainer, "training_step", lambda *args: pytest.fail("it trained"))
        (result.folder / "model.safetensors").unlink()
        again = run(values, resume=True)
    assert again.metrics["training"]["stopped"] == sentence and again.metrics["training"]["updates"] == 5
    assert equal_weights(weights(again.folder), kept)

    longer = run(values, ["early_stopping.patience=5"], resume=True)
    assert (
        longer.metrics["training"]["stopped"].startswith("ended at update 9: ")
        and longer.metrics["training"]["updates"] == 9
    )
    assert longer.metrics["model"]["best_checkpoint"] == "checkpoint-9"


def test_a_run_that_ended_within_an_epoch_does_not_train_again(tmp_path):
    values = recipe_values(tmp_path)
    values["training"]["max_steps"] = 8  # of three an epoch
    kept = weights(run(values).folder)
    again = run(values, resume=True)
    assert again.metrics["training"]["updates"] == 8
    assert equal_weights(weights(again.folder), kept)


def resumed_from_the_first_checkpoint(values, folder):
    """Weights and log of the run, and of the same run resumed from its first checkpoint."""
    found = []
    for resume in (False, True):
        if resume:
            for checkpoint in find_checkpoints(folder)[1:]:
                shutil.rmtree(checkpoint)
        run(values, resume=resume)
        log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        log = [{name: entry.get(name) for name in ("step", "loss", "grad_norm", "eval_loss")} for entry in log]
        found.append(((folder / "checkpoint-9" / "model.safetensors").read_bytes(), log))
    return found


@pytest.mark.slow
def test_workers_that_stay_leave_a_resumed_run_as_it_was(tmp_path):
    """What starts workers draws a random number, and a resumed run starts once more; the draw must not be one of dropout's."""
    values = recipe_values(tmp_path)
    values["data"]["test"] = {}
    values["training"] |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    values["evaluation"] = {"sentences": 2}
    unbroken, resumed = resumed_from_the_first_checkpoint(values, tmp_path / "run")
    assert unbroken == resumed


def test_an_evaluation_on_start_is_not_one_of_a_resumed_run(tmp_path):
    """It would count for early stopping."""
    values = recipe_values(tmp_path)
    values["data"]["test"] = {}
    values["training"]["eval_on_start"] = True
    values |= {"averaging": {"last": 0}, "generation": {"num_beams": 1, "max_length": 5}}
    values["evaluation"] = {"sentences": 2}
    unbroken, resumed = resumed_from_the_first_checkpoint(values, tmp_path / "run")
    assert unbroken == resumed and unbroken[1][0]["step"] == 0


def test_a_checkpoint_without_its_optimizer_is_not_gone_on_from(tmp_path):
    """transformers would begin optimizer and schedule anew without a word."""
    values = recipe_values(tmp_path)
    values["training"] |= {"save_only_model": True, "max_steps": 4}
    values["evaluation"] = {"sentences": 2}
    run(values)
    with pytest.raises(RecipeError, match=r"checkpoint-4 lacks optimizer, scheduler.pt, rng_state.pth, so the run"):
        run(values, ["training.max_steps=9"], resume=True)


@pytest.mark.parametrize("cut", [0, 10, 0.5])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
def test_a_damaged_checkpoint_is_named(short, name, cut):
    values, folder = short
    path = folder / "checkpoint-4" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole)) if cut < 1 else cut])
    try:
        with pytest.raises(
            ValueError, match=r"checkpoint-4 is damaged \(.+\); delete it and resume from the one before"
        ):
            run(values, ["training.max_steps=9"], resume=True)
    finally:
        path.write_bytes(whole)


def test_precision_of_evaluations_is_not_that_of_the_saved_model(tmp_path):
    values = recipe_of_task(tmp_path, "masked-lm")
    values["training"] |= {"bf16_full_eval": True, "max_steps": 1}
    assert {tensor.dtype for tensor in weights(run(values).folder).values()} == {torch.float32}


def test_evaluations_by_the_loss_alone_write_no_text(tmp_path):
    values = recipe_values(tmp_path)
    values["training"] |= {"max_steps": 4, "predict_with_generate": False, "metric_for_best_model": "loss"}
    result = run(values)
    log = json.loads((result.folder / "trainer_state.json").read_text())["log_history"]
    (evaluation,) = [entry for entry in log if "eval_loss" in entry]
    assert "eval_bleu" not in evaluation and result.metrics["model"]["validation"]["best"]["bleu"] >= 0


def test_what_transformers_refuses_is_one_sentence(tmp_path):
    values = recipe_values(tmp_path)
    with pytest.raises(RecipeError) as error:
        run(values, ["training.eval_strategy=no"])  # for which it has a list
    assert str(error.value).startswith("training: --load_best_model_at_end") and "\n" not in str(error.value)


def test_early_stopping_can_be_added_to_a_run_that_is_resumed(tmp_path, monkeypatch):
    scripted(monkeypatch, [5.0, 4.0, 3.0, 2.0])
    values = every_update(tmp_path, max_steps=2)
    values["averaging"] = {"last": 0}
    run(values)
    result = run(values, ["training.max_steps=9", "early_stopping.patience=2"], resume=True)
    assert result.metrics["training"]["updates"] == 4


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("early_stopping.patience=0", "early_stopping.patience=0 must be at least 1."),
        ("early_stopping.threshold=-0.1", "early_stopping.threshold=-0.1 must not be negative."),
        ("early_stopping.patients=3", "unknown field early_stopping.patients; did you mean 'patience'?"),
        (
            "early_stopping.patience=3",
            "early_stopping goes by evaluations; set training.eval_strategy to steps or epoch.",
        ),
    ],
)
def test_early_stopping_that_cannot_be_is_refused(tmp_path, override, sentence):
    values = recipe_values(tmp_path)
    values["training"] |= {"eval_strategy": "no", "load_best_model_at_end": False}
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "trackio",
            "training.report_to='trackio' needs trackio, which is not installed; `pip install trackio`, .*; or leave it out",
        ),
        ("tensorbord", "training.report_to='tensorbord' is none of .*tensorboard.*trackio"),
    ],
)
def test_trackers_that_are_not_there(tmp_path, monkeypatch, name, sentence):
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: False)
    with pytest.raises(RecipeError, match=sentence):
        run(recipe_values(tmp_path), [f"training.report_to={name}"])
    assert not (tmp_path / "run").exists()


def test_trackio_gets_every_loss_and_score(tmp_path, monkeypatch):
    """On this machine, where nothing else is asked for; its data base says what it has."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    result = run(recipe_values(tmp_path), ["training.report_to=trackio", "training.project=mine", "data.test={}"])
    with closing(sqlite3.connect(tmp_path / "trackio" / "mine.db")) as base:
        records = [json.loads(metrics) for (metrics,) in base.execute("SELECT metrics FROM metrics ORDER BY id")]
    seen = [record["train/loss"] for record in records if "train/loss" in record]
    assert seen == pytest.approx(losses(result.folder), rel=1e-5)
    assert {"eval/loss", "eval/bleu", "train/learning_rate"} <= {name for record in records for name in record}


def test_tensorboard_gets_every_loss_and_score(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(recipe_values(tmp_path), ["training.report_to=tensorboard", "data.test={}"])
    (folder,) = (result.folder / "runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses(result.folder), rel=1e-5)
    assert {"eval/loss", "eval/bleu", "train/learning_rate"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["generation.num_beams=1", "generation.length_penalty=0.6"],
            "generation: `length_penalty`: `num_beams` is set to 1",
        ),
        (["generation.output_scores=true"], "generation: `output_scores`"),
    ],
)
def test_generation_that_no_model_can_be_saved_with_is_refused_before_training(tmp_path, overrides, sentence):
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(recipe_values(tmp_path), overrides))
    assert (
        sentence in str(error.value) and "\n" not in str(error.value) and str(error.value).startswith("generation: ")
    )
