"""Runs in processes of their own, which end as a run may end: killed at any point, or by a disk that is full.

Started as a program it imports what a run needs once, then for each request, a line of JSON, forks a process that runs a
recipe and answers how that ended. Points of a run have names such as "update 3 batch 1"; `RunProcesses` asks for one.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from warm_python import warm_python

ROOT = Path(__file__).parent.parent


class RunProcesses:
    """The program, from the side of a test."""

    def __init__(self, folder):
        self.folder = folder
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        self.program = subprocess.Popen(
            [warm_python(), __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.count = 0

    def run(self, values, *, resume=False, at=None, do="kill"):
        """Run a recipe in a process that at a point is killed, or (`do="full"`) has no more room for any file.

        Returns:
            A dict: `status` as of `os.waitstatus_to_exitcode`, `error` (its type and words, where it raised one),
            `trace` (for each batch its update, row numbers, a digest of all that is in it, loss and learning rate),
            `points` that were reached, `printed`.
        """
        self.count += 1
        place = self.folder / f"process-{self.count}"
        place.mkdir()
        request = {"values": values, "resume": resume, "at": at, "do": do, "place": str(place)}
        self.program.stdin.write(json.dumps(request) + "\n")
        self.program.stdin.flush()
        status = int(self.program.stdout.readline())
        lines = [json.loads(line) for line in (place / "trace").read_text().splitlines()]
        found = {kind: [line[1] for line in lines if line[0] == kind] for kind in ("batch", "point", "error")}
        return {
            "status": status,
            "error": found["error"][0] if found["error"] else None,
            "trace": found["batch"],
            "points": found["point"],
            "printed": (place / "printed").read_text(),
        }

    def close(self):
        self.program.stdin.close()
        self.program.wait(60)


def _run(request):
    """In the forked process: run the recipe and reach its points."""
    import hashlib

    import torch
    from transformers import TrainerCallback, TrainerState

    from vanilla_transformer.recipes.recipe import Recipe
    from vanilla_transformer.runs import run
    from vanilla_transformer.trainer import trainer
    from vanilla_transformer.utils import atomic

    trace = os.open(Path(request["place"]) / "trace", os.O_WRONLY | os.O_CREAT)

    full = []

    def tell(kind, what):
        if not full:
            os.write(trace, (json.dumps([kind, what]) + "\n").encode())

    def reach(point):
        tell("point", point)
        if point != request["at"]:
            return
        if request["do"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # no file can be longer than 100 bytes from here on, this process's own notes neither
        full.append(point)
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))

    def wrap(owner, name, before=None, after=None):
        original = getattr(owner, name)

        def wrapped(*args, **kwargs):
            if before:
                before(*args, **kwargs)
            result = original(*args, **kwargs)
            if after:
                after(result, *args, **kwargs)
            return result

        setattr(owner, name, wrapped)

    batches = {}

    def number_batch(self, model, inputs, *args):
        update = self.state.global_step + 1
        batches[update] = batches.get(update, -1) + 1
        reach(f"update {update} batch {batches[update]}")
        tensors = {name: inputs[name] for name in sorted(inputs)}
        self.noted = {
            "update": update,
            "rows": inputs[trainer.ROWS].tolist(),
            "digest": hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors.values())).hexdigest(),
            "lr": self.lr_scheduler.get_last_lr()[0],
        }

    def note_batch(loss, self, *args):
        tell("batch", {**self.noted, "loss": loss.item()})

    class Points(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            reach(f"update {state.global_step + 1} backward")

        def on_optimizer_step(self, args, state, control, **kwargs):
            reach(f"update {state.global_step + 1} stepped")

    def file_of(path):
        path = Path(path)
        return (
            f"{path.parent.name} {path.name}" if path.parent.name.startswith("checkpoint-") else f"final {path.name}"
        )

    def half(path):
        """At a point within the writing of a file, half of it is there."""
        path, point = Path(path), f"{file_of(path)} half"
        if point == request["at"] and request["do"] == "kill":
            os.truncate(path, path.stat().st_size // 2)
        reach(point)

    def wrap_writer(owner, name, position):
        wrap(
            owner,
            name,
            before=lambda *args, **kwargs: reach(file_of(args[position])),
            after=lambda result, *args, **kwargs: half(args[position]),
        )

    import transformers.modeling_utils

    wrap(trainer.TokenTrainer, "training_step", number_batch, note_batch)
    wrap(trainer.TokenTrainer, "__init__", after=lambda result, self, *args, **kwargs: self.add_callback(Points()))
    wrap(
        trainer.TokenTrainer,
        "prediction_step",
        before=lambda self, *args, **kwargs: reach(f"evaluation {self.state.global_step}"),
    )
    wrap_writer(transformers.modeling_utils, "safe_save_file", 1)
    wrap_writer(torch, "save", 1)
    wrap_writer(TrainerState, "save_to_json", 1)
    wrap_writer(run, "write_json", 0)
    wrap_writer(run, "plot_curves", 1)
    wrap_writer(Recipe, "save", 1)
    wrap(
        run,
        "write_model_card",
        before=lambda folder, *args: reach("final README.md"),
        after=lambda result, *args: half(result),
    )
    wrap(trainer, "replace_dir", lambda source, place: reach(f"{place.name} whole"), lambda r, *a: reach("moved"))
    # without what is drawn at random in the names of temporary folders
    wrap(atomic.shutil, "rmtree", lambda path, **kwargs: reach(f"rmtree {Path(path).name[22:]}"))
    wrap(Path, "replace", before=lambda self, target: reach(f"replace {self.name}"))
    wrap(run, "average_weights", before=lambda folders: reach("average"))
    wrap(run.Run, "_score_split", before=lambda *args: reach(f"score {args[-1]}"))

    try:
        run.run_recipe(Recipe.from_dict(request["values"]), resume=request["resume"], log=print)
    except BaseException as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        full.clear()
        tell("error", [type(error).__name__, str(error)])
        raise


def main():
    import torch.utils.data
    import transformers.models.auto.modeling_auto  # noqa: F401

    import vanilla_transformer.runs.run  # noqa: F401

    # a fork collects no garbage among what is there before it, and its workers see after 0.1 and not 5 seconds that it is gone
    gc.collect()
    gc.freeze()
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            printed = os.open(Path(request["place"]) / "printed", os.O_WRONLY | os.O_CREAT)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            try:
                _run(request)
            except BaseException:
                import traceback

                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
