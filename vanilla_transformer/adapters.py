"""What PEFT has to know of this package's models."""

from collections.abc import Mapping
from typing import Any

__all__ = ["ADAPTED_LAYERS", "register"]

ADAPTED_LAYERS = ("q_proj", "v_proj")
"""Where adapters go unless a configuration names `target_modules`: as in the LoRA paper (Hu et al. 2021, section 4.2), the
queries and values of every attention. `target_modules="all-linear"` takes all layers but the output."""

SAME_AS_IN_BART = {
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
    "out_proj": "o_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "self_attn_layer_norm": "self_attn_norm",
    "encoder_attn_layer_norm": "cross_attn_norm",
    "final_layer_norm": "feed_forward_norm",
}
"""Layers of BART, by the parts of their names that PEFT looks for, and what is called so here."""


def register(tables: Mapping[str, Any]) -> None:
    """Add the model type to PEFT's tables of default targets; entries that are there stay.

    Each of PEFT's methods has a table of its own, and BART is in nearly all of them: a method goes here into the layers that
    play the parts of those that it goes into there. Layers that PEFT finds nowhere in a model are passed over.

    Args:
        tables: of `peft.utils.constants`, by their names.
    """
    for name, table in tables.items():
        layers = table.get("bart", ()) if name.endswith("_MODULES_MAPPING") else ()
        if layers and all(layer in SAME_AS_IN_BART for layer in layers):
            table.setdefault("vanilla_transformer", [SAME_AS_IN_BART[layer] for layer in layers])
