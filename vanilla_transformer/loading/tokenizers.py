"""Load the tokenizers of a model, of its source and of its target side."""

import os
from collections.abc import Mapping
from typing import Any

from transformers import TOKENIZER_MAPPING, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

from vanilla_transformer.loading.configs import load_config
from vanilla_transformer.loading.sources import (
    LoadingError,
    RemoteCodeError,
    Source,
    damaged,
    friendly_loading_errors,
    locate,
    missing_files,
)
from vanilla_transformer.utils.extras import missing

__all__ = ["TARGET_TOKENIZER", "has_target_tokenizer", "has_tokenizer", "load_tokenizer"]

TARGET_TOKENIZER = "target_tokenizer"
"""Folder inside a model folder that holds the target side's tokenizer, where vocabularies are separate."""

# any of them makes a tokenizer; where there is none, transformers would make one without a vocabulary
TOKENIZER_FILES = (
    *("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "vocab-src.json"),
    *("spiece.model", "source.spm", "sentencepiece.bpe.model"),
)

TOKENIZER_PACKAGES = ("sentencepiece", "sacremoses", "tiktoken", "protobuf")
"""Packages that tokenizers of transformers need beside it."""


def has_tokenizer(source: Source | str | os.PathLike) -> bool:
    """Return whether there is a file of a tokenizer."""
    source = Source.of(source, needs=None)
    if source.folder is not None and any(source.folder.glob("tokenizer*")):
        return True
    return any(source.file(name) is not None for name in TOKENIZER_FILES)


def has_target_tokenizer(model: Source | str | os.PathLike, revision: str | None = None) -> bool:
    """Return whether a folder or repository holds a tokenizer of the target side beside that of the source."""
    source = model if isinstance(model, Source) else locate(model, revision=revision, needs=None)
    return source.file(f"{TARGET_TOKENIZER}/tokenizer_config.json") is not None


def load_tokenizer(
    source: Source | str | os.PathLike, subfolder: str = "", *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer.

    Args:
        source: of [`locate`], a folder or a Hub id, which need not hold a model.
        subfolder: of it, such as `target_tokenizer`.
        trust_remote_code: run code of the folder where its tokenizer needs it.

    Raises:
        LoadingError: for files that are damaged, or that name code of their own, unless `trust_remote_code`.
        FileNotFoundError: where there is no tokenizer.
        ImportError: for a package that it needs.
    """
    source = Source.of(source, needs=None)
    place = f"{subfolder} of {source}" if subfolder else str(source)
    prefix = f"{subfolder}/" if subfolder else ""
    # there is one
    if source.folder is not None:
        folder = source.folder / subfolder
        if not folder.is_dir() or not has_tokenizer(Source(str(folder), folder)):
            raise FileNotFoundError(f"{place} holds no tokenizer; save it there with tokenizer.save_pretrained.")
    elif all(source.file(prefix + name) is None for name in TOKENIZER_FILES):
        raise missing_files(source, FileNotFoundError(f"there is no tokenizer in {place}"))
    # its files are whole
    settings = source.read_json(f"{prefix}tokenizer_config.json") or {}
    longest = settings.get("model_max_length")
    if longest is not None and (isinstance(longest, bool) or not isinstance(longest, int | float) or longest < 1):
        reason = f": model_max_length={longest!r:.60} must be a number of at least 1"
        raise damaged(f"the tokenizer_config.json of {place}", reason, "correct it, or leave it out")
    own_code = _own_code(settings, place)
    for name in ("special_tokens_map.json", "added_tokens.json", "tokenizer.json"):
        values = source.read_json(prefix + name)
        if name == "tokenizer.json" and values is not None and not isinstance(values.get("model"), dict):
            raise damaged(f"tokenizer.json of {place}", ", as it has no model")
    # its class is one of transformers, or its code is trusted
    config = _config_of_tokenizer(source, subfolder)
    if own_code and not trust_remote_code and not _is_known(settings, config):
        raise RemoteCodeError(f"the tokenizer_config.json of {place} names code of its own ({own_code:.100})")
    options: dict[str, Any] = {} if trust_remote_code else {"config": config}
    options |= {"revision": source.revision, "trust_remote_code": bool(trust_remote_code)}
    try:
        with friendly_loading_errors(source, "tokenizer"):
            return AutoTokenizer.from_pretrained(source.name, subfolder=subfolder, **options)
    except ImportError as error:
        needed = next((name for name in TOKENIZER_PACKAGES if name in str(error).lower()), None)
        if needed is None:
            raise
        raise ImportError(missing(f"the tokenizer of {place}", needed)) from error


def _own_code(settings: Mapping[str, Any], place: str) -> str:
    """Return the code that a tokenizer_config.json names, or an empty text."""
    code = settings.get("auto_map")
    if isinstance(code, dict):
        code = code.get("AutoTokenizer")
    if code is not None and not isinstance(code, str | list | tuple):
        raise damaged(f"the tokenizer_config.json of {place}", f": auto_map={code!r:.60}")
    names = [code] if isinstance(code, str) else [str(name) for name in code or [] if name]
    return ", ".join(names)


def _config_of_tokenizer(source: Source, subfolder: str) -> PreTrainedConfig:
    """Return the model's configuration, by which transformers chooses a class; a plain one where it cannot be read."""
    if subfolder:
        return PreTrainedConfig()
    try:
        return load_config(source)
    except (LoadingError, OSError):
        return PreTrainedConfig()


def _is_known(settings: Mapping[str, Any], config: PreTrainedConfig) -> bool:
    """Return whether transformers has a class for a tokenizer that names code of its own."""
    name = settings.get("tokenizer_class")
    if type(config) in TOKENIZER_MAPPING:
        return True
    return isinstance(name, str) and tokenizer_class_from_name(name) is not None
