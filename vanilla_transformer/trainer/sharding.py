"""Models whose parameters are sharded over processes (FSDP2): before training, and after it."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from vanilla_transformer.errors import RecipeError


def check_device(device: torch.device) -> None:
    """Refuse a launch with FSDP on processors, where accelerate 1.15 leaves the whole model in each process without a word.

    Raises:
        RecipeError: naming another way of launching.
    """
    if device.type == "cpu" and os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("true", "1"):
        raise RecipeError(
            "FSDP (scripts/launch/fsdp2.yaml) shards a model over accelerators, and there are none here; start with "
            "torchrun, or accelerate launch without that file: each process then keeps the whole model."
        )


def check_plugin(plugin: FullyShardedDataParallelPlugin) -> None:
    """Refuse what a run cannot be made with.

    Raises:
        RecipeError: for FSDP1, and for checkpoints in pieces.
    """
    if plugin.fsdp_version != 2 or plugin.state_dict_type != StateDictType.FULL_STATE_DICT:
        raise RecipeError(
            f"runs need FSDP with fsdp_version 2 and fsdp_state_dict_type FULL_STATE_DICT, not {plugin.fsdp_version} and "
            f"{getattr(plugin.state_dict_type, 'name', plugin.state_dict_type)}; scripts/launch/fsdp2.yaml sets both."
        )


@contextmanager
def embeddings_in_root_group(model: PreTrainedModel) -> Iterator[None]:
    """Put embeddings and output projection, while a model is prepared for FSDP2, where what belongs to no layer goes.

        with embeddings_in_root_group(model):
            model, optimizer = accelerator.prepare(model, optimizer)

    FSDP2 of torch 2.13 refuses a parameter that two groups of modules see. accelerate 1.15 groups the model's input
    embedding with its output projection and leaves the rest to the root, which here would see the same matrix in the
    decoder. In the root they are together, whatever is tied, and at hand in the whole of a forward. accelerate finds
    them by the model's `get_input_embeddings` and `get_output_embeddings`, so these say nothing meanwhile.
    """

    def nothing() -> None:
        return None

    model.get_input_embeddings = model.get_output_embeddings = nothing  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del model.get_input_embeddings, model.get_output_embeddings


def without_tied_copies(model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights as they are saved: of a matrix that is gathered once for each place that uses it, one stays."""
    return {name: tensor for name, tensor in weights.items() if name not in model.all_tied_weights_keys}


def is_sharded(model: nn.Module) -> bool:
    """Return whether parameters of the model are sharded over processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def gather_model(accelerator: Accelerator, model: Any) -> PreTrainedModel:
    """Return an ordinary model with the weights of a sharded one, on every process; all of them must call this.

    It is in memory as a whole: what is trained here is sharded to train faster or with larger batches, and fits.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    # fully_shard gives a model a class of its own, derived from the one it had
    head = next(cls for cls in type(model).__mro__[1:] if issubclass(cls, PreTrainedModel))
    whole = head(model.config)
    whole.load_state_dict(weights)
    whole.tie_weights()
    if whole.can_generate():
        whole.generation_config = copy.deepcopy(model.generation_config)
    return whole.to(accelerator.device).eval()
