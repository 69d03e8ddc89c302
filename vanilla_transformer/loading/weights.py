"""The files of a model's weights, by their names and one by one."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from vanilla_transformer.loading.errors import LoadingError, damaged
from vanilla_transformer.loading.sources import Source
from vanilla_transformer.utils.errors import first_line

__all__ = ["INDEX", "WEIGHTS", "format_shape", "open_weights", "shard_names", "weight_files"]

WEIGHTS = SAFE_WEIGHTS_NAME
INDEX = SAFE_WEIGHTS_INDEX_NAME


def weight_files(source: Source | str | os.PathLike) -> list[Path]:
    """Return the safetensors files of a model, which may be several with an index; an empty list where there are none.

    Raises:
        LoadingError: for an index that is damaged, or names a file outside its folder.
        FileNotFoundError: for an index that names a file that is not there.
    """
    if not isinstance(source, Source):
        source = Source(os.fspath(source), Path(source))
    if (single := source.file(WEIGHTS)) is not None:
        return [single]
    if (index := source.read_json(INDEX)) is None:
        return []
    files = []
    for name in shard_names(index, f"{INDEX} of {source}"):
        if (file := source.file(name)) is None:
            raise FileNotFoundError(f"{INDEX} of {source} names {name}, which is not there; copy the folder again.")
        files.append(file)
    return files


def shard_names(index: Mapping[str, Any], named: str) -> list[str]:
    """Return the names of the files that an index of weights names, sorted.

    Raises:
        LoadingError: for an index without them, or with one that is not a plain name of a safetensors file.
    """
    table = index.get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise damaged(named, ", as it has no weight_map from weights to files")
    names = sorted(set(table.values()))
    for name in names:
        if not re.fullmatch(r"[^/\\\0]+\.safetensors", name) or name.startswith("."):
            raise LoadingError(
                f"{named} names {name!r}, which is not a safetensors file in the same folder, so it is not read; "
                "save the model again."
            )
    return names


@contextmanager
def open_weights(file: str | os.PathLike) -> Iterator[Any]:
    """Open a safetensors file for reading, on the CPU.

    Raises:
        LoadingError: for a file that is damaged.
    """
    try:
        opened = safe_open(os.fspath(file), framework="pt")
    except SafetensorError as error:
        raise damaged(file, f" ({first_line(error)})", "copy it again, or leave it out") from error
    with opened as weights:
        yield weights


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as people read it, such as `512 x 64`."""
    return " x ".join(map(str, shape)) or "a number"
