"""What transformers asks of a model, for all three architectures: its own common tests skip classes from outside."""

import copy
import functools
import os
import string
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    CompileConfig,
    DataCollatorForSeq2Seq,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    QuantizedCache,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.integrations.flex_attention import WrappedFlexAttention

import vanilla_transformer as vt
from closeness import assert_close
from tiny import ARCHITECTURES, BOS, EOS, LANGUAGE_MODELS, PAD, model_inputs, pad_rows, tiny_config, tiny_model, tokens
from warm_python import warm_python

WRITERS = ("encoder-decoder", "decoder-only")


def target_side(model):
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


# ------------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_nothing_stays_on_meta(architecture, position_encoding):
    config = tiny_config(architecture, position_encoding=position_encoding)
    for model_class in (vt.VanillaTransformerModel, LANGUAGE_MODELS[architecture]):
        model = model_class.from_pretrained(None, config=config, state_dict={})
        tensors = [*model.parameters(), *model.buffers()]
        assert tensors and all(tensor.device.type == "cpu" and tensor.isfinite().all() for tensor in tensors)
    with torch.device("meta"):
        model = LANGUAGE_MODELS[architecture](config)
    model.to_empty(device="cpu")
    model.init_weights()
    model.tie_weights()
    assert model.eval()(**model_inputs(model)).logits.isfinite().all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_device_map(tmp_path, architecture):
    model = tiny_model(architecture)
    model.save_pretrained(tmp_path)
    inputs = model_inputs(model)
    for device_map in ("auto", {"": "cpu"}):
        loaded = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path, device_map=device_map)
        assert_close(loaded(**inputs).logits, model(**inputs).logits, atol=0)


# ------------------------------------------------------------------------------------------------ attention and capture


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_eager_is_sdpa_is_flex(architecture, backward):
    model = tiny_model(architecture)
    inputs = model_inputs(model, length=9, target_length=6)
    inputs["attention_mask"][0, :3] = 0
    inputs["attention_mask"][1, 7:] = 0
    real = slice(None) if architecture == "encoder-decoder" else inputs["attention_mask"].bool()
    results = {}
    for attention in ("eager", "sdpa", "flex_attention"):
        torch._dynamo.reset()  # for shapes that vary, torch 2.13 writes flex attention for processors that does not compile
        model.set_attn_implementation(attention)
        assert model.config._attn_implementation == attention
        if backward and attention == "flex_attention":
            continue  # torch has no backward for it on a processor
        model.zero_grad()
        with torch.set_grad_enabled(backward):
            logits = model(**inputs).logits[real]
        if backward:
            logits.pow(2).mean().backward()
            results[attention] = torch.cat([p.grad.flatten() for p in model.parameters()])
        else:
            results[attention] = logits
    for result in results.values():
        assert_close(result, results["eager"])


