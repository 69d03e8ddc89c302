"""Combinations of architectural choices that hold every two options of different choices together at least once."""

import itertools
import random

from tiny import ARCHITECTURES, SMALL

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
LAYER_TYPES = [("sliding_attention", "full_attention")[n % 2] for n in range(SMALL["num_hidden_layers"])]

# each choice: its options, as fields of the configuration
CHOICES = {
    "architecture": [{"architecture": name} for name in ARCHITECTURES],
    "norm_position": [{"norm_position": "post"}, {"norm_position": "pre"}],
    "norm": [{"norm_type": "layernorm"}, {"norm_type": "layernorm", "norm_bias": False}, {"norm_type": "rmsnorm"}],
    "final_norm": [{"final_norm": value} for value in (None, True, False)],
    "feed_forward": [
        {"hidden_act": "relu"},
        {"hidden_act": "gelu"},
        {"hidden_act": "silu", "gated_feed_forward": True, "intermediate_size": 16},
    ],
    "positions": [
        {"position_encoding": "sinusoidal"},
        {"position_encoding": "sinusoidal", "sinusoidal_form": "concatenated"},
        {"position_encoding": "sinusoidal", "sinusoidal_form": "fairseq", "position_offset": 2},
        {"position_encoding": "learned"},
        {"position_encoding": "learned", "position_offset": 2},
        {"position_encoding": "rope"},
        {"position_encoding": "rope", "partial_rotary_factor": 0.5, "rotary_scaling": LLAMA3},
        {"position_encoding": "alibi"},
        {
            "position_encoding": "relative",
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 9,
        },
        {"position_encoding": "none"},
    ],
    "heads": [{}, {"num_key_value_heads": 2}, {"num_key_value_heads": 1, "head_dim": 8, "value_head_dim": 6}],
    "qk_norm": [{}, {"qk_norm": "rmsnorm"}, {"qk_norm": "layernorm"}],
    "window": [{}, {"sliding_window": 3}, {"sliding_window": 3, "layer_types": LAYER_TYPES}],
    "biases": [{}, {"attention_bias": False}, {"mlp_bias": False}, {"attention_output_bias": False}],
    "attention_scale": [{}, {"attention_scale": 1.0}],
    "embedding": [{}, {"scale_embedding": False}, {"embedding_size": 8}],
    "embedding_norm": [{}, {"embedding_norm": True}],
    "types": [{}, {"type_vocab_size": 2}],
    "tying": [
        {},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": False},
        {"target_vocab_size": 43},
    ],
    "output": [{}, {"output_transform": True}],
    "output_bias": [{"output_bias": value} for value in ("none", "trained", "fixed")],
    "output_scale": [{}, {"output_scale": 0.25}],
    "sharing": [{}, {"shared_layers": True}],
    "attention": [{"attn_implementation": "sdpa"}, {"attn_implementation": "eager"}],
}


def fields_of(options):
    """The fields of a combination: of each choice, the index of its option."""
    fields = dict(SMALL)
    for of_choice, option in zip(CHOICES.values(), options, strict=True):
        fields |= of_choice[option]
    return fields


def is_possible(fields):
    """The rules, as the configuration has them (which is slower to ask)."""
    paired = fields["architecture"] == "encoder-decoder"
    tied, narrow = fields.get("tie_word_embeddings", True), "embedding_size" in fields
    return (
        not (paired and fields.get("type_vocab_size"))
        and not (not paired and (fields.get("target_vocab_size") or fields.get("share_encoder_decoder_embeddings")))
        and not (narrow and tied and not fields.get("output_transform"))
        and not (fields.get("layer_types") and fields.get("shared_layers"))
    )


def pairs_of(options):
    """Every two options of a combination, each as (index of the choice, index of the option)."""
    return set(itertools.combinations(enumerate(options), 2))


def cover(seed=0, tries=100):
    """Combinations that are possible, and the pairs of options that none holds.

    For the first pair that is left, of so many random combinations that hold it the one with most new pairs is taken, until
    no pair is left. A pair for which none was possible counts as impossible: the tests ask the configuration whether it is.
    """
    draw, counts = random.Random(seed), [len(options) for options in CHOICES.values()]
    left = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(counts)), 2)
        for i in range(counts[a])
        for j in range(counts[b])
    }
    found, impossible = [], set()
    while left:
        pair = min(left)
        best, gain = None, 0
        for _ in range(tries):
            options = [draw.randrange(count) for count in counts]
            for choice, option in pair:
                options[choice] = option
            new = len(pairs_of(options) & left)
            if new > gain and is_possible(fields_of(options)):
                best, gain = tuple(options), new
        if best is None:
            impossible.add(pair)
            left.discard(pair)
        else:
            found.append(best)
            left -= pairs_of(best)
    return found, impossible


def name_of(number, options):
    fields = fields_of(options)
    return f"{number}-{fields['architecture']}-{fields['position_encoding']}"
