"""Pieces of Python, each run in a process of its own that has transformers already, and this package only if it wants it.

A process that imports transformers takes seconds to start. Here one does, once, and forks for each piece.
"""

import json
import subprocess
import sys

WITHOUT_PACKAGE = "import sys; sys.modules['vanilla_transformer'] = None  # any import of it fails\n"

FORKER = """
import json, os, sys, traceback
import accelerate, datasets, jinja2, matplotlib.pyplot, sacrebleu, seqeval.metrics, torch, transformers, typer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, Trainer
for line in sys.stdin:
    code, said = json.loads(line)
    process = os.fork()
    if process == 0:
        status = 1
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        sys.stdin = open(0)
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
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Snippets:
    """Use in a `with` statement.

    Args:
        folder: for what the pieces print.
        environment: of all pieces.
    """

    def __init__(self, folder, environment):
        self.said, self.environment = folder / "said.txt", environment

    def __enter__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.forker = subprocess.Popen([sys.executable, "-c", FORKER], env=self.environment, text=True, **pipes)
        return self

    def __exit__(self, *error):
        self.forker.kill()
        self.forker.communicate()

    def run(self, code, *, package=True, status=0):
        """What a piece prints, errors as well; it must end with `status`."""
        self.said.unlink(missing_ok=True)
        code = ("" if package else WITHOUT_PACKAGE) + code
        self.forker.stdin.write(json.dumps([code, str(self.said)]) + "\n")
        self.forker.stdin.flush()
        ended = int(self.forker.stdout.readline())
        said = self.said.read_text(encoding="utf-8")
        assert ended == status, said
        return said
