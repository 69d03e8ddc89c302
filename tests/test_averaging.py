"""Means of weights: of the best checkpoints, and the moving average, in whole and resumed runs and from a folder."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

import vanilla_transformer as vt
from runs import (
    equal_weights,
    every_update,
    files_of_at_most,
    logged,
    power_cut,
    recipe_values,
    run,
    run_on_two,
    scripted,
    weights,
)
from tiny import tiny_model
from vanilla_transformer.cli import main
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.averaging import average_weights
from vanilla_transformer.trainer.checkpoints import best_checkpoints, find_checkpoints
from vanilla_transformer.trainer.ema import MovingAverage
from vanilla_transformer.trainer.trainer import TRAINED_WEIGHTS
from vanilla_transformer.utils.schema import override_fields

# The best checkpoints ------------------------------------------------------------------------------------------------


def checkpoints(run_folder, scores, metric="bleu"):
    """Checkpoints of one model, one for each score, as a run leaves them."""
    history = []
    for step, score in scores.items():
        folder = run_folder / f"checkpoint-{step}"
        tiny_model(seed=step).save_pretrained(folder)
        history += [{"step": step, "loss": 1.0}, {"step": step, f"eval_{metric}": score, "eval_runtime": 1.0}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return find_checkpoints(run_folder)


@pytest.mark.parametrize(
    ("metric", "greater", "chosen"),
    [("bleu", None, [2, 9, 10]), ("loss", None, [4, 6, 11]), ("eval_loss", True, [2, 9, 10])],
)
def test_the_best_are_told_by_their_scores_and_of_equal_ones_the_earlier(tmp_path, metric, greater, chosen):
    scores = {2: 7.0, 4: 1.0, 6: 1.0, 9: 8.0, 10: 5.0, 11: 5.0 if metric == "bleu" else 0.5, 12: float("nan")}
    found = [tmp_path / f"checkpoint-{step}" for step in [*scores, 13]]
    history = [{"step": step, f"eval_{metric.removeprefix('eval_')}": score} for step, score in scores.items()]
    assert best_checkpoints(found, 3, history, metric, greater) == [tmp_path / f"checkpoint-{n}" for n in chosen]
    assert len(best_checkpoints(found, 99, history, metric)) == 6, (
        "neither the one without a score nor the one without a number"
    )


def test_a_run_keeps_its_best_checkpoints_and_their_mean_is_a_candidate(tmp_path, monkeypatch):
    scripted(monkeypatch, [1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 0.0, 0.0])
    said = []
    values = every_update(tmp_path, max_steps=8, save_total_limit=2)
    values["averaging"] = {"best": 3}
    result = run(values, log=said.append)
    assert [path.name for path in find_checkpoints(result.folder)] == [f"checkpoint-{n}" for n in (2, 4, 6, 8)]
    facts = result.metrics["model"]
    assert facts["averaged_best_checkpoints"] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert facts["best_checkpoint"] == "checkpoint-2" and facts["validation"].keys() == {"best", "average_best"}
    assert any(line.startswith("validation, mean of the best 3 checkpoints") for line in said)
    assert facts["weights"] == "average_best", "equal scores, of which the mean's count"
    mean = average_weights([result.folder / name for name in facts["averaged_best_checkpoints"]])
    assert equal_weights(weights(result.folder), mean)
    assert "The scored weights: mean of the best 3 checkpoints." in (result.folder / "README.md").read_text()


def test_without_loading_the_best_the_last_weights_are_scored_as_such(tmp_path, monkeypatch):
    scripted(monkeypatch, [9.0, 1.0])
    values = every_update(tmp_path, max_steps=2, load_best_model_at_end=False)
    result = run(values, ["averaging.last=0"])
    assert result.metrics["model"]["weights"] == "last"
    assert equal_weights(weights(result.folder), weights(result.folder / "checkpoint-2"))


def test_the_best_or_last_checkpoints_of_a_folder_are_averaged(tmp_path):
    folders = checkpoints(tmp_path / "run", {3: 5.0, 6: 9.0, 9: 1.0, 12: 8.0})
    (tmp_path / "run" / "recipe.yaml").write_text(
        yaml.safe_dump({"training": {"metric_for_best_model": "bleu", "greater_is_better": True}})
    )

    def averaged(*options):
        output = tmp_path / "averaged" / str(len(list(tmp_path.glob("averaged/*"))))
        with pytest.raises(SystemExit) as ended:
            main(["average", str(tmp_path / "run"), "--output", str(output), *options])
        assert ended.value.code == 0
        return weights(output)

    assert equal_weights(averaged("--best", "2"), average_weights([folders[1], folders[3]]))
    assert equal_weights(averaged("--last", "2"), average_weights(folders[2:]))
    assert equal_weights(averaged(), average_weights(folders))
    assert equal_weights(averaged("--best", "1", "--metric", "bleu"), weights(folders[1]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["RUN", "--best", "2", "--last", "2"], "--last and --best choose different checkpoints"),
        (["RUN", "--metric", "bleu"], "give it with --best"),
        (["RUN", "--best", "2"], "has no recipe.yaml that says which score is meant; give one, such as --metric bleu"),
        (["RUN", "--best", "2", "--metric", "blue"], "has the score 'blue': its scores are bleu."),
        (["RUN/checkpoint-1", "RUN/checkpoint-2", "--best", "2"], "checkpoints were given; leave them out"),
    ],
)
def test_what_cannot_be_averaged_is_refused(tmp_path, options, sentence, capfd):
    checkpoints(tmp_path, {1: 1.0, 2: 2.0})
    with pytest.raises(SystemExit) as ended:
        main(
            ["average", *(option.replace("RUN", str(tmp_path)) for option in options), "--output", str(tmp_path / "o")]
        )
    assert ended.value.code == 2
    assert sentence in " ".join(capfd.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "o").exists()


def test_the_best_checkpoints_have_to_be_scored(tmp_path):
    values = recipe_values(tmp_path)
    values["training"] |= {"save_strategy": "epoch", "load_best_model_at_end": False}
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, ["averaging.best=2"]))
    assert str(error.value) == (
        "averaging.best goes by the scores of checkpoints; set training.save_strategy to steps, as training.eval_strategy "
        "is, or to best."
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("averaging.ema=1.0", "averaging.ema=1.0 must be between 0 and 1, such as 0.999."),
        ("averaging.ema=0.0", "averaging.ema=0.0 must be between 0 and 1, such as 0.999."),
        ("averaging.best=-1", "averaging.best=-1 must not be negative."),
        ("averaging.best=3", "averaging.best goes by evaluations; set training.eval_strategy to steps or epoch."),
    ],
)
def test_averaging_that_cannot_be_is_refused(tmp_path, override, sentence):
    values = recipe_values(tmp_path)
    values["training"] |= {"eval_strategy": "no", "load_best_model_at_end": False}
    with pytest.raises(RecipeError) as error:
        Recipe.from_dict(override_fields(values, [override]))
    assert str(error.value) == sentence


# The moving average --------------------------------------------------------------------------------------------------


def test_a_mean_or_a_tokenizer_that_the_disk_has_no_room_for_is_one_sentence(tmp_path, capsys):
    (tmp_path / "checkpoint-1").mkdir()
    model = tiny_model()
    model.config.save_pretrained(tmp_path / "checkpoint-1")
    save_file(
        {name: weight.clone() for name, weight in model.state_dict().items()},
        tmp_path / "checkpoint-1/model.safetensors",
    )
    (tmp_path / "text").write_text("the cat sat\n" * 9)
    for room, *command, place in (
        [7_000, "average", str(tmp_path / "checkpoint-1"), "--output", str(tmp_path / "mean")],
        [
            1_000,
            "train-tokenizer",
            str(tmp_path / "text"),
            "--vocab-size",
            "262",
            "--output",
            str(tmp_path / "tokens"),
        ],
    ):
        with files_of_at_most(room), pytest.raises(SystemExit, match="2"):
            main([*command, place])
        said = " ".join("".join(capsys.readouterr()).split())
        assert "could not be written: " in said and "; make room and " in said
    assert not (tmp_path / "mean").exists()


def test_the_moving_average_is_its_formula_and_ties_count_once():
    model = tiny_model()
    assert model.lm_head.weight is model.get_input_embeddings().weight
    average = MovingAverage(model, 0.9)
    generator = torch.Generator().manual_seed(1)
    expected = {}
    for update in range(6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn(parameter.shape, generator=generator)
        average.update()
        for name, parameter in model.named_parameters():
            now = parameter.detach().double()
            expected[name] = 0.9 * expected[name] + 0.1 * now if update else now
    assert len(average.weights) == len(list(model.parameters()))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.applied() as trained:
        for name, parameter in model.named_parameters():
            assert np.allclose(parameter.detach(), expected[name], rtol=0, atol=2e-6), name
        assert model.lm_head.weight is model.get_input_embeddings().weight
        assert all(torch.equal(trained[name], before[name]) for name in trained)
    assert equal_weights(model.state_dict(), before)
    with pytest.raises(ZeroDivisionError), average.applied():
        1 / 0  # noqa: B018
    assert equal_weights(model.state_dict(), before), "an error within leaves the average in the model"


def test_the_moving_average_refuses_weights_that_would_round_it_away():
    with pytest.raises(ValueError, match="needs weights in float32, but those to start from are torch.bfloat16"):
        MovingAverage(tiny_model().bfloat16(), 0.9)


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory):
    """A run with a moving average, its recipe, what it said, and the weights after each update of one without."""
    folder = tmp_path_factory.mktemp("averaged")
    values = recipe_values(folder)
    values["averaging"] = {"ema": 0.8}
    values["training"]["save_total_limit"] = 3
    said = []
    result = run(values, log=said.append)
    trajectory = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            MovingAverage,
            "update",
            lambda self: trajectory.append({n: p.detach().clone() for n, p in self.model.named_parameters()}),
        )
        run({**values, "output_dir": str(folder / "plain")})  # an average that is never begun changes nothing
    return result, values, said, trajectory


def test_a_run_saves_and_scores_the_average_and_trains_on_as_without(averaged_run):
    result, _, said, trajectory = averaged_run
    average = {}
    for update, now in enumerate(trajectory, start=1):
        average = {n: (torch.lerp(average[n], w, 1 - 0.8) if average else w) for n, w in now.items()}
        if update in (4, 8, 9):
            folder = result.folder / f"checkpoint-{update}"
            assert equal_weights(weights(folder, TRAINED_WEIGHTS), now), "averaging disturbed the training"
            saved = weights(folder)
            assert all(torch.allclose(saved[name], average[name], rtol=0, atol=1e-7) for name in average)
    plain = result.folder.parent / "plain"
    losses, plain_losses = logged(result.folder, "eval_loss"), logged(plain, "eval_loss")
    assert losses.keys() == plain_losses.keys() and all(losses[n] > plain_losses[n] for n in losses), "it lags behind"
    assert logged(result.folder, "loss") == logged(plain, "loss")
    model = vt.VanillaTransformerForConditionalGeneration.from_pretrained(result.folder / "checkpoint-9")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert any("validation, best checkpoint" in line for line in said)


def test_the_average_at_the_end_is_a_candidate_where_the_best_is_an_earlier_one(averaged_run, tmp_path, monkeypatch):
    scripted(monkeypatch, [5.0, 1.0, 1.0])
    values = {**averaged_run[1], "output_dir": str(tmp_path / "run")}
    facts = run(values).metrics["model"]
    assert facts["best_checkpoint"] == "checkpoint-4"
    assert facts["validation"].keys() == {"best", "ema"}
    assert facts["weights"] == "ema", "equal scores, of which the later ones count"
    assert equal_weights(weights(tmp_path / "run"), weights(tmp_path / "run" / "checkpoint-9"))


def test_a_run_with_an_average_that_is_interrupted_and_resumed_ends_bit_identical(averaged_run, tmp_path):
    result, values, *_ = averaged_run
    values = {**values, "output_dir": str(tmp_path / "broken")}
    with power_cut(6):
        run(values)
    with pytest.raises(RecipeError, match="averaging.ema differs from its recipe.yaml"):
        run(values, ["averaging.ema=null"], resume=True)
    resumed = run(values, resume=True)
    for name in ("checkpoint-8", "checkpoint-9"):
        for file in ("model.safetensors", TRAINED_WEIGHTS):
            assert equal_weights(weights(resumed.folder / name, file), weights(result.folder / name, file)), (
                name,
                file,
            )
    assert equal_weights(weights(resumed.folder), weights(result.folder))
    assert logged(resumed.folder, "eval_loss") == logged(result.folder, "eval_loss")


@pytest.mark.slow
def test_two_processes_save_the_average_of_what_they_train_together(tmp_path):
    values = every_update(tmp_path, max_steps=3, save_total_limit=4)
    values |= {"averaging": {"ema": 0.5}, "evaluation": {"sentences": 4}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    run_on_two("-m", "vanilla_transformer", "train", tmp_path / "recipe.yaml")
    average = {}
    for update in (1, 2, 3):
        folder = Path(values["output_dir"]) / f"checkpoint-{update}"
        now = weights(folder, TRAINED_WEIGHTS)
        average = {name: (average[name] + now[name]) / 2 if average else now[name] for name in now}
        saved = weights(folder)
        assert all(torch.allclose(saved[name], average[name], rtol=0, atol=1e-7) for name in average), update


def test_a_folder_with_another_kind_of_digit_is_not_a_checkpoint(tmp_path):
    for name in ("checkpoint-2", "checkpoint-²", "checkpoint-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text("{}")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["checkpoint-2"]
