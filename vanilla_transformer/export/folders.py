"""A model and its tokenizer as a folder of another runtime, compared with `generate()` before the folder appears."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from vanilla_transformer.conversion.exact_loading import load_vanilla_model
from vanilla_transformer.conversion.folders import convert_folder
from vanilla_transformer.export.ctranslate2_model import QUANTIZATIONS, vocabularies, write_ctranslate2
from vanilla_transformer.export.ctranslate2_runtime import CTranslate2Runtime
from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.export.gguf_model import QUANTIZATIONS as GGUF_QUANTIZATIONS
from vanilla_transformer.export.gguf_model import write_gguf
from vanilla_transformer.export.gguf_runtime import GGUFRuntime
from vanilla_transformer.export.onnx_model import SUFFIXES, write_onnx
from vanilla_transformer.export.onnx_runtime import OnnxRuntime
from vanilla_transformer.export.page import check_page, libraries, write_page
from vanilla_transformer.export.parity import NEW_TOKENS, Parity, Rows, Runtime, check_parity, random_rows
from vanilla_transformer.generation.text_generator import encode_input, longest_source
from vanilla_transformer.loading import TARGET_TOKENIZER, load_tokenizer, locate
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.atomic import atomic_dir, check_output_dir, translate_io_errors
from vanilla_transformer.utils.quiet import quiet

__all__ = ["TARGETS", "export_folder", "to_ctranslate2", "to_gguf", "to_onnx"]

TARGETS = ("ctranslate2", "onnx", "gguf", "transformers")
"""Where a model can go."""

Log = Callable[[str], Any]


def export_folder(
    model: str | Path,
    output: str | Path,
    target: str,
    *,
    quantization: str = "float32",
    revision: str | None = None,
    family: str | None = None,
    texts: Iterable[str] = (),
    page: bool = False,
    log: Log = print,
) -> Path:
    """Export a saved model, compare the result with `generate()`, and only then let the folder appear.

    Args:
        model: a folder, or an id on the Hub.
        output: a folder that is not there, or empty.
        target: one of `TARGETS`.
        quantization: of the weights, for targets that have it.
        revision: of an id on the Hub.
        family: of target `transformers`, such as `"marian"`; by default the first that fits.
        texts: sources (or beginnings) to compare on, beside random ones.
        page: of target `onnx`, also write a page that translates in the browser.
        log: gets a line for each step.

    Raises:
        ExportError: for what the target cannot hold, or where the exported model computes something else.
        ConversionError: the same of target `transformers`.
        FileExistsError: where `output` holds something.
        OSError: where it cannot be read or written.
    """
    # what the target takes
    if target not in TARGETS:
        raise ExportError(f"--to {target} is unknown; it is {' or '.join(TARGETS)}.")
    if page and target != "onnx":
        raise ExportError(f"--page has no effect for --to {target}; leave it out.")
    if target == "transformers":
        if quantization != "float32":
            raise ExportError("--quantization has no effect for --to transformers; leave it out.")
        return convert_folder(model, output, revision=revision, to_transformers=True, family=family, log=log)
    if family is not None:
        raise ExportError(f"--family has no effect for --to {target}; leave it out.")
    # the model and its tokenizers
    output = check_output_dir(output)
    source = locate(model, revision=revision)
    loaded = load_vanilla_model(source).float()
    tokenizer = load_tokenizer(source)
    target_tokenizer = tokenizer
    if loaded.config.target_vocab_size is not None:
        target_tokenizer = load_tokenizer(source, TARGET_TOKENIZER)
    # the export, compared before it appears
    options: dict[str, Any] = {"quantization": quantization, "texts": texts}
    if target == "gguf":
        parity = to_gguf(loaded, tokenizer, output, **options)
    elif target == "onnx":
        parity = to_onnx(loaded, tokenizer, output, target_tokenizer=target_tokenizer, page=page, **options)
    else:
        parity = to_ctranslate2(loaded, tokenizer, output, target_tokenizer=target_tokenizer, **options)
    log(f"checked: {parity}")
    log(f"{type(loaded).__name__} exported to {output} for {target}, {quantization}")
    if page:
        log(f"open {output / 'index.html'}, or serve the folder: python -m http.server --directory {output}")
    return output


def to_ctranslate2(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None = None,
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Iterable[str] = (),
) -> Parity:
    """Save a model for CTranslate2, load it there and compare it with `generate()` before the folder appears.

    Args:
        model: of any architecture.
        tokenizer: of the source; saved beside the model.
        folder: that is not there, or empty.
        quantization: one of `ctranslate2_model.QUANTIZATIONS`; None for float32.
        target_tokenizer: where vocabularies are separate.
        texts: to compare on, beside random ones.

    Returns:
        What was measured.

    Raises:
        ExportError: for what CTranslate2 cannot hold, naming the field, and where outputs differ in float32.
        ImportError: where CTranslate2 is not installed.
        FileExistsError, OSError: where the folder cannot be written.
    """

    def write(source: _Source, temporary: Path, quantization: str) -> Runtime:
        tokens = vocabularies(source.model, tokenizer, source.target_tokenizer)
        write_ctranslate2(source.model, tokens, temporary, quantization, target_tokenizer=source.target_tokenizer)
        (temporary / "README.md").write_text(_usage(source.model, Path(folder).name), encoding="utf-8")
        return CTranslate2Runtime(temporary, source.model.config.architecture, tokens, quantization)

    return _export(write, QUANTIZATIONS, model, tokenizer, folder, quantization, target_tokenizer, texts)


def to_onnx(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None = None,
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    texts: Iterable[str] = (),
    page: bool = False,
) -> Parity:
    """Save a model as ONNX files in the layout of transformers.js and Optimum, and compare them with `generate()` first.

    Args:
        model: of any architecture and head.
        tokenizer, folder, target_tokenizer, texts: as of [`to_ctranslate2`].
        quantization: one of `onnx_model.SUFFIXES`; None for float32.
        page: also write a page that translates in the browser, for which npm fetches transformers.js.

    Returns:
        What was measured.

    Raises:
        ExportError: for what ONNX files cannot hold, where outputs differ in float32, and for a page without a translator or npm.
        ImportError: where a package is not installed.
        FileExistsError, OSError: where the folder cannot be written.
    """

    texts = list(texts)
    if page:  # what cannot be is said before anything is computed
        check_page(model)
        libraries()

    def write(source: _Source, temporary: Path, quantization: str) -> Runtime:
        write_onnx(source.model, temporary, quantization, with_attention=page)
        return OnnxRuntime(temporary, source.model, quantization)

    def finish(source: _Source, temporary: Path, quantization: str) -> None:
        if page:
            write_page(source.model, tokenizer, temporary, quantization, Path(folder).name, (texts or [""])[0])

    return _export(write, SUFFIXES, model, tokenizer, folder, quantization, target_tokenizer, texts, finish)


def to_gguf(
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None = None,
    *,
    texts: Iterable[str] = (),
) -> Parity:
    """Save a decoder-only model as a GGUF file for llama.cpp, and compare it with `generate()` before the folder appears.

    Args:
        model: that Llama or GPT-2 can hold.
        tokenizer: byte-level BPE; written into the file, and saved beside it.
        folder, texts: as of [`to_ctranslate2`].
        quantization: one of `gguf_model.QUANTIZATIONS`; None for float32.

    Returns:
        What was measured.

    Raises:
        ExportError: for what GGUF cannot hold, naming the field, and where outputs differ in float32.
        ImportError: where the package gguf is not installed.
        FileExistsError, OSError: where the folder cannot be written.
    """

    def write(source: _Source, temporary: Path, quantization: str) -> Runtime:
        write_gguf(source.model, tokenizer, temporary, quantization)
        return GGUFRuntime(temporary, quantization, source.model.config.vocab_size)

    return _export(write, GGUF_QUANTIZATIONS, model, tokenizer, folder, quantization, None, texts)


@dataclass(frozen=True)
class _Source:
    """What is exported: a model in float32, on the CPU and without dropout, and the tokenizer of what it writes."""

    model: VanillaTransformerPreTrainedModel
    target_tokenizer: PreTrainedTokenizerBase


def _export(
    write: Callable[[_Source, Path, str], Runtime],
    quantizations: Iterable[str],
    model: VanillaTransformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    quantization: str | None,
    target_tokenizer: PreTrainedTokenizerBase | None,
    texts: Iterable[str],
    finish: Callable[[_Source, Path, str], None] = lambda *_: None,
) -> Parity:
    """Save a model by `write`, which loads it again in its runtime, and compare the two before the folder appears.

    Args:
        finish: adds to a folder that has all else in it.
    """
    quantization = quantization or "float32"
    if quantization not in quantizations:
        raise ExportError(f"quantization={quantization!r} is not one of {', '.join(quantizations)}.")
    place = check_output_dir(folder)
    source = _Source(_for_inference(model), tokenizer if target_tokenizer is None else target_tokenizer)
    rows = _rows(source.model, tokenizer, texts)
    with translate_io_errors(place, "make room and export again"), atomic_dir(place) as temporary, quiet():
        parity = check_parity(source.model, write(source, temporary, quantization), rows)
        tokenizer.save_pretrained(temporary)
        if source.target_tokenizer is not tokenizer:
            source.target_tokenizer.save_pretrained(temporary / TARGET_TOKENIZER)
        finish(source, temporary, quantization)
    return parity


def _for_inference(model: VanillaTransformerPreTrainedModel) -> VanillaTransformerPreTrainedModel:
    """Return the model where it is in float32, on the CPU and without dropout; else a copy that is."""
    if model.dtype == torch.float32 and model.device.type == "cpu" and not model.training:
        return model
    return copy.deepcopy(model).float().cpu().eval()


def _rows(model: VanillaTransformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Rows:
    """Return random rows of tokens, and those of the texts that are not blank, as `generate` reads them.

    Raises:
        ExportError: for a text that is longer than the model's table of positions, naming its line.
    """
    rows, longest = random_rows(model), longest_source(model.config)
    is_prompt = model.config.architecture == "decoder-only"
    longest -= NEW_TOKENS if is_prompt else 0  # which are written behind it
    for line, text in enumerate(texts, start=1):
        row = encode_input(tokenizer, text, is_prompt=is_prompt) if text.strip() else []
        if len(row) > longest:
            raise ExportError(
                f"line {line} of the texts has {len(row)} tokens, more than the model's {longest} positions for it."
            )
        rows += [row] if row else []
    return rows


def _usage(model: VanillaTransformerPreTrainedModel, name: str) -> str:
    """Return a page that says how the folder is used, with the tokenizer that lies in it."""
    separate = model.config.target_vocab_size is not None
    reader = f'\nreader = AutoTokenizer.from_pretrained("{name}/{TARGET_TOKENIZER}")' if separate else ""
    decoder = "reader" if separate else "tokenizer"
    tokens = "tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)"
    calls = {
        "encoder-decoder": (
            "Translator",
            f"best = model.translate_batch([{tokens}], beam_size=4)[0].hypotheses[0]\n"
            f"print({decoder}.decode({decoder}.convert_tokens_to_ids(best)))",
        ),
        "decoder-only": (
            "Generator",
            f"best = model.generate_batch([{tokens}], max_length=64)[0].sequences_ids[0]\nprint(tokenizer.decode(best))",
        ),
        "encoder-only": ("Encoder", "states = model.forward_batch([tokenizer(text).input_ids]).last_hidden_state"),
    }
    opened, call = calls[model.config.architecture]
    return f"""A {type(model).__name__} of vanilla_transformer for CTranslate2.

```python
import ctranslate2
from transformers import AutoTokenizer

model = ctranslate2.{opened}("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}"){reader}
text = "..."
{call}
```
"""
