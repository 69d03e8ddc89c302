"""What a run tells of itself: its log, its lines where nobody watches, its bar, why it ended, what its warm-up does."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainerState

from runs import every_update, recipe_values, run
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs import run_log
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.runs.run_log import Progress, RunLog


def stamped(folder):
    """The lines of a log without their times, all of which are there."""
    lines = (Path(folder) / "train.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d  ", line) for line in lines)
    return [line[27:] for line in lines]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run, what it said, and what it wrote to standard error, which is no terminal."""
    said, stream = [], io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        values = recipe_values(tmp_path_factory.mktemp("told"))
        values["early_stopping"] = {"patience": 7}
        result = run(values, log=said.append)
    return result, said, stream.getvalue(), values


def test_the_log_has_every_logged_update_every_evaluation_and_all_that_is_said(told):
    result, said, _, _ = told
    lines = stamped(result.folder)
    told_lines = "\n".join(said).splitlines()
    assert [line for line in lines if line in told_lines] == told_lines
    updates = [line for line in lines if re.match(r"update \d of 9  epoch [\d.]+  [\d.]+ min \(\d+:\d\d left\)", line)]
    assert len(updates) == 9 and "loss " in updates[0] and "lr " in updates[0] and "tok/s " in updates[0]
    evaluations = [line for line in lines if line.startswith("evaluation at update ")]
    assert len(evaluations) == 3 and "bleu " in evaluations[0]
    assert evaluations[0].endswith("of 7 evaluations without improvement)")


def test_without_a_terminal_there_are_plain_lines(told):
    _, _, errors, _ = told
    assert "\r" not in errors and "%|" not in errors and "\x1b" not in errors
    assert "update 9 of 9" in errors and "evaluation at update 8" in errors and len(errors) < 6000


def test_a_resumed_run_appends_to_the_log_and_an_error_stands_in_it(tmp_path, monkeypatch):
    values = recipe_values(tmp_path)
    values["data"]["test"] = {}

    def failing(*args, **kwargs):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk is gone"):
        patch.setattr("vanilla_transformer.runs.run.Run.finish", failing)
        run(values)
    before = stamped(tmp_path / "run")
    assert before[-1] == "OSError: the disk is gone"
    run(values, resume=True)
    after = stamped(tmp_path / "run")
    assert after[: len(before)] == before and after[-1].startswith("finished: ")


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "train.log").symlink_to(tmp_path / "precious")
    said = []
    with RunLog(said.append) as log:
        log.open(tmp_path)
        log("a line")
    assert (tmp_path / "precious").read_text() == "mine"
    assert said[0].startswith("train.log cannot be written (") and said[1:] == ["a line"]


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], "ended at update 9: it made all 3 epochs (training.num_train_epochs)"),
        (["training.num_train_epochs=1"], "ended at update 3: it made its epoch (training.num_train_epochs)"),
        (["training.max_steps=4"], "ended at update 4: it made all its updates (training.max_steps)"),
        (["max_minutes=1e-9"], "stopped at update 1: its time of 1e-09 minutes was up (max_minutes)"),
    ],
)
def test_the_reason_for_every_end_is_said_and_stands_in_metrics_and_card(overrides, reason, tmp_path):
    said = []
    quick = ["data.test={}", "averaging.last=0", "generation={num_beams: 1}", "evaluation.sentences=4"]
    result = run(recipe_values(tmp_path), [*quick, *overrides], log=said.append)
    assert f"training {reason}" in said
    assert json.loads((result.folder / "metrics.json").read_text())["training"]["stopped"] == reason
    assert f"- Training {reason}." in (result.folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["training.warmup_steps=500"],
            "the warm-up of 500 updates takes all of the 9 updates, too long to learn much; set training.warmup_steps to 1",
        ),
        (
            ["training.warmup_steps=500", "training.lr_scheduler_type=inverse_sqrt_decay"],
            "the warm-up of 500 updates is shortened to about 2, 20% of the 9 updates.",
        ),
        (["training.warmup_steps=1"], None),
    ],
)
def test_a_warm_up_that_is_too_long_is_told_of(overrides, sentence, tmp_path):
    said = []
    quick = ["data.test={}", "averaging.last=0", "generation={num_beams: 1}", "evaluation.sentences=4"]
    result = run(recipe_values(tmp_path), [*quick, *overrides], log=said.append)
    warned = [line for line in said if "warm-up" in line]
    assert len(warned) == (sentence is not None)
    card, kept = (result.folder / "README.md").read_text(), result.metrics["training"]["warmup"]
    if sentence is None:
        assert kept is None and "warm-up" not in card.partition("yaml")[0]
    else:
        assert warned[0].startswith(sentence) and warned[0] == kept and kept in card
        places = [said.index(warned[0]), next(n for n, line in enumerate(said) if line.startswith("training ended"))]
        assert places == sorted(places)


def test_samples_follow_each_evaluation(told):
    lines = stamped(told[0].folder)
    first = next(number for number, line in enumerate(lines) if line.startswith("evaluation at update 4"))
    assert [line.split()[0] for line in lines[first + 1 : first + 10]] == ["source:", "reference:", "output:"] * 3
    sources = Path(told[3]["data"]["validation"]["source"]).read_text().splitlines()
    assert all(line.split(maxsplit=1)[1] in sources for line in lines[first + 1 : first + 10 : 3])


def test_scoring_says_what_it_does_before_it_does_it(told):
    said = told[1]
    for name in ("validation, best checkpoint", "validation, mean of the last 2 checkpoints"):
        first = said.index(f"scoring {name} (21 pairs) ...")
        assert said[first + 1].startswith(f"{name}: BLEU ")


class Clock:
    """A trainer as the progress sees it, some minutes on its way."""

    def __init__(self, minutes, max_minutes=None):
        self.minutes, self.max_minutes = minutes, max_minutes
        self.time_share = 0.0 if max_minutes is None else minutes / max_minutes


@pytest.mark.parametrize(
    ("trainer", "step", "left"),
    [
        (Clock(5), 50, 95),  # ten updates a minute, 950 to go
        (Clock(5, 20), 50, 15),  # the time is up before
        (Clock(5, 2000), 50, 95),
        (Clock(25, 20), 50, 0),
        (Clock(0), 0, None),
    ],
)
def test_the_time_that_is_left_is_the_smaller_of_what_all_limits_leave(trainer, step, left):
    progress = Progress(RunLog(None), trainer)
    found = progress.minutes_left(TrainerState(global_step=step, max_steps=1000))
    assert found == (None if left is None else pytest.approx(left))


def test_the_bar_of_a_terminal_ends_where_the_time_does(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(run_log, "shows_bars", lambda: True)
    progress = Progress(RunLog(None), Clock(5, 20))
    state, args, control = TrainerState(global_step=0, max_steps=1000), SimpleNamespace(), SimpleNamespace()
    progress.on_train_begin(args, state, control)
    state.global_step = 50
    progress.on_step_end(args, state, control)
    progress.on_log(args, state, control, logs={"loss": 1.0, "learning_rate": 1e-3, "tokens_per_second": 5})
    progress.training_bar.refresh()
    progress.close()
    assert "50/200 [" in stream.getvalue() and "15:00 left" in stream.getvalue() and "loss=1.000" in stream.getvalue()


def test_lines_still_go_to_what_was_called_say(tmp_path):
    said = []
    values = every_update(tmp_path, max_steps=1)
    with pytest.warns(FutureWarning, match="say= is called log= now"):
        run_recipe(Recipe.from_dict(values), say=said.append)
    assert said[-1] == f"finished: {values['output_dir']}"
