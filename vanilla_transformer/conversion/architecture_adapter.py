"""What is to be known of a family of transformers' models: its table of weights, and its settings as fields of ours.

A new family, in this order:

1. `conversion/families/NAME.py` with one [`ArchitectureAdapter`], beside the one that is nearest: copy `llama.py` for decoders,
   `bert.py` for encoders, `bart.py` for encoder-decoders. Names of weights are in the model's `state_dict()`, settings in its
   configuration. What its models do otherwise than ours is either a field of ours, or `required`, or an error of `extra_fields`.
2. A line in `families/__init__.py`; to_transformers tries the families in the order that stands there.
3. A `Case` for each variant in `tests/families.py`: every test of `tests/test_conversion.py` that goes over `LANGUAGE_MODELS` or
   `ALL_MODELS` then holds for it (outputs, greedy and beam tokens, every weight, the way back bit by bit, folders, half precision).
   Settings that are refused get a line in `test_settings_without_a_place_are_refused`; a published configuration that a preset
   names, one in `PUBLISHED`.
4. Its line in the table of `conversion/README.md`.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.weight_mapping import LAYER, ConversionError, WeightMapping, Weights

__all__ = ["TRAINING_FIELDS", "ArchitectureAdapter", "Fields", "Required", "alike", "differences", "shape_of"]

Fields = dict[str, Any]


def alike(names: str) -> dict[str, str]:
    """Return the part of a table of names that are the same on both sides, from these names with spaces between."""
    return {name: name for name in names.split()}


TOKEN_IDS = alike("pad_token_id bos_token_id eos_token_id decoder_start_token_id")


@dataclass(frozen=True)
class Required:
    """The one value of a setting of the source that our models can hold, and what any other means."""

    value: Any
    meaning: str


@dataclass(frozen=True)
class ArchitectureAdapter:
    """A family of models of transformers (the source) and how this package's models (the target) hold it.

    Args:
        name: the source's `model_type`.
        heads: classes of the source, each with the class of the target; the first one for models that name none.
        prefix: what stands before the names of weights in source models with a head, but not in those without.
        weights: the table of weights, names being those of models with a head.
        fixed: fields of the target that are the same in each of its models.
        same: fields of the target that are settings of the source, by name.
        required: settings of the source that have to be as said.
        extra_fields: more fields of the target, from a configuration of the source.
        extra_settings: more settings of the source, from a configuration of the target; what it cannot hold comes back different
            from `target_fields`, and so is found.
        copies: tensors of the source that hold what another does.
        computed: tensors of the source that follow from a formula, which is checked.
        ignored: beginnings of names of weights without a place here, `{n}` where layers are counted, and what they are for.
        training: settings of the source that have no place here and matter only in training.
        options: what classes of the source are built with, by name.
        ties_by_weights: whether the output matrix is the embedding is not a setting: it is where they are equal.
        head_activation: of what transforms states before the output projection; `None` for that of the layers.
        counts_padding: positions are places in a row, so that padding on the left moves tokens.
        interleaved: modules of the target whose heads have the two numbers of a rotary pair side by side in the source, where
            here they are half a head apart.
    """

    name: str
    heads: Mapping[str, str]
    prefix: str
    weights: tuple[WeightMapping, ...]
    fixed: Fields
    same: Mapping[str, str]
    required: Mapping[str, Required] = field(default_factory=dict)
    extra_fields: Callable[[PreTrainedConfig], Fields] = lambda config: {}
    extra_settings: Callable[[VanillaTransformerConfig], Fields] = lambda config: {}
    copies: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    training: tuple[str, ...] = ()
    options: Mapping[str, Fields] = field(default_factory=dict)
    ties_by_weights: bool = False
    head_activation: str | None = None
    counts_padding: bool = False
    interleaved: tuple[str, ...] = ()

    def target_fields(self, config: PreTrainedConfig) -> Fields:
        """Return the fields of a configuration of this package for one of the source.

        Raises:
            ConversionError: for a setting that our models do not have.
        """
        for name, required in self.required.items():
            value = getattr(config, name, required.value)
            if value != required.value:
                raise ConversionError(
                    f"{self.name}: {name}={value!r} cannot be converted, as {required.meaning}; only {required.value!r} can."
                )
        fields = {target: getattr(config, source, None) for target, source in {**TOKEN_IDS, **self.same}.items()}
        return {**self.fixed, **fields, **self.extra_fields(config)}

    def source_settings(self, config: VanillaTransformerConfig) -> Fields:
        """Return the settings of the source's configuration for one of this package."""
        settings = {source: getattr(config, target) for target, source in {**TOKEN_IDS, **self.same}.items()}
        settings["decoder_start_token_id"] = config.start_token_id
        if config.start_token_id is None or not config.is_encoder_decoder:
            del settings["decoder_start_token_id"]
        return {**settings, **self.extra_settings(config)}

    def reorder_pairs(self, weights: Weights, head_dim: int, *, back: bool = False) -> Weights:
        """Return weights of the target with the rows of `interleaved` modules in our order, or `back` in the source's."""
        order = torch.arange(head_dim).view(-1, 2).t().flatten()  # 0, 2, 4, ..., 1, 3, 5, ...
        order = order.argsort() if back else order
        return {
            name: tensor.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)
            if name.rpartition(".")[0].endswith(self.interleaved or ("\n",))
            else tensor
            for name, tensor in weights.items()
        }

    def source_class(self, target_class: str) -> str | None:
        """Return the name of the source's class for one of this package, or None where it has none."""
        return next((source for source, target in self.heads.items() if target == target_class), None)

    def is_bare(self, model: Any) -> bool:
        """Return whether the names of a source model's weights lack the prefix that they have in models with a head."""
        return bool(self.prefix) and not hasattr(model, self.prefix.removesuffix("."))

    def purpose_of_ignored(self, name: str) -> str | None:
        """Return what a weight of the source without a place here is for, or None for one that has a place."""
        for start, purpose in self.ignored.items():
            if re.match(re.escape(start).replace(re.escape(LAYER), r"\d+"), name):
                return purpose
        return None


