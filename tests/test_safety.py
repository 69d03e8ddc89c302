"""What a run survives: being killed at any point, a disk that is full, a loss that is no number any more or explodes."""

import inspect
import io
import json
import math
import re
import shutil
import signal
from contextlib import contextmanager
from itertools import filterfalse
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import Trainer

from run_processes import RunProcesses
from runs import (
    ROOT,
    equal_weights,
    every_update,
    history,
    logged,
    recipe_values,
    reversed_words,
    run,
    run_on_two,
    weights,
    write_pairs,
)
from test_tasks import BLOCKS
from test_tasks import recipe as recipe_of_task
from vanilla_transformer.cli import main
from vanilla_transformer.errors import DivergedError, RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs import run as run_module
from vanilla_transformer.trainer.checkpoints import delete_old_checkpoints, find_checkpoints, processes_of
from vanilla_transformer.trainer.divergence import LEAST, ROWS, SKIPPED, DivergenceRule, Update
from vanilla_transformer.trainer.trainer import Seq2SeqTokenTrainer, TokenTrainer
from vanilla_transformer.trainer.training_state import load_training_state, save_training_state
from vanilla_transformer.utils.atomic import is_temporary

# Killed and resumed --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    program = RunProcesses(tmp_path_factory.mktemp("processes"))
    yield program
    program.close()


def translation(folder):
    """Eight updates, three an epoch: training ends within an epoch.

    Logs come at other updates than checkpoints, so that their mean loss is of updates before and after a checkpoint.
    """
    values = recipe_values(folder)
    values["training"] |= {"save_steps": 2, "eval_steps": 2, "logging_steps": 3, "max_steps": 8}
    return values


KILLS = [
    "final recipe.yaml half",
    "update 1 batch 0",
    "update 2 batch 1",
    "update 2 stepped",
    "evaluation 2",
    "checkpoint-2 model.safetensors half",
    "checkpoint-2 optimizer.pt half",
    "checkpoint-2 scheduler.pt half",
    "checkpoint-2 rng_state.pth half",
    "checkpoint-2 trainer_state.json half",
    "checkpoint-2 whole",
    "moved",
    "update 5 batch 1",
    "checkpoint-6 optimizer.pt",
    "evaluation 8",
    "rmtree old-checkpoint-4",
    "average",
    "score unseen",
    "final model.safetensors half",
    "final README.md half",
    "replace metrics.json",
]
"""One after the other, each in the process that goes on after the one before."""


def with_workers(folder):
    values = translation(folder)
    values["training"]["dataloader_num_workers"] = 2
    return values


def by_epoch(folder):
    values = recipe_of_task(folder, "token-classification")
    values["training"] |= {"eval_strategy": "epoch", "save_strategy": "epoch"}
    return values


RUNS = {
    "seq2seq": (translation, KILLS),
    "workers": (with_workers, ["update 2 batch 1", "update 5 batch 0", "checkpoint-6 scheduler.pt half"]),
    **{
        task: (
            lambda folder, task=task: recipe_of_task(folder, task, overrides=BLOCKS.get(task, ())),
            ["update 1 batch 1", "update 6 batch 1", "checkpoint-8 optimizer.pt half", "update 9 stepped", "average"],
        )
        for task in ("causal-lm", "masked-lm", "sequence-classification")
    },
    "token-classification": (by_epoch, ["update 1 batch 1", "update 6 batch 1", "update 9 stepped", "average"]),
}


def batches_of(trace):
    by_update = {}
    for batch in trace:
        by_update.setdefault(batch["update"], []).append(batch)
    return by_update


