"""Schedules that end when the run does: by its updates, by its time, and the same again where it is resumed."""

import json
import pickle

import pytest
import torch
from transformers import SchedulerType, get_scheduler

from runs import equal_weights, log_of, logged, power_cut, recipe_values, run, weights
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.trainer.schedules import (
    LONGEST_WARMUP,
    decay_schedule,
    expected_updates,
    follow_clock,
    inverse_sqrt_decay_factor,
    inverse_sqrt_factor,
)
from vanilla_transformer.trainer.trainer import TokenTrainer

ENDLESS = ["constant", "constant_with_warmup", "inverse_sqrt"]
DECAY = ["training.lr_scheduler_type=inverse_sqrt_decay"]


def rates(scheduler_of, updates, seconds=None, limit=None):
    """The rate of each update, of a run in which an update takes so many seconds of the limit."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    passed = [0.0]
    scheduler, found = scheduler_of(optimizer, lambda: passed[0]), []
    for update in range(1, updates + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        passed[0] = 0.0 if limit is None else update * seconds / limit
        scheduler.step()
    return found


def decay(warmup, total, share=0.5):
    return lambda optimizer, clock: decay_schedule(optimizer, warmup, total, clock, share)


def test_warm_up_inverse_square_root_and_a_straight_line_to_zero():
    found = rates(decay(10, 100), 100)
    assert found[:50] == pytest.approx([inverse_sqrt_factor(step, 10) for step in range(1, 51)])
    ends = [inverse_sqrt_factor(step, 10) * (101 - step) / 50 for step in range(51, 101)]
    assert found[50:] == pytest.approx(ends) and found[-1] > 0
    assert inverse_sqrt_decay_factor(100, 10, 100, 0.0, 0.5) == 0


def test_the_time_that_is_left_drives_it_where_that_ends_first():
    """An update takes a second and there are 100 seconds: as for 100 updates, whatever `max_steps` is."""
    by_updates, by_time = rates(decay(10, 100), 100), rates(decay(10, 10_000), 100, seconds=1, limit=100)
    assert by_time == pytest.approx(by_updates)
    assert rates(decay(10, 100), 100, seconds=0.1, limit=100) == by_updates  # time enough: to the bit
    assert inverse_sqrt_decay_factor(120, 10, 10_000, 1.2) == 0  # a last update that takes long


def test_a_warm_up_that_is_too_long_is_shortened_to_its_share_of_the_run():
    for found in (rates(decay(5000, 100), 100), rates(decay(5000, 10_000), 100, seconds=1, limit=100)):
        assert found.index(max(found)) + 1 == round(LONGEST_WARMUP * 100) and max(found) == pytest.approx(1)


@pytest.mark.parametrize(
    "name", [name.value for name in SchedulerType if name.value not in [*ENDLESS, "reduce_lr_on_plateau", "greedy"]]
)
def test_schedules_of_transformers_end_with_the_time(name):
    """All of them: one that transformers adds, or builds in another way, is found here."""
    options = {"min_lr_rate": 0.1} if "min_lr" in name else {"num_decay_steps": 20} if "stable" in name else {}

    def theirs(total, follows):
        def scheduler(optimizer, clock):
            made = get_scheduler(name, optimizer, 5, total, options)
            assert not follows or follow_clock(made, total, clock)
            return made

        return scheduler

    by_updates = rates(theirs(50, False), 50)
    assert rates(theirs(5000, True), 50, seconds=1, limit=50) == pytest.approx(by_updates, abs=1e-6)
    assert rates(theirs(50, True), 50, seconds=1, limit=5000) == pytest.approx(by_updates)


def test_schedules_without_a_length_stay_as_they_are():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for name in ENDLESS:
        scheduler = get_scheduler(name, optimizer, num_warmup_steps=5, num_training_steps=10)
        before = list(scheduler.lr_lambdas)
        assert not follow_clock(scheduler, 10, float) and scheduler.lr_lambdas == before


def test_a_checkpoint_holds_nothing_of_the_length_of_a_run():
    """So that a run that is resumed for longer has the schedule of its new length."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = decay_schedule(optimizer, 10, 100, float)
    assert not any(scheduler.state_dict()["lr_lambdas"])
    pickle.dumps(scheduler.state_dict())