@pytest.fixture
def flex_as_it_is(monkeypatch):
    """Flex attention is taken up by torch.compile and run as it is: a compiler needs seconds for each shape and mask."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(WrappedFlexAttention, "_instance", None)


FLEX = {
    "rotary, grouped queries": {"position_encoding": "rope", "num_key_value_heads": 2},
    "learned, one key head": {"position_encoding": "learned", "num_key_value_heads": 1},
    "width of heads, scale": {"head_dim": 6, "attention_scale": 0.3, "norm_position": "pre"},
    "shared layers, no biases": {"shared_layers": True, "attention_bias": False, "position_encoding": "none"},
}


@pytest.mark.parametrize("choices", FLEX)
@torch.no_grad()
def test_flex_attention_takes_every_choice(choices, flex_as_it_is):
    model = tiny_model("decoder-only", **FLEX[choices])
    inputs = model_inputs(model, length=9)
    inputs["attention_mask"][0, :3] = 0
    inputs["attention_mask"][1, 7:] = 0
    real = inputs["attention_mask"].bool()
    expected = model(**inputs).logits[real]
    model.set_attn_implementation("flex_attention")
    assert_close(model(**inputs).logits[real], expected)


@pytest.mark.parametrize("attention", ["flex_attention", "flash_attention_2"])
@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_backends_that_add_nothing_to_scores_are_refused(positions, attention, monkeypatch):
    # flash attention as if it were here: otherwise transformers refuses it first
    monkeypatch.setattr(PreTrainedModel, "get_correct_attn_implementation", lambda self, requested, *args: requested)
    with pytest.raises(ValueError, match=f"{attention}'? cannot add what position_encoding='{positions}'"):
        tiny_model("decoder-only", position_encoding=positions, attn_implementation=attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("architecture", "padding"),
    # a decoder-only model has nothing to continue where all is padding
    [(a, padding) for a in ARCHITECTURES for padding in (1, 33, "all") if (a, padding) != ("decoder-only", "all")],
)
def test_queries_that_see_no_key_give_finite_logits_and_gradients(architecture, padding, attention, dtype):
    """A query of left padding sees nothing: it must neither be nan nor spoil others, forward or backward.

    Reported in unslothai/unsloth#9848 and pytorch/pytorch#103749.
    """
    model = tiny_model(architecture, attn_implementation=attention).to(dtype)
    row = tokens(1, 5)
    width = 5 + (padding if padding != "all" else 0)
    ids, mask = torch.full((2, width), PAD), torch.ones(2, width, dtype=torch.long)
    ids[0], ids[1, -5:] = tokens(1, width, seed=1)[0], row[0]
    mask[1, : (width - 5 if padding != "all" else width)] = 0
    batch, alone = {"input_ids": ids, "attention_mask": mask}, {"input_ids": row}
    if architecture == "encoder-decoder":
        target = tokens(2, 4, seed=2)
        batch["decoder_input_ids"], alone["decoder_input_ids"] = target, target[1:]
    output = model(**batch, output_hidden_states=True)
    assert output.logits.isfinite().all()
    for states in output.get("hidden_states") or output.encoder_hidden_states + output.decoder_hidden_states:
        assert states.isfinite().all()
    if padding != "all":
        together = output.logits[1] if architecture == "encoder-decoder" else output.logits[1, -5:]
        assert_close(together, model(**alone).logits[0], atol=1e-5 if dtype == torch.float32 else 0.06)
    output.logits.float().pow(2).mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("architecture", WRITERS)
def test_left_padded_targets_give_finite_logits_and_gradients(architecture):
    """The same for a decoder whose own input is padded on the left.

    Reported in unslothai/unsloth#9848 and pytorch/pytorch#103749.
    """
    model = tiny_model(architecture)
    ids, mask = pad_rows([tokens(1, 5)[0], tokens(1, 2)[0]], "left", extra=1)
    side = target_side(model)
    batch = {side: ids, side.replace("input_ids", "attention_mask"): mask}
    if architecture == "encoder-decoder":
        batch["input_ids"] = tokens(2, 4)
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        logits = model(**batch).logits
        assert logits.isfinite().all()
        model.zero_grad()
        logits.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_attentions_and_states_are_captured(architecture, norm_position):
    model = tiny_model(architecture, attn_implementation="eager", norm_position=norm_position)
    inputs = model_inputs(model, length=7, target_length=5)
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    if architecture == "encoder-decoder":
        shapes = {
            "encoder_attentions": (2, (2, 4, 7, 7)),
            "decoder_attentions": (3, (2, 4, 5, 5)),
            "cross_attentions": (3, (2, 4, 5, 7)),
            "encoder_hidden_states": (3, (2, 7, 16)),
            "decoder_hidden_states": (4, (2, 5, 16)),
        }
    else:
        shapes = {"attentions": (2, (2, 4, 7, 7)), "hidden_states": (3, (2, 7, 16))}
    for name, (number, shape) in shapes.items():
        assert [tuple(tensor.shape) for tensor in output[name]] == [shape] * number, name
        if "attentions" in name:
            for probabilities in output[name]:
                assert_close(probabilities.sum(-1), torch.ones(shape[:-1]))
    last = output.get("hidden_states") or output.decoder_hidden_states
    assert_close(model.lm_head(last[-1]), output.logits)
    if architecture == "encoder-decoder":
        assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state, atol=0)


# ------------------------------------------------------------------------------------------------------ masks and packing


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_four_dimensional_masks_pack_texts_and_work_with_a_cache(attention):
    """Two texts in a row under a block-diagonal causal mask, as booleans and as numbers; then a step with a cache.

    Reported in huggingface/transformers#29525 and #32195.
    """
    model = tiny_model("decoder-only", attn_implementation=attention)
    first, second = tokens(1, 4, seed=1), tokens(1, 6, seed=2)
    alone = torch.cat([model(first).logits, model(second).logits], 1)
    packed = torch.cat([first, second], 1)
    positions = torch.cat([torch.arange(4), torch.arange(6)])[None]
    allowed = torch.block_diag(torch.ones(4, 4).tril(), torch.ones(6, 6).tril()).bool()[None, None]
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    for mask in (allowed, added):
        assert_close(model(packed, attention_mask=mask, position_ids=positions).logits, alone)
        assert_close(model(packed, attention_mask=mask, position_ids=positions, use_cache=False).logits, alone)
    # past 5, query 3
    text = tokens(1, 8)
    cache = model(text[:, :5], use_cache=True).cache
    step = torch.ones(8, 8).tril().bool()[None, None, 5:]
    for mask in (step, torch.zeros(step.shape).masked_fill(~step, torch.finfo(torch.float32).min)):
        output = model(text[:, 5:], attention_mask=mask, cache=copy.deepcopy(cache))
        assert_close(output.logits, model(text).logits[:, 5:])
    for shape in ((1, 1, 3, 7), (1, 1, 2, 8), (1, 1, 3, 1), (1, 1, 3, 9), (1, 8, 8), (1, 3), (1, 9)):
        with pytest.raises(ValueError, match="attention_mask of shape .* does not fit"):
            model(text[:, 5:], attention_mask=torch.ones(shape, dtype=torch.bool), cache=copy.deepcopy(cache))


@pytest.mark.parametrize("architecture", ["encoder-decoder", "encoder-only"])
def test_four_dimensional_masks_pack_texts_in_encoders(architecture):
    """Reported in huggingface/transformers#29525 and #32195."""
    model = tiny_model(architecture)
    first, second = tokens(1, 4, seed=1), tokens(1, 6, seed=2)
    allowed = torch.block_diag(torch.ones(4, 4), torch.ones(6, 6)).bool()[None, None]
    batch = {
        "input_ids": torch.cat([first, second], 1),
        "attention_mask": allowed,
        "position_ids": torch.cat([torch.arange(4), torch.arange(6)])[None],
    }
    if architecture == "encoder-only":
        alone = torch.cat([model(first).logits, model(second).logits], 1)
        assert_close(model(**batch).logits, alone)
    else:
        target = tokens(1, 3, seed=3)
        of_second = torch.zeros(1, 10, dtype=torch.long)
        of_second[:, 4:] = 1
        for cross_mask in (of_second, of_second.bool()[:, None, None].expand(1, 1, 3, 10)):
            logits = model(**batch, decoder_input_ids=target, cross_attention_mask=cross_mask).logits
            assert_close(logits, model(second, decoder_input_ids=target).logits)
        with pytest.raises(ValueError, match="cross_attention_mask of shape .* does not fit"):
            model(**batch, decoder_input_ids=target)
    with pytest.raises(ValueError, match="attention_mask of shape .* does not fit"):
        model(**{**batch, "attention_mask": torch.ones(1, 9, dtype=torch.long)}, decoder_input_ids=first) if (
            architecture == "encoder-decoder"
        ) else model(**{**batch, "attention_mask": torch.ones(1, 9, dtype=torch.long)})


