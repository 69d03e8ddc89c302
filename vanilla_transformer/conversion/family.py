"""What is to be known of a family of transformers' models: its table of weights, and its settings in terms of ours."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

from .links import ConversionError, Link

__all__ = ["OF_TRAINING", "Family", "Only", "differences", "shape_of"]

Fields = dict[str, Any]

TOKEN_IDS = {name: name for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")}


@dataclass(frozen=True)
class Only:
    """The one value of a setting of theirs that our models can hold, and what any other means."""

    value: Any
    meaning: str


@dataclass(frozen=True)
class Family:
    """A family of models in transformers.

    Args:
        name: its `model_type`.
        heads: its classes, each with the class of ours that holds its models; the first one for models that name none.
        prefix: what stands before the names of weights in models with a head, but not in those without.
        links: the table of weights, names being those of models with a head.
        fixed: fields of ours that are the same in each of its models.
        same: fields of ours that are settings of theirs, by name.
        only: settings of theirs that have to be as said.
        to_ours: more fields of ours, from a configuration of theirs.
        to_theirs: more settings of theirs, from a configuration of ours; what it cannot hold comes back different from
            `fields`, and so is found.
        copies: tensors of theirs that hold what another does.
        computed: tensors of theirs that follow from a formula, which is checked.
        dropped: beginnings of names of weights that have no place here, `{n}` where layers are counted, and what they are for.
        training: settings of theirs that have no place here and matter only in training.
        options: what classes of theirs are built with, by name.
        ties_by_weights: whether the output matrix is the embedding is not a setting: it is where they are equal.
        head_activation: of what transforms states before the output projection; `None` for that of the layers.
        counts_padding: positions are places in a row, so that padding on the left moves tokens.
    """

    name: str
    heads: Mapping[str, str]
    prefix: str
    links: tuple[Link, ...]
    fixed: Fields
    same: Mapping[str, str]
    only: Mapping[str, Only] = field(default_factory=dict)
    to_ours: Callable[[PreTrainedConfig], Fields] = lambda config: {}
    to_theirs: Callable[[VanillaTransformerConfig], Fields] = lambda config: {}
    copies: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    training: tuple[str, ...] = ()
    options: Mapping[str, Fields] = field(default_factory=dict)
    ties_by_weights: bool = False
    head_activation: str | None = None
    counts_padding: bool = False

    def fields(self, config: PreTrainedConfig) -> Fields:
        """The fields of our configuration for one of theirs.

        Raises:
            ConversionError: for a setting that our models do not have.
        """
        for name, only in self.only.items():
            value = getattr(config, name, only.value)
            if value != only.value:
                raise ConversionError(
                    f"{self.name}: {name}={value!r} cannot be converted, as {only.meaning}; only {only.value!r} can."
                )
        fields = {ours: getattr(config, theirs, None) for ours, theirs in {**TOKEN_IDS, **self.same}.items()}
        return {**self.fixed, **fields, **self.to_ours(config)}

    def settings(self, config: VanillaTransformerConfig) -> Fields:
        """The settings of their configuration for one of ours."""
        settings = {theirs: getattr(config, ours) for ours, theirs in {**TOKEN_IDS, **self.same}.items()}
        settings["decoder_start_token_id"] = config.start_token_id
        if config.start_token_id is None or not config.is_encoder_decoder:
            del settings["decoder_start_token_id"]
        return {**settings, **self.to_theirs(config)}


# What differs only in training, or is not read by a model at all; any family's class runs the model all the same.
OF_TRAINING = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "label_smoothing",
    "label_smoothing_form",
    "init_scheme",
    "initializer_range",
)


def shape_of(config: VanillaTransformerConfig, has_head: bool) -> Fields:
    """What decides the outputs of a model, by field: derived values filled in, and fields left out that nothing reads.

    Args:
        has_head: whether the model writes tokens.
    """
    shape = {
        name: getattr(config, name)
        for name in (
            "architecture",
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "hidden_act",
            "gated_feed_forward",
            "norm_type",
            "norm_position",
            "norm_eps",
            "position_encoding",
            "embedding_norm",
            "type_vocab_size",
            "scale_embedding",
            "attention_bias",
            "mlp_bias",
            "shared_layers",
            "sliding_window",
        )
    }
    shape["final_norm"] = config.has_final_norm
    shape["attention_output_bias"] = config.has_attention_output_bias
    shape["embedding_size"] = config.embedding_width
    width: int = config.head_dim  # type: ignore[assignment]  # filled in by the configuration
    shape["attention_scale"] = width**-0.5 if config.attention_scale is None else config.attention_scale
    if config.norm_type == "layernorm":
        shape["norm_bias"] = config.norm_bias
    if config.position_encoding in ("learned", "sinusoidal"):
        shape["position_offset"] = config.position_offset
    of_positions = {
        "learned": ["max_position_embeddings"],
        "sinusoidal": ["sinusoidal_form"],
        "rope": ["rope_theta"],
        "relative": ["relative_attention_num_buckets", "relative_attention_max_distance"],
    }
    shape |= {name: getattr(config, name) for name in of_positions.get(config.position_encoding, [])}
    if config.is_encoder_decoder:
        shape["decoder_layers"] = config.num_decoder_layers
        shape["target_vocab_size"] = config.output_vocab_size
        shape["share_encoder_decoder_embeddings"] = config.has_shared_embeddings
    if has_head:
        shape |= {
            name: getattr(config, name)
            for name in ("tie_word_embeddings", "output_transform", "output_bias", "output_scale")
        }
    return shape


def differences(one: Fields, other: Fields) -> list[str]:
    """Names of the fields that are not the same in two shapes."""
    missing = object()

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, float) and isinstance(b, (int, float)):
            return math.isclose(a, b, rel_tol=1e-9)
        return bool(a == b)

    return [name for name in {**one, **other} if not same(one.get(name, missing), other.get(name, missing))]
