"""The log of a run: lines for people, the same and more in `train.log`, and a bar where somebody watches a terminal."""

import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import ProgressCallback

from vanilla_transformer.trainer.callbacks import EarlyStop
from vanilla_transformer.trainer.schedules import expected_updates
from vanilla_transformer.trainer.trainer import TokenTrainer
from vanilla_transformer.utils.log import Log
from vanilla_transformer.utils.quiet import shows_bars

LOG = "train.log"
"""Name of the log in a run's folder."""


class RunLog:
    """Pass lines on, and keep them with their time in `train.log`, to which a resumed run appends.

    The log is the least of a run: where it cannot be written, that is said once and the run continues without it.

    Args:
        log: receives the lines that people are to see; None on all processes but the first, which keep no log either.
    """

    def __init__(self, log: Log | None):
        self._log = log
        self._file: int | None = None  # written to without a buffer, so that a signal may come in between
        self._early: list[str] = []  # lines from before the folder was there
        self._kept = log is not None

    def __call__(self, line: str) -> None:
        if self._log is not None:
            self._log(line)
            self.write(line)

    def write(self, line: str) -> None:
        """Keep a line in the log alone."""
        if not self._kept:
            return
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        stamped = "".join(f"{now}  {part}\n" for part in line.splitlines() or [""])
        if self._file is None:
            self._early.append(stamped)
        else:
            self._write(stamped)

    def open(self, folder: Path) -> None:
        """Start to write, in the folder of the run."""
        if not self._kept:
            return
        # a link that somebody else's folder holds is not followed
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._file = os.open(folder / LOG, flags, 0o666)
        except OSError as error:
            self._give_up(error)
        early, self._early = "".join(self._early), []
        self._write(early)

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            os.write(self._file, text.encode("utf-8", "backslashreplace"))
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self._file is not None:
            self.write(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """End the log; lines that still come are passed on and kept for the next time it is opened."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _give_up(self, error: OSError) -> None:
        self._kept = False
        self.close()
        if self._log is not None:
            self._log(f"{LOG} cannot be written ({error.strerror or error}); the run continues without it.")


class Progress(ProgressCallback):
    """Show training as lines in the log, one for each logged update and each evaluation; on a terminal with a bar.

    The time that is left is the smallest that any limit leaves: updates, epochs or `max_minutes`. Evaluations also say for
    how long early stopping still waits.

    Args:
        log: of the run.
        trainer: of the run.
        scores: of evaluations that their lines show.
        patience: of early stopping, in evaluations; None without.
        samples: lines to follow an evaluation's.
        bar: whether to draw one; by default where standard error is a terminal.
    """

    def __init__(
        self,
        log: RunLog,
        trainer: TokenTrainer,
        scores: Iterable[str] = (),
        *,
        patience: int | None = None,
        samples: Callable[[], Iterable[str]] = tuple,
        bar: bool | None = None,
    ):
        super().__init__()
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.log, self.trainer, self.scores = log, trainer, list(scores)
        self.patience, self.samples = patience, samples
        self.bar = shows_bars() if bar is None else bar

    def close(self) -> None:
        """End the line of a bar that was interrupted."""
        for bar in (self.prediction_bar, self.training_bar):
            if bar is not None:
                bar.close()
        self.prediction_bar = self.training_bar = None

    def minutes_left(self, state: TrainerState) -> float | None:
        """Return the minutes of training that are left, by the nearest limit; None while there is nothing to go by."""
        trainer = self.trainer
        if not state.global_step or not trainer.minutes:
            return None
        total = expected_updates(state.max_steps, state.global_step, trainer.time_share)
        left = trainer.minutes / state.global_step * max(total - state.global_step, 0)
        return left if trainer.max_minutes is None else min(left, max(trainer.max_minutes - trainer.minutes, 0))

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.current_step = state.global_step
        if state.is_world_process_zero and self.bar:
            # smoothing 0: a mean over the run, evaluations included, as the time that is left has them
            form = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {desc}{postfix}]"
            self.training_bar = tqdm(
                total=state.max_steps, initial=state.global_step, dynamic_ncols=True, smoothing=0, bar_format=form
            )

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.training_bar is None:
            return
        left = self.minutes_left(state)
        self.training_bar.total = round(expected_updates(state.max_steps, state.global_step, self.trainer.time_share))
        self.training_bar.set_description_str("" if left is None else f"{_clock(left)} left", refresh=False)
        self.training_bar.update(state.global_step - self.current_step)
        self.current_step = state.global_step

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self.bar:
            super().on_prediction_step(*args, **kwargs)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        shown = {
            "loss": f"{float(logs['loss']):.3f}",
            "lr": f"{float(logs['learning_rate']):.1e}",
            "tok/s": f"{logs.get('tokens_per_second', 0):,}",
        }
        if self.training_bar is not None:
            self.training_bar.set_postfix(shown)
        left = self.minutes_left(state)
        total = round(expected_updates(state.max_steps, state.global_step, self.trainer.time_share))
        about = "" if total == state.max_steps else "about "
        remaining = "" if left is None else f" ({_clock(left)} left)"
        values = "  ".join(f"{name} {value}" for name, value in shown.items())
        self._line(
            f"update {state.global_step:,} of {about}{total:,}  epoch {state.epoch or 0:.2f}  "
            f"{logs.get('minutes', 0):.1f} min{remaining}  {values}",
            on_terminal=False,
        )

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        super().on_evaluate(args, state, control, **kwargs)
        if not state.is_world_process_zero or not metrics:
            return
        shown = ((name, metrics.get(f"eval_{name}")) for name in ("loss", *self.scores))
        values = "  ".join(f"{name} {value:.4g}" for name, value in shown if value is not None)
        waited = EarlyStop.evaluations_without_improvement(state)
        patience = "" if self.patience is None else f"  ({waited} of {self.patience} evaluations without improvement)"
        self._line(
            f"evaluation at update {state.global_step:,}  epoch {state.epoch or 0:.2f}  {self.trainer.minutes:.1f} min  "
            f"{values}{patience}"
        )
        for line in self.samples():
            self._line(f"  {line}")

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.close()

    def _line(self, line: str, on_terminal: bool = True) -> None:
        self.log.write(line)
        if not self.bar:
            print(line, file=sys.stderr, flush=True)
        elif on_terminal:
            tqdm.write(line, file=sys.stderr)


def _clock(minutes: float) -> str:
    seconds = round(60 * minutes)
    hours, seconds = divmod(seconds, 3600)
    return f"{hours}:{seconds // 60:02}:{seconds % 60:02}" if hours else f"{seconds // 60}:{seconds % 60:02}"