@pytest.mark.parametrize("sliding_window", [None, 2])
@pytest.mark.parametrize(
    ("attention", "use_cache"),
    [("eager", False), ("sdpa", False), ("sdpa", None), ("flex_attention", None)],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_packed_is_separate(architecture, use_cache, attention, sliding_window, flex_as_it_is):
    """Positions that start anew: sequences, or pairs, of one row do not see each other. Also where a cache is default."""
    model = tiny_model(architecture, attn_implementation=attention, sliding_window=sliding_window)
    lengths, target_lengths = (4, 6, 1), (2, 4, 5)

    def packed(lengths, seed):
        rows = [[tokens(1, n, seed=seed + i + 10 * n) for n in lengths] for i in range(2)]
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        return rows, torch.cat([torch.cat(row, 1) for row in rows]), positions

    sources, ids, positions = packed(lengths, 0)
    options = {} if use_cache is None or architecture == "encoder-only" else {"use_cache": use_cache}
    batch = {"input_ids": ids, "position_ids": positions, **options}
    if architecture == "encoder-decoder":
        targets, target_ids, target_positions = packed(target_lengths, 5)
        batch |= {"decoder_input_ids": target_ids, "decoder_position_ids": target_positions}
    output = model(**batch)
    assert output.get("cache") is None
    model.set_attn_implementation("sdpa")
    for i in range(2):
        if architecture == "encoder-decoder":
            pairs = zip(sources[i], targets[i], strict=True)
            alone = [model(source, decoder_input_ids=target).logits for source, target in pairs]
        else:
            alone = [model(source).logits for source in sources[i]]
        assert_close(output.logits[i : i + 1], torch.cat(alone, 1))
    if architecture == "encoder-decoder":
        with pytest.raises(ValueError, match="both start anew"):
            model(input_ids=ids, position_ids=positions, decoder_input_ids=target_ids)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sliding_window_is_local(architecture, attention):
    """In one layer, what is further away than the window does not count, and what is nearer does."""
    overrides = {"num_hidden_layers": 1, **({"decoder_layers": 1} if architecture == "encoder-decoder" else {})}
    model = tiny_model(architecture, sliding_window=3, attn_implementation=attention, **overrides)
    inputs = model_inputs(model, batch=1, length=9, target_length=9)
    side = target_side(model)
    before = model(**inputs).logits
    inputs[side] = inputs[side].clone()
    inputs[side][0, 4] = (inputs[side][0, 4] + 1) % 50
    changed = (~torch.isclose(model(**inputs).logits, before, atol=1e-6).all(-1))[0].nonzero().flatten().tolist()
    assert changed == ([1, 2, 3, 4, 5, 6, 7] if architecture == "encoder-only" else [4, 5, 6])


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
@pytest.mark.parametrize("architecture", WRITERS)
def test_sliding_window_in_every_cache(architecture, settings):
    """Sources longer than the window stay whole in the cache of cross-attention."""
    model = tiny_model(architecture, sliding_window=3, tie_word_embeddings=False)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (9, 5)], "left")
    settings = {"max_new_tokens": 9, "do_sample": False, "no_repeat_ngram_size": 1, **settings}
    written = [
        model.generate(ids, attention_mask=mask, **settings, **cache).tolist()
        for cache in ({"use_cache": False}, {}, {"cache_implementation": "static"})
    ]
    assert written[0] == written[1] == written[2]
    full = tiny_model(architecture, tie_word_embeddings=False)
    assert full.generate(ids, attention_mask=mask, **settings).tolist() != written[0]


