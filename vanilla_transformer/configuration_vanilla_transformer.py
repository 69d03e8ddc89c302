# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The specification of a model: every architectural choice as a typed, validated field with its reason.

The defaults are the base model of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762), to the letter.
A checkpoint carries this file to the Hub, so it imports nothing but transformers and files that go with it.
"""

import copy
import difflib
import importlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, ClassVar, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)
ConfigClass = TypeVar("ConfigClass", bound=PreTrainedConfig)

# Keyword arguments that transformers itself hands to every configuration, beside the declared fields.
_TRANSFORMERS_KEYWORDS = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
}


# Fields of the first version, which its files hold at any value. A field that came later is left out of files while it has
# its default, so that every version reads the models of every other one that do not use what it does not know.
_FIELDS_OF_FIRST_VERSION = frozenset(
    """
    activation_dropout architecture attention_bias attention_dropout attention_output_bias attention_scale bos_token_id
    decoder_layers decoder_start_token_id dropout embedding_norm embedding_size eos_token_id final_norm gated_feed_forward
    head_dim hidden_act hidden_size init_scheme initializer_range intermediate_size is_decoder label_smoothing
    label_smoothing_form max_position_embeddings mlp_bias norm_bias norm_eps norm_position norm_type num_attention_heads
    num_hidden_layers num_key_value_heads output_bias output_scale output_transform pad_token_id position_encoding
    position_offset relative_attention_max_distance relative_attention_num_buckets rope_theta scale_embedding
    share_encoder_decoder_embeddings shared_layers sinusoidal_form sliding_window target_vocab_size tie_word_embeddings
    type_vocab_size use_cache vocab_size
    """.split()  # noqa: SIM905
)

# Numbers that each scaling of rotary frequencies needs, and those that it may have.
_ROPE_NUMBERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
}

# Where transformers finds the classes in the files that are saved with a model, for `trust_remote_code=True`.
_MODELING = "modeling_vanilla_transformer.VanillaTransformer"
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": f"{_MODELING}Model",
    "AutoModelForCausalLM": f"{_MODELING}ForCausalLM",
    "AutoModelForMaskedLM": f"{_MODELING}ForMaskedLM",
    "AutoModelForQuestionAnswering": f"{_MODELING}ForQuestionAnswering",
    "AutoModelForSeq2SeqLM": f"{_MODELING}ForConditionalGeneration",
    "AutoModelForSequenceClassification": f"{_MODELING}ForSequenceClassification",
    "AutoModelForTokenClassification": f"{_MODELING}ForTokenClassification",
}


class ConfigurationError(ValueError):
    """A configuration that no model of this version can have."""


def _refuse(config_class: type, message: str) -> ConfigurationError:
    return ConfigurationError(f"{config_class.__name__}: {message}")


def _of_package(module: str) -> Any:
    """Import a module of the installed package, which does not travel with checkpoints as this file does."""
    try:
        return importlib.import_module(f"vanilla_transformer.{module}")
    except ModuleNotFoundError as error:
        what = module.replace("_", " ")
        raise ImportError(
            f"{what} do not travel with a model; pip install vanilla_transformer to have them."
        ) from error


def _hint(name: str, choices: Iterable[str], otherwise: str) -> str:
    """The choice that is nearest to a name, or, where none is near, another remedy."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _is_known(config_class: type[PreTrainedConfig], name: str) -> bool:
    """Whether a field, or one of the paper's names, or something that transformers keeps in configurations."""
    return (
        name in config_class.attribute_map
        or name in _TRANSFORMERS_KEYWORDS
        or name.startswith("_")
        or name in {field.name for field in fields(config_class)}
    )


