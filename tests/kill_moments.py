"""`python tests/kill_moments.py FOLDER [MOMENTS [COMMAND ...]]`: every command ended by every signal at random moments.

Of each attempt it looks at what stands afterwards: no half-written file under a final name, one sentence for a signal that
can be answered, and for runs that `--resume` ends with the weights of the unbroken run, bit for bit. Commands are forked from
one process that has imported everything, so that a moment is one of the command's own work and not of its imports.
"""

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from safetensors import SafetensorError, safe_open

from runs import equal_weights, recipe_values, save_translator, weights, word_tokenizer
from tiny import tiny_model
from vanilla_transformer.utils.yaml_text import dump_yaml

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


def forked(arguments, log, seconds=None, number=None):
    """Run a command in a forked process, which gets a signal after so many seconds; its status and how long it ran."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(stream, 1), os.dup2(stream, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = 1
        try:
            from vanilla_transformer.cli import main

            os.write(writer, b"ready")
            main([str(argument) for argument in arguments])
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    os.read(reader, 5)
    os.close(reader)
    begun = time.monotonic()
    if seconds is not None:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - begun


def final(folder):
    """Files under a final name: temporary ones and the lock have hidden names."""
    found = ((path, path.relative_to(folder).parts) for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path, parts in found if not any(part.startswith(".") for part in parts)]


def half_written(folder):
    """Files under a final name that cannot be read to their end."""
    wrong = []
    for path in final(folder):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                with safe_open(str(path), "pt") as file:
                    for name in file.keys():  # noqa: SIM118 - not a dict
                        file.get_tensor(name)
            elif path.stat().st_size == 0:
                wrong.append(path)
        except (ValueError, SafetensorError):
            wrong.append(path)
    return wrong


class Command:
    """A command on tiny inputs in a folder, and what holds of its result."""

    resumes = False

    def __init__(self, folder):
        self.folder, self.inputs = folder, folder.parent / "inputs"

    def arguments(self):
        raise NotImplementedError

    def problems(self, whole):
        """What is wrong with a finished result, compared with the unbroken one."""
        return [] if results(self.folder) == results(whole.folder) else ["another result"]


def results(folder):
    """Weights and texts of all that a command leaves."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in final(folder)
        if path.suffix in (".safetensors", ".txt") and "checkpoint-" not in str(path)
    }


class Train(Command):
    resumes = True

    def arguments(self):
        return [
            "train",
            self.inputs / "recipe.yaml",
            f"output_dir={self.folder / 'run'}",
            "training.disable_tqdm=true",
        ]

    def problems(self, whole):
        own, other = self.folder / "run", whole.folder / "run"
        return [] if equal_weights(weights(own), weights(other)) else ["other weights"]


class Ablate(Command):
    resumes = True

    def arguments(self):
        return [
            "ablate",
            self.inputs / "table.yaml",
            f"output_dir={self.folder / 'table'}",
            "training.disable_tqdm=true",
        ]

    def problems(self, whole):
        wrong = []
        for cell in ("baseline", "pre-norm"):
            own, other = (place.folder / "table" / cell for place in (self, whole))
            wrong += [] if equal_weights(weights(own), weights(other)) else [f"other weights of {cell}"]
        return wrong


class Convert(Command):
    def arguments(self):
        return ["convert", self.inputs / "plain", self.folder / "converted", "--to-transformers"]


class Average(Command):
    def arguments(self):
        return ["average", self.inputs / "run", "-o", self.folder / "mean", "--last", 2]


class Generate(Command):
    def arguments(self):
        return [
            "generate",
            "-m",
            self.inputs / "model",
            "-i",
            self.inputs / "lines.txt",
            "-o",
            self.folder / "out.txt",
        ]


COMMANDS = {"train": Train, "ablate": Ablate, "convert": Convert, "average": Average, "generate": Generate}


