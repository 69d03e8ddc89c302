"""The Transformer as OpenNMT-py defines it (onmt/encoders, onmt/decoders, onmt/modules), in the fewest words.

Names of weights, order of operations, positions and eps are its own; there is no training, no cache and no generation.
"""

import argparse
import math

import torch
from torch import nn

SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
PAD = 1


def settings(**changes):
    """What `onmt_train` keeps as `opt`."""
    return argparse.Namespace(
        **{
            "encoder_type": "transformer",
            "decoder_type": "transformer",
            "enc_layers": 2,
            "dec_layers": 3,
            "hidden_size": 32,
            "heads": 4,
            "num_kv": 0,
            "transformer_ff": 40,
            "position_encoding": True,
            "position_encoding_type": "SinusoidalInterleaved",
            "max_relative_positions": 0,
            "pos_ffn_activation_fn": "relu",
            "self_attn_type": "scaled-dot",
            "copy_attn": False,
            "layer_norm": "standard",
            "norm_eps": 1e-6,
            "add_qkvbias": True,
            "add_ffnbias": True,
            "dropout": [0.1],
            "attention_dropout": [0.1],
            "label_smoothing": 0.1,
            "share_embeddings": False,
            "share_decoder_embeddings": False,
            **changes,
        }
    )


def build_norm(opt):
    norm = nn.LayerNorm if opt.layer_norm == "standard" else nn.RMSNorm
    return norm(opt.hidden_size, eps=opt.norm_eps)


class PositionalEncoding(nn.Module):
    """Scales, too, so that without it embeddings are as they are."""

    def __init__(self, dim, kind, max_len=5000):
        super().__init__()
        self.dim = dim
        pe = torch.zeros(max_len, dim)
        position = torch.arange(0, max_len).unsqueeze(1)
        if kind == "SinusoidalInterleaved":
            div_term = torch.exp(torch.arange(0, dim, 2, dtype=torch.float) * -(math.log(10000.0) / dim))
            pe[:, 0::2] = torch.sin(position.float() * div_term)
            pe[:, 1::2] = torch.cos(position.float() * div_term)
        else:
            half = dim // 2
            angles = position * torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
            pe = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, emb):
        return emb * math.sqrt(self.dim) + self.pe[: emb.shape[1], 0]


class Embeddings(nn.Module):
    def __init__(self, size, opt):
        super().__init__()
        self.make_embedding = nn.Sequential()
        self.make_embedding.add_module("emb_luts", nn.ModuleList([nn.Embedding(size, opt.hidden_size, PAD)]))
        if opt.position_encoding:
            self.make_embedding.add_module("pe", PositionalEncoding(opt.hidden_size, opt.position_encoding_type))

    def forward(self, tokens):
        emb = self.make_embedding.emb_luts[0](tokens)
        return self.make_embedding.pe(emb) if hasattr(self.make_embedding, "pe") else emb


class MultiHeadedAttention(nn.Module):
    def __init__(self, opt):
        super().__init__()
        dim, self.heads = opt.hidden_size, opt.heads
        self.kv_heads = opt.num_kv or opt.heads
        self.width = dim // opt.heads
        self.linear_keys = nn.Linear(dim, self.kv_heads * self.width, bias=opt.add_qkvbias)
        self.linear_values = nn.Linear(dim, self.kv_heads * self.width, bias=opt.add_qkvbias)
        self.linear_query = nn.Linear(dim, dim, bias=opt.add_qkvbias)
        self.final_linear = nn.Linear(dim, dim, bias=opt.add_qkvbias)

    def forward(self, key, query, mask):
        def shape(x, heads):
            return x.view(len(x), -1, heads, self.width).transpose(1, 2).repeat_interleave(self.heads // heads, dim=1)

        k, v = (shape(linear(key), self.kv_heads) for linear in (self.linear_keys, self.linear_values))
        q = shape(self.linear_query(query), self.heads) / math.sqrt(self.width)
        scores = (q @ k.transpose(2, 3)).masked_fill(mask, -1e18)
        return self.final_linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(query.shape))


