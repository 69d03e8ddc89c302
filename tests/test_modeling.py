import json
import math
import os
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    Trainer,
    TrainingArguments,
)

import vanilla_transformer as vt
from closeness import assert_close
from tiny import (
    ARCHITECTURES,
    BOS,
    EOS,
    GRID,
    LANGUAGE_MODELS,
    PAD,
    model_inputs,
    pad_rows,
    randomise,
    tiny_config,
    tiny_model,
    tokens,
)
from vanilla_transformer.kernels.loss import _ChunkedCrossEntropy
from vanilla_transformer.kernels_vanilla_transformer import Kernels
from vanilla_transformer.losses_vanilla_transformer import shift_right, smoothed_cross_entropy
from vanilla_transformer.modeling_vanilla_transformer import sinusoidal_encoding
from vanilla_transformer.positions_vanilla_transformer import apply_rotary_pos_emb, rotary_embeddings
from warm_python import warm_python

AUTO_CLASSES = {
    "encoder-decoder": AutoModelForSeq2SeqLM,
    "encoder-only": AutoModelForMaskedLM,
    "decoder-only": AutoModelForCausalLM,
}


# --------------------------------------------------------------------------------------------------------- positions


def encoding_by_the_formula(length, width):
    """Section 3.5, entry by entry, in python's float64."""
    return torch.tensor(
        [
            [
                (math.sin if column % 2 == 0 else math.cos)(position / 10000 ** (2 * (column // 2) / width))
                for column in range(width)
            ]
            for position in range(length)
        ],
        dtype=torch.float64,
    )


@pytest.mark.parametrize("width", [1, 5, 7, 8, 16, 512])
def test_sinusoids_are_the_formula(width):
    encoding = sinusoidal_encoding(torch.arange(1100)[None], width)
    assert encoding.shape == (1, 1100, width)
    assert_close(encoding[0].double(), encoding_by_the_formula(1100, width), atol=1e-7)


@pytest.mark.parametrize("width", [5, 7, 8])
def test_sinusoids_of_odd_width_are_finite_and_pair_their_frequencies(width):
    """Reported in SamLynnEvans/Transformer#7 and #25."""
    encoding = sinusoidal_encoding(torch.arange(64), width).double()
    assert encoding.shape == (64, width) and encoding.isfinite().all()
    sines, cosines = encoding[:, 0 : width - 1 : 2], encoding[:, 1::2]
    assert_close(sines**2 + cosines**2, torch.ones_like(sines), atol=1e-6)
    for i in range(0, width, 2):
        assert_close(encoding[1, i], torch.tensor(10000 ** (-i / width)).double().sin(), atol=1e-7)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_model_of_odd_width_gives_finite_logits(architecture):
    """Reported in SamLynnEvans/Transformer#7 and #25."""
    model = tiny_model(architecture, hidden_size=15, num_attention_heads=3)
    assert model(**model_inputs(model)).logits.isfinite().all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sinusoids_survive_saving_loading_dtypes_and_init(tmp_path, architecture):
    """Reported in huggingface/transformers#31387 and #37671."""
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    expected = model(**inputs).logits
    model.save_pretrained(tmp_path / "one")
    stack = "encoder" if architecture != "decoder-only" else "decoder"
    positions = torch.arange(64)[None]
    zeros = torch.zeros(1, 64, 16)
    formula = encoding_by_the_formula(64, 16)

    def encoding(model):
        return getattr(model.model, stack).embed(None, zeros.to(model.dtype), positions)[0].double()

    for options, atol in (
        ({}, 1e-7),
        ({"device_map": {"": "cpu"}}, 1e-7),
        ({"dtype": torch.bfloat16}, 2**-8),
        ({"dtype": torch.float16}, 2**-11),
    ):
        loaded, report = AUTO_CLASSES[architecture].from_pretrained(
            tmp_path / "one", output_loading_info=True, **options
        )
        assert not any(report.values()), report
        assert loaded.dtype == options.get("dtype", torch.float32)
        assert_close(encoding(loaded), formula, atol=atol)
        if "dtype" not in options:
            assert_close(loaded(**inputs).logits, expected, atol=0)
            loaded.save_pretrained(tmp_path / "two")
            again = AUTO_CLASSES[architecture].from_pretrained(tmp_path / "two")
            assert_close(again(**inputs).logits, expected, atol=0)
    model.init_weights()
    assert_close(encoding(model), formula, atol=1e-7)
    longer = AUTO_CLASSES[architecture].from_pretrained(tmp_path / "one", max_position_embeddings=999)
    assert longer.config.max_position_embeddings == 999
    assert_close(longer(**inputs).logits, expected, atol=0)
    assert "position" not in "".join(load_file(tmp_path / "one" / "model.safetensors"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_positions_count(architecture, position_encoding):
    """Permuting the input changes what is said about it, and not only by a permutation."""
    model = tiny_model(architecture, position_encoding=position_encoding)
    inputs = model_inputs(model, batch=1)
    before = model(**inputs).logits
    inputs["input_ids"] = inputs["input_ids"].flip(1)
    after = model(**inputs).logits
    assert not torch.allclose(before, after) and not torch.allclose(before, after.flip(1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_learned_positions_are_a_hard_limit(architecture):
    model = tiny_model(architecture, "learned", max_position_embeddings=8)
    assert model(**model_inputs(model, length=8, target_length=8)).logits.isfinite().all()
    with pytest.raises(ValueError, match="9 tokens.*8 learned positions.*max_position_embeddings") as caught:
        model(**model_inputs(model, length=9))
    assert "\n" not in str(caught.value)
    if architecture == "encoder-decoder":
        with pytest.raises(ValueError, match="9 tokens"):
            model(**model_inputs(model, length=8, target_length=9))


def test_sinusoids_have_no_limit():
    model = tiny_model(max_position_embeddings=8)
    assert model(**model_inputs(model, length=20, target_length=20)).logits.isfinite().all()


# ----------------------------------------------------------------------------------- the forward, from section 3 alone


class Reference:
    """Section 3 of the paper in plain functions of a model's weights; pre-norm as in Xiong et al. 2020."""

    def __init__(self, model):
        self.config = model.config
        self.weights = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
        self.heads = self.config.num_attention_heads

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name, x, memory, allowed):
        q, k, v = (self.linear(f"{name}.{p}_proj", y) for p, y in (("q", x), ("k", memory), ("v", memory)))
        width = q.shape[-1] // self.heads
        outputs = []
        for head in range(self.heads):
            part = slice(head * width, (head + 1) * width)
            scores = q[..., part] @ k[..., part].transpose(-1, -2) / width**0.5
            scores = torch.where(allowed, scores, torch.tensor(-torch.inf))
            outputs.append(torch.softmax(scores, -1) @ v[..., part])
        return self.linear(f"{name}.o_proj", torch.cat(outputs, -1))

    def feed_forward(self, name, x):
        return self.linear(f"{name}.down_proj", torch.relu(self.linear(f"{name}.up_proj", x)))

    def sublayer(self, norm, x, function):
        if self.config.norm_position == "post":
            return self.norm(norm, x + function(x))
        return x + function(self.norm(norm, x))

    def embed(self, stack, ids):
        length, width = ids.shape[1], self.config.hidden_size
        x = self.weights[f"{stack}.embed_tokens.weight"][ids] * (width**0.5 if self.config.scale_embedding else 1)
        if self.config.position_encoding == "sinusoidal":
            x = x + encoding_by_the_formula(length, width).float()
        elif self.config.position_encoding == "learned":
            x = x + self.weights[f"{stack}.embed_positions.weight"][:length]
        return x

    def stack(self, stack, ids, allowed, depth, memory=None, memory_allowed=None):
        x = self.embed(stack, ids)
        for i in range(depth):
            layer = f"{stack}.layers.{i}"
            x = self.sublayer(
                f"{layer}.self_attn_norm",
                x,
                lambda y: self.attention(f"{layer}.self_attn", y, y, allowed),  # noqa: B023
            )
            if memory is not None:
                x = self.sublayer(
                    f"{layer}.cross_attn_norm",
                    x,
                    lambda y: self.attention(f"{layer}.cross_attn", y, memory, memory_allowed),  # noqa: B023
                )
            x = self.sublayer(f"{layer}.feed_forward_norm", x, lambda y: self.feed_forward(f"{layer}.feed_forward", y))  # noqa: B023
        return self.norm(f"{stack}.norm", x) if self.config.norm_position == "pre" else x

    def logits(self, input_ids, attention_mask, decoder_input_ids=None):
        source_allowed = attention_mask.bool()[:, None, :]
        output_table = self.weights["lm_head.weight"]
        if self.config.architecture == "encoder-only":
            states = self.stack("encoder", input_ids, source_allowed, self.config.num_hidden_layers)
        elif self.config.architecture == "decoder-only":
            causal = torch.ones(input_ids.shape[1], input_ids.shape[1]).tril().bool()
            states = self.stack("decoder", input_ids, causal & source_allowed, self.config.num_hidden_layers)
        else:
            memory = self.stack("encoder", input_ids, source_allowed, self.config.num_hidden_layers)
            causal = torch.ones(decoder_input_ids.shape[1], decoder_input_ids.shape[1]).tril().bool()
            depth = self.config.num_decoder_layers
            states = self.stack("decoder", decoder_input_ids, causal, depth, memory, source_allowed)
        return states @ output_table.T


REFERENCE_VARIANTS = ["paper", "pre-norm", "learned", "no-positions", "untied", "unscaled-embedding", "one-layer"]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("architecture", "variant"),
    [(a, v) for a in ARCHITECTURES for v in REFERENCE_VARIANTS]
    + [("encoder-decoder", v) for v in ("separate", "separate-untied", "shallow-encoder", "shallow-decoder")],
)
def test_forward_is_section_3(architecture, variant, attention):
    model = tiny_model(architecture, variant, attn_implementation=attention)
    inputs = model_inputs(model, batch=3, length=7, target_length=5)
    inputs["attention_mask"][1, 4:] = 0  # right padding, whose positions are those of the reference
    logits = model(**inputs).logits
    expected = Reference(model).logits(**inputs)
    real = slice(None) if architecture == "encoder-decoder" else inputs["attention_mask"].bool()
    assert_close(logits[real], expected[real])


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_residual_and_norm_order(norm_position):
    """One layer, taken apart: a wrong order would be caught even if the reference above shared it."""
    model = tiny_model("encoder-only", norm_position=norm_position)
    layer = model.model.encoder.layers[0]
    x = torch.randn(1, 3, 16)
    if norm_position == "post":
        y = layer.self_attn_norm(x + layer.self_attn(x)[0])
        expected = layer.feed_forward_norm(y + layer.feed_forward(y))
    else:
        y = x + layer.self_attn(layer.self_attn_norm(x))[0]
        expected = y + layer.feed_forward(layer.feed_forward_norm(y))
    assert_close(layer(x), expected, atol=1e-6)
    assert isinstance(model.model.encoder.norm, nn.LayerNorm) == (norm_position == "pre")


def test_gated_feed_forward_and_rms_norm():
    model = tiny_model("decoder-only", "gated-rmsnorm-pre")
    layer = model.model.decoder.layers[0]
    network = layer.feed_forward
    x = torch.randn(2, 3, 16)
    gated = nn.functional.silu(network.gate_proj(x)) * network.up_proj(x)
    assert_close(network(x), network.down_proj(gated), atol=1e-6)
    rms = (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    assert_close(layer.self_attn_norm(x), x / rms * layer.self_attn_norm.weight, atol=1e-6)


def test_grouped_query_attention_shares_keys_between_neighbouring_heads():
    grouped = tiny_model("encoder-only", "grouped-query")
    full = LANGUAGE_MODELS["encoder-only"](tiny_config("encoder-only")).eval()
    weights = grouped.state_dict()
    for name, tensor in weights.items():
        if ".k_proj." in name or ".v_proj." in name:
            weights[name] = tensor.view(2, 4, -1).repeat_interleave(2, dim=0).reshape(16, -1).squeeze(-1)
    full.load_state_dict(weights)
    inputs = model_inputs(full)
    assert_close(grouped(**inputs).logits, full(**inputs).logits)


@pytest.mark.parametrize(("field", "places"), [("dropout", 1), ("attention_dropout", 1), ("activation_dropout", 1)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_dropout_acts_in_training_only(architecture, field, places):
    model = tiny_model(architecture, **{field: 0.5})
    inputs = model_inputs(model)
    assert_close(model(**inputs).logits, model(**inputs).logits, atol=0)
    model.train()
    assert not torch.allclose(model(**inputs).logits, model(**inputs).logits)


def test_residual_dropout_stands_where_section_5_4_puts_it(monkeypatch):
    """On the sum of embeddings and positions, and on each sublayer's output before the addition: nowhere else."""
    model = tiny_model(dropout=0.25, attn_implementation="eager").train()
    dropped = []

    def spy(states, p, training):
        if p and training:
            dropped.append((p, tuple(states.shape)))
        return states

    monkeypatch.setattr(Kernels.used, "dropout", spy)
    monkeypatch.setattr(nn.functional, "dropout", lambda states, p=0.5, **kwargs: spy(states, p, True))
    model(**model_inputs(model, batch=2, length=7, target_length=5))
    encoder, decoder = (0.25, (2, 7, 16)), (0.25, (2, 5, 16))
    assert dropped == [encoder] * (1 + 2 * 2) + [decoder] * (1 + 3 * 3)


# ------------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_padding_changes_nothing(architecture, variant, side, attention):
    """Batch = alone, whatever the side, the amount and the content of the padding."""
    model = tiny_model(architecture, variant, attn_implementation=attention)
    rows = [tokens(1, n, seed=n)[0] for n in (7, 3, 5)]
    targets = [tokens(1, n, seed=10 + n)[0] for n in (2, 6, 4)]
    for extra, filler in ((0, PAD), (4, 33)):
        ids, mask = pad_rows(rows, side, extra, filler)
        batch = {"input_ids": ids, "attention_mask": mask}
        if architecture == "encoder-decoder":
            target_ids, target_mask = pad_rows(targets, side, extra, filler)
            batch |= {"decoder_input_ids": target_ids, "decoder_attention_mask": target_mask}
        else:
            target_mask = mask
        logits = model(**batch).logits
        assert logits.isfinite().all()
        for i in range(3):
            alone = {"input_ids": rows[i][None]}
            if architecture == "encoder-decoder":
                alone["decoder_input_ids"] = targets[i][None]
            assert_close(logits[i][target_mask[i].bool()], model(**alone).logits[0])


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only"])
def test_decoders_do_not_see_the_future(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model, target_length=7)
    name = "decoder_input_ids" if architecture == "encoder-decoder" else "input_ids"
    before = model(**inputs).logits
    inputs[name] = inputs[name].clone()
    inputs[name][:, 4] = (inputs[name][:, 4] + 1) % 50
    after = model(**inputs).logits
    assert_close(after[:, :4], before[:, :4], atol=0)
    assert not torch.isclose(after[:, 4:], before[:, 4:]).all(-1).any()


@pytest.mark.parametrize("architecture", ["encoder-decoder", "encoder-only"])
def test_encoders_see_everything(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    before = model(**inputs).logits
    inputs["input_ids"][:, -1] = (inputs["input_ids"][:, -1] + 1) % 50
    assert not torch.isclose(model(**inputs).logits, before).all(-1).any()


@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_eager_is_sdpa(architecture, variant):
    model = tiny_model(architecture, variant)
    inputs = model_inputs(model)
    inputs["attention_mask"][0, :3] = 0
    logits = {}
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        logits[attention] = model(**inputs).logits
    # a row of padding that sees no key at all may come out as anything finite
    real = slice(None) if architecture == "encoder-decoder" else inputs["attention_mask"].bool()
    assert_close(logits["eager"][real], logits["sdpa"][real])


# ----------------------------------------------------------------------------------------------- weights and their ties


def embedding_tables(model):
    stacks = [getattr(model.model, name) for name in ("encoder", "decoder") if hasattr(model.model, name)]
    return [stack.embed_tokens.weight for stack in stacks] + [model.lm_head.weight]


def assert_tied_as_configured(model):
    pointers = [table.data_ptr() for table in embedding_tables(model)]
    config = model.config
    if not config.tie_word_embeddings:
        # an untied model still has one vocabulary on both sides, but no matrix in common with the output
        assert pointers[-1] not in pointers[:-1]
    elif config.target_vocab_size is None:
        assert len(set(pointers)) == 1
    else:
        source, target, output = pointers
        assert target == output != source


TIES = {
    "shared": {},
    "separate": {"target_vocab_size": 43},
    "untied": {"tie_word_embeddings": False},
    "separate-untied": {"target_vocab_size": 43, "tie_word_embeddings": False},
}


@pytest.mark.parametrize(
    ("architecture", "ties"),
    [(a, t) for a in ARCHITECTURES for t in TIES if a == "encoder-decoder" or "separate" not in t],
)
def test_ties_after_init_save_load_and_resize(tmp_path, architecture, ties):
    model = tiny_model(architecture, **TIES[ties])
    assert_tied_as_configured(model)
    model.save_pretrained(tmp_path)
    loaded = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path)
    assert_tied_as_configured(loaded)
    for ours, theirs in zip(embedding_tables(model), embedding_tables(loaded), strict=True):
        assert_close(ours, theirs, atol=0)
    if "separate" in ties:
        with pytest.raises(ValueError, match="separate vocabularies of 50 source and 43 target tokens"):
            loaded.resize_token_embeddings(57)
        return
    inputs = model_inputs(model)
    before = model(**inputs).logits
    for size in (57, 47):
        loaded.resize_token_embeddings(size)
        assert_tied_as_configured(loaded)
        assert [len(table) for table in embedding_tables(loaded)] == [size] * (2 + loaded.config.is_encoder_decoder)
        logits = loaded(**inputs).logits
        assert logits.shape[-1] == size == loaded.config.vocab_size
        assert_close(logits[..., :47], before[..., :47])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tie", [True, False])
def test_resize_reaches_every_place_and_survives_saving(tmp_path, architecture, tie):
    """Reported in huggingface/transformers#851 and #2480."""
    model = tiny_model(architecture, tie_word_embeddings=tie)
    inputs = model_inputs(model)
    for request, expected in (({"new_num_tokens": 57}, 57), ({"new_num_tokens": 47}, 47)):
        model.resize_token_embeddings(**request)
        assert model.config.vocab_size == expected
        assert model(**inputs).logits.shape[-1] == expected
    model.resize_token_embeddings(50, pad_to_multiple_of=8)
    assert model.config.vocab_size == 56 == model(**inputs).logits.shape[-1]
    labels = inputs.get("decoder_input_ids", inputs["input_ids"])
    model(**inputs, labels=labels).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.config.num_parameters() == sum(p.numel() for p in model.parameters())
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[architecture].from_pretrained(tmp_path)
    assert_close(loaded(**inputs).logits, model(**inputs).logits, atol=0)


@pytest.mark.parametrize("pad", [0, 1, 42, None])
@pytest.mark.parametrize(("architecture", "ties"), [(a, t) for a in ARCHITECTURES for t in ("shared", "untied")])
@pytest.mark.parametrize("scheme", ["paper", "fairseq", "normal"])
def test_padding_row_is_zero_and_harmless(tmp_path, architecture, ties, pad, scheme):
    """Reported in pytorch/pytorch#6411 and facebookresearch/fairseq#4076."""
    config = tiny_config(architecture, pad_token_id=pad, bos_token_id=3, init_scheme=scheme, **TIES[ties])
    model = LANGUAGE_MODELS[architecture](config)

    def check(model):
        for table in embedding_tables(model)[:-1]:
            zero_rows = (table == 0).all(-1).nonzero().flatten().tolist()
            assert zero_rows == ([] if pad is None else [pad])

    check(model)
    model.save_pretrained(tmp_path)
    check(LANGUAGE_MODELS[architecture].from_pretrained(tmp_path))
    model.resize_token_embeddings(57)
    check(model)
    if pad is None:
        return
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (7, 3)], "right", filler=pad)
    batch = {"input_ids": ids, "attention_mask": mask}
    real = mask.bool()
    if architecture == "encoder-decoder":
        batch |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch, labels=ids.masked_fill(~real, -100)).loss.backward()
        optimizer.step()
    before = model.eval()(**batch).logits
    with torch.no_grad():
        for table in {t.data_ptr(): t for t in embedding_tables(model)[:-1]}.values():
            table[pad] += 1.0
    changed = (model(**batch).logits != before)[real].any(0).nonzero().flatten().tolist()
    assert changed == ([pad] if ties == "shared" else [])


@pytest.mark.parametrize(("architecture", "variant"), GRID)
def test_ties_are_declared_as_transformers_5_wants_them(tmp_path, architecture, variant):
    """Reported in huggingface/transformers#44861."""
    config = tiny_config(architecture, variant)
    for model_class, auto_class in (
        (vt.VanillaTransformerModel, AutoModel),
        (LANGUAGE_MODELS[architecture], AUTO_CLASSES[architecture]),
    ):
        model = model_class(config)
        assert model._tied_weights_keys is None or isinstance(model._tied_weights_keys, dict)
        names = set(dict(model.named_parameters(remove_duplicate=False)))
        for target, source in model.all_tied_weights_keys.items():
            assert {target, source} <= names
            assert model.get_parameter(target) is model.get_parameter(source)
        model.save_pretrained(tmp_path)
        for loader in (model_class, auto_class):
            loaded, report = loader.from_pretrained(tmp_path, output_loading_info=True)
            assert type(loaded) is model_class
            assert not any(report.values()), report
            for name, tensor in model.state_dict().items():
                assert_close(loaded.state_dict()[name], tensor, atol=0)


def test_initialisation_reaches_every_parameter():
    """An `_init_weights` that misses a module leaves torch's default, or on a meta device anything at all."""
    width, inner = 256, 512
    for scheme, spread in (("paper", None), ("normal", 0.02)):
        config = tiny_config(
            hidden_size=width, intermediate_size=inner, init_scheme=scheme, position_encoding="learned"
        )
        with torch.device("meta"):
            model = LANGUAGE_MODELS["encoder-decoder"](config)
        model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.constant_(parameter, 77.0)
        model.init_weights()
        model.tie_weights()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert (parameter == 0).all(), name
            elif "norm" in name:
                assert (parameter == 1).all(), name
            elif "embed" in name:
                rows = parameter[1:] if "tokens" in name else parameter
                assert rows.std().item() == pytest.approx(spread or width**-0.5, rel=0.1), name
            else:
                fan_out, fan_in = parameter.shape
                expected = spread or (2 / (fan_in + fan_out)) ** 0.5
                assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
                assert spread or parameter.abs().max() <= 3**0.5 * expected


def test_fairseq_initialisation_narrows_query_key_and_value():
    model = LANGUAGE_MODELS["decoder-only"](tiny_config("decoder-only", hidden_size=256, init_scheme="fairseq"))
    attention = model.model.decoder.layers[0].self_attn
    for name, gain in (("q_proj", 2**-0.5), ("k_proj", 2**-0.5), ("v_proj", 2**-0.5), ("o_proj", 1.0)):
        weight = getattr(attention, name).weight
        assert weight.std().item() == pytest.approx(gain * (1 / 256) ** 0.5, rel=0.05)


ATTENTION = [f"{p}_proj.{kind}" for p in "kovq" for kind in ("bias", "weight")]
NORM = ["bias", "weight"]
FEED_FORWARD = [f"{p}_proj.{kind}" for p in ("down", "up") for kind in ("bias", "weight")]


def frozen_names(stack, depth, cross, pre_norm):
    names = [f"{stack}.embed_tokens.weight"]
    for i in range(depth):
        for attention in ("self_attn", "cross_attn") if cross else ("self_attn",):
            names += [f"{stack}.layers.{i}.{attention}.{name}" for name in ATTENTION]
            names += [f"{stack}.layers.{i}.{attention}_norm.{name}" for name in NORM]
        names += [f"{stack}.layers.{i}.feed_forward.{name}" for name in FEED_FORWARD]
        names += [f"{stack}.layers.{i}.feed_forward_norm.{name}" for name in NORM]
    return names + ([f"{stack}.norm.{name}" for name in NORM] if pre_norm else [])


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parameter_names_are_frozen(architecture, norm_position):
    """Checkpoints depend on these names: a change here needs a mapping that still loads the old ones."""
    model = LANGUAGE_MODELS[architecture](tiny_config(architecture, norm_position=norm_position))
    pre_norm = norm_position == "pre"
    expected = ["lm_head.weight"]
    if architecture != "decoder-only":
        expected += ["model." + name for name in frozen_names("encoder", 2, False, pre_norm)]
    if architecture == "decoder-only":
        expected += ["model." + name for name in frozen_names("decoder", 2, False, pre_norm)]
    if architecture == "encoder-decoder":
        expected += ["model." + name for name in frozen_names("decoder", 3, True, pre_norm)]
    assert sorted(model.state_dict()) == sorted(expected)


@pytest.mark.parametrize(
    ("variant", "extra"),
    [("learned", "model.decoder.embed_positions.weight"), ("gated-rmsnorm-pre", "feed_forward.gate_proj.weight")],
)
def test_names_of_optional_parameters_are_frozen(variant, extra):
    names = LANGUAGE_MODELS["encoder-decoder"](tiny_config(variant=variant)).state_dict()
    assert any(name.endswith(extra) for name in names)


# -------------------------------------------------------------------------------------------------------------- loss


def labelled(model, batch=2, length=6, seed=3):
    labels = tokens(batch, length, seed)
    labels[0, -2:] = -100
    labels[1, 2] = -100
    inputs = model_inputs(model, batch, length, length)
    if model.config.is_encoder_decoder:
        del inputs["decoder_input_ids"]
    return inputs, labels


def aligned(model, logits, labels):
    """Logits and the labels they are to predict, one a line."""
    if model.config.architecture == "decoder-only":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return logits.flatten(0, 1), labels.flatten()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [None, 5, torch.tensor(5)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_is_cross_entropy(architecture, smoothing, count):
    model = tiny_model(architecture, label_smoothing=smoothing)
    inputs, labels = labelled(model)
    output = model(**inputs, labels=labels, **({} if count is None else {"num_items_in_batch": count}))
    logits, flat = aligned(model, output.logits, labels)
    if count is None:
        expected = nn.functional.cross_entropy(logits, flat, label_smoothing=smoothing)
    else:
        expected = nn.functional.cross_entropy(logits, flat, label_smoothing=smoothing, reduction="sum") / 5
    assert_close(output.loss, expected)
    # and by hand, since the function above is the one in the model
    log_probabilities = logits.log_softmax(-1)
    kept = flat != -100
    likelihood = log_probabilities[kept, flat[kept]]
    by_hand = -((1 - smoothing) * likelihood + smoothing * log_probabilities[kept].mean(-1))
    assert_close(output.loss, by_hand.mean() if count is None else by_hand.sum() / 5)


@pytest.mark.parametrize("rows", [2, 256])
@pytest.mark.parametrize("count", [None, 5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("architecture", "variant"), [(a, v) for a in ARCHITECTURES for v in ("paper", "untied")])
def test_loss_without_logits_is_the_loss(architecture, variant, smoothing, count, rows, monkeypatch):
    """In chunks of `rows`: the same number, and the same gradient for every parameter."""
    monkeypatch.setattr(_ChunkedCrossEntropy, "ROWS", rows)
    model = tiny_model(architecture, variant, label_smoothing=smoothing)
    inputs, labels = labelled(model)
    expected = model(**inputs, labels=labels, num_items_in_batch=count)
    (3 * expected.loss).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    output = model(**inputs, labels=labels, num_items_in_batch=count, skip_logits=True)
    assert output.logits is None
    assert_close(output.loss, expected.loss)
    (3 * output.loss).backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, gradients[name])
    assert (
        model(
            **inputs,
            skip_logits=True,
            **({} if architecture != "encoder-decoder" else {"decoder_input_ids": labels.clamp(min=0)}),
        ).logits
        is not None
    )  # nothing to skip without labels
    nothing = model(**inputs, labels=torch.full_like(labels, -100), skip_logits=True).loss
    nothing.backward()
    assert nothing == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_where_no_label_counts_is_zero(architecture):
    model = tiny_model(architecture)
    inputs, labels = labelled(model)
    loss = model(**inputs, labels=torch.full_like(labels, -100)).loss
    loss.backward()
    assert loss == 0 and all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_loss_of_the_decoder_starts_from_the_start_token():
    model = tiny_model(decoder_start_token_id=7)
    inputs, labels = labelled(model)
    given = torch.cat([torch.full((2, 1), 7), labels[:, :-1]], 1).masked_fill_(
        torch.cat([torch.full((2, 1), 7), labels[:, :-1]], 1) == -100, PAD
    )
    explicit = model(**inputs, decoder_input_ids=given)
    implicit = model(**inputs, labels=labels)
    assert_close(implicit.logits, explicit.logits, atol=0)


def test_causal_loss_takes_labels_that_are_shifted_already():
    """Sequence parallelism cuts sequences up after shifting."""
    model = tiny_model("decoder-only")
    inputs, labels = labelled(model)
    shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    assert_close(
        model(**inputs, labels=labels).loss, model(**inputs, labels=labels, shift_labels=shifted).loss, atol=0
    )


def test_loss_is_computed_in_float32():
    logits = torch.randn(4, 3000)
    labels = torch.arange(4)
    exact = nn.functional.cross_entropy(logits.bfloat16().float(), labels)
    assert_close(smoothed_cross_entropy(logits.bfloat16(), labels), exact, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_eight_are_two_times_four(architecture, smoothing):
    """Loss and gradients of a batch of uneven rows = those of its halves, given the number of labels in both."""
    model = tiny_model(architecture, label_smoothing=smoothing)
    labels = torch.stack([torch.cat([tokens(1, n, n)[0], torch.full((9 - n,), -100)]) for n in range(2, 10)])
    inputs = model_inputs(model, 8, 9, 9)
    inputs.pop("decoder_input_ids", None)
    counted = labels[:, 1:] if architecture == "decoder-only" else labels
    count = (counted != -100).sum()
    whole = model(**inputs, labels=labels).loss
    whole.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    total = 0
    for half in (slice(0, 4), slice(4, 8)):
        loss = model(**{k: v[half] for k, v in inputs.items()}, labels=labels[half], num_items_in_batch=count).loss
        loss.backward()
        total += loss.detach()
    assert_close(total, whole.detach(), atol=1e-6)
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, gradients[name], atol=1e-6)


def collate_uneven(features):
    """Ids padded with the padding token, labels with -100."""
    padding = {"labels": -100, "attention_mask": 0}
    return {
        name: nn.utils.rnn.pad_sequence(
            [torch.as_tensor(f[name]) for f in features], batch_first=True, padding_value=padding.get(name, PAD)
        )
        for name in features[0]
    }


def one_sgd_step(model, features, folder, batch_size, collate=collate_uneven, learning_rate=0.5, **arguments):
    """Weights and logged loss after one step of transformers' Trainer."""
    training = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=len(features) // batch_size,
        max_steps=1,
        optim="sgd",
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **arguments,
    )
    trainer = Trainer(model, training, train_dataset=features, data_collator=collate)
    trainer.train()
    return model.state_dict(), trainer.state.log_history[0]["loss"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accumulation_in_trainer_equals_one_batch(tmp_path, architecture, smoothing):
    """One step on 4 uneven rows = one step on 4 times 1 row. Reported in huggingface/transformers#47688 and #37766."""
    features = []
    for n in (3, 9, 5, 2):
        row = tokens(1, n, seed=n)[0].tolist()
        features.append({"input_ids": row, "attention_mask": [1] * n, "labels": row[::-1]})
    before = tiny_model(architecture, label_smoothing=smoothing).state_dict()
    whole, whole_loss = one_sgd_step(tiny_model(architecture, label_smoothing=smoothing), features, tmp_path, 4)
    parts, parts_loss = one_sgd_step(tiny_model(architecture, label_smoothing=smoothing), features, tmp_path, 1)
    assert whole_loss == pytest.approx(parts_loss, abs=2e-4)  # Trainer rounds what it logs
    for name, tensor in whole.items():
        assert_close(parts[name], tensor, atol=1e-6)
    assert max((whole[name] - before[name]).abs().max() for name in before) > 0.01


@pytest.mark.parametrize("place", ["end", "middle", "start", "row"])
def test_decoder_inputs_come_from_labels_with_ignored_places(place):
    """Reported in huggingface/transformers#9417 and #15867."""
    labels = tokens(2, 6)
    holes = {"end": (0, slice(4, 6)), "middle": (0, slice(2, 4)), "start": (0, slice(0, 2)), "row": (0, slice(None))}
    labels[holes[place]] = -100
    copy = labels.clone()
    model = tiny_model(decoder_start_token_id=5)
    ids = model.prepare_decoder_input_ids_from_labels(labels)
    assert (labels == copy).all()
    assert (ids[:, 0] == 5).all() and (ids >= 0).all()
    assert (ids[:, 1:] == labels[:, :-1].masked_fill(labels[:, :-1] == -100, PAD)).all()
    assert model(**labelled(model)[0], labels=labels).loss.isfinite()


def test_missing_ids_for_decoder_inputs_are_named():
    """Reported in huggingface/transformers#9417 and #15867."""
    labels = torch.tensor([[5, -100, 6]])
    with pytest.raises(ValueError, match="pad_token_id"):
        shift_right(labels, 1, None)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        shift_right(labels, None, 0)
    assert shift_right(torch.tensor([[5, 6]]), 1, None).tolist() == [[1, 5]]
    model = LANGUAGE_MODELS["encoder-decoder"](tiny_config(pad_token_id=None))
    with pytest.raises(ValueError, match="pad_token_id"):
        model(input_ids=tokens(1, 3), labels=labels)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only"])
def test_logits_to_keep(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    every = model(**inputs).logits
    assert_close(model(**inputs, logits_to_keep=2).logits, every[:, -2:])
    assert_close(model(**inputs, logits_to_keep=torch.tensor([0, 3])).logits, every[:, [0, 3]])


# --------------------------------------------------------------------------------------------- gradient checkpointing


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_gradient_checkpointing_changes_no_gradient(architecture, use_reentrant, norm_position):
    """Reported in huggingface/transformers#21733 and #30320."""
    model = tiny_model(architecture, dropout=0.3, attention_dropout=0.2, norm_position=norm_position).train()
    assert model.config.use_cache
    inputs = model_inputs(model)
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"

    def gradients():
        model.zero_grad()
        torch.manual_seed(1)
        output = model(**inputs)
        output.logits.pow(2).mean().backward()
        return output, {n: p.grad.clone() for n, p in model.named_parameters()}

    _, expected = gradients()
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        output, actual = gradients()
    assert getattr(output, "cache", None) is None
    for parameter, gradient in expected.items():
        assert_close(actual[parameter], gradient, atol=1e-6)
        assert gradient.abs().max() > 0, parameter
    if architecture != "encoder-only":
        model.eval()
        inputs[name] = inputs[name][:1]
        source = {"input_ids": inputs["input_ids"][:1]}
        checkpointed = model.generate(**source, max_new_tokens=4, do_sample=False)
        model.activation_checkpointing_disable()
        assert checkpointed.tolist() == model.generate(**source, max_new_tokens=4, do_sample=False).tolist()


def test_gradient_checkpointing_recomputes_layers():
    """It would be no use if it were never active."""
    model = tiny_model("decoder-only").train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    calls = []
    model.model.decoder.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    model(**model_inputs(model)).logits.sum().backward()
    assert len(calls) == 2


# -------------------------------------------------------------------------------------------------------- at the border


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_refuse_architectures_they_cannot_serve(architecture):
    for served, model_class in LANGUAGE_MODELS.items():
        if served == architecture:
            continue
        with pytest.raises(ValueError, match=LANGUAGE_MODELS[architecture].__name__) as caught:
            model_class(tiny_config(architecture))
        assert model_class.__name__ in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exactly_one_kind_of_input(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(**inputs, inputs_embeds=embeds)
    ids = inputs.pop("input_ids")
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(**inputs)
    assert_close(model(**inputs, inputs_embeds=embeds).logits, model(**inputs, input_ids=ids).logits)
    if architecture == "encoder-decoder":
        del inputs["decoder_input_ids"]
        with pytest.raises(ValueError, match="exactly one of decoder_input_ids and decoder_inputs_embeds"):
            model(**inputs, input_ids=ids)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ids_outside_the_vocabulary_are_named(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    inputs["input_ids"][0, 0] = 50
    with pytest.raises(ValueError, match="50.*vocabulary of 50") as caught:
        model(**inputs)
    assert "\n" not in str(caught.value)
    inputs["input_ids"][0, 0] = -100
    with pytest.raises(ValueError, match="-100"):
        model(**inputs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_is_refused_in_one_sentence(architecture):
    model = tiny_model(architecture)
    for batch, length in ((0, 7), (2, 0)):
        with pytest.raises(ValueError, match=rf"input_ids of shape \({batch}, {length}\) hold no token"):
            model(**model_inputs(model, batch=batch, length=length))
    if architecture == "encoder-decoder":
        with pytest.raises(ValueError, match=r"decoder_input_ids of shape \(2, 0\) hold no token"):
            model(**model_inputs(model, target_length=0))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tuple_output(architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    assert_close(model(**inputs, return_dict=False)[0], model(**inputs).logits)


# ------------------------------------------------------------------------------------------------------ saving, loading


FRESH_PROCESS = """
import sys, json, warnings
import torch
import transformers
import vanilla_transformer
folder, auto_class = sys.argv[1:]
model = getattr(transformers, auto_class).from_pretrained(folder)
inputs = {k: torch.tensor(v) for k, v in json.load(open(folder + "/inputs.json")).items()}
with torch.no_grad():
    result = {"class": type(model).__name__, "logits": model(**inputs).logits.tolist()}
if model.can_generate():
    inputs.pop("decoder_input_ids", None)
    result["tokens"] = model.generate(**inputs, max_new_tokens=8).tolist()
    result["beams"] = model.generate(**inputs, max_new_tokens=8, num_beams=3).tolist()
print(json.dumps(result))
"""


PROGRESS_BARS = ("Loading weights", "Writing model shards")


def in_a_fresh_process(code, *arguments):
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [warm_python(), "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=environment,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_model_works_in_a_fresh_process(tmp_path, architecture):
    model = tiny_model(architecture)
    inputs = model_inputs(model)
    inputs["attention_mask"][0, :2] = 0
    model.save_pretrained(tmp_path)
    (tmp_path / "inputs.json").write_text(json.dumps({k: v.tolist() for k, v in inputs.items()}))
    process = in_a_fresh_process(FRESH_PROCESS, tmp_path, AUTO_CLASSES[architecture].__name__)
    assert process.returncode == 0, process.stderr
    complaints = [
        line for line in process.stderr.splitlines() if line.strip() and not any(b in line for b in PROGRESS_BARS)
    ]
    assert not complaints, process.stderr
    result = json.loads(process.stdout)
    assert result["class"] == LANGUAGE_MODELS[architecture].__name__
    assert_close(torch.tensor(result["logits"]), model(**inputs).logits.detach(), atol=1e-6)
    if model.can_generate():
        inputs.pop("decoder_input_ids", None)
        assert result["tokens"] == model.generate(**inputs, max_new_tokens=8).tolist()
        assert result["beams"] == model.generate(**inputs, max_new_tokens=8, num_beams=3).tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_normal_use_prints_nothing(tmp_path, architecture, caplog, recwarn, capfd):
    from transformers.utils import logging

    logging.get_logger("transformers").propagate = True
    try:
        model = tiny_model(architecture)
        inputs, labels = labelled(model)
        model(**inputs, labels=labels).loss.backward()
        model.save_pretrained(tmp_path)
        loaded = AUTO_CLASSES[architecture].from_pretrained(tmp_path)
        if loaded.can_generate():
            inputs["input_ids"][0, 0] = PAD
            inputs["attention_mask"][0, 0] = 0
            loaded.generate(**inputs, max_new_tokens=4)
            loaded.generate(**inputs, max_new_tokens=4, num_beams=2, do_sample=False)
    finally:
        logging.get_logger("transformers").propagate = False
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    assert [str(warning.message) for warning in recwarn] == []
    out, err = capfd.readouterr()
    assert out == "" and not [
        line for line in err.splitlines() if line.strip() and not any(b in line for b in PROGRESS_BARS)
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_base_and_head_exchange_checkpoints(tmp_path, architecture):
    head = tiny_model(architecture)
    head.save_pretrained(tmp_path / "head")
    base, report = AutoModel.from_pretrained(tmp_path / "head", output_loading_info=True)
    assert not report["missing_keys"]
    inputs = model_inputs(head)
    assert_close(base(**inputs).last_hidden_state, head.model(**inputs).last_hidden_state, atol=0)
    base.save_pretrained(tmp_path / "base")
    again, report = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path / "base", output_loading_info=True)
    assert not any(report.values()), report  # the output projection is tied, so nothing is new
    assert_close(again(**inputs).logits, head(**inputs).logits, atol=0)


def test_importing_twice_changes_nothing():
    import importlib

    classes = vt.VanillaTransformerConfig, vt.VanillaTransformerModel
    try:
        importlib.reload(vt)
        assert type(AutoModel.from_config(tiny_config())) is vt.VanillaTransformerModel
    finally:
        assert (vt.VanillaTransformerConfig, vt.VanillaTransformerModel) == classes


def test_special_tokens_of_the_tests():
    assert (
        (PAD, BOS, EOS)
        == (0, 1, 2)
        == tuple(getattr(tiny_config(), f"{name}_token_id") for name in ("pad", "bos", "eos"))
    )
    assert randomise(LANGUAGE_MODELS["decoder-only"](tiny_config("decoder-only"))).lm_head.weight.abs().min() > 0


def test_rotary_positions_are_those_of_llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, heads, 9, 8, generator=generator) for heads in (4, 2))
    positions = torch.arange(9).repeat(2, 1) + torch.tensor([[0], [500]])
    for theta in (10000.0, 500000.0):
        config = LlamaConfig(
            hidden_size=32, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": theta}
        )
        cos, sin = LlamaRotaryEmbedding(config)(query, positions)
        expected = llama_rotary(query, key, cos, sin)
        encoding = rotary_embeddings(positions, 8, theta)
        for states, theirs in zip((query, key), expected, strict=True):
            torch.testing.assert_close(apply_rotary_pos_emb(states, encoding), theirs, rtol=1e-4, atol=1e-4)
    assert apply_rotary_pos_emb(query.bfloat16(), encoding).dtype == torch.bfloat16
    # scores depend on distances alone
    turned, moved = (apply_rotary_pos_emb(query, rotary_embeddings(positions + n, 8, 1e4)) for n in (0, 77))
    torch.testing.assert_close(turned @ turned.mT, moved @ moved.mT, rtol=1e-4, atol=1e-4)


def test_theta_and_rotary_positions_reach_the_model():
    models = [tiny_model("encoder-only", position_encoding="rope", rope_theta=theta) for theta in (1e4, 1e2)]
    inputs = model_inputs(models[0])
    first, second = (model(**inputs).logits for model in models)
    assert not torch.allclose(first, second, atol=1e-3)
    # what stands first does not change when all moves on together, as it would with other positions
    moved = models[0](**inputs, position_ids=torch.arange(7).unsqueeze(0) + 5).logits
    torch.testing.assert_close(first, moved, rtol=1e-4, atol=1e-4)