def test_static_cross_cache_with_room_to_spare():
    from transformers import EncoderDecoderCache, StaticCache

    model = tiny_model("encoder-decoder")
    inputs = model_inputs(model)
    del inputs["attention_mask"]
    own = model.config.get_text_config(decoder=True)
    cache = EncoderDecoderCache(StaticCache(own, max_cache_len=12), StaticCache(own, max_cache_len=20))
    assert_close(model(**inputs, cache=cache, use_cache=True).logits, model(**inputs, use_cache=False).logits)


# --------------------------------------------------------------------------------------------------- compile and export


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", ["paper", "learned", "pre-norm", "t5", "alibi", "albert"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_forward_is_one_graph(architecture, variant, masked):
    torch._dynamo.reset()
    model = tiny_model(architecture, variant)
    inputs = model_inputs(model)
    if masked:
        inputs["attention_mask"][0, :2] = 0
    else:
        del inputs["attention_mask"]
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    expected = model(**inputs, use_cache=False, output_hidden_states=True)
    actual = compiled(**inputs, use_cache=False, output_hidden_states=True)
    assert_close(actual.logits, expected.logits)
    name = "decoder_hidden_states" if architecture == "encoder-decoder" else "hidden_states"
    assert len(actual[name]) == len(expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_compiled_training_is_one_graph(architecture):
    torch._dynamo.reset()
    model = tiny_model(architecture, label_smoothing=0.1)
    inputs = model_inputs(model, target_length=7)
    labels = inputs.pop("decoder_input_ids", inputs["input_ids"])
    model(**inputs, labels=labels).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = torch.compile(model, backend="aot_eager", fullgraph=True)(**inputs, labels=labels).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "t5"])
