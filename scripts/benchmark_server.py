"""How fast the server answers many clients at once, compared with one client that waits for each answer.

    python scripts/benchmark_server.py runs/mine news.en --clients 16 --requests 500

Starts `vanilla-transformer serve` for a translator on a free port of this machine, asks it for one sentence a request, and
prints a table: requests a second, and the time of a request (median and 95th percentile). Requests that are lost or fail end
it with status 1.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

HEADERS = {"Content-Type": "application/json"}


@contextmanager
def running_server(model: str, options: Sequence[str]) -> Iterator[int]:
    """Start a server and yield its port; it is stopped at the end."""
    command = [sys.executable, "-m", "vanilla_transformer.cli", "serve", model, "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = []
            for line in process.stderr or ():
                said.append(line)
                if found := re.search(r"answers at http://127\.0\.0\.1:(\d+)", line):
                    yield int(found[1])
                    break
            else:
                raise SystemExit("the server did not start: " + "".join(said))
        finally:
            process.terminate()


def ask(port: int, texts: Sequence[str]) -> tuple[list[float], list[str]]:
    """Ask for one text after the other over one connection; return the seconds of each, and what failed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    seconds, failed = [], []
    for text in texts:
        started = time.perf_counter()
        try:
            connection.request("POST", "/translate", json.dumps({"q": text}), HEADERS)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200 or "translatedText" not in json.loads(body):
                failed.append(f"{answer.status} {body[:100]!r}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            failed.append(repr(error))
            connection.close()
        seconds.append(time.perf_counter() - started)
    connection.close()
    return seconds, failed


def ask_at_once(port: int, texts: Sequence[str], clients: int) -> tuple[float, list[float], list[str]]:
    """Ask with several clients, each of which waits for its answer; return the seconds in all, of each, and what failed."""
    results: list[tuple[list[float], list[str]]] = []
    threads = [
        threading.Thread(target=lambda part=texts[n::clients]: results.append(ask(port, part)))  # type: ignore[misc]
        for n in range(clients)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = time.perf_counter() - started
    return total, [s for seconds, _ in results for s in seconds], [line for _, failed in results for line in failed]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, help="a file with one sentence a line")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--one-by-one", type=int, default=100, help="requests of the single client")
    parser.add_argument(
        "--option", action="append", default=[], help="of the server, such as --option=--batch-tokens=2048"
    )
    given = parser.parse_args(arguments)
    lines = [line for line in given.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = list(islice(cycle(lines), given.requests))
    table = Table("clients", "requests", "failed", "requests/s", "p50 (ms)", "p95 (ms)")
    rates, all_failed = [], []
    with running_server(given.model, given.option) as port:
        ask(port, texts[:5])  # the first answers of a process take longer
        for clients, part in ((1, texts[: given.one_by_one]), (given.clients, texts)):
            total, seconds, failed = ask_at_once(port, part, clients)
            seconds.sort()
            p50, p95 = (1000 * seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.95))
            rates.append(len(part) / total)
            all_failed += failed
            lost = len(part) - len(seconds) + len(failed)
            table.add_row(str(clients), str(len(part)), str(lost), f"{rates[-1]:.1f}", f"{p50:.0f}", f"{p95:.0f}")
    Console().print(table)
    print(f"{rates[1] / rates[0]:.1f} times as many requests a second as one by one")
    for line in all_failed[:5]:
        print(line, file=sys.stderr)
    return int(bool(all_failed))


if __name__ == "__main__":
    sys.exit(main())
