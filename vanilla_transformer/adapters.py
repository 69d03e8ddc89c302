"""What PEFT has to know of this package's models."""

from collections.abc import Mapping
from typing import Any

__all__ = ["ADAPTED_LAYERS", "register"]

ADAPTED_LAYERS = ("q_proj", "v_proj")
"""Where adapters go unless a configuration names `target_modules`: as in the LoRA paper (Hu et al. 2021, section 4.2), the
queries and values of every attention. `target_modules="all-linear"` takes all layers but the output."""


def register(tables: Mapping[str, Any]) -> None:
    """Add the model type to PEFT's tables of default targets; entries that are there stay.

    Each of PEFT's methods has a table of its own. Those that go into BART's queries and values go into these, whose layers
    have the same names; the others (such as IA3) need `target_modules`.

    Args:
        tables: of `peft.utils.constants`, by their names.
    """
    for name, table in tables.items():
        if name.endswith("_TARGET_MODULES_MAPPING") and list(table.get("bart", ())) == list(ADAPTED_LAYERS):
            table.setdefault("vanilla_transformer", list(ADAPTED_LAYERS))
