"""The folder of a run, or of a saved model, to a repository on the Hub: in one commit, so that all of it arrives or nothing."""

import json
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import parse_ratelimit_headers

from vanilla_transformer.loading import INDEX, WEIGHTS
from vanilla_transformer.model_files import model_files
from vanilla_transformer.utils.errors import hide_tokens
from vanilla_transformer.utils.public import card_of_repository, public_values
from vanilla_transformer.utils.yaml_text import coerce_scalars, dump_yaml, parse_yaml

__all__ = ["PushError", "ensure_repository", "model_files", "push_folder"]

T = TypeVar("T")

OLD_WEIGHTS = (WEIGHTS, "model-*-of-*.safetensors", INDEX)
"""Weights in a repository, which make way for those of the folder."""

CARD, PUBLIC = "README.md", ("recipe.yaml", "metrics.json")
"""Files of a run that may name folders of this machine."""

LONGEST_WAIT = 300
"""Seconds to wait at most where the Hub asks for patience."""


class PushError(OSError):
    """What was not pushed, why, and what to do; in one sentence. What is on this machine is as it was."""


def ensure_repository(
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    what: str | Path = "the model",
    again: str = "try again",
) -> str:
    """Make the repository where there is none; its full id.

    Args:
        repo_id, private, token: as of [`push_folder`].
        what, again: for the sentence of an error: what is not pushed, and what to do once the reason is gone.

    Raises:
        PushError: where that is not possible, or the repository is public and `private` was asked for.
    """
    token = _checked_token(token, what, repo_id, again)
    api = HfApi(library_name="vanilla-transformer", token=token)
    try:
        full_id = _patiently(lambda: api.create_repo(repo_id, private=private, exist_ok=True)).repo_id
        if private and not _patiently(lambda: api.model_info(full_id)).private:
            raise ValueError(f"{full_id} is there already and is public; make it private first, or name another")
    except Exception as error:  # of the client, of httpx, of hf_xet: they have no base class in common
        raise _push_error(what, repo_id, error, again) from error
    return full_id


def push_folder(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    message: str = "Upload model",
) -> CommitInfo:
    """Push the model in a folder, in one commit. Weights in the repository that are not those of the folder go.

    Where the Hub is busy (429 and 5xx), it is asked again after the time that it names.

    Args:
        folder: of a finished run or a saved model.
        repo_id: such as `me/my-model`; made where there is none.
        private: of a repository that is made.
        revision: a branch, made where there is none; by default the main one.
        token: with the right to write; by default that of `hf auth login`, or of the environment variable HF_TOKEN.
        message: of the commit.

    Raises:
        FileNotFoundError: for a folder without a whole model.
        PushError: where it failed; the folder is as it was.
    """
    files = model_files(folder)
    # with all that decides where it goes and who sees it
    options = (" --private" if private else "") + (f" --revision {revision}" if revision else "")
    again = f"`vanilla-transformer push {folder} {repo_id}{options}`"
    token = _checked_token(token, folder, repo_id, again)
    full_id = ensure_repository(repo_id, private=private, token=token, what=folder, again=again)
    api = HfApi(library_name="vanilla-transformer", token=token)

    def commit() -> CommitInfo:
        there = api.list_repo_files(full_id, revision=revision)
        old = [name for name in there if name not in files and any(fnmatch(name, mask) for mask in OLD_WEIGHTS)]
        operations: list[Any] = [
            CommitOperationAdd(name, _content(name, path, full_id)) for name, path in files.items()
        ]
        operations += [CommitOperationDelete(name) for name in old]
        # not `upload_folder`, which may make several commits of one folder
        return api.create_commit(full_id, operations, commit_message=message, revision=revision)

    try:
        if revision is not None:
            _patiently(lambda: api.create_branch(full_id, branch=revision, exist_ok=True))
        return _patiently(commit)
    except Exception as error:  # as above
        raise _push_error(folder, repo_id, error, again) from error


def _checked_token(token: str | None, what: str | Path, repo_id: str, again: str) -> str:
    """Return the token that is given, or else kept on this machine.

    Raises:
        PushError: where there is none, or it cannot be one; it is not shown.
    """
    token = (token or "").strip() or get_token()
    reason = None
    if not token:
        reason = "there is no access token; log in with `hf auth login`, or set HF_TOKEN"
    elif not (token.isascii() and token.isprintable() and " " not in token):
        reason = "the access token holds a space, a line end or a character that no token has; copy it again"
    if reason:
        raise PushError(f"{what} was not pushed to {repo_id}: {reason}, then {again}.")
    return str(token)


def _content(name: str, path: Path, repo_id: str) -> str | bytes:
    """Return the file to upload, or what it says to the world: a card with the repository's id, names without folders."""
    if name not in (CARD, *PUBLIC):
        return str(path)
    try:
        text = path.read_text(encoding="utf-8")
        if name == CARD:
            return card_of_repository(text, repo_id).encode()
        # with bounds, as aliases of aliases would fill the memory
        values = public_values(coerce_scalars(parse_yaml(text)) if name.endswith(".yaml") else json.loads(text))
    except (ValueError, RecursionError):  # whatever it is, it was not written by a run
        return str(path)
    if name.endswith(".yaml"):
        return dump_yaml(values).encode()
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _patiently(request: Callable[[], T]) -> T:
    """Make a request again while the Hub is busy: the client itself does so for files only, not for a repository or commit."""
    for wait in (1, 2, 4, 8, None):
        try:
            return request()
        except HfHubHTTPError as error:
            if wait is None or error.response.status_code not in (429, 500, 502, 503, 504):
                raise
            limit = parse_ratelimit_headers(error.response.headers)
            named = error.response.headers.get("Retry-After", "")
            wait = int(named) if named.isdecimal() else limit.reset_in_seconds if limit else wait
            if wait > LONGEST_WAIT:
                raise
            time.sleep(wait)
    raise AssertionError


def _push_error(what: str | Path, repo_id: str, error: Exception, again: str) -> PushError:
    response = getattr(error, "response", None)
    status = None if response is None else response.status_code
    if status in (401, 403):
        reason = f"the Hub does not let this token write there (HTTP {status})"
        remedy = "log in with `hf auth login`, or give a token with the right to write, then"
    elif status == 404:
        reason, remedy = "the Hub finds no such repository or branch (HTTP 404)", "look at its name, then"
    elif status == 429:
        reason, remedy = "the Hub takes no more requests for now (HTTP 429)", "wait some minutes, then"
    elif status is None and isinstance(error, ValueError):
        # such as what the Hub has against the card, which may come with a list of all licences
        reason, remedy = shorten(hide_tokens(str(error)), 300, placeholder=" ...").rstrip("."), "then"
    else:
        cause = error.__cause__ or error
        said = hide_tokens(f"{type(cause).__name__}: {cause}".partition("\n")[0].rstrip(": ."))
        reason, remedy = f"the connection to {constants.ENDPOINT} failed ({said})", "when it is there again,"
    kept = "It is whole on this machine; " if Path(what).is_dir() else ""
    remedy = f"{remedy} {again}."
    return PushError(
        f"{what} was not pushed to {repo_id}: {reason}. {kept}{remedy if kept else remedy[0].upper() + remedy[1:]}"
    )