def assert_same_state(checkpoint, other):
    """What training goes on from: all but the times in `trainer_state.json`, which `history` compares."""
    assert equal_weights(weights(checkpoint), weights(other)), checkpoint
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        assert (checkpoint / name).read_bytes() == (other / name).read_bytes(), checkpoint / name


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_again_and_again_ends_bit_identical(processes, tmp_path, name):
    """The rows and the content of every batch, its loss and learning rate, all weights and what is logged."""
    build, kills = RUNS[name]
    values = build(tmp_path)
    unbroken = {**values, "output_dir": str(tmp_path / "unbroken")}
    unbroken["training"] = {**values["training"], "save_total_limit": 100}
    reference = processes.run(unbroken)
    assert reference["status"] == 0, reference["printed"]
    batches = batches_of(reference["trace"])
    assert list(batches) == list(range(1, values["training"]["max_steps"] + 1))
    assert max(len(update) for update in batches.values()) == 2
    whole = Path(unbroken["output_dir"])
    folder = Path(values["output_dir"])

    for kill in [*kills, None]:
        ended = processes.run(values, resume=folder.exists() and any(folder.glob("recipe.yaml")), at=kill)
        assert ended["status"] == (0 if kill is None else -signal.SIGKILL), (kill, ended["printed"])
        for update, made in batches_of(ended["trace"]).items():
            assert made == batches[update][: len(made)], (kill, update)
        for checkpoint in find_checkpoints(folder):
            assert_same_state(checkpoint, whole / checkpoint.name)
        found = {path.relative_to(folder).parts[0] for path in folder.rglob("*.safetensors")}
        assert set(filterfalse(is_temporary, found)) <= {path.name for path in find_checkpoints(folder)} | {
            "model.safetensors",
            "shortlist.safetensors",
        }, kill
    assert history(folder) == history(whole)
    assert equal_weights(weights(folder), weights(whole))
    assert not any(map(is_temporary, folder.iterdir()))
    kept = [path.name for path in find_checkpoints(folder)]
    assert len(kept) <= 3 and kept[-1] == f"checkpoint-{values['training']['max_steps']}"
    facts = [json.loads((place / "metrics.json").read_text())["model"] for place in (folder, whole)]
    for scores in (scores for fact in facts for scores in fact["validation"].values()):
        scores.pop("seconds", None)
    assert facts[0] == facts[1]


@pytest.fixture
def heeds_sigint():
    """A shell that starts the tests in the background has them ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def signals(numbers, method="training_step", update=6):
    """Within it the process gets signals, one at each call of a trainer's method in that update."""
    original, left = getattr(TokenTrainer, method), list(numbers)

    def signalling(self, *args, **kwargs):
        if self.state.global_step == update and left:
            signal.raise_signal(left.pop(0))
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenTrainer, method, signalling)
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    values = recipe_values(tmp_path_factory.mktemp("unbroken"))
    run(values)
    return values


@pytest.mark.parametrize(
    ("numbers", "method", "update", "kept"),
    [
        # the last update of an epoch of three, before an evaluation and checkpoint at 8, where these are due, within one
        ([signal.SIGTERM], "training_step", 5, 6),
        ([signal.SIGTERM], "training_step", 6, 7),
        ([signal.SIGINT], "training_step", 7, 8),
        ([signal.SIGTERM], "prediction_step", 8, 8),
        ([signal.SIGTERM], "_save_checkpoint", 8, 8),
        ([signal.SIGTERM], "training_step", 8, 9),
        ([signal.SIGINT, signal.SIGTERM], "training_step", 6, 4),
    ],
    ids=["epoch", "between", "due", "evaluating", "saving", "last", "twice"],
)
def test_a_signal_saves_a_checkpoint_and_the_resumed_run_is_the_unbroken_one(
    tmp_path, heeds_sigint, unbroken, numbers, method, update, kept
):
    values, whole = recipe_values(tmp_path), Path(unbroken["output_dir"])
    command = f"vanilla-transformer train {values['output_dir']}/recipe.yaml --resume"
    with signals(numbers, method, update), pytest.raises(RunInterrupted) as caught:
        run(values)
    at = update if method != "training_step" or len(numbers) > 1 else kept
    name = signal.Signals(numbers[-1]).name
    assert (
        str(caught.value) == f"interrupted at update {at} by {name}; checkpoint-{kept} is kept; resume with: {command}"
    )
    assert caught.value.number == numbers[-1]
    resumed = run(Recipe.load(Path(values["output_dir"]) / "recipe.yaml").to_dict(), resume=True)
    assert history(resumed.folder) == history(whole)
    assert equal_weights(weights(resumed.folder), weights(whole))
    assert [path.name for path in find_checkpoints(resumed.folder)] == [path.name for path in find_checkpoints(whole)]
    for checkpoint in find_checkpoints(resumed.folder):
        assert_same_state(checkpoint, whole / checkpoint.name)
    metrics = [json.loads((folder / "metrics.json").read_text()) for folder in (resumed.folder, whole)]
    for scores in (scores for each in metrics for scores in each["model"]["validation"].values()):
        scores.pop("seconds", None)
    assert metrics[0]["model"] == metrics[1]["model"]
    assert logged(resumed.folder, "train_loss") == pytest.approx(logged(whole, "train_loss"), rel=1e-6)
    assert logged(resumed.folder, "padding_share") == logged(whole, "padding_share")


