"""Models small enough to test everything on, shared by the test modules."""

import torch

import vanilla_transformer as vt

ARCHITECTURES = ("encoder-decoder", "encoder-only", "decoder-only")
LANGUAGE_MODELS = {
    "encoder-decoder": vt.VanillaTransformerForConditionalGeneration,
    "encoder-only": vt.VanillaTransformerForMaskedLM,
    "decoder-only": vt.VanillaTransformerForCausalLM,
}
PAD, BOS, EOS = 0, 1, 2

# one option each; every one must survive whatever a test does with the model
VARIANTS = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "learned": {"position_encoding": "learned"},
    "rotary": {"position_encoding": "rope"},
    "no-positions": {"position_encoding": "none"},
    "untied": {"tie_word_embeddings": False},
    "grouped-query": {"num_key_value_heads": 2},
    "multi-query-wide-heads": {"num_key_value_heads": 1, "head_dim": 6},
    "gated-rmsnorm-pre": {
        "norm_position": "pre",
        "norm_type": "rmsnorm",
        "gated_feed_forward": True,
        "hidden_act": "silu",
    },
    "no-biases": {"attention_bias": False, "mlp_bias": False},
    "unscaled-embedding": {"scale_embedding": False},
    "one-layer": {"num_hidden_layers": 1},
    "alibi": {"position_encoding": "alibi"},
    "t5": {
        "norm_position": "pre",
        "norm_type": "rmsnorm",
        "position_encoding": "relative",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_scale": 1.0,
        "output_scale": 0.25,
    },
    "fairseq": {"sinusoidal_form": "fairseq", "position_offset": 2},
    "marian": {"sinusoidal_form": "concatenated", "output_bias": "fixed", "hidden_act": "silu"},
    "bart": {
        "position_encoding": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "scale_embedding": False,
        "output_bias": "fixed",
        "hidden_act": "gelu",
    },
    "albert": {
        "position_encoding": "learned",
        "embedding_size": 8,
        "embedding_norm": True,
        "shared_layers": True,
        "output_transform": True,
        "output_bias": "trained",
    },
    "parts": {"final_norm": True, "norm_bias": False, "attention_output_bias": False, "attention_scale": 0.3},
}
SINGLE_STACK_VARIANTS = {
    "bert": {
        "position_encoding": "learned",
        "type_vocab_size": 2,
        "embedding_norm": True,
        "output_transform": True,
        "output_bias": "trained",
    },
}
ENCODER_DECODER_VARIANTS = {
    "separate": {"target_vocab_size": 43},
    "separate-untied": {"target_vocab_size": 43, "tie_word_embeddings": False},
    "shallow-encoder": {"num_hidden_layers": 1, "decoder_layers": 3},
    "shallow-decoder": {"num_hidden_layers": 3, "decoder_layers": 1},
    "two-way": {"share_encoder_decoder_embeddings": False},
    "shared-untied": {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": False},
}
GRID = [
    *((architecture, variant) for architecture in ARCHITECTURES for variant in VARIANTS),
    *(("encoder-decoder", variant) for variant in ENCODER_DECODER_VARIANTS),
    *((architecture, variant) for architecture in ARCHITECTURES[1:] for variant in SINGLE_STACK_VARIANTS),
]


# of every small model; no dropout, so that two computations can be compared
SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def tiny_config(architecture="encoder-decoder", variant="paper", **overrides):
    """Two layers, in the decoder of an encoder-decoder three, so that mixing the depths up is noticed."""
    fields = {**SMALL, "architecture": architecture}
    if architecture == "encoder-decoder":
        fields["decoder_layers"] = 3
    fields.update({**VARIANTS, **ENCODER_DECODER_VARIANTS, **SINGLE_STACK_VARIANTS}[variant])
    return vt.VanillaTransformerConfig(**{**fields, **overrides})


def randomise(model, seed=0, scale=0.2):
    """Move every parameter off its initial value: fresh biases are zero and fresh norms one, which hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        fixed = [buffer for name, buffer in model.named_buffers() if name == "output_bias"]
        for parameter in [*model.parameters(), *fixed]:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def tiny_model(architecture="encoder-decoder", variant="paper", model_class=None, seed=0, scale=0.2, **overrides):
    """A language model in eval mode with weights in general position."""
    torch.manual_seed(seed)
    model_class = model_class or LANGUAGE_MODELS[architecture]
    return randomise(model_class(tiny_config(architecture, variant, **overrides)), seed, scale).eval()


def tokens(batch, length, seed=0, vocab_size=40):
    """(batch, length) ordinary tokens, no special ones."""
    return torch.randint(4, vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def model_inputs(model, batch=2, length=7, target_length=5, seed=0):
    """What the forward of a model of any architecture needs."""
    inputs = {"input_ids": tokens(batch, length, seed), "attention_mask": torch.ones(batch, length, dtype=torch.long)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(batch, target_length, seed + 1)
    return inputs


def pad_rows(rows, side, extra=0, filler=PAD):
    """1D rows of ids to a padded batch and its mask; `extra` columns of padding more than the longest row needs."""
    width = max(len(row) for row in rows) + extra
    ids = torch.full((len(rows), width), filler)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask
