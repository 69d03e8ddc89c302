"""The errors of loading: what is damaged, missing or not allowed, each in one sentence that names file and remedy."""

import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import SAFE_WEIGHTS_NAME

from vanilla_transformer.configuration_vanilla_transformer import ConfigurationError
from vanilla_transformer.utils.errors import first_line
from vanilla_transformer.utils.names import did_you_mean

if TYPE_CHECKING:
    from vanilla_transformer.loading.sources import Source

__all__ = [
    "LoadingError",
    "RemoteCodeError",
    "damaged",
    "friendly_loading_errors",
    "missing_files",
    "nearest_folder",
    "pickled_objects",
]


class LoadingError(ValueError):
    """A folder or Hub id that cannot be loaded as it stands; one sentence that names the file and the remedy."""


class RemoteCodeError(LoadingError):
    """A folder or Hub id that names code of its own, which is not run unasked.

    Attributes:
        what: the sentence without its remedy, for callers that have no `trust_remote_code`.
    """

    def __init__(self, what: str):
        remedy = (
            "read it, and where you trust whoever made it, give --trust-remote-code (trust_remote_code=True in Python)"
        )
        super().__init__(f"{what}; {remedy}.")
        self.what = what


def damaged(what: object, reason: str, remedy: str = "copy it again", are: str = "is") -> LoadingError:
    """Return the error for a file that is not what it should be.

    Args:
        what: is damaged, as the sentence begins.
        reason: follows "is damaged", such as ", as it is not valid JSON" or " (cut short)".
        are: the verb.
    """
    return LoadingError(f"{what} {are} damaged{reason}; {remedy}.")


def pickled_objects(error: BaseException) -> str:
    """Return the names of the objects over which `torch.load(weights_only=True)` raised this error, or an empty text."""
    return ", ".join(
        sorted({one or other for one, other in re.findall(r"GLOBAL (\S+)|class(?:es)? (\S+)", str(error))})
    )


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
            raise RemoteCodeError(
                f"{source} can be loaded only with code of its own, which is not run unasked"
            ) from error
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
                f"{source} holds no {SAFE_WEIGHTS_NAME}. Pickled weights (pytorch_model.bin), a format that can carry code, are "
                "read only when asked for; ask for safetensors, or load them in Python with use_safetensors=False, which reads "
                "tensors alone, and save the model again."
            )
        return error if error.errno is not None else FileNotFoundError(f"{source}: {first_line(error)}.")
    if "use_safetensors" in str(error):  # our own sentence on pickled weights
        return error
    if is_offline_mode():
        return FileNotFoundError(
            f"{source} is not a folder here and not all of it is in the cache ({constants.HF_HUB_CACHE}), and "
            f"HF_HUB_OFFLINE is set; load it once without that, or give a folder.{nearest_folder(source.name)}"
        )
    return FileNotFoundError(
        f"there is no folder {source} here{nearest_folder(source.name)}, and as a Hub id it gives: {first_line(error)}."
    )


def nearest_folder(path: str) -> str:
    """Return the end of a sentence that names the folder whose name is most like a path's, or an empty text."""
    parent = Path(path).parent
    try:
        names = [folder.name for folder in parent.iterdir() if folder.is_dir()]
    except OSError:
        return ""
    nearest = did_you_mean(Path(path).name, names, otherwise="")
    return f" ({nearest.replace(chr(39), chr(39) + str(parent) + os.sep, 1)})" if nearest else ""