@pytest.mark.parametrize("architecture", WRITERS)
def test_compiled_decoding_with_a_static_cache(architecture, variant):
    torch._dynamo.reset()
    model = tiny_model(architecture, variant, tie_word_embeddings=False)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "left")
    settings = {"max_new_tokens": 8, "do_sample": False, "no_repeat_ngram_size": 1}
    expected = model.generate(ids, attention_mask=mask, **settings)
    compile_config = CompileConfig(backend="eager", fullgraph=True, mode=None)
    compile_config._compile_all_devices = True  # transformers compiles on accelerators alone by default
    actual = model.generate(
        ids, attention_mask=mask, cache_implementation="static", compile_config=compile_config, **settings
    )
    assert actual.tolist() == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "alibi", "relative"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exported_model_equals_the_model_at_every_length(architecture, position_encoding, masked):
    """Reported in huggingface/transformers#29190."""
    model = tiny_model(architecture, position_encoding=position_encoding)
    names = ["input_ids"] + (["attention_mask"] if masked else [])
    if architecture == "encoder-decoder":
        names.append("decoder_input_ids")

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(names, inputs, strict=True)), use_cache=False).logits

    def example(batch, length, target_length):
        inputs = model_inputs(model, batch, length, target_length)
        inputs["attention_mask"][0, :2] = 0
        return tuple(inputs[name] for name in names)

    batch, length, target = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "length", "target"))
    dynamic = tuple({0: batch, 1: target if name == "decoder_input_ids" else length} for name in names)
    program = torch.export.export(Logits(), example(3, 9, 6), dynamic_shapes=(dynamic,)).module()
    for sizes in ((3, 9, 6), (2, 5, 11), (5, 17, 3), (4, 30, 30)):
        inputs = example(*sizes)
        expected = Logits()(*inputs)
        real = torch.ones(expected.shape[:2], dtype=torch.bool)
        if masked and architecture != "encoder-decoder":
            real = inputs[1].bool()
        assert_close(program(*inputs)[real], expected[real], atol=1e-4)
    if architecture in WRITERS:
        inputs = [tensor.clone() for tensor in example(3, 9, 6)]
        before = program(*inputs)
        inputs[-1 if architecture == "encoder-decoder" else 0][:, -1] = 41
        after = program(*inputs)
        first = 2 if masked and architecture == "decoder-only" else 0  # what stands at padding means nothing
        assert_close(after[:, first:-1], before[:, first:-1], atol=0)
        assert not torch.allclose(after[:, -1], before[:, -1])


@pytest.mark.slow
def test_exported_step_continues_positions():
    """A past of 5 that comes in as tensors, and goes on at position 5. Reported in huggingface/transformers#29190."""
    model = tiny_model("decoder-only")
    text = tokens(2, 9)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, keys, values):
            cache = DynamicCache()
            for layer in range(model.config.num_hidden_layers):
                cache.update(keys[layer], values[layer], layer)
            return self.model(ids, cache=cache, use_cache=True).logits

    def example(past, new):
        cache = model(text[:, :past], use_cache=True).cache
        keys, values = (torch.stack([getattr(layer, n) for layer in cache.layers]) for n in ("keys", "values"))
        return text[:, past : past + new].clone(), keys.detach(), values.detach()

    past, new = torch.export.Dim("past", min=2, max=32), torch.export.Dim("new", min=2, max=32)
    shapes = ({1: new}, {3: past}, {3: past})
    program = torch.export.export(Step(), example(5, 3), dynamic_shapes=shapes).module()
    expected = model(text).logits
    for lengths in ((5, 3), (2, 7), (6, 2)):
        assert_close(program(*example(*lengths)), expected[:, lengths[0] : sum(lengths)], atol=1e-4)


# ------------------------------------------------------------------------------------------------------------ generation


