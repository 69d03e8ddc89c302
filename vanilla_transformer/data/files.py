"""Files and data sets, as far as all kinds of data have them in common: opening, decoding, columns, and what is wrong.

Files are UTF-8 unless told otherwise and may be gzipped (`.gz`).
"""

import codecs
import difflib
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vanilla_transformer.data.report import InputFile

if TYPE_CHECKING:
    from datasets import IterableDataset

SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
# `datasets` takes over a second to import, and most commands of this package read no data set: it is imported where it
# is used.


def kind_of(path: str | Path | Sequence[str | Path], kinds: Mapping[str, str]) -> str:
    """The kind of files by the ends of their names, "hub" where none of `kinds` fits.

    Raises:
        ValueError: for files of several kinds.
    """
    found = {kinds.get(suffix_of(path), "hub") for path in as_paths(path)}
    if len(found) > 1:
        raise ValueError(f"The files of one data set must be of one kind, but these are {', '.join(sorted(found))}.")
    return found.pop()


def check_encoding(encoding: str) -> None:
    """Lines are divided before they are decoded, so that one that cannot be decoded does not spoil the others."""
    try:
        codecs.lookup(encoding)
        has_line_break = b"\n".decode(encoding) == "\n"
    except LookupError:
        raise ValueError(
            f"encoding={encoding!r} is no text encoding that Python knows; most files are in 'utf-8'."
        ) from None
    except UnicodeError:
        has_line_break = False
    if not has_line_break:
        raise ValueError(
            f"encoding={encoding!r} cannot be read, only encodings with ASCII's line break: convert the files to UTF-8 "
            f"first, as with `iconv -f {encoding} -t utf-8`."
        )


# Lines ---------------------------------------------------------------------------------------------------------------


def read_lines(path: Path, encoding: str, file: InputFile) -> Iterator[str | None]:
    """Yield the lines of a file, None for one that cannot be decoded.

    Lines end at a line feed and nowhere else: `str.splitlines` and text mode also split at form feeds, U+2028 and the
    like, after which every later line would stand beside the wrong translation.
    """
    windows = 0
    with open_file(path) as stream:
        for number, raw in enumerate(stream):
            if number == 0:
                if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise ValueError(f"{path} is in UTF-16, not {encoding}: convert it to UTF-8 first.")
                if raw.startswith(b"\xef\xbb\xbf"):
                    raw = raw[3:]
                    file.notes.append(f"byte order mark of {path.name} left out")
            raw = raw.removesuffix(b"\n")
            if raw.endswith(b"\r"):
                raw = raw[:-1]
                windows += 1
            try:
                yield raw.decode(encoding)
            except UnicodeDecodeError:
                yield None
    if windows:
        file.notes.append(f"Windows line ends of {path.name} left out on {windows:,} lines")


def count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with open_file(path) as stream:
        while block := stream.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    # A last line without a line feed counts as well.
    count += last != b"\n"
    if not count:
        raise ValueError(f"{path} is empty.")
    return count


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be unpacked ({reason_of(error)}): it is cut short, damaged or not gzipped; get it again, or "
            "take .gz off its name."
        ) from error


# Data sets -----------------------------------------------------------------------------------------------------------


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Say in one sentence, with a name and a remedy, what `datasets` and pyarrow find wrong with data."""
    import pyarrow
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (pyarrow.ArrowException, DatasetsError, OSError, UnicodeDecodeError) as error:
        # A plain OSError is pyarrow's; missing files and connections have kinds and messages of their own.
        if isinstance(error, OSError) and type(error) is not OSError:
            raise
        raise ValueError(
            f"{place} cannot be read ({reason_of(error)}): it is cut short, damaged or of another kind than its name "
            "says; get or make it again."
        ) from error
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise ValueError(
            f"{place} is read by a script of its own, which `datasets` no longer runs: try "
            "revision='refs/convert/parquet', the Hub's own copy, or save it as Parquet or JSON lines."
        ) from error


def reason_of(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(" .")


def load_parquet(paths: list[Path]) -> "IterableDataset":
    """The records of Parquet files that have the same columns, streamed."""
    import datasets
    import pyarrow.parquet

    # First each by itself, so that the message can name the one that does not fit.
    names: list[str] = []
    for path in paths:
        with explained(str(path)):
            found = pyarrow.parquet.read_schema(path).names
        names = names or found
        if sorted(found) != sorted(names):
            raise ValueError(
                f"{path} has the columns {', '.join(found)}, but {paths[0]} has {', '.join(names)}: the files of one data "
                "set must have the same ones."
            )
    with explained(join_paths(paths)):
        files = [str(path) for path in paths]
        # Streamed in any case, as otherwise `datasets` would leave a converted copy in its cache.
        return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)


def load_hub(
    path: str | Path | Sequence[str | Path],
    *,
    name: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Any:
    """A data set by its Hub id, or in a folder; `split` is "train" where it is not given."""
    import datasets

    paths = as_paths(path)
    if len(paths) != 1:
        raise ValueError(
            f"The files {join_paths(paths)} are of no known kind: use names that end in {', '.join(SUFFIXES)} or give format."
        )
    path, split = str(paths[0]), split or "train"
    local = Path(os.path.expanduser(path))
    if local.is_file():
        raise ValueError(
            f"Cannot tell what kind of file {path} is: use a name that ends in {', '.join(SUFFIXES)} or give format."
        )
    if (local / "state.json").is_file() or (local / "dataset_dict.json").is_file():
        with explained(path):
            loaded = datasets.load_from_disk(str(local))
        if isinstance(loaded, datasets.DatasetDict):
            if split not in loaded:
                raise ValueError(f"{path} has no split {split!r}; its splits are {', '.join(loaded)}.")
            loaded = loaded[split]
        return loaded
    if path.startswith((".", "/", "~")) and not local.is_dir():
        raise missing_file(local)
    with explained(path):
        return datasets.load_dataset(
            str(local) if local.is_dir() else path, name, split=split, revision=revision, streaming=streaming
        )


def column_names(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every name a column can be asked for by, with the keys that lead to it."""
    names: dict[str, tuple[str, ...]] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            names.update({f"{key}.{inner}": (key, inner) for inner in value})
        else:
            names[key] = (key,)
    return names


def value_at(record: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """What keys, one inside the other, lead to; None where there is nothing."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def no_column(place: str, name: object, choices: Iterable[str]) -> ValueError:
    """The sentence for a column that does not exist, with the nearest that does."""
    choices = list(choices)
    near = difflib.get_close_matches(str(name), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{place} has no column {name!r}.{hint} There are: {', '.join(choices)}.")


# Paths ---------------------------------------------------------------------------------------------------------------


def as_paths(value: str | Path | Sequence[str | Path] | None) -> list[str | Path]:
    if value is None:
        return []
    return [value] if isinstance(value, (str, Path)) else list(value)


def join_paths(paths: Sequence[str | Path]) -> str:
    return ", ".join(str(path) for path in paths)


def suffix_of(path: str | Path) -> str:
    return Path(str(path).removesuffix(".gz")).suffix.lower()


def existing_file(path: str | Path) -> Path:
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise missing_file(path)
    return path


def missing_file(path: Path) -> FileNotFoundError:
    if path.is_dir():
        return FileNotFoundError(f"{path} is a folder, not a file.")
    folder = path.parent
    if not folder.is_dir():
        return FileNotFoundError(f"There is no file {path}: the folder {folder} does not exist.")
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    hint = f" Did you mean {folder / near[0]}?" if near else ""
    return FileNotFoundError(f"There is no file {path}.{hint}")
