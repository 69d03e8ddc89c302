"""A page that translates in the browser with the ONNX files beside it, by transformers.js, which npm brings."""

import base64
import html
import json
import math
import os
import shutil
import subprocess
import tarfile
from importlib import resources
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedTokenizerBase

from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.generation.text_generator import default_length, input_limit
from vanilla_transformer.loading import TARGET_TOKENIZER
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.atomic import atomic_dir

__all__ = ["TRANSFORMERS_JS", "check_page", "libraries", "write_page"]

TRANSFORMERS_JS = "4.3.2"
"""Version of @huggingface/transformers on npm; it names the version of onnxruntime-web that it needs."""

FOLDER = "page"
"""Holds the libraries, and in `scripts/` each file once more as a script, since browsers read no other files from a disk."""

DTYPES = {"float32": "fp32", "float16": "fp16", "int8": "q8"}
"""What transformers.js calls the files, by our names."""


def check_page(model: VanillaTransformerPreTrainedModel) -> None:
    """Refuse a model that does not translate.

    Raises:
        ExportError: naming its class.
    """
    if not model.config.is_encoder_decoder or not hasattr(model, "lm_head"):
        raise ExportError(f"--page translates, which {type(model).__name__} does not; leave it out.")


def write_page(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    quantization: str,
    title: str,
    example: str = "",
) -> None:
    """Write `index.html`, and `page/` with what it needs, into a folder with ONNX files and tokenizers.

    Args:
        model: that was exported, with its attention.
        tokenizer: of the source.
        folder: complete but for the page.
        quantization: of the ONNX files.
        title, example: shown on the page; the example is a source.

    Raises:
        ExportError: where npm is not there or cannot fetch the libraries.
    """
    # what bounds an input and an output
    settings = model.generation_config
    lengths = {
        name: getattr(settings, name, None) for name in ("max_length_over_source", "max_new_tokens", "max_length")
    } | default_length(model, {}, 1)
    most = lengths["max_new_tokens"] or (lengths["max_length"] or 1) - 1
    limit = input_limit(model.config, tokenizer)
    values: dict[str, Any] = {
        "limit": None if math.isinf(limit) else int(limit),
        "dtype": DTYPES[quantization],
        "margin": lengths["max_length_over_source"],
        "max_new_tokens": most,
        "target_tokenizer": TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).is_dir() else None,
    }
    # libraries, and each file as a script
    templates = resources.files(__package__).joinpath("page")
    (folder / FOLDER).mkdir()
    for path in libraries().iterdir():
        shutil.copyfile(path, folder / FOLDER / path.name)
    (folder / FOLDER / "translator.mjs").write_bytes(templates.joinpath("translator.mjs").read_bytes())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        script = folder / FOLDER / "scripts" / f"{name}.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        content = base64.b64encode(path.read_bytes()).decode()
        script.write_text(f"files[{json.dumps(name)}] = {json.dumps(content)};\n", encoding="utf-8")
    # the page itself
    page = Template(templates.joinpath("index.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title), example=html.escape(example), settings=json.dumps(values)
    )
    (folder / "index.html").write_text(page, encoding="utf-8")
    # as the Hub reads it, where the folder is pushed as a Space
    (folder / "README.md").write_text(
        f"---\ntitle: {json.dumps(title)}\nsdk: static\napp_file: index.html\n---\n\nOpen `index.html`: it translates in the "
        "browser, without a network.\n",
        encoding="utf-8",
    )


def libraries() -> Path:
    """Return a folder with transformers.js and the runtime of ONNX models that it loads, fetched by npm the first time.

    Raises:
        ExportError: where npm is not there or cannot fetch them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vanilla_transformer"
    place = cache / f"transformers.js-{TRANSFORMERS_JS}"
    if place.is_dir():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary, atomic_dir(place) as folder:
        package = _fetch(f"@huggingface/transformers@{TRANSFORMERS_JS}", Path(temporary))
        needed = json.loads(_member(package, "package.json"))["dependencies"]["onnxruntime-web"]
        runtime = _fetch(f"onnxruntime-web@{needed}", Path(temporary))
        (folder / "transformers.min.mjs").write_bytes(_member(package, "dist/transformers.min.js"))
        for name in ("ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
            (folder / name).write_bytes(_member(runtime, f"dist/{name}"))
    return place


def _fetch(package: str, folder: Path) -> Path:
    """Return the archive of a package of npm, whose checksum npm compares."""
    npm = shutil.which("npm")
    if npm is None:
        raise ExportError(f"--page needs npm to fetch {package}; install Node.js.")
    command = [npm, "pack", package, "--pack-destination", str(folder), "--silent", "--ignore-scripts"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip() or "it does not say why").splitlines()[0]
        raise ExportError(f"npm could not fetch {package}: {reason}")
    return folder / result.stdout.split()[-1]


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as opened:
        found = opened.extractfile(f"package/{name}")
        assert found is not None
        return found.read()