def test_stop_strings_and_logits_processors():
    from tokenizers import Tokenizer, decoders, models
    from transformers import LogitsProcessor, LogitsProcessorList

    letters = string.ascii_letters[:46]
    vocabulary = {**{f"<{i}>": i for i in range(4)}, **{letter: i for i, letter in enumerate(letters, 4)}}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<0>", eos_token="<2>", unk_token="<3>")

    class Counting(LogitsProcessor):
        def __call__(self, input_ids, scores):
            forced = torch.full_like(scores, -torch.inf)
            forced[:, 10 + input_ids.shape[1]] = 0
            return forced

    for architecture in WRITERS:
        model = tiny_model(architecture)
        settings = {"max_new_tokens": 9, "logits_processor": LogitsProcessorList([Counting()])}
        written = model.generate(tokens(1, 3), **settings)[0].tolist()
        start = 1 if architecture == "encoder-decoder" else 3
        assert written[start:] == list(range(10 + start, 19 + start))
        stopped = model.generate(tokens(1, 3), **settings, stop_strings=[letters[11:13]], tokenizer=tokenizer)[
            0
        ].tolist()
        assert stopped == written[: written.index(16) + 1]


def test_quantized_cache():
    """With the backend that needs no other package; as near to the plain cache as 8 bits are."""
    model = tiny_model("decoder-only", tie_word_embeddings=False)
    settings = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(tokens(1, 6), **settings)
    quantized = model.generate(
        tokens(1, 6), cache_implementation="quantized", cache_config={"backend": "fp8"}, **settings
    )
    assert type(quantized.cache).__name__ == "QuantizedCache"
    assert_close(quantized.logits[0], plain.logits[0])
    assert quantized.sequences.tolist() == plain.sequences.tolist()


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only"])
@pytest.mark.parametrize(("bits", "distance"), [(4, 0.5), (2, 1.5)])
def test_quantized_cache_of_few_bits(architecture, bits, distance, monkeypatch):
    """The cache is quantized indeed, the states of a source are not, and logits stay as near as the bits allow.

    transformers 5.24 refuses `cache_implementation="quantized"` for an encoder-decoder, so there the cache is given.
    """
    from optimum.quanto.library.extensions import get_extension

    def unpack(packed, bits):  # as its extension does, which a compiler would have to build first, for half a minute
        return torch.cat([packed >> shift & 2**bits - 1 for shift in range(0, 8, bits)])

    monkeypatch.setattr(get_extension("quanto_cpp"), "_lib", SimpleNamespace(unpack=unpack))
    model = tiny_model(architecture, hidden_size=64, num_attention_heads=2, scale=0.05)
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(tokens(2, 9), **settings)
    own = QuantizedCache(
        backend="quanto", config=model.config, nbits=bits, residual_length=4, q_group_size=32, axis_key=0, axis_value=0
    )
    cache = own if architecture == "decoder-only" else EncoderDecoderCache(own, DynamicCache())
    quantized = model.generate(tokens(2, 9), cache=cache, **settings)
    assert "QBits" in type(own.layers[0]._quantized_keys).__name__
    assert quantized.sequences.shape == plain.sequences.shape
    differences = [(a - b).abs().max().item() for a, b in zip(quantized.logits, plain.logits, strict=True)]
    assert differences[0] < 1e-4  # the first token is written before anything is read back
    assert 1e-4 < max(differences) < distance


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_continuous_batching(attention):
    from transformers import ContinuousBatchingConfig

    model = tiny_model("decoder-only", tie_word_embeddings=False, attn_implementation=attention)
    prompts = [tokens(1, n, seed=n)[0].tolist() for n in (6, 3, 9)]
    model.generation_config.max_new_tokens = 6
    model.generation_config.do_sample = False
    expected = [model.generate(torch.tensor([p]))[0, len(p) :].tolist() for p in prompts]
    outputs = model.generate_batch(
        inputs=prompts,
        generation_config=model.generation_config,
        continuous_batching_config=ContinuousBatchingConfig(block_size=4, num_blocks=64, max_batch_tokens=32),
    )
    written = [outputs[name].generated_tokens for name in sorted(outputs, key=lambda n: int(n.split("_")[-1]))]
    assert written == expected


