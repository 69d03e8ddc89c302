"""Records of Parquet files and of data sets on the Hub or in a folder, through the `datasets` library."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vanilla_transformer.data.config import SUFFIXES, DataConfig, as_paths, join_paths
from vanilla_transformer.data.rows import InvalidText
from vanilla_transformer.utils.errors import first_line
from vanilla_transformer.utils.text_files import missing_file

if TYPE_CHECKING:
    import pyarrow
    from datasets import IterableDataset

__all__ = ["iterate_records", "load_hub", "load_parquet"]

# `datasets` takes over a second to import, and most commands of this package read no data set: it is imported where it
# is used.


@contextmanager
def friendly_data_errors(place: str) -> Iterator[None]:
    """Raise a clear one-line error, with a name and a remedy, for what `datasets` and pyarrow find wrong with data."""
    import pyarrow
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (pyarrow.ArrowException, DatasetsError, OSError, UnicodeDecodeError) as error:
        # A plain OSError is pyarrow's; missing files and connections have kinds and messages of their own.
        if isinstance(error, OSError) and type(error) is not OSError:
            raise
        reason = first_line(error.__cause__ if isinstance(error, DatasetsError) and error.__cause__ else error)
        if "surrogate" in reason:
            raise ValueError(
                f"{place} holds half a character (a lone surrogate), at which `datasets` stops ({reason}): give its files "
                "by path, where such lines are left out and reported."
            ) from error
        raise ValueError(
            f"{place} cannot be read ({reason}): it is cut short, damaged or of another kind than its name "
            "says; get or make it again."
        ) from error
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise ValueError(
            f"{place} is read by a script of its own, which `datasets` no longer runs: try "
            "revision='refs/convert/parquet', the Hub's own copy, or save it as Parquet or JSON lines."
        ) from error


def load_parquet(paths: Sequence[Path]) -> "IterableDataset":
    """Return the records of Parquet files, streamed.

    Raises:
        ValueError: for a file that is damaged, or has other columns than the first.
    """
    import datasets
    import pyarrow.parquet

    # First each by itself, so that the message can name the one that does not fit.
    names: list[str] = []
    for path in paths:
        with friendly_data_errors(str(path)):
            found = pyarrow.parquet.read_schema(path).names
        names = names or found
        if sorted(found) != sorted(names):
            raise ValueError(
                f"{path} has the columns {', '.join(found)}, but {paths[0]} has {', '.join(names)}: the files of one data "
                "set must have the same ones."
            )
    with friendly_data_errors(join_paths(paths)):
        files = [str(path) for path in paths]
        # Streamed in any case, as otherwise `datasets` would leave a converted copy in its cache.
        return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def load_hub(config: DataConfig, *, streaming: bool = False) -> Any:
    """Return a data set by its Hub id, or in a folder; of the split "train" where the config names none.

    Raises:
        FileNotFoundError, ValueError: where there is none, or it cannot be read.
    """
    import datasets

    paths = as_paths(config.path)
    known = ", ".join(SUFFIXES)
    if len(paths) != 1:
        raise ValueError(
            f"The files {join_paths(paths)} are of no known kind: use names that end in {known} or give format."
        )
    path, split = str(paths[0]), config.split or "train"
    local = Path(os.path.expanduser(path))
    if local.is_file():
        raise ValueError(f"Cannot tell what kind of file {path} is: use a name that ends in {known} or give format.")
    if (local / "state.json").is_file() or (local / "dataset_dict.json").is_file():
        with friendly_data_errors(path):
            loaded = datasets.load_from_disk(str(local))
        if isinstance(loaded, datasets.DatasetDict):
            if split not in loaded:
                raise ValueError(f"{path} has no split {split!r}; its splits are {', '.join(loaded)}.")
            loaded = loaded[split]
        return loaded
    if path.startswith((".", "/", "~")) and not local.is_dir():
        raise missing_file(local)
    with friendly_data_errors(path):
        return datasets.load_dataset(
            str(local) if local.is_dir() else path,
            config.name,
            split=split,
            revision=config.revision,
            streaming=streaming,
        )


def iterate_records(loaded: Any, place: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a data set as plain values.

    A text that is not valid UTF-8 comes as `InvalidText`, a class by its name, which the data set knows.

    Args:
        place: names the data in a sentence.

    Raises:
        ValueError: where it cannot be read.
    """
    import datasets

    classes = {}
    for name, feature in (loaded.features or {}).items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, datasets.ClassLabel):
            classes[name] = inner
    with friendly_data_errors(place):
        for table in loaded.with_format("arrow").iter(batch_size=1000):
            columns = [_plain_column(column) for column in table.columns]
            for values in zip(*columns, strict=True):
                record = dict(zip(table.column_names, values, strict=True))
                yield record | {name: _class_name(record[name], known) for name, known in classes.items()}


def _class_name(value: Any, known: Any) -> Any:
    if isinstance(value, list):
        return [_class_name(inner, known) for inner in value]
    return None if value is None or value < 0 else known.int2str(value)


def _plain_column(column: "pyarrow.ChunkedArray") -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_plain(value) for value in column]


def _plain(value: "pyarrow.Scalar") -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        pass
    if hasattr(value, "items"):
        return {name: _plain(inner) for name, inner in value.items()}
    if hasattr(value, "values"):
        return [_plain(inner) for inner in value.values]
    return InvalidText(value.as_buffer().to_pybytes())