@pytest.mark.parametrize("when", ["before training", "after training"])
def test_a_signal_outside_of_training_ends_at_once_and_says_how_to_resume(tmp_path, monkeypatch, when):
    values = every_update(tmp_path, max_steps=2)
    owner, name = (run_module, "set_seed") if when == "before training" else (run_module.Run, "_score_split")
    original = getattr(owner, name)

    def signalled(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch, pytest.raises(RunInterrupted) as caught:
        patch.setattr(owner, name, signalled)
        run(values)
    assert signal.getsignal(signal.SIGTERM) is before
    resume = f"resume with: vanilla-transformer train {values['output_dir']}/recipe.yaml --resume"
    assert (
        str(caught.value)
        == {
            "before training": "interrupted before training by SIGTERM; no checkpoint was saved yet; start it again",
            "after training": "interrupted after training, while the model was scored and saved, by SIGTERM; checkpoint-2 is kept; "
            + resume,
        }[when]
    )
    assert (tmp_path / "run").exists() == (when == "after training")
    if when == "after training":
        assert run(values, resume=True).metrics["training"]["updates"] == 2


def test_a_finished_run_that_is_resumed_is_scored_and_saved_again_and_does_not_train(unbroken):
    values, whole = unbroken, Path(unbroken["output_dir"])
    facts = json.loads((whole / "metrics.json").read_text())["training"]
    before, loss = weights(whole), logged(whole, "train_loss")
    (whole / "model.safetensors").unlink()
    again = run(values, resume=True)
    assert equal_weights(weights(whole), before)
    assert again.metrics["training"]["updates"] == 9
    assert again.metrics["training"]["minutes"] <= facts["minutes"] + 5
    assert logged(whole, "train_loss") == pytest.approx(loss, rel=1e-6), (
        "the mean of all updates, not of those made now"
    )
    losses = logged(whole, "loss")
    assert loss[9] == pytest.approx(sum(losses.values()) / len(losses), rel=1e-6)


class Evil:
    """What a file could do while it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


def test_a_checkpoint_of_somebody_else_runs_nothing_and_what_is_wrong_with_it_is_named(tmp_path):
    values = every_update(tmp_path, max_steps=3)
    folder = run(values).folder
    checkpoint = folder / "checkpoint-2"
    shutil.rmtree(folder / "checkpoint-3")  # there is an update to make
    kept = {path: path.read_bytes() for path in checkpoint.iterdir()}
    state = json.loads(kept[checkpoint / "trainer_state.json"])

    def pickled(content):
        stream = io.BytesIO()
        torch.save(content, stream)
        return stream.getvalue()

    def with_state(**changes):
        return "trainer_state.json", json.dumps({**state, **changes}).encode()

    evil = pickled({"evil": Evil(tmp_path / "done")})
    damaged = rf"{checkpoint}/trainer_state.json is damaged: "
    for (name, content), sentence in (
        *((("optimizer.pt", evil), f"{checkpoint}/optimizer.pt"),),
        *((("scheduler.pt", evil), f"{checkpoint}/scheduler.pt"),),
        *((("rng_state.pth", evil), f"{checkpoint}/rng_state.pth"),),
        *((("optimizer.pt", pickled({"state": 3})), f"{checkpoint} is damaged, or not of this run"),),
        *((("rng_state.pth", pickled({})), f"{checkpoint} is damaged, or not of this run"),),
        *((("trainer_state.json", b"[]"), f"{damaged[:-2]}, as it holds a list and not an object; delete"),),
        (with_state(sorcery=1), damaged + "it has the unknown field 'sorcery'"),
        (with_state(global_step="x"), damaged + "global_step is 'x', not a whole number"),
        (with_state(global_step=-2), damaged + "global_step is -2"),
        (with_state(epoch=[]), damaged + "epoch is"),
        (with_state(log_history={}), damaged + "log_history is not a list"),
        (with_state(log_history=[{"step": "x", "loss": 1.0}]), damaged + "the step of an entry of log_history is 'x'"),
        (with_state(log_history=[{"step": 1, "eval_loss": "x"}]), damaged + "eval_loss in log_history is 'x'"),
        (with_state(stateful_callbacks=[1]), damaged + "stateful_callbacks is not"),
        (with_state(stateful_callbacks={"processes": {"count": 2}}), "by 2 processes, but this is 1: .*torchrun"),
    ):
        for path, before in kept.items():
            path.write_bytes(content if path.name == name else before)
        with pytest.raises(ValueError, match=sentence) as caught:
            run(values, resume=True)
        assert "weights_only=False" not in str(caught.value) and "\n" not in str(caught.value), caught.value
        assert not (tmp_path / "done").exists(), name
    for path, before in kept.items():
        path.write_bytes(before)
    # a checkpoint of an earlier version does not tell; what its processes have left does
    del state["stateful_callbacks"]["processes"]
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    assert processes_of(checkpoint) == 1
    for process in range(3):
        shutil.copy(checkpoint / "rng_state.pth", checkpoint / f"rng_state_{process}.pth")
    assert processes_of(checkpoint) == 3


def test_a_state_of_more_parameters_than_the_model_has_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_training_state(tmp_path, optimizer, scheduler, {"updates": 1}, processes=1)
    assert load_training_state(tmp_path, optimizer, scheduler, 1) == {"updates": 1}
    save_file({"9.exp_avg": torch.zeros(2, 2)}, tmp_path / "optimizer.safetensors")
    with pytest.raises(ValueError, match="is damaged, or of another model"):
        load_training_state(tmp_path, optimizer, scheduler, 1)


def test_a_run_whose_time_was_up_is_resumed_without_another_update(tmp_path):
    values = recipe_values(tmp_path)
    values["max_minutes"] = 1e-9
    first = run(values, ["averaging.last=0"])
    (first.folder / "model.safetensors").unlink()
    second = run(values, ["averaging.last=0"], resume=True)
    assert second.metrics["training"]["updates"] == first.metrics["training"]["updates"] == 1
    assert equal_weights(weights(second.folder), weights(second.folder / "checkpoint-1"))


OVERRIDDEN = {
    "_get_grad_norm": ("_run_epoch", "the last thing before each optimizer step, and what has its gradient norm"),
    "_run_epoch": ("_inner_training_loop", "it makes an update without asking whether there are any to make"),
    "_prepare_for_training": ("_inner_training_loop", "where FSDP2 groups modules, and a tied matrix must be in one"),
    "_save_checkpoint": ("_maybe_log_save_evaluate", "to write beside, look at the weights first, and say what fails"),
    "_get_output_dir": ("_save_checkpoint", "where it writes"),
    "_save": ("save_model", "what else belongs to a checkpoint, which weights, and a tied matrix once"),
    "_load_from_checkpoint": ("train", "to go on from trained weights where the model is an average"),
    "_push_from_checkpoint": ("_save_checkpoint", "it would push what is half written"),
    "_issue_warnings_after_load": ("_load_best_model", "it takes tied weights for missing ones"),
}
"""Methods of `Trainer` that are not public: where it calls them, and why they are overridden."""

USED = {
    "_tr_loss": ("_run_epoch", "the loss that is not logged yet, which a checkpoint takes along"),
    "_globalstep_last_logged": ("_maybe_log_save_evaluate", "and of how many updates it is"),
    "_created_lr_scheduler": (
        "_prepare_for_training",
        "a schedule that is ours is made anew like those of transformers",
    ),
}
"""Attributes of it that are not public."""


@pytest.mark.parametrize(("name", "caller", "why"), [(n, *rest) for n, rest in {**OVERRIDDEN, **USED}.items()])
def test_what_is_not_public_of_transformers_is_there(name, caller, why):
    """Without any of them a run would be less safe or not the same, and nothing else would say so."""
    assert f"self.{name}" in inspect.getsource(getattr(Trainer, caller)), why


def test_nothing_else_of_transformers_that_is_not_public_is_overridden():
    own = {name for cls in Seq2SeqTokenTrainer.__mro__ if cls.__module__.startswith("vanilla_") for name in vars(cls)}
    assert {name for name in own if hasattr(Trainer, name) and re.match("_[a-z]", name)} == OVERRIDDEN.keys()


# A full disk ---------------------------------------------------------------------------------------------------------


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_full_disk_leaves_everything_that_was_whole(processes, tmp_path):
    """The kernel refuses every file above 100 bytes from some file on; with room again the run ends as if nothing had been."""
    values = translation(tmp_path)
    unbroken = {**values, "output_dir": str(tmp_path / "unbroken")}
    assert processes.run(unbroken)["status"] == 0
    folder, whole = Path(values["output_dir"]), Path(unbroken["output_dir"])

    failed = processes.run(values, at="final recipe.yaml", do="full")
    assert failed["error"] == ["OSError", f"{folder} could not be written: File too large; make room and start again."]
    assert content(folder) == {}

    def assert_sentence(ended, what, remedy):
        assert ended["status"] == 1
        kind, words = ended["error"]
        assert kind == "OSError" and "\n" not in words
        assert words.startswith(f"{what} could not be written: ") and words.endswith(f"; {remedy}."), words
        assert "too large" in words.lower() or "not all of it could be written, as on a full disk" in words, words

    kept = []
    for update, file in (
        (2, "model.safetensors"),
        (4, "model.safetensors half"),  # the tokenizer comes next
        (4, "training_args.bin"),
        (4, "optimizer.pt"),
        (4, "scheduler.pt"),
        (4, "rng_state.pth"),
        (4, "trainer_state.json"),
        (8, "optimizer.pt"),
    ):
        at = f"checkpoint-{update} {file}"
        ended = processes.run(values, resume=(folder / "recipe.yaml").exists(), at=at, do="full")
        last = f"checkpoint-{update - 2}"
        remedy = f"{last} is complete, so make room and resume with --resume" if update > 2 else "make room"
        assert_sentence(ended, folder / f"checkpoint-{update}", remedy)
        kept = find_checkpoints(folder)
        assert [path.name for path in kept] == [f"checkpoint-{n}" for n in range(2, update, 2)]
        assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(path.name for path in kept)
        assert not (folder / "model.safetensors").exists()
    # with room again; then, where it is scored and saved once more, there is none for the model and what comes with it
    for at in (None, "model.safetensors", "trainer_state.json", "metrics.json", "curves.png", "README.md"):
        if at is None:
            assert processes.run(values, resume=True)["status"] == 0
            before = content(folder)
            continue
        ended = processes.run(values, resume=True, at=f"final {at}", do="full")
        assert_sentence(ended, f"the model in {folder}", "make room and resume with --resume")
        after = content(folder)
        assert {**after, Path("train.log"): None} == {**before, Path("train.log"): None}, at
        assert after[Path("train.log")].startswith(before[Path("train.log")]), "the log tells of each try"
        assert not any(map(is_temporary, folder.iterdir()))
    assert history(folder) == history(whole)
    for place in (".", *(path.name for path in find_checkpoints(whole))):
        assert equal_weights(weights(folder / place), weights(whole / place)), place


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (None, [], [1, 2, 3, 10]),
        (0, [], [1, 2, 3, 10]),
        (2, [], [3, 10]),
        (2, [1], [1, 10]),
        (1, [1], [1, 10]),
        (1, [1, 2], [1, 2, 10]),
        (1, [], [10]),
        (9, [1], [1, 2, 3, 10]),
    ],
)
def test_the_last_checkpoints_and_the_best_are_kept(tmp_path, keep, best, left):
    for update in (1, 2, 3, 10):
        (tmp_path / f"checkpoint-{update}").mkdir()
        (tmp_path / f"checkpoint-{update}" / "trainer_state.json").write_text("{}")
    delete_old_checkpoints(tmp_path, keep, [tmp_path / f"checkpoint-{update}" for update in best])
    assert [path.name for path in find_checkpoints(tmp_path)] == [f"checkpoint-{update}" for update in left]


# Divergence ----------------------------------------------------------------------------------------------------------


def first_trouble(rule, losses, norms=None):
    """(number of losses read, number of the update it began with, words), or None."""
    for number, loss in enumerate(losses, start=1):
        found = rule.check(Update(number), loss, 1.0 if norms is None else norms[number - 1])
        if found:
            return number, found[0].number, found[1]
    return None


def falling(count):
    """A training curve with the noise of small batches: every fifth loss is half as high again."""
    return [2 + 7 * math.exp(-i / 50) * (1.5 if i % 5 == 0 else 1) for i in range(count)]


def test_a_loss_that_falls_is_no_trouble():
    assert first_trouble(DivergenceRule(), falling(1000)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_or_norm_that_is_no_finite_number_is_trouble_at_once(value):
    assert first_trouble(DivergenceRule(), [5.0, value]) == (2, 2, f"the loss is {value}")
    assert first_trouble(DivergenceRule(), [5.0, 5.0], [1.0, value]) == (2, 2, f"the gradient norm is {value}")
    assert first_trouble(DivergenceRule(non_finite=False), [5.0, value, 5.0]) is None


def test_a_loss_that_explodes_is_trouble_when_it_stays_up():
    losses = falling(300)
    number, begun, words = first_trouble(DivergenceRule(), losses + [50.0] * 10)
    assert (number, begun) == (310, 301)
    assert "the loss is 50, and for 10 updates in a row above 3 times its running median of 2.0" in words
    assert first_trouble(DivergenceRule(), losses + [50.0] * 9 + losses[-20:]) is None
    assert first_trouble(DivergenceRule(loss_over_median=None), losses + [50.0] * 100) is None
    assert first_trouble(DivergenceRule(loss_over_median=100), losses + [50.0] * 100) is None
    assert first_trouble(DivergenceRule(updates=1), losses + [50.0])[:2] == (301, 301)
    # in the first updates nothing is usual yet, and many times next to nothing still is next to nothing
    assert first_trouble(DivergenceRule(), [1.0] * (LEAST - 1) + [50.0] * 10) is None
    assert first_trouble(DivergenceRule(), [0.001] * 100 + [0.9] * 100) is None


def test_a_resumed_run_knows_what_was_usual():
    rule = DivergenceRule(updates=2)
    rule.remember([2.0] * LEAST)
    assert first_trouble(rule, [50.0, 50.0])[:2] == (2, 1)


def test_updates_that_fp16_skips_are_no_trouble_until_it_skips_all():
    rule = DivergenceRule()
    rule.scaled = True
    assert first_trouble(rule, [5.0] * 200, [math.inf, 1.0] * 100) is None
    assert first_trouble(rule, [5.0] * 200, [1.0] * 10 + [math.inf] * 190)[0] == 10 + SKIPPED


def with_a_bad_line(folder, line=31):
    """A recipe whose training text has one line with a word of its own, after lines that are dropped."""
    values = recipe_values(folder)
    pairs = reversed_words(120, 0)
    pairs[line - 1] = ("red Z", "Z red")
    pairs[3] = pairs[7] = ("", "")
    values["data"]["train"] = write_pairs(folder, "train", pairs)
    return values


def spoil(monkeypatch, spoilt, update=1):
    """The loss of every batch that holds the bad line, from an update on, is `spoilt`; the rows of all batches made."""
    made = {}
    step, loss = TokenTrainer.training_step, TokenTrainer.compute_loss

    def training_step(self, model, inputs, *args, **kwargs):
        made.setdefault(self.state.global_step + 1, []).extend(inputs[ROWS].tolist())
        return step(self, model, inputs, *args, **kwargs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        found = loss(self, model, inputs, *args, **kwargs)
        bad = self.processing_class.convert_tokens_to_ids("Z")
        if model.training and self.state.global_step + 1 >= update and (inputs["input_ids"] == bad).any():
            return spoilt(found)
        return found

    monkeypatch.setattr(TokenTrainer, "training_step", training_step)
    monkeypatch.setattr(TokenTrainer, "compute_loss", compute_loss)
    return made


def lines_in(words):
    return [
        int(number) for number in words.partition("its batches are the lines ")[2].partition(" of ")[0].split(", ")
    ]


@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "at-the-next-log"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loss_that_is_no_number_stops_the_run_and_names_the_lines(tmp_path, monkeypatch, workers, at_once):
    """Also where, as on an accelerator, the losses are read only when something is logged or saved."""
    values = with_a_bad_line(tmp_path)
    values["training"] |= {"dataloader_num_workers": workers, "save_steps": 1, "eval_steps": 1, "logging_steps": 5}
    if not at_once:
        monkeypatch.setattr(TokenTrainer, "_checks_each_update", False)
        values["training"] |= {"save_steps": 4, "eval_steps": 4}
    made = spoil(monkeypatch, lambda loss: loss * math.nan, update=6)
    with pytest.raises(DivergedError) as caught:
        run(values)
    error = caught.value
    assert 6 <= error.update <= 9
    assert error.rows == made[error.update] and len(error.rows) == len(set(error.rows))
    assert (error.update in made) and (max(made) == error.update if at_once else max(made) >= error.update)
    words = str(error)
    # rows count from 0 among those that were kept, lines from 1 among all
    assert lines_in(words) == [row + 1 + (row >= 3) + (row >= 6) for row in error.rows]
    assert 31 in lines_in(words) and "\n" not in words
    last = error.update - 1 if at_once else 4 if error.update <= 8 else 8
    assert f"training diverged at update {error.update}: the loss is nan; its batches are the lines " in words
    assert f"; the last checkpoint before it is {values['output_dir']}/checkpoint-{last}; lower " in words
    checkpoints = find_checkpoints(values["output_dir"])
    assert checkpoints[-1] == error.checkpoint and error.checkpoint.name == f"checkpoint-{last}"
    assert all(tensor.isfinite().all() for path in checkpoints for tensor in weights(path).values())
    facts = json.loads((tmp_path / "run" / "diverged.json").read_text())
    assert facts["examples"] == lines_in(words) and facts["update"] == error.update


def test_what_the_error_says_to_do_can_be_done(tmp_path, monkeypatch):
    values = with_a_bad_line(tmp_path)
    with monkeypatch.context() as patch:
        spoil(patch, lambda loss: loss * math.nan, update=5)
        with pytest.raises(DivergedError) as caught:
            run(values)
        # resumed as it is, it comes to the same end
        with pytest.raises(DivergedError) as again:
            run(values, resume=True)
    assert (again.value.update, again.value.rows) == (caught.value.update, caught.value.rows)
    words = str(caught.value)
    start = words.rpartition("start_from=")[2].partition(" ")[0]
    del values["model"]["preset"]
    run(values, [f"start_from={start}", f"output_dir={tmp_path / 'other'}", "training.learning_rate=0.001"])
    # or the line is mended and the run goes on
    again = run(values | {"model": recipe_values(tmp_path)["model"]}, resume=True)
    assert again.metrics["training"]["updates"] == 9
    assert not (tmp_path / "run" / "diverged.json").exists()


def test_a_loss_that_explodes_stops_the_run_at_the_update_where_it_began(tmp_path, monkeypatch):
    values = with_a_bad_line(tmp_path)
    values["training"] |= {"max_steps": 60, "save_steps": 10, "eval_strategy": "no", "load_best_model_at_end": False}
    values["training"] |= {"gradient_accumulation_steps": 1, "save_total_limit": 9}
    values["stop_on"] = {"updates": 15}
    made = spoil(monkeypatch, lambda loss: loss)
    loss = TokenTrainer.compute_loss
    monkeypatch.setattr(
        TokenTrainer,
        "compute_loss",
        lambda self, *args, **kwargs: loss(self, *args, **kwargs) * (100 if self.state.global_step >= 27 else 1),
    )
    with pytest.raises(DivergedError, match="for 15 updates in a row above 3 times its running median") as caught:
        run(values)
    assert caught.value.update == 28 and max(made) == 42
    assert caught.value.rows == made[28]
    assert caught.value.checkpoint.name == "checkpoint-20", "those after it are of a run that had diverged"


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    values = recipe_values(tmp_path)
    get = TokenTrainer._get_learning_rate

    def overflow(self):
        if self.state.global_step == 7:  # within update 8, after the optimizer
            with torch.no_grad():
                self.model.get_input_embeddings().weight[0, 0] = math.inf
        return get(self)

    monkeypatch.setattr(TokenTrainer, "_get_learning_rate", overflow)
    with pytest.raises(DivergedError, match="update 8: the weights are not finite") as caught:
        run(values)
    assert [path.name for path in find_checkpoints(values["output_dir"])] == ["checkpoint-4"]
    assert caught.value.checkpoint.name == "checkpoint-4" and caught.value.rows


def test_a_learning_rate_that_is_far_too_high_ends_in_one_sentence_and_a_status(tmp_path, capfd):
    values = recipe_values(tmp_path)
    values["training"] |= {"learning_rate": 1000, "weight_decay": 1000, "warmup_steps": 0}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(tmp_path / "recipe.yaml")])
    assert stopped.value.code == 1
    sentence = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(sentence) == 1
    assert sentence[0].startswith("error: training diverged at update 2: the ")
    assert "; no checkpoint was saved before it; lower training.learning_rate" in sentence[0]


def test_a_run_that_is_not_to_stop_goes_on_and_hides_nothing(tmp_path, monkeypatch):
    values = with_a_bad_line(tmp_path)
    values["stop_on"] = {"non_finite": False}
    values["training"] |= {"eval_strategy": "no", "load_best_model_at_end": False}
    spoil(monkeypatch, lambda loss: loss * math.nan, update=4)
    result = run(values, ["averaging.last=0"])
    losses = [entry["loss"] for entry in history(result.folder)]
    assert len(losses) == 9 and all(map(math.isfinite, losses[:3])) and math.isnan(losses[-1])


NAMED = [("causal-lm", None), ("masked-lm", None), ("causal-lm", 8), ("masked-lm", 8)]
NAMED += [("sequence-classification", None), ("token-classification", None)]


@pytest.mark.parametrize(("task", "block_size"), NAMED)
def test_the_texts_of_a_row_are_named_by_their_lines(tmp_path, task, block_size):
    """Every token of a row is in the lines that are named, and no line is named in vain."""
    values = recipe_of_task(tmp_path, task, overrides=[f"data.block_size={block_size}"] if block_size else ())
    path = Path(values["data"]["train"]["path"])
    lines = path.read_text().splitlines()
    lines[2:2] = ["", "no record"]
    path.write_text("\n".join(lines))
    recipe = Recipe.from_dict(values)
    work = recipe.new_task()
    part = work.read(recipe.splits())["data.train"]
    rows = part.tokenized
    if block_size:
        rows.set_epoch(3)

    def spoken(numbers):
        """The tokens of lines one after another, with an end of text behind each as the rows have it."""
        records = [json.loads(lines[number - 1]) for number in numbers]
        texts = [record["text"] if "text" in record else " ".join(record["tokens"]) for record in records]
        encoded = [work.tokenizer(text)["input_ids"] for text in texts]
        end = [work.tokenizer.eos_token_id] if task == "causal-lm" else []
        return [token for ids in encoded for token in [*ids, *end]]

    def within(short, long):
        return any(long[i : i + len(short)] == short for i in range(len(long) - len(short) + 1))

    named = [work.ids(part, [row]) for row in range(len(rows))]
    for row, numbers in enumerate(named):
        tokens = list(rows.tokens(row) if "lm" in task else rows[row]["input_ids"])
        assert within(tokens, spoken(numbers))
        if block_size is None:
            assert len(numbers) == 1
        for fewer in (numbers[1:], numbers[:-1]):
            assert not within(tokens, spoken(fewer)) or len(set(map(str, map(spoken, zip(numbers))))) < len(numbers)
    assert {number for numbers in named for number in numbers} <= {*range(1, 153)} - {3, 4}
    assert max(len(numbers) for numbers in named) > 1 or not block_size
    first = list(dict.fromkeys([*named[0], *named[1]]))
    assert work.name_rows(part, [0, 1]) == f"the lines {', '.join(map(str, first))} of {path}"
    assert " and 100 more of " in work.name_rows(part, range(len(rows))) or block_size


@pytest.mark.slow
def test_every_process_stops_and_the_lines_are_those_of_the_one_in_trouble(tmp_path):
    values = with_a_bad_line(tmp_path)
    values["training"] |= {"save_steps": 1, "eval_strategy": "no", "load_best_model_at_end": False}
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import json, math, os, sys
sys.path[:0] = [{str(ROOT / "tests")!r}, {str(ROOT)!r}]
from runs import run
from vanilla_transformer.errors import DivergedError
from vanilla_transformer.runs import run as run_module
from vanilla_transformer.trainer.trainer import ROWS, TokenTrainer
made, step, loss_of = [], TokenTrainer.training_step, TokenTrainer.compute_loss

def training_step(self, model, inputs, *args, **kwargs):
    made.append((self.state.global_step + 1, inputs[ROWS].tolist()))
    return step(self, model, inputs, *args, **kwargs)

def compute_loss(self, *args, **kwargs):
    bad = self.state.global_step == 3 and os.environ["RANK"] == "1"
    return loss_of(self, *args, **kwargs) * (math.nan if bad else 1)

TokenTrainer.training_step, TokenTrainer.compute_loss = training_step, compute_loss
try:
    run({values!r})
except DivergedError as error:
    rows = [row for update, rows in made if update == 4 for row in rows]
    with open({str(tmp_path)!r} + "/found-" + os.environ["RANK"], "w") as found:
        json.dump([error.update, error.rows, rows, error.checkpoint.name], found)
"""
    )
    run_on_two(program)
    first, second = (json.loads((tmp_path / f"found-{rank}").read_text()) for rank in (0, 1))
    assert first[0] == second[0] == 4
    assert first[1] == second[1] == second[2] and first[2] != second[2]
    assert first[3] == second[3] == "checkpoint-3"
    state = json.loads((Path(values["output_dir"]) / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3
    assert {path.name for path in (Path(values["output_dir"]) / "checkpoint-3").glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