def test_a_model_that_writes_no_text_has_no_continuous_batching():
    model = tiny_model("encoder-only")
    with pytest.raises(
        ValueError, match=r"^a VanillaTransformerForMaskedLM writes no text, so it has no generate_batch"
    ):
        model.generate_batch([[3, 4]])
    assert not model.can_generate()


@pytest.mark.parametrize("choice", [{"shared_layers": True}, {"position_encoding": "alibi"}])
def test_what_continuous_batching_does_not_serve_is_refused(choice):
    model = tiny_model("decoder-only", **choice)
    with pytest.raises(ValueError, match=r"continuous batching \(generate_batch\) does not serve "):
        model(tokens(1, 5), position_ids=torch.arange(5)[None], cache=object())  # which is no Cache there, too


# -------------------------------------------------------------------------------------------------------------- training


def smoothed_by_hand(logits, labels, epsilon):
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    log_probabilities = logits.log_softmax(-1)[labels != -100]
    labels = labels[labels != -100]
    likelihood = log_probabilities[torch.arange(len(labels)), labels]
    return -((1 - epsilon) * likelihood + epsilon * log_probabilities.mean(-1)).mean()


@pytest.mark.parametrize("peft", [False, True])
def test_label_smoothing_of_trainer_shifts_labels(tmp_path, peft):
    """transformers shifts for classes that it knows by name; ours is among them once the package is imported.

    Reported in huggingface/transformers#27161 and #17960.
    """
    model = tiny_model("decoder-only")
    labels = tokens(2, 6)
    labels[0, 4:] = -100
    batch = {"input_ids": tokens(2, 6), "labels": labels}
    logits = model(batch["input_ids"]).logits.detach()
    plain = model(**batch).loss.detach()
    if peft:
        peft_module = pytest.importorskip("peft")
        model = peft_module.get_peft_model(model, peft_module.LoraConfig(target_modules=["q_proj"], r=2))
        model.eval()

    def loss_with(factor):
        arguments = TrainingArguments(
            str(tmp_path), label_smoothing_factor=factor, report_to="none", use_cpu=True, disable_tqdm=True
        )
        return Trainer(model, arguments).compute_loss(model, dict(batch)).detach()

    assert_close(loss_with(0.1), smoothed_by_hand(logits, labels, 0.1))
    assert_close(loss_with(1e-8), plain)
    assert_close(loss_with(0.0), plain)
    unshifted = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    assert (loss_with(0.1) - unshifted).abs() > 0.01


