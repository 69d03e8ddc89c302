"""What keeps a family of transformers from holding a model of this package, and the other form in which it can."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import transformers

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter, Fields, differences, shape_of
from vanilla_transformer.conversion.rewriting import REWRITINGS, rewrite_field
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerLMHeadModel,
    VanillaTransformerPreTrainedModel,
)
from vanilla_transformer.utils.log import Log
from vanilla_transformer.utils.quiet import quiet

__all__ = ["Obstacles", "describe_fields", "find_obstacles", "rewrite_for"]


@dataclass
class Obstacles:
    """Why a family cannot hold a model: fields that it does not have, or what its configuration says.

    Attributes:
        fields: that differ.
        reason: what the configuration of the family says, where it says something.
        wanted: the values that fields have in the model that the family would hold, where they are known.
    """

    fields: list[str]
    reason: str | None = None
    wanted: Fields = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fields) or self.reason is not None

    def describe(self, config: VanillaTransformerConfig) -> str:
        """Return what is in the way, with its value in a configuration, for a sentence."""
        return ", ".join([*describe_fields(self.fields, config), *([self.reason] if self.reason else [])])


def describe_fields(names: Iterable[str], config: VanillaTransformerConfig) -> list[str]:
    """Return fields with the values that are compared; one that a family alone reads has that of the configuration."""
    shape = shape_of(config, has_head=True)
    return [f"{name}={shape.get(name, getattr(config, name))!r}" for name in names]


def find_obstacles(
    family: ArchitectureAdapter, source_class: str, model: VanillaTransformerPreTrainedModel
) -> Obstacles:
    """Return what keeps a class of a family from holding a model; nothing where it can."""
    writes = isinstance(model, VanillaTransformerLMHeadModel)
    shape = shape_of(model.config, writes)
    try:
        with quiet():
            config = getattr(transformers, source_class).config_class(**family.source_settings(model.config))
        held = VanillaTransformerConfig(**family.target_fields(config))
    except (ValueError, TypeError) as error:
        never = [name for name, value in family.fixed.items() if name in shape and shape[name] != value]
        return Obstacles(never, None if never else " ".join(str(error).split()).rstrip("."), dict(family.fixed))
    wanted = shape_of(held, writes)
    found = differences(shape, wanted)
    if writes and family.ties_by_weights and "tie_word_embeddings" in found:
        found.remove("tie_word_embeddings")
    if writes and family.head_activation not in (None, model.config.hidden_act):
        found.append("hidden_act")
    return Obstacles(found, wanted=wanted)


def rewrite_for(
    family: ArchitectureAdapter, source_class: str, model: VanillaTransformerPreTrainedModel, log: Log
) -> VanillaTransformerPreTrainedModel | None:
    """Return a model with the same outputs that the family can hold, or None where rewriting does not lead there.

    Args:
        log: gets a line for each field that is rewritten.
    """
    lines: list[str] = []
    for _ in range(len(REWRITINGS) + 1):
        obstacles = find_obstacles(family, source_class, model)
        if not obstacles:
            for line in lines:
                log(line)
            return model
        # the first field that can be rewritten, as others may follow from it
        for name in filter(obstacles.wanted.__contains__, obstacles.fields):
            with quiet():
                rewritten = rewrite_field(model, name, obstacles.wanted[name])
            if rewritten is not None:
                before, after = getattr(model.config, name), getattr(rewritten.config, name)
                exact = "" if name != "norm_eps" else ", which changes outputs a little"
                lines.append(f"{name}={before!r} is written as {after!r} for {family.name}{exact}.")
                model = rewritten
                break
        else:
            return None
    return None
