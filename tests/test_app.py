"""The page of scripts/app.py: outputs with scores and attention over HTTP and in a browser, and nothing fetched from elsewhere."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
from gradio_client import Client
from PIL import Image

from chromium import CHROMIUM, browser_page
from runs import ROOT, load_script, reversed_words, save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer.generation.text_generator import TextGenerator

(TEXT, _), (OTHER, _) = reversed_words(2, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "my run"
    save_translator(folder)
    return folder


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "log"
    command = [sys.executable, ROOT / "scripts" / "app.py", folder, "--port", str(port)]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_client_gets_outputs_with_scores_and_a_picture_of_attention(address, folder):
    generator = TextGenerator.from_pretrained(folder, "cpu")
    client = Client(address, verbose=False)
    best, table = client.predict(TEXT, 3, api_name="/generate")
    expected = next(generator.generate([TEXT], num_beams=3, n_best=3, scores=True))
    assert best == expected[0].text and table["headers"] == ["score", "output"]
    assert table["data"] == [[f"{each.score:.3f}", each.text] for each in expected]
    best, table = client.predict(f"{TEXT}\n\n{OTHER}", 2, api_name="/generate")
    lines = [next(generator.generate([text], num_beams=2))[0].text for text in (TEXT, OTHER)]
    assert best == f"{lines[0]}\n\n{lines[1]}" and table["data"] == []
    with Image.open(client.predict(TEXT, "red dog", api_name="/attention")) as picture:
        assert min(picture.size) > 100
    with pytest.raises(Exception, match="5001 characters, more than the 5000 allowed"):
        client.predict("x" * 5001, 1, api_name="/generate")


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_translates_and_asks_nobody_else(address, folder, tmp_path):
    best = next(TextGenerator.from_pretrained(folder, "cpu").generate([TEXT]))[0].text
    with browser_page(tmp_path) as page:
        page.open(f"{address}/")
        page.wait_for("document.querySelectorAll('textarea').length == 2")
        page.wait_for("document.body.innerText.startsWith('my run')")  # it is loaded
        page.run(
            f"const source = document.querySelector('textarea'); source.value = {json.dumps(TEXT)};"
            "source.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        page.run(
            "[...document.querySelectorAll('button')].find(each => each.textContent.includes('Translate')).click()"
        )
        page.wait_for(f"document.querySelectorAll('textarea')[1].value == {json.dumps(best)}")
        page.wait_for("document.querySelector('img[src*=\"/file=\"]')?.naturalWidth > 100")
        assert all(each.startswith((address, "data:", "blob:")) for each in page.requests)


def test_language_models_continue_and_what_cannot_be_shown_is_one_sentence(capsys, tmp_path):
    app = load_script("app")
    page = app.build_page(TextGenerator(tiny_model("decoder-only", vocab_size=280), word_tokenizer()), "title")
    (generate,) = [each.fn for each in page.fns.values()]
    best, rows = generate("red dog", 2)
    assert len(rows) == 2 and rows[0][1] == best
    with pytest.raises(SystemExit):
        app.main([str(tmp_path / "gone")])
    assert "gone" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        app.main([])
    assert "name a model, here or in the environment variable MODEL" in capsys.readouterr().err