def test_label_smoothing_of_a_trainer_whose_collator_lacks_the_model_names_the_remedy(tmp_path):
    model = tiny_model("encoder-decoder")
    arguments = TrainingArguments(
        str(tmp_path), label_smoothing_factor=0.1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    batch = {"input_ids": tokens(1, 3, seed=0), "labels": tokens(1, 4, seed=1)}
    with pytest.raises(
        ValueError, match=r"label_smoothing_factor has taken the labels .* give its collator the model"
    ):
        Trainer(model, arguments).compute_loss(model, batch)


@pytest.mark.slow
def test_seq2seq_trainer_accumulates_and_generates(tmp_path):
    """Its own collator, padding to uneven lengths, and evaluation on generated text."""
    features = [
        {"input_ids": tokens(1, n, seed=n)[0].tolist(), "labels": [*tokens(1, m, seed=m)[0].tolist(), EOS]}
        for n, m in ((3, 5), (9, 2), (5, 7), (2, 3))
    ]

    class Padding:
        """As much of a tokenizer as the collator asks for."""

        padding_side, pad_token_id = "right", PAD

        def pad(self, features, **_):
            rows = [torch.tensor(f["input_ids"]) for f in features]
            ids, mask = pad_rows(rows, "right")
            rest = {k: torch.tensor([list(f[k]) for f in features]) for k in features[0] if k != "input_ids"}
            return {"input_ids": ids, "attention_mask": mask, **rest}

    def train(batch_size, smoothing):
        model = tiny_model("encoder-decoder")
        arguments = Seq2SeqTrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=3,
            gradient_accumulation_steps=4 // batch_size,
            max_steps=1,
            optim="sgd",
            learning_rate=0.5,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            label_smoothing_factor=smoothing,
            predict_with_generate=True,
            generation_max_length=6,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Seq2SeqTrainer(
            model, arguments, train_dataset=features, data_collator=DataCollatorForSeq2Seq(Padding(), model)
        )
        trainer.train()
        return model.state_dict(), trainer.predict(features).predictions

    for smoothing in (0.0, 0.1):
        (whole, predictions), (parts, _) = train(4, smoothing), train(1, smoothing)
        for name, tensor in whole.items():
            assert_close(parts[name], tensor, atol=2e-6)
        assert predictions.shape[0] == 4 and (predictions[:, 0] == BOS).all()


# ----------------------------------------------------------------------------------------------------------- distributed


TWO_PROCESSES = """
import sys
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
from transformers.distributed import DistributedConfig
from vanilla_transformer.utils.shutdown import tear_down_at_exit

folder, architecture, share = sys.argv[1:]
tear_down_at_exit()
dist.init_process_group("gloo")
auto = {
    "encoder-decoder": AutoModelForSeq2SeqLM, "encoder-only": AutoModelForMaskedLM, "decoder-only": AutoModelForCausalLM
}[architecture]
stored = torch.load(folder + "/expected.pt", weights_only=True)
model = auto.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)).eval()
local = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.parameters())
assert local < float(share) * sum(p.numel() for p in model.parameters()), "nothing was sharded"
full = lambda tensor: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
with torch.no_grad():
    output = model(**stored["inputs"], labels=stored["labels"])
torch.testing.assert_close(full(output.loss), stored["loss"], rtol=1e-5, atol=1e-5)
torch.testing.assert_close(full(output.logits), stored["logits"], rtol=1e-5, atol=1e-5)
for name, settings in (("dynamic", {}), ("static", {"cache_implementation": "static"})):
    if model.can_generate():
        written = model.generate(stored["inputs"]["input_ids"], attention_mask=stored["inputs"]["attention_mask"],
                                 max_new_tokens=6, do_sample=False, no_repeat_ngram_size=1, **settings)
        assert written.tolist() == stored["written"].tolist(), name
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "untied", "t5"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tensor_parallel_on_two_processes(tmp_path, architecture, variant):
    model = tiny_model(architecture, variant)
    inputs = model_inputs(model)
    inputs["attention_mask"][0, :2] = 0
    labels = inputs.pop("decoder_input_ids", inputs["input_ids"])
    output = model(**inputs, labels=labels)
    stored = {"inputs": inputs, "labels": labels, "loss": output.loss.detach(), "logits": output.logits.detach()}
    if model.can_generate():
        settings = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 1}
        stored["written"] = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], **settings)
    torch.save(stored, tmp_path / "expected.pt")
    model.save_pretrained(tmp_path)
    (tmp_path / "two.py").write_text(TWO_PROCESSES)
    process = subprocess.run(
        [warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        # self-attention with biases of scores is whole in each process
        + [str(tmp_path / "two.py"), str(tmp_path), architecture, "0.95" if variant == "t5" else "0.7"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTHON_EXEC": warm_python(),
            "OMP_NUM_THREADS": "1",
        },
    )
    assert process.returncode == 0 and process.stdout.count("equal") == 2, process.stderr[-3000:]


@pytest.mark.parametrize(
    ("architecture", "variant"), [(a, v) for a in ARCHITECTURES for v in ("paper", "gated-rmsnorm-pre")]
)
def test_parallel_plans_name_modules(architecture, variant):
    model = LANGUAGE_MODELS[architecture](tiny_config(architecture, variant))
    modules = {name for name, _ in model.named_modules()}
    for plan in (model.tp_plan, model.fsdp_plan):
        assert plan
        for rule in plan:
            assert any(rule == name or rule.replace("*", "0") == name for name in modules), rule
    sharded = {rule.replace("*", "0") for rule in model.tp_plan}
    projections = {name for name in modules if name.endswith("_proj") and ".layers.0." in name}
    assert projections <= sharded and "lm_head" in sharded
    assert not hasattr(tiny_config(architecture).to_dict(), "base_model_tp_plan")
    assert "base_model_tp_plan" not in tiny_config(architecture).to_dict()


def test_auto_model_from_config():
    for architecture in ARCHITECTURES:
        assert type(AutoModel.from_config(tiny_config(architecture))) is vt.VanillaTransformerModel
