"""Run pieces of Python, each in a process of its own that has imported transformers already, but not this package.

A process that imports transformers takes seconds to start. Here one does, once, and forks for each piece. As a program,
`python snippets.py SOCKET CODE [ARGUMENT ...]` runs a piece in the folder, environment and streams of the caller, such as a shell.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile

WITHOUT_PACKAGE = "import sys; sys.modules['vanilla_transformer'] = None  # any import of it fails\n"

FORKER = """
import json, os, signal, socket, sys, traceback
import accelerate, datasets, jinja2, matplotlib.pyplot, sacrebleu, seqeval.metrics, torch, transformers, typer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, Trainer

def run(streams, code, arguments, folder, environment):
    status = 1
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin = open(0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    try:
        exec(code, {"__name__": "__main__", "sys": sys, "os": os, "torch": torch, "transformers": transformers})
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
print(flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    asking, _ = listener.accept()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _, streams, _, _ = socket.recv_fds(asking, 1, 3)
        request = json.load(asking.makefile())
        piece = os.fork() or run(streams, *request)
        asking.send(str(os.waitstatus_to_exitcode(os.waitpid(piece, 0)[1])).encode())
        os._exit(0)
    asking.close()
"""


def ask(path, code, arguments, folder, environment, streams):
    """Run a piece in a fork of the process that listens at `path`; return the status that it ended with."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b" "], streams)
        connection.sendall(json.dumps([code, arguments, str(folder), dict(environment)]).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(20))


class Snippets:
    """Use in a `with` statement.

    Args:
        folder: for what the pieces print.
        environment: of all pieces.

    Attributes:
        socket: where the process listens that forks for each piece.
    """

    def __init__(self, folder, environment):
        self.said, self.environment = folder / "said.txt", environment
        self.place = tempfile.TemporaryDirectory()  # a socket's path may be only a hundred characters long
        self.socket = os.path.join(self.place.name, "socket")

    def __enter__(self):
        command = [sys.executable, "-c", FORKER, self.socket]
        self.forker = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.forker.stdout.readline()
        return self

    def __exit__(self, *error):
        self.forker.kill()
        self.forker.communicate()
        self.place.cleanup()

    def run(self, code, *, package=True, status=0, folder="."):
        """Return what a piece prints, errors as well; it must end with `status`."""
        code = ("" if package else WITHOUT_PACKAGE) + code
        with self.said.open("w") as said, open(os.devnull) as nothing:
            streams = [nothing.fileno(), said.fileno(), said.fileno()]
            ended = ask(self.socket, code, [], folder, self.environment, streams)
        said = self.said.read_text(encoding="utf-8")
        assert ended == status, said
        return said


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2], sys.argv[3:], os.getcwd(), os.environ, [0, 1, 2]))