@pytest.mark.parametrize(
    ("total", "finished", "share", "expected"),
    [(100, 0, 0.0, 100), (100, 0, 0.5, 100), (100, 10, 0.5, 20), (100, 10, 0.01, 100), (100, 10, 0.0, 100)],
)
def test_expected_updates(total, finished, share, expected):
    assert expected_updates(total, finished, share) == expected


def test_a_run_with_it_is_resumed_bit_for_bit(tmp_path):
    values = recipe_values(tmp_path)
    unbroken = run({**values, "output_dir": str(tmp_path / "unbroken")}, DECAY)
    with power_cut(6):
        run({**values, "output_dir": str(tmp_path / "broken")}, DECAY)
    resumed = run({**values, "output_dir": str(tmp_path / "broken")}, DECAY, resume=True)
    assert logged(unbroken.folder, "learning_rate") == logged(resumed.folder, "learning_rate")
    assert equal_weights(weights(unbroken.folder), weights(resumed.folder))
    found = list(logged(unbroken.folder, "learning_rate").values())
    assert 0 < found[-1] < 0.25 * max(found)


@pytest.mark.parametrize("schedule", ["inverse_sqrt_decay", "linear"])
def test_the_rate_of_a_run_falls_to_zero_with_its_time_and_goes_by_all_of_it(schedule, tmp_path, monkeypatch):
    """With a clock of the test's own, on which an update takes a second; a resumed run counts what came before."""
    clock = [0.0]
    original = TokenTrainer.training_step

    def training_step(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        clock[0] += 1
        return result

    monkeypatch.setattr("vanilla_transformer.trainer.trainer.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(TokenTrainer, "training_step", training_step)
    overrides = [f"training.lr_scheduler_type={schedule}", "max_minutes=0.2", "training.num_train_epochs=50"]
    overrides += ["training.gradient_accumulation_steps=1", "data.test={}"]
    values = recipe_values(tmp_path)
    unbroken = run({**values, "output_dir": str(tmp_path / "unbroken")}, overrides)
    assert unbroken.metrics["training"]["updates"] == 12
    rates = list(logged(unbroken.folder, "learning_rate").values())
    assert max(rates) > 0.005 and 0 < rates[-1] < 0.25 * max(rates)
    clock[0] = 0.0
    with power_cut(10):
        run({**values, "output_dir": str(tmp_path / "broken")}, overrides)
    clock[0] += 1000  # what passes while nothing is trained
    resumed = run({**values, "output_dir": str(tmp_path / "broken")}, overrides, resume=True)
    assert resumed.metrics["training"]["updates"] == 12
    assert list(logged(resumed.folder, "learning_rate").values()) == pytest.approx(rates)
    assert log_of(resumed.folder)[-2]["minutes"] <= 0.21


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.lr_scheduler_type=inverse_sqrt_deca"], "did you mean 'inverse_sqrt_decay'"),
        ([*DECAY, "training.lr_scheduler_kwargs={share: 0.5}"], "unknown field training.lr_scheduler_kwargs.share"),
        ([*DECAY, "training.lr_scheduler_kwargs={decay_share: 0}"], "decay_share=0 must be above 0 and at most 1"),
        ([*DECAY, "training.lr_scheduler_kwargs={decay_share: x}"], "decay_share='x' must be above 0"),
        (["training.lr_scheduler_kwargs={timescale: 3}"], "unknown field training.lr_scheduler_kwargs.timescale"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(overrides, said, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe_values(tmp_path)))
    with pytest.raises(RecipeError) as error:
        Recipe.load(path, overrides)
    assert said in str(error.value) and "\n" not in str(error.value)
