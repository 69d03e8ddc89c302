"""Which model answers, and what computes it: by the class that config.json names, and the backend that is asked for."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.loading import check_device, load_config, load_model, load_tokenizer, locate
from vanilla_transformer.serving.models import Predictor, ServedGenerator
from vanilla_transformer.utils.extras import needs

__all__ = ["BACKENDS", "load"]

BACKENDS = ("torch", "ctranslate2")
"""The runtimes that compute batches."""

HEADS: dict[str, tuple[str, Any]] = {
    "ForSequenceClassification": ("text-classification", AutoModelForSequenceClassification),
    "ForTokenClassification": ("token-classification", AutoModelForTokenClassification),
    "ForQuestionAnswering": ("question-answering", AutoModelForQuestionAnswering),
    "ForMaskedLM": ("fill-mask", AutoModelForMaskedLM),
}
"""Ends of the names of classes, with the pipeline that each is for; all else generates, or is a bare encoder."""


def load(
    model: str | Path,
    *,
    backend: str = "torch",
    quantization: str = "float32",
    device: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> ServedGenerator | Predictor:
    """Load what a server answers with, by the class that config.json names.

    Args:
        model: a folder or Hub id.
        backend: one of `BACKENDS`; of `"ctranslate2"`, models that write text.
        quantization: of the weights of CTranslate2.
        device, revision, trust_remote_code: as of [`TextGenerator.from_pretrained`].

    Raises:
        ValueError, OSError: where it cannot be loaded, with one clear sentence.
    """
    # what is asked for
    if backend not in BACKENDS:
        raise ValueError(f"there is no backend {backend!r}; there is {', '.join(BACKENDS)}.")
    if backend == "torch" and quantization != "float32":
        raise ValueError("--quantization has no effect for --backend torch; leave it out.")
    # what the model is for
    check_device(device)
    source = locate(model, revision=revision)
    config = load_config(source, trust_remote_code=trust_remote_code)
    name = next(iter(config.architectures or []), "")
    kind, automatic = next((head for end, head in HEADS.items() if name.endswith(end)), ("", None))
    if not kind and not config.is_encoder_decoder and getattr(config, "architecture", "") == "encoder-only":
        kind, automatic = "feature-extraction", AutoModel
    # models that write text, by the backend
    if not kind:
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
        if backend == "torch":
            return ServedGenerator(TextGenerator.from_pretrained(model, device, **options))
        with needs("--backend ctranslate2"):
            from vanilla_transformer.serving.ctranslate2_backend import CTranslate2Generator
        return CTranslate2Generator(TextGenerator.from_pretrained(model, "cpu", **options), quantization, device)
    if backend != "torch":
        raise ValueError(f"--backend {backend} runs models that write text, and this one is for {kind}; use torch.")
    # all others, by their pipelines
    tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
    loaded = load_model(source, automatic, trust_remote_code=trust_remote_code)
    if device is None and torch.accelerator.is_available():
        device = str(torch.accelerator.current_accelerator())
    return Predictor(kind, loaded if device is None else loaded.to(device), tokenizer)