def _default(field: Field) -> Any:
    """Return the default of a dataclass field, `MISSING` for none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _canonical_fields(config_class: type[PreTrainedConfig], given: dict[str, Any]) -> dict[str, Any]:
    """Translate the paper's names to the canonical ones, and refuse contradictions and unknown names.

    Raises:
        ValueError: for a name that is no field (naming the nearest one), and for two names of one field that are
            given different values.
    """
    aliases = config_class.attribute_map
    canonical: dict[str, Any] = {}
    for name, value in given.items():
        if not _is_known(config_class, name):
            if name in GenerationConfig().to_dict():
                raise _refuse(
                    config_class,
                    f"{name!r} is a setting of generation, not of the model; set it on model.generation_config.",
                )
            known = sorted({field.name for field in fields(config_class)} | set(aliases))
            hint = _hint(name, known, "no field has a name like it.")
            raise _refuse(config_class, f"unknown field {name!r}; {hint}")
        target = aliases.get(name, name)
        if target in canonical and canonical[target] != value:
            other = next(n for n in given if n != name and aliases.get(n, n) == target)
            raise _refuse(
                config_class,
                f"{other}={given[other]!r} and {name}={value!r} are two names of one field; give one of them.",
            )
        canonical[target] = value
    return canonical


def _checked_at_the_border(config_class: type[ConfigClass]) -> type[ConfigClass]:
    """Accept the paper's names in `__init__` and turn type errors of single fields into one sentence."""
    initialise = config_class.__init__  # type: ignore[misc]

    @wraps(initialise)
    def __init__(self, **given: Any) -> None:
        try:
            initialise(self, **_canonical_fields(config_class, given))
        except StrictDataclassFieldValidationError as error:
            raise _refuse(config_class, str(error.__cause__)) from error

    config_class.__init__ = __init__  # type: ignore[misc, method-assign]
    return config_class


