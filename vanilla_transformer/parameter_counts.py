"""Number of parameters of a model, from the formula alone, without building it."""

from typing import Any

__all__ = ["parameters_by_part"]


def parameters_by_part(config: Any) -> dict[str, int]:
    """Return the number of parameters of each part of the model with its language-modelling head.

    Tied matrices count once. See `VanillaTransformerConfig.parameters_by_part`.
    """
    width, embedded = config.hidden_size, config.embedding_width
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim

    def linear(inputs: int, outputs: int, bias: bool) -> int:
        return inputs * outputs + (outputs if bias else 0)

    def norm(size: int) -> int:
        return size * (2 if config.norm_type == "layernorm" and config.norm_bias else 1)

    attention = linear(width, queries, config.attention_bias) + 2 * linear(width, keys, config.attention_bias)
    attention += linear(queries, width, config.has_attention_output_bias)
    up = linear(width, config.intermediate_size, config.mlp_bias)
    feed_forward = (2 if config.gated_feed_forward else 1) * up + linear(
        config.intermediate_size, width, config.mlp_bias
    )
    # of each stack: its depth, attentions in a layer, and rows of embeddings that it does not share
    stacks = {
        "encoder": (config.num_hidden_layers, 1, config.vocab_size),
        "decoder": (
            config.num_decoder_layers,
            2 if config.is_encoder_decoder else 1,
            0 if config.has_shared_embeddings else config.output_vocab_size,
        ),
    }
    if not config.is_encoder_decoder:
        del stacks["encoder" if config.architecture == "decoder-only" else "decoder"]
    parts = dict.fromkeys(("embeddings", "positions", "attention", "feed-forward", "norms", "output"), 0)
    for depth, attentions, rows in stacks.values():
        depth = 1 if config.shared_layers else depth
        parts["embeddings"] += (rows + config.type_vocab_size) * embedded
        if embedded != width:
            parts["embeddings"] += linear(embedded, width, True)
        if config.position_encoding == "learned":
            parts["positions"] += (config.max_position_embeddings + config.position_offset) * embedded
        elif config.position_encoding == "relative":
            parts["positions"] += config.relative_attention_num_buckets * config.num_attention_heads
        parts["attention"] += depth * attentions * attention
        parts["feed-forward"] += depth * feed_forward
        parts["norms"] += (depth * (attentions + 1) + config.has_final_norm) * norm(width)
        parts["norms"] += config.embedding_norm * norm(embedded)
    if config.output_transform:
        parts["output"] += linear(width, embedded, True) + norm(embedded)
    if not config.tie_word_embeddings:
        parts["output"] += (embedded if config.output_transform else width) * config.output_vocab_size
    if config.output_bias == "trained":
        parts["output"] += config.output_vocab_size
    return parts