def write_inputs(folder):
    """A recipe, a table of two cells, a finished run, a model and lines for it."""
    values = recipe_values(folder)
    values["training"] |= {"save_steps": 2, "eval_steps": 2, "logging_steps": 3}
    (folder / "recipe.yaml").write_text(dump_yaml(values))
    table = {**values, "training": values["training"] | {"max_steps": 4}}
    table["ablation"] = {"cells": {"pre-norm": {"model.norm_position": "pre"}}}
    (folder / "table.yaml").write_text(dump_yaml(table))
    status, _ = forked(["train", folder / "recipe.yaml", "training.disable_tqdm=true"], folder / "log")
    assert status == 0, (folder / "log").read_text()
    save_translator(folder / "model")
    tokenizer = word_tokenizer()
    tiny_model("encoder-decoder", "marian", vocab_size=len(tokenizer)).save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    (folder / "lines.txt").write_text("".join(f"red dog {i}\n" for i in range(60)))


def attempt(command, whole, number, seconds):
    """End a command after so many seconds; what came of it, for a row of the table."""
    log = command.folder / ".log"
    status, _ = forked(command.arguments(), log, seconds, number)
    said = [line for line in log.read_text().splitlines() if line.strip()]
    wrong = [f"half-written {path.name}" for path in half_written(command.folder)]
    ended = status in (-number, 128 + number)
    if not ended and status != 0:
        wrong.append(f"status {status}: {said[-1:]}")
    if ended and number != signal.SIGKILL:
        if status != 128 + number:
            wrong.append("died of the signal")
        elif not said or ("interrupted" not in said[-1] and "terminated" not in said[-1]):
            wrong.append(f"said {said[-1:]}")
    if any("Traceback" in line for line in said):
        wrong.append(f"traceback, kept in {shutil.copy(log, command.folder.with_suffix(f'.{time.time_ns()}.log'))}")
    if ended and not command.resumes and not command.problems(whole):
        return ended, wrong  # all was done when the signal came
    if ended:
        again = [*command.arguments(), "--resume"] if command.resumes and any(command.folder.rglob("*.yaml")) else None
        again = again or command.arguments()
        status, _ = forked(again, log)
        if status != 0:
            wrong.append(f"again: status {status}, {log.read_text().splitlines()[-1:]}")
            return ended, wrong
    return ended, wrong + command.problems(whole)


def trials(folder, names, moments, seed=0):
    """Yield for each command and signal: how many attempts were ended, and what was wrong."""
    draw = random.Random(seed)
    inputs = folder / "inputs"
    if not (inputs / "lines.txt").is_file():
        inputs.mkdir(parents=True, exist_ok=True)
        write_inputs(inputs)
    for name in names:
        whole = COMMANDS[name](folder / f"{name}-whole")
        whole.folder.mkdir()
        status, length = forked(whole.arguments(), whole.folder / ".log")
        assert status == 0, (whole.folder / ".log").read_text()
        for word, number in SIGNALS.items():
            ended, wrong = 0, []
            for _ in range(moments):
                command = COMMANDS[name](folder / f"{name}-tried")
                shutil.rmtree(command.folder, ignore_errors=True)
                command.folder.mkdir()
                was_ended, found = attempt(command, whole, number, draw.uniform(0.02, length))
                ended += was_ended
                wrong += found
            yield name, word, moments, ended, wrong


def main():
    folder, moments, *names = [*sys.argv[1:], "10"][:2] + sys.argv[3:]
    import vanilla_transformer.conversion.folders
    import vanilla_transformer.generation.text_generator
    import vanilla_transformer.runs.ablation_runs  # noqa: F401

    gc.collect()
    gc.freeze()  # so that a fork collects no garbage among what is there before it
    print("| command | signal | moments | ended by it | wrong |\n|---|---|---|---|---|")
    for name, word, tried, ended, wrong in trials(Path(folder), names or COMMANDS, int(moments)):
        print(f"| {name} | {word} | {tried} | {ended} | {'; '.join(wrong) or 0} |", flush=True)


if __name__ == "__main__":
    main()
