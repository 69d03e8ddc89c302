"""What became of the data: how many pairs were read and kept, and which were dropped for which reason."""

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DataReport", "Fault", "InputFile", "Repeats"]

LINES_KEPT = 20
"""How many line numbers are kept of each kind of fault, from the first; the printed report ends a cut list with "…"."""


@dataclass
class Fault:
    """Pairs dropped for one reason: how many, and the ids of the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)


@dataclass
class InputFile:
    """A file, or the two aligned files, that rows come from.

    Attributes:
        name: without its folder.
        first_id: the id of its line 1.
        lines: how many it has.
        path: for sentences about it.
        notes: what is to be known of it.
    """

    name: str
    first_id: int = 1
    lines: int | None = None
    path: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass
class Repeats:
    """How many rows come twice, and how: as a whole, and by their source or text alone."""

    how: str
    rows: int
    sources: int


def _hashes() -> "array[int]":
    return array("q")


@dataclass
class DataReport:
    """Counts of pairs read, kept and dropped, filled while the data is read and tokenised.

    Of streamed data it tells what has been seen so far.

    Attributes:
        name: where the data comes from, for people.
        noun: what a row is called, in the plural.
        notes: what else is to be known, a sentence each.
        read: pairs seen so far, good or bad.
        kept: pairs that remain.
        faults: reason -> dropped pairs.
        files: the inputs in reading order; empty for a data set that is not read line by line.
        sha256: digest of the readable pairs in order, the same whatever file format they had: each pair is hashed
            together with the digest so far.
        source_hashes, row_hashes: of the kept pairs, of their sources and of both sides, until they are counted; the same
            text has the same hash within this process only.
        repeats: pairs that come twice, where `count_repeats` has counted them.
    """

    name: str
    read: int = 0
    kept: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    files: list[InputFile] = field(default_factory=list)
    sha256: str = ""
    noun: str = "pairs"
    notes: list[str] = field(default_factory=list)
    source_hashes: "array[int]" = field(default_factory=_hashes, repr=False, compare=False)
    row_hashes: "array[int]" = field(default_factory=_hashes, repr=False, compare=False)
    repeats: Repeats | None = None

    def restart(self) -> None:
        """Forget all counts, for another pass over the same data."""
        self.read = self.kept = 0
        self.faults.clear()
        self.sha256 = ""
        self.repeats = None
        self.forget_hashes()

    def forget_hashes(self) -> None:
        """Free the memory of the hashes."""
        self.source_hashes, self.row_hashes = _hashes(), _hashes()

    @property
    def dropped(self) -> int:
        """Return the number of pairs dropped, for whatever reason."""
        return sum(fault.count for fault in self.faults.values())

    def keep(self, first: str, second: str = "") -> None:
        """Count a pair, or a row of another kind, that was read and is fit for use."""
        self.read += 1
        self.kept += 1
        self.source_hashes.append(hash(first))
        self.row_hashes.append(hash((first, second)))
        # A chain of digests rather than one running hash, which could not be sent to another process. The length
        # keeps apart pairs whose two texts join to the same one.
        self.sha256 = hashlib.sha256(f"{self.sha256}{len(first)} {first}{second}".encode()).hexdigest()

    def reject(self, reason: str, pair_id: int) -> None:
        """Count a pair that was read and dropped at once."""
        self.read += 1
        self._record(reason, pair_id)

    def drop(self, reason: str, pair_id: int) -> None:
        """Count a pair, kept until now, that is dropped after all."""
        self.kept -= 1
        self._record(reason, pair_id)

    def _record(self, reason: str, pair_id: int) -> None:
        fault = self.faults.setdefault(reason, Fault())
        fault.count += 1
        if len(fault.first) < LINES_KEPT:
            fault.first.append(pair_id)

    def place(self, pair_id: int) -> str:
        """Return where a pair stands: its line number, with the file's name where there are several files."""
        if len(self.files) < 2:
            return str(pair_id)
        file = [file for file in self.files if file.first_id <= pair_id][-1]
        return f"{file.name}:{pair_id - file.first_id + 1}"

    def lines(self) -> list[str]:
        """Return the report as lines of text to print."""
        text = [f"{self.name}: {self.kept:,} of {self.read:,} {self.noun} kept"]
        for file in self.files:
            text.extend(f"  {file.name}: {note}" for note in file.notes)
        text.extend(f"  {note}" for note in self.notes)
        if self.repeats and self.repeats.sources:
            text.append(
                f"  {self.repeats.rows:,} {self.noun} {self.repeats.how}, and {self.repeats.sources:,} by the source alone"
                if self.noun == "pairs" or self.repeats.rows != self.repeats.sources
                else f"  {self.repeats.rows:,} {self.noun} {self.repeats.how}"
            )
        for reason, fault in self.faults.items():
            places = ", ".join(self.place(pair_id) for pair_id in fault.first)
            more = ", …" if fault.count > len(fault.first) else ""
            unit = "line" if self.files else "row"
            text.append(f"  dropped {fault.count:,}: {reason} ({unit}{'s' if fault.count > 1 else ''} {places}{more})")
        return text

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold."""
        return {
            "name": self.name,
            "read": self.read,
            "kept": self.kept,
            "dropped": {
                reason: {"count": fault.count, "first": [self.place(pair_id) for pair_id in fault.first]}
                for reason, fault in self.faults.items()
            },
            "files": [{"name": file.name, "lines": file.lines, "notes": list(file.notes)} for file in self.files],
            "notes": list(self.notes),
            "repeats": None if self.repeats is None else {"rows": self.repeats.rows, "sources": self.repeats.sources},
            "sha256": self.sha256,
        }