# What differs only in training, or is not read by a model at all; any family's class runs the model all the same.
TRAINING_FIELDS = (
    *("dropout", "attention_dropout", "activation_dropout"),
    *("label_smoothing", "label_smoothing_form", "init_scheme", "initializer_range"),
)

SHAPE_FIELDS = (
    *("architecture", "vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "hidden_act", "gated_feed_forward"),
    *("norm_type", "norm_position", "norm_eps", "position_encoding", "embedding_norm", "type_vocab_size"),
    *("scale_embedding", "attention_bias", "mlp_bias", "shared_layers", "sliding_window", "qk_norm"),
)
POSITION_FIELDS = {
    "learned": ("position_offset", "max_position_embeddings"),
    "sinusoidal": ("position_offset", "sinusoidal_form"),
    "rope": ("rope_theta", "rotary_scaling", "partial_rotary_factor"),
    "relative": ("relative_attention_num_buckets", "relative_attention_max_distance"),
}
HEAD_FIELDS = ("tie_word_embeddings", "output_transform", "output_bias", "output_scale")


def shape_of(config: VanillaTransformerConfig, has_head: bool) -> Fields:
    """Return what decides the outputs of a model, by field: derived values filled in, fields left out that nothing reads.

    Args:
        has_head: whether the model writes tokens.
    """
    shape = {name: getattr(config, name) for name in SHAPE_FIELDS}
    shape["value_head_dim"] = config.value_dim
    shape["layer_types"] = config.attention_kinds
    shape["final_norm"] = config.has_final_norm
    shape["attention_output_bias"] = config.has_attention_output_bias
    shape["embedding_size"] = config.embedding_width
    width: int = config.head_dim  # type: ignore[assignment]  # filled in by the configuration
    shape["attention_scale"] = width**-0.5 if config.attention_scale is None else config.attention_scale
    if config.norm_type == "layernorm":
        shape["norm_bias"] = config.norm_bias
    shape |= {name: getattr(config, name) for name in POSITION_FIELDS.get(config.position_encoding, ())}
    if config.is_encoder_decoder:
        shape["decoder_layers"] = config.num_decoder_layers
        shape["target_vocab_size"] = config.output_vocab_size
        shape["share_encoder_decoder_embeddings"] = config.has_shared_embeddings
    return shape | {name: getattr(config, name) for name in (HEAD_FIELDS if has_head else ())}


def differences(one: Fields, other: Fields) -> list[str]:
    """Return the names of the fields that are not the same in two shapes."""
    missing = object()

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, (int, float)):
            return math.isclose(a, b, rel_tol=1e-9)
        return bool(a == b)

    return [name for name in {**one, **other} if not same(one.get(name, missing), other.get(name, missing))]
