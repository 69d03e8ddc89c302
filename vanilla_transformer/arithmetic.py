# Copyright 2026 The vanilla_transformer authors. Licensed under the Apache License, Version 2.0.
"""The arithmetic of a model, from its configuration alone: parameters, multiply-adds, bytes, and the paper's tables 1 to 3.

Nothing here builds a model or reads weights; tests hold the numbers against a model's own tensors and against torch's
`FlopCounterMode`. Symbols are those of the model file: D hidden_size, F intermediate_size, H query heads, K key-value heads,
d head_dim (of queries and keys; v of values), E width of embeddings, V vocabulary, T target or only sequence, S source.

A multiply-add is a multiplication and an addition, two floating-point operations. Matrix products are counted, attention
among them as if nothing were masked, which is how it is computed; norms, activations and softmax are a small share.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig

__all__ = [
    "BYTES",
    "TABLE_3",
    "Part",
    "cache_bytes",
    "complexity",
    "decoding_multiply_adds",
    "forward_multiply_adds",
    "list_parts",
    "paper_flops",
    "parameters_by_part",
    "table_3",
    "training_flops",
]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
"""Bytes of a number by type."""


@dataclass(frozen=True)
class Part:
    """One part of a model, with its parameters and the matrix products that a forward pass does with it.

    Attributes:
        stack: "encoder", "decoder" or "output".
        kind: "embeddings", "positions", "attention", "feed-forward", "norms" or "output".
        name: of the part in its stack, such as "self-attention".
        formula: of the parameters of one, in symbols.
        parameters: of one.
        copies: how often it stands in the model with weights of its own: once a layer for most.
        runs: how often it is run in a pass; more than `copies` where layers are shared.
        weights: numbers of one that each position is multiplied by; 0 for tables, norms and biases.
        source_weights: of `weights`, those that positions of the source are multiplied by (keys and values of
            cross-attention).
        scores: multiply-adds for each pair of a query and a key; 0 without attention.
    """

    stack: str
    kind: str
    name: str
    formula: str
    parameters: int
    copies: int = 1
    runs: int = 1
    weights: int = 0
    source_weights: int = 0
    scores: int = 0

    @property
    def total(self) -> int:
        """Parameters of all copies."""
        return self.parameters * self.copies


def _attention(config: VanillaTransformerConfig) -> tuple[str, int, int, int]:
    """Return formula and parameters of one attention, and the weights of its queries and outputs, and of keys and values."""
    width, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    values, read = config.num_key_value_heads * config.value_dim, config.num_attention_heads * config.value_dim
    formula = "D·Hd + 2·D·Kd + Hd·D" if config.value_dim == config.head_dim else "D·Hd + D·Kd + D·Kv + Hv·D"
    beside = 0
    if config.attention_bias:
        formula += " + Hd + 2·Kd" if config.value_dim == config.head_dim else " + Hd + Kd + Kv"
        beside = queries + keys + values
    if config.has_attention_output_bias:
        formula, beside = formula + " + D", beside + width
    if config.qk_norm is not None:
        count = 4 if config.qk_norm == "layernorm" and config.norm_bias else 2
        formula, beside = formula + f" + {count}·d", beside + count * config.head_dim
    own, of_keys = width * (queries + read), width * (keys + values)
    return formula, own + of_keys + beside, own, of_keys


def _norm(config: VanillaTransformerConfig, width: int, symbol: str) -> tuple[str, int]:
    """Return formula and parameters of one norm over `width`."""
    if config.norm_type == "layernorm" and config.norm_bias:
        return f"2·{symbol}", 2 * width
    return symbol, width


def list_parts(config: VanillaTransformerConfig) -> list[Part]:
    """Return the parts of the model with its language-modelling head, in the order of the data.

    Matrices that are one (section 3.4) are listed where they stand first; the output then has weights and no parameters.
    """
    parts: list[Part] = []
    if config.architecture != "decoder-only":
        parts += _list_stack(config, "encoder", config.num_hidden_layers, config.vocab_size, has_cross=False)
    if config.architecture != "encoder-only":
        rows = 0 if config.has_shared_embeddings else config.output_vocab_size
        parts += _list_stack(config, "decoder", config.num_decoder_layers, rows, has_cross=config.is_encoder_decoder)
    return [*parts, *_list_output(config)]


def _list_stack(
    config: VanillaTransformerConfig, stack: str, depth: int, rows: int, *, has_cross: bool
) -> Iterator[Part]:
    """Yield the parts of one stack; `rows` of its embedding are its own."""
    width, embedded, inner = config.hidden_size, config.embedding_width, config.intermediate_size
    copies = 1 if config.shared_layers else depth

    # Sections 3.4 and 3.5: what a token becomes before the first layer.
    yield Part(stack, "embeddings", "token embeddings", "V·E" if rows else "shared", rows * embedded)
    if config.type_vocab_size:
        yield Part(stack, "embeddings", "token types", "types·E", config.type_vocab_size * embedded)
    if config.position_encoding == "learned":
        count = config.max_position_embeddings + config.position_offset
        yield Part(stack, "positions", "learned positions", "positions·E", count * embedded)
    elif config.position_encoding == "relative":
        count = config.relative_attention_num_buckets * config.num_attention_heads
        yield Part(stack, "positions", "relative positions", "buckets·H", count)
    if config.embedding_norm:
        yield Part(stack, "norms", "norm of embeddings", *_norm(config, embedded, "E"))
    if embedded != width:
        yield Part(
            stack, "embeddings", "embedding projection", "E·D + D", embedded * width + width, weights=embedded * width
        )

    # Section 3.1: the layers.
    formula, parameters, own, of_keys = _attention(config)
    pair = config.num_attention_heads * (config.head_dim + config.value_dim)
    layer = {"copies": copies, "runs": depth}
    yield Part(stack, "attention", "self-attention", formula, parameters, **layer, weights=own + of_keys, scores=pair)
    if has_cross:
        yield Part(
            stack,
            "attention",
            "cross-attention",
            formula,
            parameters,
            **layer,
            weights=own + of_keys,
            source_weights=of_keys,
            scores=pair,
        )
    matrices = 3 if config.gated_feed_forward else 2
    formula, parameters = f"{matrices}·D·F", matrices * width * inner
    if config.mlp_bias:
        formula += f" + {matrices - 1 if matrices > 2 else ''}{'·' if matrices > 2 else ''}F + D"
        parameters += (matrices - 1) * inner + width
    yield Part(stack, "feed-forward", "feed-forward", formula, parameters, **layer, weights=matrices * width * inner)
    formula, parameters = _norm(config, width, "D")
    norms = 3 if has_cross else 2
    yield Part(stack, "norms", "norms", f"{norms} × {formula}", norms * parameters, **layer)
    if config.has_final_norm:
        yield Part(stack, "norms", "final norm", formula, parameters)


def _list_output(config: VanillaTransformerConfig) -> Iterator[Part]:
    """Yield the parts of the language-modelling head."""
    width, embedded, size = config.hidden_size, config.embedding_width, config.output_vocab_size
    read = embedded if config.output_transform else width
    if config.output_transform:
        formula, parameters = _norm(config, embedded, "E")
        weights = width * embedded
        yield Part(
            "output",
            "output",
            "prediction-head transform",
            f"D·E + E + {formula}",
            weights + embedded + parameters,
            weights=weights,
        )
    tied = config.tie_word_embeddings
    parameters, formula = (0, "tied") if tied else (read * size, "E·V" if config.output_transform else "D·V")
    if config.output_bias == "trained":
        parameters, formula = parameters + size, "V" if tied else f"{formula} + V"
    yield Part("output", "output", "output projection", formula, parameters, weights=read * size)


def parameters_by_part(config: VanillaTransformerConfig) -> dict[str, int]:
    """Return the number of parameters of each kind of part, as `VanillaTransformerConfig.parameters_by_part` gives them."""
    counts = dict.fromkeys(("embeddings", "positions", "attention", "feed-forward", "norms", "output"), 0)
    for part in list_parts(config):
        counts[part.kind] += part.total
    return counts


def forward_multiply_adds(
    config: VanillaTransformerConfig, target_length: int, source_length: int | None = None, batch: int = 1
) -> dict[Part, int]:
    """Count the multiply-adds of a forward pass that gives logits at every position, by part.

    Args:
        target_length: T, positions of the decoder, or of the only stack.
        source_length: S, of an encoder-decoder; `None` for as many as T.
        batch: sequences.
    """
    source_length = target_length if source_length is None else source_length
    counts: dict[Part, int] = {}
    for part in list_parts(config):
        queries = source_length if part.stack == "encoder" and config.is_encoder_decoder else target_length
        keys = source_length if part.source_weights else queries
        products = (part.weights - part.source_weights) * queries + part.source_weights * source_length
        counts[part] = batch * part.runs * (products + part.scores * queries * keys)
    return counts


def decoding_multiply_adds(
    config: VanillaTransformerConfig, position: int, source_length: int | None = None
) -> dict[Part, int]:
    """Count the multiply-adds of one token that a decoder writes with a cache, by part.

    Args:
        position: number of the token, from 1: it attends to so many, itself the last.
        source_length: S, whose keys and values stand in the cache; `None` for as many as `position`.

    Raises:
        ValueError: for an encoder-only model, which writes none.
    """
    if config.architecture == "encoder-only":
        raise ValueError("an encoder-only model writes no tokens; ask for its forward pass.")
    source_length = position if source_length is None else source_length
    seen = position if config.sliding_window is None else min(position, config.sliding_window)
    counts: dict[Part, int] = {}
    for part in list_parts(config):
        if part.stack == "encoder":
            continue
        keys = source_length if part.source_weights else seen
        counts[part] = part.runs * (part.weights - part.source_weights + part.scores * keys)
    return counts


def training_flops(
    config: VanillaTransformerConfig, target_length: int, source_length: int | None = None, batch: int = 1
) -> int:
    """Count the floating-point operations of a training step: the backward pass costs twice the forward one.

    Each product `x W` of the forward pass asks for two of the same size, the gradients of `x` and of `W`.
    """
    return 3 * 2 * sum(forward_multiply_adds(config, target_length, source_length, batch).values())


def cache_bytes(config: VanillaTransformerConfig, dtype: str = "float32") -> dict[str, int]:
    """Return the bytes of the key-value cache for each token written (`target`) and each token of the source (`source`).

    In a sliding window only the last tokens keep theirs.
    """
    if config.architecture == "encoder-only":
        return {}
    width = config.num_key_value_heads * (config.head_dim + config.value_dim)
    token = width * config.num_decoder_layers * BYTES[dtype]
    return {"target": token, "source": token} if config.is_encoder_decoder else {"target": token}


# --------------------------------------------------------------------------------------------------- the paper's tables


def complexity(
    config: VanillaTransformerConfig, length: int, kernel: int = 3
) -> list[tuple[str, str, int, str, int, str, int]]:
    """Return table 1 with this model's numbers: kind of layer, then formula and number of three things.

    Those are operations of a layer, operations that must follow each other, and the longest path between two positions.

    Args:
        length: n, of a sequence.
        kernel: k, width of the convolution that is compared.
    """
    n, d = length, config.hidden_size
    rows = [
        ("self-attention", "n²·d", n * n * d, "1", 1, "1", 1),
        ("recurrent", "n·d²", n * d * d, "n", n, "n", n),
        ("convolutional", "k·n·d²", kernel * n * d * d, "1", 1, "log_k(n)", math.ceil(math.log(max(n, 2), kernel))),
    ]
    if config.sliding_window is not None:
        r = min(n, config.sliding_window)
        rows.append(("self-attention (restricted)", "r·n·d", r * n * d, "1", 1, "n/r", math.ceil(n / r)))
    return rows


def paper_flops(seconds: float, devices: int, sustained: float) -> float:
    """Return training cost as section 6.1 estimates it: training time × number of devices × sustained FLOP/s of one."""
    return seconds * devices * sustained


TABLE_3: dict[str, tuple[dict[str, Any], int | None]] = {
    "base": ({}, 65),
    "(A) h=1": ({"num_attention_heads": 1, "head_dim": 512}, None),
    "(A) h=4": ({"num_attention_heads": 4, "head_dim": 128}, None),
    "(A) h=16": ({"num_attention_heads": 16, "head_dim": 32}, None),
    "(A) h=32": ({"num_attention_heads": 32, "head_dim": 16}, None),
    "(B) d_k=16": ({"head_dim": 16, "value_head_dim": 64}, 58),
    "(B) d_k=32": ({"head_dim": 32, "value_head_dim": 64}, 60),
    "(C) N=2": ({"num_hidden_layers": 2}, 36),
    "(C) N=4": ({"num_hidden_layers": 4}, 50),
    "(C) N=8": ({"num_hidden_layers": 8}, 80),
    "(C) d_model=256": ({"hidden_size": 256, "head_dim": 32}, 28),
    "(C) d_model=1024": ({"hidden_size": 1024, "head_dim": 128}, 168),
    "(C) d_ff=1024": ({"intermediate_size": 1024}, 53),
    "(C) d_ff=4096": ({"intermediate_size": 4096}, 90),
    "(D) dropout=0.0": ({"dropout": 0.0}, None),
    "(D) dropout=0.2": ({"dropout": 0.2}, None),
    "(D) label smoothing=0.0": ({"label_smoothing": 0.0}, None),
    "(D) label smoothing=0.2": ({"label_smoothing": 0.2}, None),
    "(E) learned positions": ({"position_encoding": "learned"}, None),
    "big": ({"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "dropout": 0.3}, 213),
}
"""Rows of table 3: what each changes of the base model, and millions of parameters as the paper has them."""


def table_3(vocab_size: int = 37000) -> list[tuple[str, int, int | None, tuple[int, int] | None]]:
    """Return the rows of table 3: name, parameters by the formula, the paper's millions, and where the two agree.

    The last is the range of vocabulary sizes at which the count rounds to the paper's. The paper names no exact size
    (section 5.1: "about 37000 tokens").
    """
    rows: list[tuple[str, int, int | None, tuple[int, int] | None]] = []
    for name, (changes, millions) in TABLE_3.items():
        config = VanillaTransformerConfig(vocab_size=vocab_size, **changes)
        count = config.num_parameters()
        agree = None
        if millions is not None:
            rest, width = count - vocab_size * config.hidden_size, config.hidden_size
            agree = (
                math.ceil(((millions - 0.5) * 1e6 - rest) / width),
                math.floor(((millions + 0.5) * 1e6 - rest) / width),
            )
        rows.append((name, count, millions, agree))
    return rows
