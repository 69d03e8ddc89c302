"""Tell a folder from a Hub id, and read the files of either."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers.utils.hub import cached_file, resolve_revision

from vanilla_transformer.loading.errors import LoadingError, nearest_folder
from vanilla_transformer.utils import json_files

__all__ = ["ADAPTER_REMEDY", "Source", "locate", "read_json_object"]

ADAPTER_REMEDY = (
    "it is an adapter of PEFT, which needs its base model; load both with PEFT's AutoPeftModel, merge them with "
    "merge_and_unload() and save the result"
)


@dataclass(frozen=True)
class Source:
    """A folder, or a repository on the Hub at one revision.

    Attributes:
        name: as transformers takes it: the path of the folder, or the id.
        folder: None for an id on the Hub.
        revision: branch, tag or commit of an id.
    """

    name: str
    folder: Path | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, source: "Source | str | os.PathLike", needs: str | None = "config.json") -> "Source":
        """Return a source, which may have been located already; see [`locate`]."""
        return source if isinstance(source, Source) else locate(source, needs=needs)

    def file(self, name: str) -> Path | None:
        """Return the path of a file, downloaded into the cache where the source is on the Hub; None where there is none."""
        if self.folder is not None:
            return path if (path := self.folder / name).is_file() else None
        try:
            found = cached_file(self.name, name, revision=self.revision)
        except OSError:
            return None
        return None if found is None else Path(found)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a JSON file, or None where there is no such file.

        Raises:
            LoadingError: for a file that is not JSON, or holds something else than an object.
        """
        path = self.file(name)
        return None if path is None else read_json_object(path, f"{name} of {self}")


def locate(model: str | os.PathLike, *, revision: str | None = None, needs: str | None = "config.json") -> Source:
    """Tell a folder from a Hub id.

    What exists is a folder, and so is what begins with `.`, `/` or `~` or has more than one slash; all else is an id.

    Args:
        model: the path or id; `~` stands for the home folder.
        revision: a branch, tag or commit, of an id only.
        needs: a file without which a folder is refused.

    Raises:
        FileNotFoundError: for a folder that is not there, naming the nearest that is, or that lacks `needs`.
        LoadingError: for a name that can be neither, and for a folder with a revision.
    """
    given = os.fspath(model)
    path = os.path.expanduser(given)
    if "\0" in given:
        raise LoadingError(f"{given!r} is neither a folder nor a Hub id, as it holds a NUL character.")
    if not os.path.exists(path):
        if not given or given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise FileNotFoundError(
                f"{given or repr(given)} is not there; give the folder of a finished run or saved model, or a Hub id."
                f"{nearest_folder(path)}"
            )
        try:
            validate_repo_id(given)
        except HFValidationError as error:
            raise LoadingError(
                f"{given!r} is neither a folder here nor a Hub id such as me/my-model.{nearest_folder(path)}"
            ) from error
        return Source(given, None, resolve_revision(given, revision))
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{given} is a file; give the folder of a finished run or saved model, or a Hub id.")
    if revision is not None:
        raise LoadingError(f"{given} is a folder and has no revision {revision}; leave it out, or give a Hub id.")
    if needs is not None and not (folder / needs).is_file():
        raise FileNotFoundError(f"{given} holds no {needs}; {_remedy(folder)}.")
    return Source(path, folder)


def _remedy(folder: Path) -> str:
    """Return what to give instead of a folder that holds no model."""
    if (folder / "adapter_config.json").is_file():
        return ADAPTER_REMEDY
    numbers = [path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")]
    if numbers := [number for number in numbers if number.isdecimal()]:
        last = folder / f"checkpoint-{max(numbers, key=int)}"
        return f"its run is not finished: resume it, or give its last checkpoint, {last}"
    return "give the folder of a finished run or saved model"


def read_json_object(path: str | os.PathLike, named: str | None = None) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        named: how a sentence names the file; by default by its path.

    Raises:
        LoadingError: for a file that is not JSON, or holds something else than an object.
        OSError: for a file that cannot be read.
    """
    return json_files.read_json_object(path, named, error=LoadingError)
