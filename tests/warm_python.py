"""A Python that has imported transformers and all that this package stands on, but not this package.

A process that imports these takes seconds to start. Here one does, once, and forks for each that is asked for. What asks is
a program that starts, and ends, as `python` does: with its folder, environment, streams, signals and status.
"""

import atexit
import functools
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"

# what a module reads when it is imported: another value in the environment would come too late
NEVER_MIND = ("HF_HUB_DISABLE_TELEMETRY",)  # which gradio sets where it is imported, and nothing is sent in the tests
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "DISABLE_", "MPL", "PYTHONHASHSEED", "PYTHONWARNINGS")

WITHOUT_PACKAGE = "import sys; sys.modules['vanilla_transformer'] = None  # any import of it fails\n"

# Started with neither site-packages nor the caller's variables, in a few hundredths of a second.
ASK = """
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv.pop(0).removesuffix("ask.py") + "socket")
socket.send_fds(server, [b" "], [0, 1, 2])
server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
answers = server.makefile()
process = int(answers.readline())
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: os.kill(process, number))
status = int(answers.readline())
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class WarmPython:
    """Use in a `with` statement.

    Args:
        environment: with what the process that forks is started.

    Attributes:
        executable: what to start in the place of `sys.executable`, with `-c CODE`, `-m MODULE` or a file.
    """

    def __init__(self, environment):
        self.environment = dict(environment)
        self.place = tempfile.TemporaryDirectory()  # a socket's path may be only a hundred characters long
        self.socket, self.executable, ask = (os.path.join(self.place.name, n) for n in ("socket", "python", "ask.py"))
        Path(ask).write_text(ASK)
        command = " ".join(
            map(shlex.quote, [sys.executable, "-IS", ask])
        )  # a path with a space cannot stand after "#!"
        Path(self.executable).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        os.chmod(self.executable, 0o755)

    def __enter__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # it ends with the process that holds them
        self.process = subprocess.Popen([sys.executable, __file__, self.socket], env=self.environment, **pipes)
        self.process.stdout.readline()
        return self

    def __exit__(self, *error):
        self.process.communicate()
        self.place.cleanup()

    def run(self, code, *arguments, package=True, status=0, folder="."):
        """Return what a piece of code prints, errors as well; it must end with `status`."""
        command = [self.executable, "-c", ("" if package else WITHOUT_PACKAGE) + code, *map(str, arguments)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=folder, env=self.environment, text=True, **streams)
        assert done.returncode == status, done.stdout
        return done.stdout


@functools.cache
def warm_python():
    """Return the executable of one for this process and all of its tests, with one thread."""
    paths = os.pathsep.join(map(str, (ROOT, TESTS)))
    python = WarmPython({**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}).__enter__()
    atexit.register(python.__exit__)
    return python.executable


# The process that forks ----------------------------------------------------------------------------------------------


def _import_all():
    import accelerate.commands.launch  # noqa: F401
    import babel  # noqa: F401
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_agg  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import psutil  # noqa: F401
    import rapidfuzz.process  # noqa: F401
    import rich.progress  # noqa: F401
    import rich.table  # noqa: F401
    import sacrebleu.significance  # noqa: F401
    import safetensors.torch  # noqa: F401
    import seqeval.metrics  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch.distributed.run  # noqa: F401
    import typer  # noqa: F401
    import yaml  # noqa: F401
    from transformers import (  # noqa: F401
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
        GenerationMixin,
        Seq2SeqTrainer,
        Trainer,
        pipeline,
    )


def _serve(path):
    """Fork for each process that is asked for; return in the fork, with its arguments, folder and environment."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:  # whoever wanted it is gone
            os._exit(0)
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(asking)
        asking.close()


def _keep(asking):
    """Fork once more, and tell what asked how that ended, or end it where what asked is gone; return in the fork."""
    _, streams, _, _ = socket.recv_fds(asking, 1, 3)
    request = json.loads(asking.makefile().readline())
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    process = os.fork()
    if process == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        for end in (asking, woken, waking):
            end.close()
        return request
    for number, stream in enumerate(streams):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
        os.close(stream)
    asking.sendall(f"{process}\n".encode())
    while True:
        ready, _, _ = select.select([woken, asking], [], [])
        if asking in ready:
            os.kill(process, signal.SIGKILL)
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            if asking not in ready:
                asking.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os._exit(0)


def _become(arguments, folder, environment):
    """Be the Python that was asked for."""
    for name in {*environment, *os.environ}:
        if (
            name.startswith(READ_AT_IMPORT)
            and name not in NEVER_MIND
            and environment.get(name) != os.environ.get(name)
        ):
            raise RuntimeError(f"{name} has been read already: start a WarmPython with it")
    os.chdir(folder)
    paths = [os.environ.get("PYTHONPATH", ""), environment.get("PYTHONPATH", "")]
    before, after = ([entry for entry in path.split(os.pathsep) if entry] for path in paths)
    sys.path[:] = [*after, *(entry for entry in sys.path[1:] if entry not in before)]
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0)  # noqa: SIM115
    os.fsync = lambda descriptor: None  # as in the tests themselves
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        del arguments[0]
    kind = arguments.pop(0)
    if kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = arguments
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(arguments[0], None)  # here by import, and not to be run twice
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def _main():
    _import_all()
    gc.collect()
    gc.freeze()
    request = _serve(sys.argv[1])
    status = 0
    try:
        _become(*request)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
        else:
            status = end.code or 0
    except BaseException as error:
        trace = error.__traceback__
        while trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    # as Python ends, but for taking apart what all of the modules hold, which takes longer than most of what is run here
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


if __name__ == "__main__":
    _main()
