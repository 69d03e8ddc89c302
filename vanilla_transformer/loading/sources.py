"""Tell a folder from a Hub id, read the files of either, and say in one sentence what is damaged, missing or not allowed."""

import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import HFValidationError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from transformers.utils import SAFE_WEIGHTS_NAME as WEIGHTS
from transformers.utils.hub import cached_file, resolve_revision

from vanilla_transformer.configuration_vanilla_transformer import ConfigurationError
from vanilla_transformer.utils import json_files
from vanilla_transformer.utils.errors import first_line
from vanilla_transformer.utils.names import did_you_mean

__all__ = ["ADAPTER_REMEDY", "WEIGHTS", "LoadingError", "RemoteCodeError", "Source", "damaged"]
__all__ += ["friendly_loading_errors", "locate", "missing_files", "pickled_objects", "read_json_object"]

ADAPTER_REMEDY = (
    "it is an adapter of PEFT, which needs its base model; load both with PEFT's AutoPeftModel, merge them with "
    "merge_and_unload() and save the result"
)
MODEL_REMEDY = "give the folder of a finished run or saved model"


# -------------------------------------------------------------------------------------------------------------- errors


class LoadingError(ValueError):
    """A folder or Hub id that cannot be loaded as it stands; one sentence that names the file and the remedy."""


class RemoteCodeError(LoadingError):
    """A folder or Hub id that names code of its own, which is not run unasked.

    Attributes:
        what: the sentence without its remedy, for callers that have no `trust_remote_code`.
    """

    def __init__(self, what: str):
        self.what = f"{what}, which is not run unasked"
        super().__init__(
            f"{self.what}; read it, and where you trust whoever made it, give --trust-remote-code (trust_remote_code=True in "
            "Python)."
        )


def damaged(what: object, reason: str, remedy: str = "copy it again", are: str = "is") -> LoadingError:
    """Return the error for a file that is not what it should be.

    Args:
        what: is damaged, as the sentence begins.
        reason: follows "is damaged", such as ", as it has no model" or " (cut short)".
        are: the verb.
    """
    return LoadingError(f"{what} {are} damaged{reason}; {remedy}.")


def pickled_objects(error: BaseException) -> str:
    """Return the names of the objects over which `torch.load(weights_only=True)` raised this error, or an empty text."""
    found = re.findall(r"GLOBAL (\S+)|class(?:es)? (\S+)", str(error))
    return ", ".join(sorted({one or other for one, other in found}))


@contextmanager
def friendly_loading_errors(source: "Source", what: str = "model") -> Iterator[None]:
    """Translate what the libraries raise over a damaged or foreign folder into one sentence.

    Args:
        what: is read: "model", "config.json", "tokenizer" or "generation_config.json".

    Raises:
        LoadingError, FileNotFoundError: in their place.
    """
    try:
        yield
    except (LoadingError, ImportError):
        raise
    except OSError as error:
        raise missing_files(source, error) from error
    except (SafetensorError, EOFError) as error:
        raise damaged(f"the weights in {source}", f" ({first_line(error)})", "copy them again", "are") from error
    except pickle.UnpicklingError as error:
        # in place of torch's advice to run what is in it
        raise LoadingError(
            f"the pickled files of {source} (such as pytorch_model.bin) hold {pickled_objects(error) or 'something else'} beside "
            "tensors, and reading such can run any code, so they are not read; ask whoever made them for safetensors."
        ) from error
    except StrictDataclassError as error:
        raise damaged(f"the config.json of {source}", f" ({first_line(error.__cause__ or error)})") from error
    except Exception as error:  # libraries have an error of another kind for each place in a file
        if "trust_remote_code" in str(error) and not isinstance(error, ConfigurationError):
            raise RemoteCodeError(f"{source} can be loaded only with code of its own") from error
        if isinstance(error, ValueError) and what == "config.json":
            raise LoadingError(f"the config.json of {source} cannot be used: {first_line(error)}.") from error
        kind = "" if type(error) in (ValueError, Exception) else f"{type(error).__name__}: "
        files, are = ("config.json or the weights", "are") if what == "model" else (what, "is")
        reason = f" ({kind}{first_line(error)})"
        raise damaged(f"the {files} of {source}", reason, "copy the folder again", are) from error


def missing_files(source: "Source", error: OSError) -> OSError:
    """Return what cannot be read of a folder or of the Hub, in one sentence."""
    if source.folder is not None and source.folder.exists():
        if "safetensors" in str(error) and not any(source.folder.glob("*.safetensors")):
            return FileNotFoundError(
                f"{source} holds no {WEIGHTS}. Pickled weights (pytorch_model.bin), a format that can carry code, are read only "
                "when asked for; ask for safetensors, or load them in Python with use_safetensors=False, which reads tensors "
                "alone, and save the model again."
            )
        return error if error.errno is not None else FileNotFoundError(f"{source}: {first_line(error)}.")
    if "use_safetensors" in str(error):  # our own sentence on pickled weights
        return error
    near = _nearest_folder(source.name)
    if is_offline_mode():
        return FileNotFoundError(
            f"{source} is not a folder here and not all of it is in the cache ({constants.HF_HUB_CACHE}), and "
            f"HF_HUB_OFFLINE is set; load it once without that, or give a folder.{near}"
        )
    return FileNotFoundError(f"there is no folder {source} here{near}, and as a Hub id it gives: {first_line(error)}.")


# ---------------------------------------------------------------------------------------------------- folder or Hub id


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
        """Return the object in a JSON file, see [`read_json_object`], or None where there is no such file."""
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
        near = _nearest_folder(path)
        if not given or given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise FileNotFoundError(f"{given or repr(given)} is not there; {MODEL_REMEDY}, or a Hub id.{near}")
        try:
            validate_repo_id(given)
        except HFValidationError as error:
            raise LoadingError(
                f"{given!r} is neither a folder here nor a Hub id such as me/my-model.{near}"
            ) from error
        return Source(given, None, resolve_revision(given, revision))
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{given} is a file; {MODEL_REMEDY}, or a Hub id.")
    if revision is not None:
        raise LoadingError(f"{given} is a folder and has no revision {revision}; leave it out, or give a Hub id.")
    if needs is not None and not (folder / needs).is_file():
        raise FileNotFoundError(f"{given} holds no {needs}; {_remedy(folder)}.")
    return Source(path, folder)


def _nearest_folder(path: str) -> str:
    """Return the end of a sentence that names the folder whose name is most like a path's, or an empty text."""
    parent = Path(path).parent
    try:
        names = [folder.name for folder in parent.iterdir() if folder.is_dir()]
    except OSError:
        return ""
    nearest = did_you_mean(Path(path).name, names, otherwise="")
    return f" ({nearest.replace(chr(39), chr(39) + str(parent) + os.sep, 1)})" if nearest else ""


def _remedy(folder: Path) -> str:
    """Return what to give instead of a folder that holds no model."""
    if (folder / "adapter_config.json").is_file():
        return ADAPTER_REMEDY
    numbers = [path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")]
    if numbers := [number for number in numbers if number.isdecimal()]:
        last = folder / f"checkpoint-{max(numbers, key=int)}"
        return f"its run is not finished: resume it, or give its last checkpoint, {last}"
    return MODEL_REMEDY


def read_json_object(path: str | os.PathLike, named: str | None = None) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        named: how a sentence names the file; by default by its path.

    Raises:
        LoadingError: for a file that is not JSON, or holds something else than an object.
        OSError: for a file that cannot be read.
    """
    return json_files.read_json_object(path, named, error=LoadingError)
