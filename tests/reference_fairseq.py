"""The Transformer as fairseq defines it (fairseq/models/transformer, fairseq/modules), in the fewest words.

Names of weights, order of operations, positions and eps are its own; there is no training, no cache and no generation.
"""

import argparse
import math

import torch
from torch import nn

PAD = 1


def settings(**changes):
    """What `fairseq-train --arch transformer` keeps as `args`."""
    return argparse.Namespace(
        **{
            "arch": "transformer",
            "encoder_embed_dim": 32,
            "encoder_ffn_embed_dim": 40,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_normalize_before": False,
            "encoder_learned_pos": False,
            "decoder_layers": 3,
            "decoder_attention_heads": 4,
            "decoder_normalize_before": False,
            "decoder_learned_pos": False,
            "share_decoder_input_output_embed": False,
            "share_all_embeddings": False,
            "no_token_positional_embeddings": False,
            "no_scale_embedding": False,
            "layernorm_embedding": False,
            "activation_fn": "relu",
            "dropout": 0.1,
            "max_source_positions": 64,
            "max_target_positions": 64,
            "label_smoothing": 0.1,
            **changes,
        }
    )


def make_positions(tokens):
    """From the id of padding on, padding not counted."""
    real = tokens.ne(PAD).int()
    return (torch.cumsum(real, dim=1) * real).long() + PAD


class SinusoidalPositionalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.register_buffer("_float_tensor", torch.ones(1))

    def forward(self, tokens):
        half = self.dim // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
        angles = make_positions(tokens).unsqueeze(-1).float() * frequencies
        return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)


class LearnedPositionalEmbedding(nn.Embedding):
    def forward(self, tokens):
        return super().forward(make_positions(tokens))


class MultiheadAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.q_proj, self.out_proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query, key, allowed):
        batch, length, dim = query.shape
        q, k, v = (
            states.view(batch, -1, self.heads, dim // self.heads).transpose(1, 2)
            for states in (
                self.q_proj(query) * (dim // self.heads) ** -0.5,
                self.k_proj(key),
                self.v_proj(key),
            )
        )
        scores = (q @ k.transpose(-1, -2)).masked_fill(~allowed, torch.finfo(torch.float).min)
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, dim))


class Layer(nn.Module):
    def __init__(self, args, stack):
        super().__init__()
        dim, heads = args.encoder_embed_dim, args.encoder_attention_heads
        self.normalize_before = getattr(args, f"{stack}_normalize_before")
        self.activation = {"relu": torch.relu, "gelu": nn.functional.gelu}[args.activation_fn]
        self.self_attn = MultiheadAttention(dim, heads)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        if stack == "decoder":
            self.encoder_attn = MultiheadAttention(dim, heads)
            self.encoder_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, args.encoder_ffn_embed_dim), nn.Linear(args.encoder_ffn_embed_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)

    def sublayer(self, norm, x, function):
        if self.normalize_before:
            return x + function(norm(x))
        return norm(x + function(x))

    def forward(self, x, allowed, source=None, source_allowed=None):
        x = self.sublayer(self.self_attn_layer_norm, x, lambda y: self.self_attn(y, y, allowed))
        if source is not None:
            x = self.sublayer(self.encoder_attn_layer_norm, x, lambda y: self.encoder_attn(y, source, source_allowed))
        return self.sublayer(self.final_layer_norm, x, lambda y: self.fc2(self.activation(self.fc1(y))))


class Stack(nn.Module):
    def __init__(self, args, stack, embed_tokens):
        super().__init__()
        dim = args.encoder_embed_dim
        self.register_buffer("version", torch.Tensor([3]))
        self.embed_tokens = embed_tokens
        self.embed_scale = 1.0 if args.no_scale_embedding else math.sqrt(dim)
        self.embed_positions = None
        if not args.no_token_positional_embeddings:
            rows = args.max_source_positions + PAD + 1
            learned = getattr(args, f"{stack}_learned_pos")
            self.embed_positions = (
                LearnedPositionalEmbedding(rows, dim, PAD) if learned else SinusoidalPositionalEmbedding(dim)
            )
        self.layernorm_embedding = nn.LayerNorm(dim) if args.layernorm_embedding else None
        self.layers = nn.ModuleList(Layer(args, stack) for _ in range(getattr(args, f"{stack}_layers")))
        self.layer_norm = nn.LayerNorm(dim) if getattr(args, f"{stack}_normalize_before") else None

    def forward(self, tokens, allowed, source=None, source_allowed=None):
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions(tokens)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        for layer in self.layers:
            x = layer(x, allowed, source, source_allowed)
        return x if self.layer_norm is None else self.layer_norm(x)


class TransformerModel(nn.Module):
    def __init__(self, args, source_size, target_size):
        super().__init__()
        dim = args.encoder_embed_dim
        source = nn.Embedding(source_size, dim, PAD)
        target = source if args.share_all_embeddings else nn.Embedding(target_size, dim, PAD)
        self.encoder = Stack(args, "encoder", source)
        self.decoder = Stack(args, "decoder", target)
        self.decoder.output_projection = nn.Linear(dim, target_size, bias=False)
        if args.share_all_embeddings or args.share_decoder_input_output_embed:
            self.decoder.output_projection.weight = target.weight

    def forward(self, source_tokens, previous_tokens):
        """(B, S) and (B, T) to logits (B, T, V)."""
        source_allowed = source_tokens.ne(PAD)[:, None, None]
        length = previous_tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        states = self.encoder(source_tokens, source_allowed)
        allowed = causal & previous_tokens.ne(PAD)[:, None, None]
        return self.decoder.output_projection(self.decoder(previous_tokens, allowed, states, source_allowed))


def old_names(weights, version):
    """The state dict as earlier versions wrote it.

    Args:
        version: `"in_proj"`, before 0.7: queries, keys and values in one matrix, and the output as a bare parameter.
            `"layer_norms"`, before 0.5: so, and norms by number.
    """
    norms = {
        "self_attn": {"encoder": 0, "decoder": 0},
        "encoder_attn": {"decoder": 1},
        "final": {"encoder": 1, "decoder": 2},
    }
    old = {}
    for name, tensor in weights.items():
        place, _, last = name.rpartition(".")
        if place.endswith(".q_proj"):
            attention = place.removesuffix(".q_proj")
            old[f"{attention}.in_proj_{last}"] = torch.cat([weights[f"{attention}.{p}_proj.{last}"] for p in "qkv"])
        elif place.endswith((".k_proj", ".v_proj")):
            continue
        elif name == "decoder.output_projection.weight":
            old["decoder.embed_out"] = tensor
        elif version == "layer_norms" and place.endswith("_layer_norm") and ".layers." in place:
            layer, _, norm = place.rpartition(".")
            number = norms[norm.removesuffix("_layer_norm")][name.partition(".")[0]]
            old[f"{layer}.layer_norms.{number}.{last}"] = tensor
        else:
            old[name] = tensor
    return old