class PositionwiseFeedForward(nn.Module):
    def __init__(self, opt):
        super().__init__()
        dim, inner = opt.hidden_size, opt.transformer_ff
        self.w_1, self.w_2 = nn.Linear(dim, inner, bias=opt.add_ffnbias), nn.Linear(inner, dim, bias=opt.add_ffnbias)
        self.layer_norm = build_norm(opt)
        functions = {"relu": torch.relu, "gelu": nn.functional.gelu, "gated-gelu": nn.functional.gelu}
        self.activation = {**functions, "silu": nn.functional.silu}[opt.pos_ffn_activation_fn]
        self.w_3 = None
        if opt.pos_ffn_activation_fn in ("silu", "gated-gelu"):
            self.w_3 = nn.Linear(dim, inner, bias=opt.add_ffnbias)

    def forward(self, x):
        norm_x = self.layer_norm(x)
        inter = self.activation(self.w_1(norm_x))
        if self.w_3 is not None:
            inter = inter * self.w_3(norm_x)
        return self.w_2(inter) + x


class EncoderLayer(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.self_attn, self.feed_forward = MultiHeadedAttention(opt), PositionwiseFeedForward(opt)
        self.layer_norm = build_norm(opt)

    def forward(self, x, mask):
        norm_x = self.layer_norm(x)
        return self.feed_forward(self.self_attn(norm_x, norm_x, mask) + x)


class DecoderLayer(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.self_attn, self.context_attn = MultiHeadedAttention(opt), MultiHeadedAttention(opt)
        self.feed_forward = PositionwiseFeedForward(opt)
        self.layer_norm_1, self.layer_norm_2 = build_norm(opt), build_norm(opt)

    def forward(self, x, memory, source_mask, mask):
        norm_x = self.layer_norm_1(x)
        query = self.self_attn(norm_x, norm_x, mask) + x
        return self.feed_forward(self.context_attn(memory, self.layer_norm_2(query), source_mask) + query)


class Encoder(nn.Module):
    def __init__(self, size, opt):
        super().__init__()
        self.embeddings = Embeddings(size, opt)
        self.transformer = nn.ModuleList(EncoderLayer(opt) for _ in range(opt.enc_layers))
        self.layer_norm = build_norm(opt)


class Decoder(nn.Module):
    def __init__(self, size, opt):
        super().__init__()
        self.embeddings = Embeddings(size, opt)
        self.transformer_layers = nn.ModuleList(DecoderLayer(opt) for _ in range(opt.dec_layers))
        self.layer_norm = build_norm(opt)


class NMTModel(nn.Module):
    """`generator` is saved beside the model, not in it."""

    def __init__(self, opt, source_size, target_size):
        super().__init__()
        self.encoder, self.decoder = Encoder(source_size, opt), Decoder(target_size, opt)
        source, target = (stack.embeddings.make_embedding.emb_luts[0] for stack in (self.encoder, self.decoder))
        self.generator = nn.Linear(opt.hidden_size, target_size)
        if opt.share_embeddings:
            target.weight = source.weight
        if opt.share_decoder_embeddings:
            self.generator.weight = target.weight

    def forward(self, source, target):
        """(B, S) and (B, T) to logits (B, T, V)."""
        source_mask = source.eq(PAD)[:, None, None]
        memory = self.encoder.embeddings(source)
        for layer in self.encoder.transformer:
            memory = layer(memory, source_mask)
        memory = self.encoder.layer_norm(memory)
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) | target.eq(PAD)[:, None, None]
        output = self.decoder.embeddings(target)
        for layer in self.decoder.transformer_layers:
            output = layer(output, memory, source_mask, mask)
        return self.generator(self.decoder.layer_norm(output))

    def checkpoint(self, opt, tokens):
        """What version 3 writes.

        Args:
            tokens: of both vocabularies, behind the special ones.
        """
        weights = self.state_dict()
        return {
            "model": {name: tensor for name, tensor in weights.items() if not name.startswith("generator.")},
            "generator": {
                name.removeprefix("generator."): tensor
                for name, tensor in weights.items()
                if name.startswith("generator.")
            },
            "vocab": {"src": SPECIAL + tokens[0], "tgt": SPECIAL + tokens[1], "decoder_start_token": "<s>"},
            "opt": opt,
            "optim": {"training_step": 10},
        }