@_checked_at_the_border
@strict
class VanillaTransformerConfig(PreTrainedConfig):
    r"""Configuration of every model of this package.

    Keyword-only. The paper's names `d_model`, `d_ff` and `encoder_layers` are accepted and can be read; files hold the
    canonical names. An unknown name, a value of the wrong type and a combination that no model can have end in a
    `ValueError` of one sentence.

    Args:
        architecture: Which stacks are built: `"encoder-decoder"` (section 3.1), `"encoder-only"` or `"decoder-only"`.
            Sets `is_encoder_decoder` and `is_decoder`.
        vocab_size: Number of tokens; of the source side where `target_vocab_size` is given.
        target_vocab_size: `None` for one vocabulary shared by both sides (section 5.1), else the target side's size.
        hidden_size (`d_model`): Width of the residual stream.
        num_hidden_layers (`encoder_layers`): Depth of the encoder, or of the only stack.
        decoder_layers: Depth of the decoder; `None` for as many as `num_hidden_layers`.
        num_attention_heads: Query heads of every attention.
        num_key_value_heads: Key and value heads; `None` for one per query head (multi-head attention), fewer for
            grouped-query, one for multi-query attention.
        head_dim: Width of a head; `None` for `hidden_size // num_attention_heads`.
        value_head_dim: Width of a head's values, d_v of the paper; `None` for `head_dim`, which is then d_k and d_v.
        intermediate_size (`d_ff`): Inner width of the feed-forward network (section 3.3).
        hidden_act: Its activation, a name of `transformers.activations.ACT2FN`.
        gated_feed_forward: Multiply the activation by a second projection (GLU family; SwiGLU is `silu` gated).
        norm_type: `"layernorm"` or `"rmsnorm"`.
        norm_position: `"post"`: `norm(x + dropout(sublayer(x)))` as in section 5.4; `"pre"`:
            `x + dropout(sublayer(norm(x)))`, with one more norm at the end of each stack.
        norm_eps: Added to the variance. The paper's own code has 1e-6.
        norm_bias: Biases of layer norms; an RMS norm has none.
        final_norm: A norm at the end of each stack; `None` for one where `norm_position="pre"`, whose layers end in none.
        position_encoding: `"sinusoidal"` (section 3.5), `"learned"`, `"rope"` (rotary, Su et al. 2021: queries and keys of
            self-attention are turned by their positions, so that scores depend on distances), `"alibi"` (Press et al. 2022:
            scores fall with distance, in each head at its own rate), `"relative"` (T5: a learned number for each head and
            bucket of distances is added to scores) or `"none"`.
        sinusoidal_form: Where sine and cosine stand. `"interleaved"`, as section 3.5 has it; `"concatenated"`, all sines
            before all cosines (Marian); `"fairseq"`, so too, with frequencies from 1 to exactly 1/10000 (tensor2tensor,
            fairseq, FSMT).
        position_offset: Number of the first position: 2 in BART, RoBERTa and fairseq. A learned table has so many more rows.
        rope_theta: Base of the rotary frequencies; Su et al. 2021 have 10000.
        rope_parameters: How rotary frequencies are scaled for long contexts, in transformers' own form: `rope_type` is
            `"linear"`, `"dynamic"`, `"yarn"` or `"llama3"`, and the numbers that it needs stand beside it; or one such for
            each kind in `layer_types`, with a `rope_theta` of its own. `None` for none.
        partial_rotary_factor: Part of a head that is turned by its position, from its first number on (GPT-NeoX, Phi).
        relative_attention_num_buckets, relative_attention_max_distance: Of `position_encoding="relative"`: half of the
            buckets hold one distance each, the others ever more, up to this one (T5).
        max_position_embeddings: Longest sequence the model is meant for. Only a learned table is a hard limit.
        embedding_size: Width of the embeddings, which are projected to `hidden_size` (ALBERT, ELECTRA); `None` for
            `hidden_size` and no projection.
        embedding_norm: A norm over the sum of embeddings (BERT, BART).
        type_vocab_size: Number of token types, each with an embedding (BERT); 0 for none.
        scale_embedding: Multiply token embeddings by the root of their width (section 3.4). The model scales, not the
            embedding table, so `inputs_embeds` are plain rows of the table and are scaled once as well.
        tie_word_embeddings: The output projection is the embedding of the side that is written (section 3.4).
        share_encoder_decoder_embeddings: Encoder and decoder embed by one matrix; `None` for as `tie_word_embeddings` says,
            and never with separate vocabularies. So one matrix serves in three places (the paper), in two (fairseq's
            share-decoder-input-output-embed, T5 1.1) or in one.
        output_transform: Before the output projection a dense layer to the width of the embeddings, activation and norm
            (the masked language models of BERT, ALBERT, ELECTRA).
        output_bias: Bias of the output projection: `"none"`; `"trained"` (BERT, OpenNMT); `"fixed"`, which is saved but not
            trained (Marian, BART).
        output_scale: States are multiplied by it before the output projection (T5: `hidden_size ** -0.5`).
        dropout: On the output of every sublayer before it is added, and on the sum of embeddings and positions
            (section 5.4).
        attention_dropout: On attention probabilities; the paper has none.
        activation_dropout: On the activation inside the feed-forward network; the paper has none.
        attention_bias, mlp_bias: Biases of the attention and feed-forward projections.
        attention_output_bias: Bias of attention's output projection; `None` for as `attention_bias` (Qwen2: without).
        attention_scale: Multiplies the scores; `None` for `head_dim ** -0.5` (section 3.2.1; T5: 1).
        qk_norm: `"rmsnorm"` or `"layernorm"` over the queries and the keys of each head, before they are turned (Qwen3).
        shared_layers: All layers of a stack are one, which is run as often as the stack is deep (ALBERT).
        sliding_window: Local attention: a token of a decoder attends to so many tokens, itself the last of them; one
            of an encoder to so many on either side. Cross-attention sees the whole source. `None` for full attention.
        layer_types: Which layers of a stack have the window: `"sliding_attention"` or `"full_attention"` for each; `None`
            for all or none, by `sliding_window`.
        label_smoothing: Part of the target distribution spread evenly over the vocabulary (section 5.4) in the model's
            own loss, in training and evaluation alike.
        label_smoothing_form: `"uniform"`: `label_smoothing / V` for each of all V tokens (Szegedy et al. 2016, PyTorch), or
            `"others"`: `label_smoothing / (V - 1)` for each wrong one (tensor2tensor, fairseq).
        init_scheme: `"paper"` (Xavier uniform, embeddings normal with variance 1/hidden_size: tensor2tensor's
            `uniform_unit_scaling`), `"fairseq"` (the same with gain 1/sqrt(2) for query, key and value) or `"normal"`
            (transformers' normal with `initializer_range`).
        initializer_range: Standard deviation of `init_scheme="normal"`.
        pad_token_id, bos_token_id, eos_token_id: Special tokens; the embedding row of the padding token starts at zero.
        decoder_start_token_id: First decoder input; `None` for `bos_token_id`.
        use_cache: Return the key-value cache from decoders.
        task_specific_params: Settings of pipelines by task, such as `{"translation_en_to_de": {"prefix": ...}}` (T5).

    Example:
        >>> config = VanillaTransformerConfig()
        >>> config.num_parameters()
        63082496
    """

    model_type = "vanilla_transformer"
    attribute_map: ClassVar[dict[str, str]] = {
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "encoder_layers": "num_hidden_layers",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "encoder_last_hidden_state"]
    _auto_class: ClassVar[str | None] = "AutoConfig"  # so that transformers saves this file with every model

    architecture: Literal["encoder-decoder", "encoder-only", "decoder-only"] = "encoder-decoder"
    vocab_size: int = 37000
    target_vocab_size: int | None = None
    hidden_size: int = 512
    num_hidden_layers: int = 6
    decoder_layers: int | None = None
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    value_head_dim: int | None = None
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    gated_feed_forward: bool = False
    norm_type: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_position: Literal["post", "pre"] = "post"
    norm_eps: float = 1e-6
    norm_bias: bool = True
    final_norm: bool | None = None
    position_encoding: Literal["sinusoidal", "learned", "rope", "alibi", "relative", "none"] = "sinusoidal"
    sinusoidal_form: Literal["interleaved", "concatenated", "fairseq"] = "interleaved"
    position_offset: int = 0
    rope_theta: float | int = 10000.0
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | int = 1.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    max_position_embeddings: int = 1024
    embedding_size: int | None = None
    embedding_norm: bool = False
    type_vocab_size: int = 0
    scale_embedding: bool = True
    tie_word_embeddings: bool = True
    share_encoder_decoder_embeddings: bool | None = None
    output_transform: bool = False
    output_bias: Literal["none", "trained", "fixed"] = "none"
    output_scale: float | int = 1.0
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    attention_bias: bool = True
    attention_output_bias: bool | None = None
    attention_scale: float | int | None = None
    qk_norm: Literal["rmsnorm", "layernorm"] | None = None
    mlp_bias: bool = True
    shared_layers: bool = False
    sliding_window: int | None = None
    layer_types: list[str] | None = None
    label_smoothing: float | int = 0.0
    label_smoothing_form: Literal["uniform", "others"] = "uniform"
    init_scheme: Literal["paper", "fairseq", "normal"] = "paper"
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = None
    use_cache: bool = True
    task_specific_params: dict[str, Any] | None = None
    is_decoder: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self.is_encoder_decoder = self.architecture == "encoder-decoder"
        self.is_decoder = self.architecture == "decoder-only"
        self._derive_heads()
        self._move_rope_parameters()
        self.base_model_tp_plan, self.base_model_fsdp_plan = self._parallel_plans()
        # here as well as after initialisation: transformers wraps the error of a validator in a longer one
        self.validate_architecture()
        super().__post_init__(**kwargs)

    def _derive_heads(self) -> None:
        """Let the number of key-value heads and the width of heads follow from other fields where they are `None`."""
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        # widths that cannot be divided are left to `validate_architecture`
        if self.head_dim is None and self.num_attention_heads > 0 and not self.hidden_size % self.num_attention_heads:
            self.head_dim = self.hidden_size // self.num_attention_heads

    def _move_rope_parameters(self) -> None:
        """Let what transformers writes into `rope_parameters` and is a field here be that field."""
        given = dict(self.rope_parameters or {})
        if "type" in given:  # its name in older files
            given.setdefault("rope_type", given.pop("type"))
        for name in ("rope_theta", "partial_rotary_factor"):
            if name in given:
                setattr(self, name, given.pop(name))
        self.rope_parameters = None if given in ({}, {"rope_type": "default"}) else given

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Leave the fields as they are, which transformers would copy into `rope_parameters`."""
        return kwargs

    def validate_rope(self) -> None:
        """Leave to `validate_architecture` what transformers would only warn of."""

    def _following_fields(self) -> dict[str, None]:
        """Return the fields that follow from others, each as `None`."""
        followers = {
            "head_dim": self.num_attention_heads * (self.head_dim or 0) == self.hidden_size,
            "num_key_value_heads": self.num_key_value_heads == self.num_attention_heads,
        }
        return {name: None for name, follows in followers.items() if follows}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, and after construction also what is derived from it.

        Raises:
            ValueError: where `is_decoder` or `is_encoder_decoder` would contradict `architecture`, which sets them.
        """
        name = type(self).attribute_map.get(name, name)
        if "base_model_fsdp_plan" not in vars(self):  # under construction, which `__post_init__` ends
            super().__setattr__(name, value)
            return
        if name in ("is_decoder", "is_encoder_decoder") and value != getattr(self, name):
            raise _refuse(type(self), f"{name} follows from architecture={self.architecture!r}; set architecture.")
        following = self._following_fields() if name in ("hidden_size", "num_attention_heads") else {}
        super().__setattr__(name, value)
        for follower in following:
            super().__setattr__(follower, None)
        if name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            if following or value is None:
                self._derive_heads()
        elif name in ("architecture", "position_encoding", "gated_feed_forward", "norm_position", "final_norm"):
            super().__setattr__("is_encoder_decoder", self.architecture == "encoder-decoder")
            super().__setattr__("is_decoder", self.architecture == "decoder-only")
            self.base_model_tp_plan, self.base_model_fsdp_plan = self._parallel_plans()

    def _parallel_plans(self) -> tuple[dict[str, str], dict[str, str]]:
        """How transformers shards the base model: over heads and inner width, and layer by layer.

        On the instance, since every rule has to match a module. Not part of files.
        """
        attentions = {
            "encoder-decoder": {"encoder": ["self_attn"], "decoder": ["self_attn", "cross_attn"]},
            "encoder-only": {"encoder": ["self_attn"]},
            "decoder-only": {"decoder": ["self_attn"]},
        }[self.architecture]
        tensor: dict[str, str] = {}
        fully_sharded: dict[str, str] = {}
        for stack, names in attentions.items():
            tensor[f"{stack}.embed_tokens"] = "embedding_rowwise"
            for name in names:
                if name == "self_attn" and self.has_position_bias:
                    continue  # what is added to scores is for all heads
                tensor |= {f"{stack}.layers.*.{name}.{projection}_proj": "colwise" for projection in "qkv"}
                tensor[f"{stack}.layers.*.{name}.o_proj"] = "rowwise"
            for projection in ("gate", "up") if self.gated_feed_forward else ("up",):
                tensor[f"{stack}.layers.*.feed_forward.{projection}_proj"] = "colwise"
            tensor[f"{stack}.layers.*.feed_forward.down_proj"] = "rowwise"
            for module, how in PreTrainedConfig.base_model_fsdp_plan.items():
                if module != "norm" or self.has_final_norm:
                    fully_sharded[f"{stack}.{module}"] = how
        return tensor, fully_sharded

    def validate_architecture(self) -> None:
        """Cross-field checks; also run when the configuration is saved.

        Raises:
            ValueError: in one sentence, naming the fields and the remedy.
        """
        for name in (
            "vocab_size",
            "target_vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "decoder_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "value_head_dim",
            "intermediate_size",
            "max_position_embeddings",
            "embedding_size",
            "sliding_window",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise _refuse(type(self), f"{name}={value} must be at least 1.")
        if self.head_dim is None:
            raise _refuse(
                type(self),
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}; change one of them or set head_dim.",
            )
        for name in ("attention_scale", "output_scale", "rope_theta"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise _refuse(type(self), f"{name}={value} must be above 0, and finite.")
        for name in ("dropout", "attention_dropout", "activation_dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise _refuse(type(self), f"{name}={getattr(self, name)} must be at least 0 and below 1.")
        for name in ("norm_eps", "initializer_range", "position_offset", "type_vocab_size"):
            if not 0 <= getattr(self, name) < math.inf:
                raise _refuse(type(self), f"{name}={getattr(self, name)} must not be negative, and be finite.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise _refuse(
                type(self),
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}.",
            )
        if self.hidden_act not in ACT2FN:
            hint = _hint(self.hidden_act, ACT2FN, f"it is one of {', '.join(ACT2FN)}.")
            raise _refuse(type(self), f"hidden_act={self.hidden_act!r} is no activation of transformers; {hint}")
        if not self.is_encoder_decoder:
            if self.target_vocab_size is not None:
                raise _refuse(
                    type(self),
                    f"target_vocab_size needs architecture='encoder-decoder'; a model that is {self.architecture} has "
                    "one vocabulary, vocab_size.",
                )
            if self.decoder_layers not in (None, self.num_hidden_layers):
                raise _refuse(
                    type(self),
                    f"decoder_layers={self.decoder_layers} differs from num_hidden_layers={self.num_hidden_layers}, "
                    f"but a model that is {self.architecture} has one stack; set num_hidden_layers.",
                )
        self._validate_embeddings()
        self._validate_positions()
        self._validate_layer_types()
        self._validate_token_ids()

    def _validate_embeddings(self) -> None:
        if self.type_vocab_size and self.is_encoder_decoder:
            raise _refuse(
                type(self),
                f"type_vocab_size={self.type_vocab_size} needs architecture='encoder-only' or 'decoder-only'; the two "
                "texts of an encoder-decoder have a stack each.",
            )
        if self.share_encoder_decoder_embeddings and not self.is_encoder_decoder:
            raise _refuse(type(self), "share_encoder_decoder_embeddings needs architecture='encoder-decoder'.")
        if self.share_encoder_decoder_embeddings and self.target_vocab_size is not None:
            raise _refuse(
                type(self),
                "share_encoder_decoder_embeddings needs one vocabulary, and target_vocab_size="
                f"{self.target_vocab_size} asks for two; leave one of them out.",
            )
        if self.embedding_width != self.hidden_size and self.tie_word_embeddings and not self.output_transform:
            raise _refuse(
                type(self),
                f"states of hidden_size={self.hidden_size} cannot be multiplied by embeddings of "
                f"embedding_size={self.embedding_size}; set output_transform=True, or tie_word_embeddings=False.",
            )

    def _validate_positions(self) -> None:
        if not 0 < self.partial_rotary_factor <= 1:
            raise _refuse(
                type(self), f"partial_rotary_factor={self.partial_rotary_factor} must be above 0, and at most 1."
            )
        if self.position_encoding == "rope" and (self.rotary_dim % 2 or not self.rotary_dim):
            part = "" if self.partial_rotary_factor == 1 else f" of partial_rotary_factor={self.partial_rotary_factor}"
            raise _refuse(
                type(self),
                f"head_dim={self.head_dim}{part} must be even for position_encoding='rope', and 2 at least.",
            )
        if self.position_encoding != "rope" and (self.rope_parameters is not None or self.partial_rotary_factor != 1):
            raise _refuse(type(self), "rope_parameters and partial_rotary_factor need position_encoding='rope'.")
        kinds = dict.fromkeys(self.attention_kinds)
        nested = [name for name, value in (self.rope_parameters or {}).items() if isinstance(value, dict)]
        if other := [name for name in nested if name not in kinds]:
            raise _refuse(
                type(self),
                f"rope_parameters: {other[0]!r} is none of the model's kinds of layers, {', '.join(kinds)}.",
            )
        for kind in kinds:
            self._validate_rope_scaling(self.rope_parameters_of(kind))
        if self.position_offset and self.position_encoding not in ("sinusoidal", "learned"):
            raise _refuse(
                type(self),
                f"position_offset={self.position_offset} needs position_encoding='sinusoidal' or 'learned'; "
                f"{self.position_encoding!r} knows no first position.",
            )
        if self.position_encoding == "sinusoidal" and self.sinusoidal_form == "fairseq" and self.embedding_width < 4:
            raise _refuse(type(self), "sinusoidal_form='fairseq' needs a width of at least 4, two frequencies.")
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or buckets % 4:
            raise _refuse(
                type(self), f"relative_attention_num_buckets={buckets} must be a multiple of 4, and 4 at least."
            )
        if distance <= buckets // 2:
            raise _refuse(
                type(self),
                f"relative_attention_max_distance={distance} must be above {buckets // 2}, half of "
                "relative_attention_num_buckets.",
            )

    def _validate_rope_scaling(self, given: dict[str, Any]) -> None:
        """Check what scales the rotary frequencies of one kind of layer."""
        kind, optional = given["rope_type"], {"rope_type", "rope_theta", "partial_rotary_factor"}
        if kind not in _ROPE_NUMBERS:
            hint = _hint(str(kind), _ROPE_NUMBERS, f"it is one of {', '.join(_ROPE_NUMBERS)}.")
            raise _refuse(type(self), f"rope_parameters: rope_type={kind!r} is not known; {hint}")
        needed, more = _ROPE_NUMBERS[kind]
        if missing := [name for name in needed if name not in given]:
            raise _refuse(type(self), f"rope_parameters: rope_type={kind!r} needs {', '.join(missing)}.")
        if unknown := sorted(given.keys() - optional - set(needed) - set(more)):
            raise _refuse(
                type(self),
                f"rope_parameters: {', '.join(unknown)} has no effect for rope_type={kind!r}; leave it out.",
            )
        for name in given.keys() - {"rope_type", "truncate"}:
            value = given[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise _refuse(type(self), f"rope_parameters: {name}={value!r} must be a number above 0, and finite.")

    def _validate_layer_types(self) -> None:
        if self.layer_types is None:
            return
        kinds = ("full_attention", "sliding_attention")
        if wrong := [kind for kind in self.layer_types if kind not in kinds]:
            raise _refuse(type(self), f"layer_types: {wrong[0]!r} must be {' or '.join(map(repr, kinds))}.")
        if any(depth != len(self.layer_types) for depth in (self.num_hidden_layers, self.num_decoder_layers)):
            raise _refuse(
                type(self),
                f"layer_types has {len(self.layer_types)} entries; it needs one for each of the layers of a stack, "
                f"of which there are {self.num_hidden_layers} in the encoder or the only stack and "
                f"{self.num_decoder_layers} in the decoder.",
            )
        if kinds[1] in self.layer_types and self.sliding_window is None:
            raise _refuse(type(self), "layer_types: 'sliding_attention' needs sliding_window.")
        if self.shared_layers and len(set(self.layer_types)) > 1:
            raise _refuse(
                type(self), "layer_types of two kinds need shared_layers=False, as one layer is of one kind."
            )

    def _validate_token_ids(self) -> None:
        target_size = self.output_vocab_size
        limits = {
            "pad_token_id": min(self.vocab_size, target_size),
            "bos_token_id": target_size,
            "eos_token_id": target_size,
            "decoder_start_token_id": target_size,
        }
        for name, limit in limits.items():
            value = getattr(self, name)
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < limit:
                    raise _refuse(
                        type(self),
                        f"{name}={token_id} is no id of a vocabulary of {limit} tokens; use 0 to {limit - 1}, or None.",
                    )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, but fields given beside a file count as if they stood in it.

        transformers would set them afterwards, and leave what is derived from them as it was.

        Raises:
            ValueError: where the file holds fields that this version does not know.
        """
        if unknown := [name for name in config_dict if not _is_known(cls, name)]:
            near = _hint(unknown[0], sorted(field.name for field in fields(cls)), "")
            raise _refuse(
                cls,
                f"unknown field{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}; {near}{near and ' If not, '}"
                "the configuration was saved by newer or other code: update vanilla_transformer, or load the folder "
                "without importing this package, or by an Auto class, with trust_remote_code=True if you trust its code.",
            )
        # the fields of PreTrainedConfig stay where transformers looks for them; the model reads dtype there, for one
        known = {f.name for f in fields(cls)} - {f.name for f in fields(PreTrainedConfig)} | set(cls.attribute_map)
        overrides = _canonical_fields(cls, {name: kwargs.pop(name) for name in list(kwargs) if name in known})
        following = {}
        if overrides.keys() & {"hidden_size", "num_attention_heads"}:
            # numbers that followed from what is overridden, as `to_dict` has them, follow from the new values
            following = cls(**config_dict)._following_fields()
        return super().from_dict({**config_dict, **following, **overrides}, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As in transformers, together with the code that loads the model where this package is not installed.

        Every path that saves a model leads through here.
        """
        # transformers copies the files that this one imports, wherever in it: so the model goes where this file goes
        from .modeling_vanilla_transformer import HEADS  # noqa: F401

        # a class of somebody else stays registered, and is saved with its own file
        own = {name.partition(".")[0] for name in AUTO_MAP.values()}
        others = {k: v for k, v in (getattr(self, "auto_map", None) or {}).items() if v.partition(".")[0] not in own}
        self.auto_map = {**AUTO_MAP, **others}
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        """For reading, with the paper's names beside the canonical ones; files hold the canonical ones alone."""
        shown = json.loads(super().to_json_string(use_diff))
        shown |= {alias: getattr(self, name) for alias, name in self.attribute_map.items()}
        return json.dumps(shown, indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike, use_diff: bool = True) -> None:
        """Write what [`from_pretrained`] reads.

        What follows from other fields is left to follow, and fields that are younger than the first version stand there
        only where they are not at their defaults.
        """
        unknown = [name for name in vars(self) if not _is_known(type(self), name) and not hasattr(type(self), name)]
        if unknown:
            logger.warning(f"{', '.join(unknown)}: no fields of {type(self).__name__}, so not written to its file.")
        written = json.loads(super().to_json_string(use_diff)) | self._following_fields()
        older = _FIELDS_OF_FIRST_VERSION | {field.name for field in fields(PreTrainedConfig)}
        for field in fields(self):
            if field.name not in older and field.name in written and written[field.name] == _default(field):
                del written[field.name]
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(json.dumps(written, indent=2, sort_keys=True) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Return every field with its value, also of those that follow from others, such as `head_dim`."""
        # a file with anything else could not be read again
        return {name: value for name, value in super().to_dict().items() if _is_known(type(self), name)}

    @property
    def num_decoder_layers(self) -> int:
        """Depth of the decoder, also where `decoder_layers` is left to follow the encoder."""
        return self.num_hidden_layers if self.decoder_layers is None else self.decoder_layers

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, also where `embedding_size` is left to follow `hidden_size`."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def value_dim(self) -> int:
        """Width of a head's values, also where `value_head_dim` is left to follow `head_dim`."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def rotary_dim(self) -> int:
        """Width of the part of a head that rotary positions turn."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def attention_kinds(self) -> list[str]:
        """`"full_attention"` or `"sliding_attention"` for each layer of the deeper stack."""
        if self.layer_types is not None:
            return self.layer_types
        kind = "full_attention" if self.sliding_window is None else "sliding_attention"
        return [kind] * max(self.num_hidden_layers, self.num_decoder_layers)

    def rope_parameters_of(self, kind: str) -> dict[str, Any]:
        """Return the rotary parameters of one kind of layer, complete, as transformers' functions read them."""
        given = self.rope_parameters or {}
        if any(isinstance(value, dict) for value in given.values()):
            given = given.get(kind) or {}
        return {
            "rope_type": "default",
            "rope_theta": self.rope_theta,
            "partial_rotary_factor": self.partial_rotary_factor,
            **given,
        }

    @property
    def has_final_norm(self) -> bool:
        """Whether stacks end in a norm, also where `final_norm` is left to follow `norm_position`."""
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    @property
    def has_attention_output_bias(self) -> bool:
        """Whether attention's output projection has a bias, also where that is left to follow `attention_bias`."""
        return self.attention_bias if self.attention_output_bias is None else self.attention_output_bias

    @property
    def has_position_bias(self) -> bool:
        """Whether positions are told by a number that is added to the scores of each head."""
        return self.position_encoding in ("alibi", "relative")

    @property
    def uses_relative_positions(self) -> bool:
        """Whether attention counts how far tokens stand apart in a row, and so any padding between them."""
        return self.sliding_window is not None or self.has_position_bias

    @property
    def has_shared_embeddings(self) -> bool:
        """Whether encoder and decoder embed by one matrix."""
        if not self.is_encoder_decoder or self.target_vocab_size is not None:
            return False
        shared = self.share_encoder_decoder_embeddings
        return self.tie_word_embeddings if shared is None else shared

    @property
    def output_vocab_size(self) -> int:
        """Number of tokens the model can write."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def start_token_id(self) -> int | None:
        """First decoder input, in training as in generation."""
        return self.bos_token_id if self.decoder_start_token_id is None else self.decoder_start_token_id

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "VanillaTransformerConfig":
        """The configuration, or with `decoder=True` one whose depth and vocabulary are the decoder's.

        transformers sizes caches by `num_hidden_layers` of what this returns.
        """
        if not decoder or encoder or not self.is_encoder_decoder:
            return self
        config = copy.deepcopy(self)
        config.num_hidden_layers = self.num_decoder_layers
        config.vocab_size = self.output_vocab_size
        return config

    @classmethod
    def presets(cls) -> dict[str, str]:
        """Names of the presets and where each was published."""
        return {name: preset.source for name, preset in _of_package("presets").PRESETS.items()}

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "VanillaTransformerConfig":
        """The configuration of a published model, with any field overridden.

        Raises:
            ValueError: for a name that is no preset, naming the nearest one.

        Example:
            >>> VanillaTransformerConfig.from_preset("transformer-big").hidden_size
            1024
        """
        presets = _of_package("presets").PRESETS
        if name not in presets:
            hint = _hint(name, presets, f"the presets are {', '.join(presets)}.")
            raise _refuse(cls, f"unknown preset {name!r}; {hint}")
        return cls(**{**presets[name].fields, **_canonical_fields(cls, overrides)})

    def explain(self) -> str:
        """What differs from the paper's base model: a line for each field, with what it changes and where it comes from.

        Sizes and the ids of special tokens stand together in a line each, values that follow from others in none.

        Example:
            >>> print(VanillaTransformerConfig(norm_bias=False, vocab_size=100, max_position_embeddings=50).explain())
            44,174,336 parameters. What differs from the base model of "Attention Is All You Need":
            norm_bias = False: norms scale and add nothing [nanoGPT (bias=False), MPT]
            sizes, the base model's in brackets: vocab_size = 100 (37000), max_position_embeddings = 50 (1024)
        """
        return _of_package("explanations").explanation(self)

    def num_parameters(self) -> int:
        """Number of distinct parameters of the model with its language-modelling head, from the formula alone.

        Tied matrices count once. Classification heads and the like are not part of it.
        """
        return sum(self.parameters_by_part().values())

    def parameters_by_part(self) -> dict[str, int]:
        """Number of parameters of each part of the model with its language-modelling head, from the formula alone.

        Example:
            >>> VanillaTransformerConfig().parameters_by_part()["embeddings"]
            18944000
        """
        return _of_package("arithmetic").parameters_by_part(self)


__all__ = ["VanillaTransformerConfig"]
