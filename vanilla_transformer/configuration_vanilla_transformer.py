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
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

if TYPE_CHECKING:
    # never run: transformers copies the files that this one seems to import, so the model goes where this file goes
    from .modeling_vanilla_transformer import VanillaTransformerModel  # noqa: F401

logger = logging.get_logger(__name__)
ConfigClass = TypeVar("ConfigClass", bound=PreTrainedConfig)

# Keyword arguments that transformers itself hands to every configuration, beside the declared fields.
_TRANSFORMERS_KEYWORDS = (
    *("attn_implementation", "auto_map", "experts_implementation", "model_type", "name_or_path", "num_labels"),
    *("output_attentions", "quantization_config", "torch_dtype"),
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

# What the value of a field must be, where it is not `None`.
_BOUNDS = (
    (
        lambda value: value >= 1,
        "be at least 1",
        "vocab_size target_vocab_size hidden_size num_hidden_layers decoder_layers num_attention_heads "
        "num_key_value_heads head_dim value_head_dim intermediate_size max_position_embeddings embedding_size sliding_window",
    ),
    (lambda value: 0 < value < math.inf, "be above 0, and finite", "attention_scale output_scale rope_theta"),
    (
        lambda value: 0 <= value < 1,
        "be at least 0 and below 1",
        "dropout attention_dropout activation_dropout label_smoothing",
    ),
    (
        lambda value: 0 <= value < math.inf,
        "not be negative, and be finite",
        "norm_eps initializer_range position_offset type_vocab_size",
    ),
)


class ConfigurationError(ValueError):
    """A configuration that no model of this version can have."""


def _refuse(config_class: type, message: str) -> ConfigurationError:
    return ConfigurationError(f"{config_class.__name__}: {message}")


def _hint(name: str, choices: Iterable[str], otherwise: str) -> str:
    """Return the choice that is nearest to a name, or, where none is near, another remedy."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _of_package(module: str) -> Any:
    """Import a module of the installed package, which does not travel with checkpoints as this file does."""
    try:
        return importlib.import_module(f"vanilla_transformer.{module}")
    except ModuleNotFoundError as error:
        what = module.replace("_", " ")
        raise ImportError(
            f"{what}: not part of what travels with a model; install the package vanilla_transformer to have them."
        ) from error


def _aliases(config_class: type[PreTrainedConfig]) -> dict[str, str]:
    """Return names that fields are given by: the paper's, which can be read as well, and one of transformers'.

    A configuration that has `rope_parameters` is filled with them by transformers, whatever its positions are.
    """
    return {**config_class.attribute_map, "rope_parameters": "rotary_scaling"}


def _is_known(config_class: type[PreTrainedConfig], name: str) -> bool:
    """Whether a field, or one of the paper's names, or something that transformers keeps in configurations."""
    names = {*_aliases(config_class), *_TRANSFORMERS_KEYWORDS, *(field.name for field in fields(config_class))}
    return name in names or name.startswith("_")


def _canonical_fields(config_class: type[PreTrainedConfig], given: dict[str, Any]) -> dict[str, Any]:
    """Translate the paper's names to the canonical ones, and refuse contradictions and unknown names."""
    aliases = _aliases(config_class)
    canonical: dict[str, Any] = {}
    for name, value in given.items():
        if not _is_known(config_class, name):
            if name in GenerationConfig().to_dict():
                fault = f"{name!r} is a setting of generation, not of the model; set it on model.generation_config."
                raise _refuse(config_class, fault)
            known = sorted({field.name for field in fields(config_class)} | set(aliases))
            raise _refuse(
                config_class, f"unknown field {name!r}; {_hint(name, known, 'no field has a name like it.')}"
            )
        target = aliases.get(name, name)
        if target in canonical and canonical[target] != value:
            other = next(n for n in given if n != name and aliases.get(n, n) == target)
            both = f"{other}={given[other]!r} and {name}={value!r}"
            raise _refuse(config_class, f"{both} are two names of one field; give one of them.")
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
    """Configuration of every model of this package.

    Keyword-only. The paper's names `d_model`, `d_ff` and `encoder_layers` are accepted and can be read; files hold the
    canonical names. An unknown name, a value of the wrong type and a combination that no model can have end in a
    `ValueError` of one sentence.

    Args:
        architecture: Which stacks are built, `"encoder-decoder"` (section 3.1), `"encoder-only"` or `"decoder-only"`;
            sets `is_encoder_decoder` and `is_decoder`.
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
        position_encoding: `"sinusoidal"` (section 3.5), `"learned"`, `"rope"` (rotary, Su et al. 2021: queries and keys are
            turned by their positions), `"alibi"` (Press et al. 2022: scores fall with distance, in each head at its own
            rate), `"relative"` (T5: a learned number for each head and bucket of distances is added to scores) or `"none"`.
        sinusoidal_form: `"interleaved"`, sines and cosines in turn, as section 3.5 has it; `"concatenated"`, all sines before
            all cosines (Marian); `"fairseq"`, so too, with frequencies from 1 to exactly 1/10000 (tensor2tensor, FSMT).
        position_offset: Number of the first position: 2 in BART, RoBERTa and fairseq. A learned table has so many more rows.
        rope_theta: Base of the rotary frequencies; Su et al. 2021 have 10000.
        rotary_scaling (`rope_parameters`): How rotary frequencies are scaled for long contexts, in transformers' form:
            `rope_type` is `"linear"`, `"dynamic"`, `"yarn"` or `"llama3"`, and the numbers that it needs stand beside it; or
            one such for each kind in `layer_types`, with a `rope_theta` of its own. `None` for none.
        partial_rotary_factor: Part of a head that is turned by its position, from its first number on (GPT-NeoX, Phi).
        relative_attention_num_buckets, relative_attention_max_distance: Of `position_encoding="relative"`: half of the
            buckets hold one distance each, the others ever more, up to this one (T5).
        max_position_embeddings: Longest sequence the model is meant for. Only a learned table is a hard limit.
        embedding_size: Width of embeddings that are projected to `hidden_size` (ALBERT, ELECTRA); `None` for no projection.
        embedding_norm: A norm over the sum of embeddings (BERT, BART).
        type_vocab_size: Number of token types, each with an embedding (BERT); 0 for none.
        scale_embedding: Multiply token embeddings, and `inputs_embeds`, by the root of their width (section 3.4).
        tie_word_embeddings: The output projection is the embedding of the side that is written (section 3.4).
        share_encoder_decoder_embeddings: Encoder and decoder embed by one matrix; `None` for as `tie_word_embeddings` says,
            and never with separate vocabularies. So one matrix serves in three places (the paper), in two (fairseq's
            share-decoder-input-output-embed, T5 1.1) or in one.
        output_transform: Before the output projection a dense layer to the width of the embeddings, activation and norm
            (the masked language models of BERT, ALBERT, ELECTRA).
        output_bias: Bias of the output projection: `"none"`; `"trained"` (BERT, OpenNMT); `"fixed"`, which is saved but not
            trained (Marian, BART).
        output_scale: States are multiplied by it before the output projection (T5: `hidden_size ** -0.5`).
        dropout: On the output of every sublayer before it is added, and on the sum of embeddings and positions (5.4).
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
            (transformers' normal with the standard deviation `initializer_range`).
        pad_token_id, bos_token_id, eos_token_id: Special tokens; the embedding row of the padding token starts at zero.
        decoder_start_token_id: First decoder input; `None` for `bos_token_id`.
        use_cache: Return the key-value cache from decoders.
        task_specific_params: Settings of pipelines by task, such as `{"translation_en_to_de": {"prefix": ...}}` (T5).
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
    mlp_bias: bool = True
    shared_layers: bool = False
    sliding_window: int | None = None
    label_smoothing: float | int = 0.0
    label_smoothing_form: Literal["uniform", "others"] = "uniform"
    init_scheme: Literal["paper", "fairseq", "normal"] = "paper"
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = None
    is_decoder: bool = False
    use_cache: bool = True
    # Later than the first version. Files leave such a field out while it has its default, so that every version reads the
    # models of every other one that do not use what it does not know.
    value_head_dim: int | None = None
    rotary_scaling: dict[str, Any] | None = None
    partial_rotary_factor: float | int = 1.0
    qk_norm: Literal["rmsnorm", "layernorm"] | None = None
    layer_types: list[str] | None = None
    task_specific_params: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.is_encoder_decoder = self.architecture == "encoder-decoder"
        self.is_decoder = self.architecture == "decoder-only"
        self._derive_heads()
        self._move_rotary_fields()
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

    def _move_rotary_fields(self) -> None:
        """Let what transformers writes into `rope_parameters` and is a field here be that field."""
        given = dict(self.rotary_scaling or {})
        if "type" in given:  # its name in older files
            given.setdefault("rope_type", given.pop("type"))
        for name in ("rope_theta", "partial_rotary_factor"):
            if name in given:
                setattr(self, name, given.pop(name))
        self.rotary_scaling = None if given in ({}, {"rope_type": "default"}) else given

    def _following_fields(self) -> dict[str, None]:
        """Return the fields that follow from others, each as `None`."""
        followers = {
            "head_dim": self.num_attention_heads * (self.head_dim or 0) == self.hidden_size,
            "num_key_value_heads": self.num_key_value_heads == self.num_attention_heads,
        }
        return {name: None for name, follows in followers.items() if follows}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field, and after construction also what is derived from it; `architecture` alone sets its flags."""
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
        """Return how transformers shards the base model: over heads and inner width, and layer by layer.

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
        """Refuse fields that do not go together, in one sentence that names them and the remedy; also on saving."""
        for fault in self._faults():
            raise _refuse(type(self), fault)

    def _faults(self) -> Iterator[str]:
        # single fields
        for holds, must, names in _BOUNDS:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not holds(value):
                    yield f"{name}={value} must {must}."
        if self.hidden_act not in ACT2FN:
            hint = _hint(self.hidden_act, ACT2FN, f"it is one of {', '.join(ACT2FN)}.")
            yield f"hidden_act={self.hidden_act!r} is not an activation of transformers; {hint}"
        # heads
        heads, key_value_heads = self.num_attention_heads, self.num_key_value_heads
        if self.head_dim is None:
            multiple = f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={heads}"
            yield f"{multiple}; change one of them or set head_dim."
        if heads % key_value_heads:
            yield f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}."
        # stacks, and the vocabularies and embeddings of each
        is_one_stack, needs_two = not self.is_encoder_decoder, "needs architecture='encoder-decoder'"
        if is_one_stack and self.target_vocab_size is not None:
            one = f"a model that is {self.architecture} has one vocabulary, vocab_size"
            yield f"target_vocab_size {needs_two}; {one}."
        if is_one_stack and self.decoder_layers not in (None, self.num_hidden_layers):
            differs = f"decoder_layers={self.decoder_layers} differs from num_hidden_layers={self.num_hidden_layers}"
            yield f"{differs}, but a model that is {self.architecture} has one stack; set num_hidden_layers."
        if is_one_stack and self.share_encoder_decoder_embeddings:
            yield f"share_encoder_decoder_embeddings {needs_two}."
        if self.share_encoder_decoder_embeddings and self.target_vocab_size is not None:
            two = f"target_vocab_size={self.target_vocab_size} asks for two"
            yield f"share_encoder_decoder_embeddings needs one vocabulary, and {two}; leave one of them out."
        if self.type_vocab_size and self.is_encoder_decoder:
            needs_one = f"type_vocab_size={self.type_vocab_size} needs architecture='encoder-only' or 'decoder-only'"
            yield f"{needs_one}; the two texts of an encoder-decoder have a stack each."
        if self.embedding_width != self.hidden_size and self.tie_word_embeddings and not self.output_transform:
            widths = f"hidden_size={self.hidden_size} cannot be multiplied by embeddings of embedding_size"
            yield f"states of {widths}={self.embedding_size}; set output_transform=True, or tie_word_embeddings=False."
        # positions
        encoding, offset = self.position_encoding, self.position_offset
        if not 0 < (part := self.partial_rotary_factor) <= 1:
            yield f"partial_rotary_factor={part} must be above 0, and at most 1."
        if encoding == "rope" and (self.rotary_dim % 2 or not self.rotary_dim):
            of = "" if part == 1 else f" of partial_rotary_factor={part}"
            yield f"head_dim={self.head_dim}{of} must be even for position_encoding='rope', and 2 at least."
        if encoding != "rope" and (self.rotary_scaling is not None or part != 1):
            yield "rotary_scaling and partial_rotary_factor need position_encoding='rope'."
        kinds = dict.fromkeys(self.layer_types or [self._kind_of_all_layers])  # of any number of layers
        given = self.rotary_scaling or {}
        nested = [name for name, value in given.items() if isinstance(value, dict)]
        if other := [name for name in nested if name not in kinds]:
            yield f"rotary_scaling: {other[0]!r} is none of the model's kinds of layers, {', '.join(kinds)}."
        if nested and (beside := sorted(given.keys() - nested)):
            yield f"rotary_scaling: {beside[0]!r} stands beside {nested[0]!r}; give it inside each kind of layers."
        for kind in kinds:
            yield from self._faults_of_rotary(self.rope_parameters_of(kind))
        if offset and encoding not in ("sinusoidal", "learned"):
            needs = f"position_offset={offset} needs position_encoding='sinusoidal' or 'learned'"
            yield f"{needs}; {encoding!r} knows no first position."
        if encoding == "sinusoidal" and self.sinusoidal_form == "fairseq" and self.embedding_width < 4:
            yield "sinusoidal_form='fairseq' needs a width of at least 4, two frequencies."
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 4 or buckets % 4:
            yield f"relative_attention_num_buckets={buckets} must be a multiple of 4, and 4 at least."
        if distance <= buckets // 2:
            half = f"above {buckets // 2}, half of relative_attention_num_buckets"
            yield f"relative_attention_max_distance={distance} must be {half}."
        # windows
        types, window = self.layer_types or [], ("full_attention", "sliding_attention")
        if wrong := [kind for kind in types if kind not in window]:
            yield f"layer_types: {wrong[0]!r} must be {' or '.join(map(repr, window))}."
        depths = self.num_hidden_layers, self.num_decoder_layers
        if self.layer_types is not None and {*depths} != {len(types)}:
            stacks = f"{depths[0]} in the encoder or the only stack and {depths[1]} in the decoder"
            each = "it needs one for each of the layers of a stack, of which there are"
            yield f"layer_types has {len(types)} entries; {each} {stacks}."
        if window[1] in types and self.sliding_window is None:
            yield "layer_types: 'sliding_attention' needs sliding_window."
        if self.shared_layers and len(set(types)) > 1:
            yield "layer_types of two kinds need shared_layers=False, as one layer is of one kind."
        # special tokens
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value, size = getattr(self, name), self.output_vocab_size
            size = min(self.vocab_size, size) if name == "pad_token_id" else size
            for token_id in value if isinstance(value, list) else [value]:
                if token_id is not None and not 0 <= token_id < size:
                    yield f"{name}={token_id} is not an id of a vocabulary of {size} tokens; use 0 to {size - 1}, or None."

    def _faults_of_rotary(self, given: dict[str, Any]) -> Iterator[str]:
        """Yield what is wrong with that which scales the rotary frequencies of one kind of layer."""
        kind, always = given["rope_type"], {"rope_type", "rope_theta", "partial_rotary_factor"}
        if not isinstance(kind, str) or kind not in _ROPE_NUMBERS:
            hint = _hint(str(kind), _ROPE_NUMBERS, f"it is one of {', '.join(_ROPE_NUMBERS)}.")
            yield f"rotary_scaling: rope_type={kind!r} is not known; {hint}"
        needed, optional = _ROPE_NUMBERS[kind]
        if missing := [name for name in needed if name not in given]:
            yield f"rotary_scaling: rope_type={kind!r} needs {', '.join(missing)}."
        if unknown := sorted(given.keys() - always - {*needed, *optional}):
            yield f"rotary_scaling: {', '.join(unknown)} has no effect for rope_type={kind!r}; leave it out."
        for name in given.keys() - {"rope_type", "truncate"}:
            value = given[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                yield f"rotary_scaling: {name}={value!r} must be a number above 0, and finite."
        if not isinstance(given.get("truncate", True), bool):
            yield f"rotary_scaling: truncate={given['truncate']!r} must be true or false."
        # what divides by a difference
        if kind == "llama3" and given["high_freq_factor"] <= given["low_freq_factor"]:
            yield "rotary_scaling: high_freq_factor must be above low_freq_factor."
        if kind == "dynamic" and self.rotary_dim < 4:
            yield f"rotary_scaling: rope_type='dynamic' needs 4 numbers of a head to turn, and {self.rotary_dim} do."

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, but fields given beside a file count as if they stood in it.

        transformers would set them afterwards, and leave what is derived from them as it was.
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
        known = {f.name for f in fields(cls)} - {f.name for f in fields(PreTrainedConfig)} | set(_aliases(cls))
        overrides = _canonical_fields(cls, {name: kwargs.pop(name) for name in list(kwargs) if name in known})
        following = {}
        if overrides.keys() & {"hidden_size", "num_attention_heads"}:
            # numbers that followed from what is overridden, as `to_dict` has them, follow from the new values
            following = cls(**config_dict)._following_fields()
        return super().from_dict({**config_dict, **following, **overrides}, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As in transformers, with the code that loads the model elsewhere; every path that saves a model leads here."""
        # a class of somebody else stays registered, and is saved with its own file
        own = {name.partition(".")[0] for name in AUTO_MAP.values()}
        others = {k: v for k, v in (getattr(self, "auto_map", None) or {}).items() if v.partition(".")[0] not in own}
        self.auto_map = {**AUTO_MAP, **others}
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    def to_json_string(self, use_diff: bool = True) -> str:
        """Return what is for reading, with the paper's names beside the canonical ones, which alone files hold."""
        shown = json.loads(super().to_json_string(use_diff))
        shown |= {alias: getattr(self, name) for alias, name in self.attribute_map.items()}
        return json.dumps(shown, indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike, use_diff: bool = True) -> None:
        """Write what [`from_pretrained`] reads; what follows from other fields is left to follow."""
        unknown = [name for name in vars(self) if not _is_known(type(self), name) and not hasattr(type(self), name)]
        if unknown:
            logger.warning(f"{', '.join(unknown)}: no fields of {type(self).__name__}, so not written to its file.")
        written = json.loads(super().to_json_string(use_diff)) | self._following_fields()
        inherited = {field.name for field in fields(PreTrainedConfig)}
        own = [field for field in fields(self) if field.name not in inherited]
        first_version = [field.name for field in own].index("use_cache") + 1
        for field in own[first_version:]:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if field.name in written and written[field.name] == default:
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
        return [self._kind_of_all_layers] * max(self.num_hidden_layers, self.num_decoder_layers)

    @property
    def _kind_of_all_layers(self) -> str:
        return "full_attention" if self.sliding_window is None else "sliding_attention"

    def rope_parameters_of(self, kind: str) -> dict[str, Any]:
        """Return the rotary parameters of one kind of layer, complete, as transformers' functions read them."""
        given = self.rotary_scaling or {}
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
        """Return the names of the presets, and where each was published."""
        return {name: preset.source for name, preset in _of_package("presets").PRESETS.items()}

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "VanillaTransformerConfig":
        """Return the configuration of a published model, with any field overridden."""
        presets = _of_package("presets").PRESETS
        if name not in presets:
            hint = _hint(name, presets, f"the presets are {', '.join(presets)}.")
            raise _refuse(cls, f"unknown preset {name!r}; {hint}")
        return cls(**{**presets[name].fields, **_canonical_fields(cls, overrides)})

    def explain(self) -> str:
        """Return what differs from the paper's base model: a line for each field, what it changes and who has it."""
        return _of_package("explanations").explanation(self)

    def num_parameters(self) -> int:
        """Return the number of distinct parameters of the model with its language-modelling head, by formula."""
        return sum(self.parameters_by_part().values())

    def parameters_by_part(self) -> dict[str, int]:
        """Return the number of parameters of each part of that model: embeddings, positions, attention and so on."""
        return _of_package("arithmetic").parameters_by_part(self)


__all__ = ["VanillaTransformerConfig"]
