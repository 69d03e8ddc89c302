"""Files and data sets, as far as all kinds of data have them in common: opening, decoding, columns, and what is wrong.

Files are UTF-8 unless told otherwise and may be gzipped (`.gz`). No line may be longer than `LONGEST_LINE` bytes, and a
gzipped file that unpacks to more than `LARGEST_SURPRISE` bytes may not be larger than `LARGEST_RATIO` times its own size.
"""

import codecs
import difflib
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vanilla_transformer.data.report import InputFile

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset, IterableDataset

LONGEST_LINE = 16 << 20
"""Bytes of the longest line, and characters of the longest text, that is read."""

LARGEST_RATIO, LARGEST_SURPRISE = 200, 64 << 20
"""Text is packed to a tenth or a twentieth; what is packed to a thousandth is made to fill the memory."""

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


# --------------------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path, encoding: str, file: InputFile) -> Iterator[str | None]:
    """Yield the lines of a file, None for one that cannot be decoded.

    Lines end at a line feed and nowhere else: `str.splitlines` and text mode also split at form feeds, U+2028 and the
    like, after which every later line would stand beside the wrong translation.
    """
    windows = inner = 0
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
            inner += b"\r" in raw
            try:
                yield raw.decode(encoding)
            except UnicodeDecodeError:
                yield None
    if windows:
        file.notes.append(f"Windows line ends of {path.name} left out on {windows:,} lines")
    if inner:
        file.notes.append(f"carriage returns inside {inner:,} lines of {path.name} do not end them")


def count_lines(path: Path) -> int:
    """Count the lines of a file, having seen all of it, so that what cannot be read is refused before anything is.

    Raises:
        ValueError: for a file that is empty, whose lines end in carriage returns alone, or that has a line longer than
            `LONGEST_LINE`.
    """
    lines = returns = 0
    unfinished = 0  # bytes since the last line feed
    last = b"\n"
    with open_file(path) as stream:
        while block := stream.read(1 << 20):
            feeds = block.count(b"\n")
            returns += block.count(b"\r") - block.count(b"\r\n") - (last == b"\r" and block.startswith(b"\n"))
            if unfinished + (block.find(b"\n") if feeds else len(block)) > LONGEST_LINE:
                raise ValueError(
                    f"{path} has a line of more than {LONGEST_LINE >> 20} MiB, line {lines + 1}: divide it into texts, or "
                    "leave it out."
                )
            unfinished = len(block) - block.rfind(b"\n") - 1 if feeds else unfinished + len(block)
            lines += feeds
            last = block[-1:]
    if returns > lines:
        raise ValueError(carriage_returns(path))
    # A last line without a line feed counts as well.
    lines += last != b"\n"
    if not lines:
        raise ValueError(f"{path} is empty.")
    return lines


def carriage_returns(path: str | Path) -> str:
    """Return the sentence about a file whose lines end in carriage returns alone, as on very old Macs."""
    return (
        f"{path} ends its lines in carriage returns without line feeds: convert it first, as with "
        "`tr '\\r' '\\n' < OLD > NEW`."
    )


def parse_record(line: str) -> dict[str, Any] | str:
    """Return the object that a line of JSON holds, or what is wrong, in words, where it is not one."""
    try:
        record = json.loads(line)
    except RecursionError:
        return "line is JSON nested too deeply"
    except ValueError:
        record = None
    return record if isinstance(record, dict) else "line is not a JSON object"


def fault_of_text(text: str, longest: float = LONGEST_LINE) -> str | None:
    """Say what makes a text unusable whatever it is for: half of a surrogate pair, or more than `longest` characters."""
    if len(text) > longest:
        return f"is longer than {longest:,} characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate, as of a cut emoji)"
    return None


def portion_bounds(count: int, portion: Sequence[float]) -> tuple[int, int]:
    """Return the first of `count` rows that a portion holds, and the one behind its last."""
    start, end = (int(share * count) for share in portion)
    return start, end


def check_portion(portion: Sequence[float] | None) -> None:
    """Refuse shares that are not two numbers that rise within 0 and 1.

    Raises:
        ValueError: naming the field.
    """
    if portion is None:
        return
    numbers = isinstance(portion, (list, tuple)) and all(
        isinstance(share, (int, float)) and not isinstance(share, bool) for share in portion
    )
    if not numbers or len(portion) != 2:
        raise ValueError(f"portion={portion!r} must be two numbers, as in [0, 0.9].")
    if not 0 <= portion[0] < portion[1] <= 1:
        raise ValueError(f"portion={list(portion)} must be two shares that rise within 0 and 1, as in [0, 0.9].")


def portion_in_words(portion: Sequence[float] | None) -> str:
    """Return the shares as they follow the name of the data, or nothing."""
    return "" if portion is None else f"[{portion[0]:g} to {portion[1]:g}]"


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to read bytes, unpacking a gzipped one: by the end of its name (`.gz`), or by how it begins.

    Raises:
        ValueError: where it cannot be unpacked, or unpacks to far more than texts do.
    """
    if path.suffix != ".gz" and not _begins_as_gzip(path):
        with path.open("rb") as stream:
            yield stream
        return
    try:
        with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as unpacked:
            yield io.BufferedReader(_Unpacked(unpacked, path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be unpacked ({reason_of(error)}): it is cut short, damaged or not gzipped; get it again, or "
            "take .gz off its name."
        ) from error


def _begins_as_gzip(path: Path) -> bool:
    """Tell whether a file has the first bytes of a gzipped one, which no text has; a pipe is not looked at."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


class _Unpacked(io.RawIOBase):
    """The bytes of a gzipped file, while they are not out of all proportion to it."""

    def __init__(self, stream: gzip.GzipFile, path: Path):
        self.stream, self.path = stream, path
        self.largest = max(LARGEST_RATIO * path.stat().st_size, LARGEST_SURPRISE)
        self.given = self.lines = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.stream.read1(len(buffer))
        self.given += len(block)
        if self.given > self.largest:
            raise ValueError(
                f"{self.path} unpacks to more than {LARGEST_RATIO} times its size, which no text does (at line "
                f"{self.lines + 1}): unpack it and look at it, and give the file that comes of it."
            )
        self.lines += block.count(b"\n")
        buffer[: len(block)] = block
        return len(block)


# ----------------------------------------------------------------------------------------------------------- data sets


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
        reason = reason_of(error.__cause__ if isinstance(error, DatasetsError) and error.__cause__ else error)
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


def reason_of(error: BaseException) -> str:
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


class InvalidText(bytes):
    """A text of a data set that is not valid UTF-8, as it stands there."""


def iterate_records(loaded: "Dataset | IterableDataset") -> Iterator[dict[str, Any]]:
    """Yield the records of a data set as plain values; a text that is not valid UTF-8 as `InvalidText`."""
    for table in loaded.with_format("arrow").iter(batch_size=1000):
        columns = []
        for column in table.columns:
            try:
                columns.append(column.to_pylist())
            except UnicodeDecodeError:
                columns.append([_plain(value) for value in column])
        for values in zip(*columns, strict=True):
            yield dict(zip(table.column_names, values, strict=True))


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


# --------------------------------------------------------------------------------------------------------------- paths


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
