"""A headless Chromium for tests, spoken to by its own protocol (CDP), which tells every request that a page makes."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.client import connect

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--remote-debugging-port=0"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1000,900"),
)


class Page:
    """A page of a running browser.

    Attributes:
        requests: addresses of all requests that the page has made.
        problems: errors that it wrote to its console.
    """

    def __init__(self, socket):
        self.socket, self.number, self.requests, self.problems = socket, 0, [], []
        for domain in ("Network", "Runtime", "Page", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=120))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            said = message.get("params", {})
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(said["request"]["url"])
            elif message.get("method") == "Runtime.exceptionThrown":
                self.problems.append(said["exceptionDetails"])
            elif message.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
                self.problems.append(said["entry"])

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState == 'complete' && location.href != 'about:blank'")

    def wait_for(self, condition):
        until = time.monotonic() + 30
        while not self.run(condition):
            assert time.monotonic() < until, condition
            time.sleep(0.05)

    def run(self, script):
        """Return what a script gives, after it has been waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser_page(folder):
    """Start Chromium with an empty profile in a folder, and give its page."""
    process = subprocess.Popen(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "about:blank"], stderr=subprocess.DEVNULL
    )
    try:
        told, until = Path(folder) / "DevToolsActivePort", time.monotonic() + 60
        while not (told.is_file() and len(told.read_text().split()) == 2):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        port = told.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
            (target,) = [each for each in json.load(answer) if each["type"] == "page"]
        with connect(target["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(20)
