"""Errors that the processes of one run share, so that all end where one of them fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import gather_object

from vanilla_transformer.errors import RecipeError


@contextmanager
def agree_on_errors() -> Iterator[None]:
    """End all processes where one of them has an error in the block, after it: the first raises it, the others end silently.

    All processes must enter and leave it, and must not wait for each other inside.

    Raises:
        RecipeError: on the first process, for an error of another one, which is named.
        SystemExit: on the others, with status 2.
    """
    if not _several():
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    errors = gather_object([None if error is None else (torch.distributed.get_rank(), str(error))])
    failed = [found for found in errors if found is not None]
    if not failed:
        return
    if torch.distributed.get_rank() != 0:
        raise SystemExit(2) from error
    if error is not None:
        raise error
    rank, text = failed[0]
    raise RecipeError(f"process {rank} of {torch.distributed.get_world_size()}: {text}")


def _several() -> bool:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return ready and torch.distributed.get_world_size() > 1
