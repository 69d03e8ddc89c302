"""Pages that translate in the browser: the texts of generate(), their attention, and no request to elsewhere."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import torch

from chromium import CHROMIUM, browser_page
from runs import save_translator, word_tokenizer
from tiny import tiny_model
from vanilla_transformer import cli
from vanilla_transformer.export import ExportError, export_folder, page, to_onnx
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.inspection.attention import attention_maps

LINES = ["red dog", "", " the  blue sun, and Ünïcödé 猫", "a</s>b<pad>", "big cat?"]

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save_translator(folder, decoder_layers=2)
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "my translator"
    try:
        page.libraries()
    except ExportError as error:
        pytest.skip(str(error))
    export_folder(run, folder, "onnx", texts=["red <dog>"], page=True)
    return folder


@pytest.fixture(scope="module")
def expected(run):
    return [best.text for (best,) in TextGenerator.from_pretrained(run, "cpu").generate(LINES, num_beams=1)]


def test_a_page_is_a_folder_that_servers_and_the_hub_know(exported):
    text = (exported / "index.html").read_text()
    assert "<title>my translator</title>" in text and ">red &lt;dog&gt;</textarea>" in text
    assert (exported / "README.md").read_text().startswith('---\ntitle: "my translator"\nsdk: static\n')
    assert (exported / "onnx" / "decoder_model_merged.onnx").is_file()


@needs_node
def test_node_writes_what_generate_writes_and_the_attention_is_that_of_the_model(exported, run, expected):
    script = Path(__file__).with_name("page_in_node.mjs")
    result = subprocess.run(
        ["node", script, exported], input=json.dumps(LINES), capture_output=True, text=True, check=True, timeout=300
    )
    lines = json.loads(result.stdout)
    assert [line["text"] for line in lines] == expected
    assert not any(line["isTooLong"] for line in lines)
    translator = TextGenerator.from_pretrained(run, "cpu")
    maps = attention_maps(translator.model, translator.tokenizer, LINES[0], num_beams=1)
    assert tuple(lines[0]["source"]) == maps.source_tokens and tuple(lines[0]["target"]) == maps.target_tokens
    torch.testing.assert_close(torch.tensor(lines[0]["attention"]), maps.cross[-1].mean(0), atol=1e-5, rtol=0)


@needs_chromium
def test_a_browser_writes_the_same_from_a_server_and_from_a_disk(exported, expected, tmp_path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(exported))) as server,
        browser_page(tmp_path) as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}/"
        for address in (f"{origin}index.html", f"{exported.as_uri()}/index.html"):
            browser.open(address)
            browser.run(f"element('source').value = {json.dumps(chr(10).join(LINES))}")
            assert browser.run("translateAll()") == expected
            assert browser.run("element('target').textContent") == "\n".join(expected)
            assert browser.run("document.querySelectorAll('#attention table').length") == len(LINES) - 1
            assert "computed in this browser" in browser.run("element('status').textContent")
        assert browser.problems == []
        assert all(address.startswith((origin, "file://", "blob:", "data:")) for address in browser.requests)
        server.shutdown()


def test_what_cannot_have_a_page_is_one_sentence(tmp_path, run, monkeypatch, capsys):
    with pytest.raises(ExportError, match="^--page has no effect for --to ctranslate2; leave it out"):
        export_folder(run, tmp_path / "model", "ctranslate2", page=True)
    model = tiny_model("decoder-only", vocab_size=280)
    with pytest.raises(ExportError, match="^--page translates, which VanillaTransformerForCausalLM does not; "):
        to_onnx(model, word_tokenizer(), tmp_path / "model", page=True)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as end:
        cli.main(["export", str(run), str(tmp_path / "model"), "--to", "onnx", "--page"])
    assert end.value.code == 2
    assert "--page needs npm to fetch @huggingface/transformers@" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
