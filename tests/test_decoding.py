"""Fast decoding writes what transformers' loops write, and leaves to them what it cannot serve."""

import copy
import gc
import inspect
import io
import itertools
import logging
import pickle
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import logits_process
from transformers.generation.streamers import BaseStreamer

import vanilla_transformer as vt
from choices import cover, fields_of, name_of
from tiny import EOS, LANGUAGE_MODELS, PAD, pad_rows, randomise, tiny_config, tiny_model, tokens
from vanilla_transformer.decoding import FastDecoding, Shortlist, products, screening, shortlist
from vanilla_transformer.decoding import weights as prepared
from vanilla_transformer.decoding.engine import Engine
from vanilla_transformer.decoding.products import Product
from vanilla_transformer.decoding.scores import best_tokens, top_scores
from vanilla_transformer.decoding.screening import ScreenedArgmax
from vanilla_transformer.generation_vanilla_transformer import VanillaTransformerGenerationMixin

WRITERS = ("encoder-decoder", "decoder-only")
COMBINATIONS = [options for options in cover()[0] if fields_of(options)["architecture"] != "encoder-only"]
ALL = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def restless(architecture, variant="paper", **overrides):
    """A model that does not just repeat its last token, as a tied random one does."""
    return tiny_model(architecture, variant, **{"tie_word_embeddings": False, **overrides})


def padded_inputs():
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3, 5, 1)], "left")
    return {"input_ids": ids, "attention_mask": mask}


def ordinary(model, **settings):
    """What transformers' own loops write."""
    model.decoding_backend = None
    try:
        torch.manual_seed(0)
        return model.generate(**settings)
    finally:
        del model.decoding_backend


def fast(model, **settings):
    torch.manual_seed(0)
    output = model.generate(**settings)
    assert model.last_decoding.path == "fast", model.last_decoding
    return output


def assert_same(model, **settings):
    settings = {"max_new_tokens": 8, "do_sample": False, **settings}
    found, expected = fast(model, **settings), ordinary(model, **settings)
    if isinstance(found, torch.Tensor):
        assert found.tolist() == expected.tolist()
        return found
    assert set(found) == set(expected) - {"cache"} | ({"cache"} & set(found))
    for name in set(found) - {"cache"}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)
    return found


# ------------------------------------------------------------------------------------------------------ the same tokens


@pytest.mark.parametrize("options", COMBINATIONS, ids=itertools.starmap(name_of, enumerate(COMBINATIONS)))
def test_every_pair_of_choices_decodes_as_transformers_does(options):
    torch.manual_seed(0)
    config = vt.VanillaTransformerConfig(**fields_of(options))
    model = randomise(LANGUAGE_MODELS[config.architecture](config)).eval()
    inputs = padded_inputs()
    assert_same(model, **inputs)
    assert_same(model, **inputs, num_beams=3)
    assert_same(model, input_ids=inputs["input_ids"][:1], num_beams=2, max_new_tokens=5)


SETTINGS = {
    "greedy": {},
    "several samples": {"do_sample": True, "num_return_sequences": 3, "top_k": 12, "temperature": 0.8},
    "samples of few": {"do_sample": True, "top_p": 0.7, "max_new_tokens": 12},
    "beams": {"num_beams": 4},
    "n best, stopped early": {
        "num_beams": 4,
        "num_return_sequences": 3,
        "length_penalty": 0.6,
        "early_stopping": True,
    },
    "never stopped early": {"num_beams": 3, "early_stopping": "never", "length_penalty": 1.5},
    "short outputs preferred": {"num_beams": 3, "length_penalty": -1.0},
    "the paper's length penalty": {"num_beams": 4, "length_penalty": 0.6, "length_penalty_form": "gnmt"},
    "beams that sample": {"num_beams": 3, "do_sample": True, "max_new_tokens": 6},
    "least lengths": {"num_beams": 3, "min_length": 5, "min_new_tokens": 4},
    "greedy with processors": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "bad_words_ids": [[7], [8, 9]]},
    "beams with processors": {"num_beams": 3, "no_repeat_ngram_size": 1, "repetition_penalty": 1.3, "min_length": 3},
    "forbidden tokens": {"num_beams": 2, "suppress_tokens": [EOS, PAD], "begin_suppress_tokens": [9, 10]},
    "forced tokens": {"num_beams": 2, "forced_bos_token_id": 7, "forced_eos_token_id": EOS},
    "fewer tokens than beams": {"num_beams": 4, "prefix_allowed_tokens_fn": lambda row, ids: [7, 8]},
    "several end tokens": {"num_beams": 3, "eos_token_id": [EOS, 7, 8]},
    "no end token": {"num_beams": 2, "eos_token_id": None, "max_new_tokens": 4},
}


@pytest.mark.parametrize("architecture", WRITERS)
@pytest.mark.parametrize("rows", [1, 7, 8, 33])
@pytest.mark.parametrize("length", [1, 2, 9, 70])
def test_prompts_without_padding_in_batches_of_any_size(architecture, rows, length):
    """Attention is computed in one way for few rows and in another for many."""
    model = randomise(tiny_model(architecture, max_position_embeddings=128)).eval()
    ids = torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(0))
    name = "decoder_input_ids" if architecture == "encoder-decoder" else "input_ids"
    inputs = {"input_ids": ids, name: ids}
    assert_same(model, **inputs, max_new_tokens=3)
    assert_same(model, **inputs, num_beams=2, max_new_tokens=3)


@pytest.mark.parametrize("architecture", WRITERS)
@pytest.mark.parametrize("wanted", [{}, ALL], ids=["tokens", "everything"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_generate_gives_the_same(name, wanted, architecture):
    model = restless(architecture)
    assert_same(model, **padded_inputs(), **{"max_new_tokens": 8, **SETTINGS[name]}, **wanted)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
def test_limits_by_source_and_given_encodings(settings):
    model = restless("encoder-decoder")
    inputs = padded_inputs()
    limits = {"max_new_tokens": None, "max_length_over_source": 3}
    for forbidden in ([EOS, PAD], None):  # rows end one after the other, and some by themselves
        assert_same(model, **inputs, **settings, **limits, suppress_tokens=forbidden)
    given = {"attention_mask": inputs["attention_mask"], "max_new_tokens": 8, **settings}
    # each with encodings of its own, since transformers repeats those that it gets for beams in place
    found, expected = (
        decode(model, encoder_outputs=model.get_encoder()(**inputs), **given) for decode in (fast, ordinary)
    )
    assert found.tolist() == expected.tolist()
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    assert_same(model, inputs_embeds=embeds, attention_mask=inputs["attention_mask"], **settings)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}])
@pytest.mark.parametrize("variant", ["paper", "learned"])
def test_decoder_prompts_with_and_without_padding(variant, settings):
    model = restless("encoder-decoder", variant)
    prompts, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (5, 2, 4, 3)], "left")
    prompts[:, 0] = model.config.bos_token_id
    mask[:, 0] = 1  # holes between the start and the prompt
    assert_same(model, **padded_inputs(), decoder_input_ids=prompts, **settings)
    assert_same(model, **padded_inputs(), decoder_input_ids=prompts, decoder_attention_mask=mask, **settings)


POSITIONS = [
    {"position_encoding": "sinusoidal"},
    {"position_encoding": "learned", "position_offset": 2, "max_position_embeddings": 160},
    {"position_encoding": "rope", "num_key_value_heads": 2},
    {"position_encoding": "alibi"},
    {"position_encoding": "relative", "num_key_value_heads": 1},
    {"position_encoding": "rope", "sliding_window": 5},
    {"position_encoding": "alibi", "sliding_window": 70, "num_key_value_heads": 2},
]


@pytest.mark.parametrize("fields", POSITIONS, ids=lambda fields: "-".join(map(str, fields.values())))
@pytest.mark.parametrize("architecture", WRITERS)
def test_outputs_longer_than_the_memory_that_is_allocated_first(architecture, fields):
    model = restless(architecture, num_hidden_layers=1, **fields)
    inputs = padded_inputs()
    lengths = {"max_new_tokens": 145, "suppress_tokens": [EOS, PAD]}
    assert_same(model, **inputs, **lengths)
    assert_same(model, **inputs, **lengths, num_beams=2)


def test_what_streams_and_what_the_caller_made_run_on_the_fast_path():
    class Streamer(BaseStreamer):
        def __init__(self):
            self.said = []

        def put(self, value):
            self.said.append(value.tolist())

        def end(self):
            self.said.append("end")

    class OnlyEven(LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert len(input_ids) == len(scores)
            return scores.masked_fill(torch.arange(scores.shape[1]) % 2 == 1, -torch.inf)

    class AfterFive(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return input_ids[:, -1] > 30

    for architecture in WRITERS:
        model = restless(architecture)
        streamers = Streamer(), Streamer()
        fast(model, **padded_inputs(), max_new_tokens=6, streamer=streamers[0])
        ordinary(model, **padded_inputs(), max_new_tokens=6, streamer=streamers[1])
        assert streamers[0].said == streamers[1].said and streamers[0].said[-1] == "end"
        for beams in (1, 3):
            own = {
                "logits_processor": LogitsProcessorList([OnlyEven()]),
                "stopping_criteria": StoppingCriteriaList([AfterFive()]),
            }
            found = assert_same(model, **padded_inputs(), num_beams=beams, max_new_tokens=10, **own)
            start = 1 if architecture == "encoder-decoder" else 6
            assert not (found[:, start:] % 2).any()


def test_a_returned_cache_goes_on_where_the_call_ended():
    for architecture in WRITERS:
        model = restless(architecture)
        ids = tokens(2, 5)
        output = fast(model, input_ids=ids, max_new_tokens=4, suppress_tokens=[EOS, PAD], return_dict_in_generate=True)
        expected = ordinary(
            model, input_ids=ids, max_new_tokens=4, suppress_tokens=[EOS, PAD], return_dict_in_generate=True
        )
        own, theirs = output.cache, expected.cache
        if architecture == "encoder-decoder":
            assert own.is_updated == theirs.is_updated
            for one, other in zip(own.cross_attention_cache.layers, theirs.cross_attention_cache.layers, strict=True):
                torch.testing.assert_close(one.keys, other.keys, rtol=1e-5, atol=1e-5)
            own, theirs = own.self_attention_cache, theirs.self_attention_cache
        for one, other in zip(own.layers, theirs.layers, strict=True):
            torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ less work, not other


def steps_of(monkeypatch):
    """Rows of every step, while they are recorded."""
    rows, original = [], Engine.step

    def recorded(self, tokens):
        rows.append(len(tokens))
        return original(self, tokens)

    monkeypatch.setattr(Engine, "step", recorded)
    return rows


@pytest.mark.parametrize("beams", [1, 2])
def test_rows_that_have_ended_are_left_out(beams, monkeypatch):
    model = restless("encoder-decoder")
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (2, 8, 3, 5)], "right")
    settings = {"max_new_tokens": None, "max_length_over_source": 0, "suppress_tokens": [EOS, PAD], "num_beams": beams}
    rows = steps_of(monkeypatch)
    found = assert_same(model, input_ids=ids, attention_mask=mask, **settings)
    assert rows[0] == 4 * beams and rows[-1] == beams and rows == sorted(rows, reverse=True)
    assert len(rows) == found.shape[1] - 2


def test_beams_share_keys_and_values_and_none_is_moved(monkeypatch):
    model = restless("encoder-decoder")
    addresses, original = [], Engine.exchange

    def recorded(self, parents):
        keys = self.cache.states[0]
        before = keys[..., : self.cache.filled, :].clone()
        original(self, parents)
        assert torch.equal(before, keys[..., : self.cache.filled, :])
        assert all(key.shape[0] == 4 for key, _ in self.source.pairs)
        addresses.append((self.cache.states[0].data_ptr(), self.source.pairs[0][0].data_ptr()))

    monkeypatch.setattr(Engine, "exchange", recorded)
    fast(model, **padded_inputs(), num_beams=4, max_new_tokens=12, suppress_tokens=[EOS], do_sample=False)
    assert len(addresses) == 11 and len(set(addresses)) == 1


def test_the_best_of_many_scores_are_those_of_torch():
    for size in (10, 2049, 10007, 12000, 37000):
        scores = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
        scores[0, -1], scores[1, 0] = 9.0, 9.0
        scores[2].clamp_(max=2.0)  # many equal ones
        assert best_tokens(scores).tolist() == scores.argmax(-1).tolist()
        values, index = top_scores(scores, 8)
        assert values.tolist() == scores.topk(8).values.tolist()
        assert scores.gather(1, index).tolist() == values.tolist() and all(
            len(set(row)) == 8 for row in index.tolist()
        )


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_products_of_every_form_are_those_of_the_linear_layer(rows):
    for inputs, outputs in (([8], 5), ([700], 600), ([600], 300), ([600], 700)):
        weights = [torch.randn(outputs, inputs[0]) for _ in range(2)]
        for biases in ([None, None], [torch.randn(outputs) for _ in range(2)]):
            x = torch.randn(rows, inputs[0])
            expected = torch.cat(
                [torch.nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], 1
            )
            product = Product(weights, biases)
            torch.testing.assert_close(product.for_rows(rows)(x), expected, rtol=1e-4, atol=1e-4)
            assert product.copied_bytes == 4 * 2 * outputs * inputs[0]


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("size", [640, 1000])
def test_screening_finds_the_best_of_float32_logits(size, rows):
    def mask(forbidden, scores):
        return scores.index_fill_(1, forbidden, -torch.inf)

    generator = torch.Generator().manual_seed(size + rows)
    weight = torch.randn(size, 32, generator=generator)
    weight[7], weight[600] = weight[3], weight[3]  # equal logits, of which the first is taken
    for bias in (None, torch.randn(size, generator=generator)):
        screen = ScreenedArgmax(weight, bias)
        for scale in (0.01, 1.0, 100.0):
            states = torch.randn(rows, 32, generator=generator) * scale
            states[0] = weight[3] * scale
            logits = torch.nn.functional.linear(states, weight, bias)
            assert screen(states, lambda scores: scores).tolist() == logits.argmax(-1).tolist()
            forbidden = logits.argmax(-1).unique()
            logits[:, forbidden] = -torch.inf
            found = screen(states, partial(mask, forbidden))
            assert found.tolist() == logits.argmax(-1).tolist()
    assert screen.copied_bytes in (weight.shape[1] * 1024 * n for n in (0.625, 1))


def test_logits_that_are_too_near_one_another_are_all_computed(monkeypatch):
    monkeypatch.setattr(screening, "MOST_CANDIDATES", 10)
    states, weight = torch.randn(3, 8), torch.ones(64, 8) + 1e-3 * torch.randn(64, 8)
    assert ScreenedArgmax(weight, None)(states, lambda scores: scores) is None
    monkeypatch.setattr(screening, "LARGE_WEIGHT", 0)
    tried, original = [], ScreenedArgmax.__call__
    monkeypatch.setattr(ScreenedArgmax, "__call__", lambda *given: tried.append(original(*given)))
    for architecture in WRITERS:
        assert_same(restless(architecture), **padded_inputs(), suppress_tokens=[EOS, PAD], max_new_tokens=9)
    assert len(tried) == 4 * len(WRITERS)


@pytest.mark.parametrize("variant", ["paper", "untied", "albert", "t5", "marian"])
@pytest.mark.parametrize("architecture", WRITERS)
def test_greedy_tokens_are_the_same_with_screening(architecture, variant, monkeypatch):
    monkeypatch.setattr(screening, "LARGE_WEIGHT", 0)
    found, original = [], ScreenedArgmax.__call__

    def recorded(*given):
        found.append(original(*given))
        return found[-1]

    monkeypatch.setattr(ScreenedArgmax, "__call__", recorded)
    model = restless(architecture, variant)
    for settings in ({}, {"min_new_tokens": 6}, {"suppress_tokens": [EOS, PAD, 7], "return_dict_in_generate": True}):
        assert_same(model, **padded_inputs(), **settings)
        assert_same(model, input_ids=tokens(1, 4), **settings)
    assert found and all(tokens is not None for tokens in found)
    found.clear()
    # what reads or returns scores has all of them
    assert_same(model, **padded_inputs(), repetition_penalty=1.3)
    assert_same(model, **padded_inputs(), **ALL)
    assert_same(model, **padded_inputs(), num_beams=2)
    assert not found


# ----------------------------------------------------------------------------------------------------------- shortlists


PAIRS = [([5, 6, 7, 2], [9, 8, 2]), ([5, 6, 2], [9, 9, 11, 2]), ([7, 2], [12, 2]), ([5, 2], [9, 2])]


def counted(**options):
    settings = {"source_vocab_size": 10, "target_vocab_size": 14, "special_tokens": [0, 2], "copies": False}
    return Shortlist.count(iter(PAIRS), **{**settings, **options})


def test_a_shortlist_holds_what_stood_beside_a_source_token(monkeypatch, tmp_path):
    def tokens_for(ids, **options):
        return counted(**options).tokens_for(torch.tensor([ids])).tolist()

    monkeypatch.setattr(shortlist, "FREQUENT", 0)
    monkeypatch.setattr(shortlist, "AT_ONCE", 3)
    assert tokens_for([6]) == [0, 2, 8, 9, 11] and tokens_for([7, 7]) == [0, 2, 8, 9, 12]
    assert tokens_for([4, 8, 2]) == [0, 2, 8, 9, 11, 12]  # each was there beside the end token
    assert tokens_for([6, 13], copies=True) == [0, 2, 6, 8, 9, 11]
    monkeypatch.setattr(shortlist, "FOR_EACH", 1)
    assert tokens_for([5]) == [0, 2, 9] and tokens_for([7]) == [0, 2, 8]
    monkeypatch.setattr(shortlist, "FREQUENT", 2)  # 2 and 9
    assert tokens_for([5]) == [0, 2, 8, 9]
    counted(copies=True).save(tmp_path)
    loaded = Shortlist.load(tmp_path / "shortlist.safetensors")
    assert loaded.tokens_for(torch.tensor([[5]])).tolist() == [0, 2, 5, 8, 9]
    (tmp_path / "shortlist.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"shortlist.safetensors is not a shortlist, or is damaged"):
        Shortlist.load(tmp_path / "shortlist.safetensors")
    assert Shortlist.chosen_pairs(3).tolist() == [0, 1, 2] and Shortlist.chosen_pairs(10**6)[-1] == 10**6 - 1


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"num_beams": 2, **ALL}])
@pytest.mark.parametrize("variant", ["paper", "separate", "albert"])
def test_tokens_off_the_shortlist_are_not_written(variant, settings, monkeypatch):
    monkeypatch.setattr(screening, "LARGE_WEIGHT", 0)
    model = restless("encoder-decoder", variant)
    inputs = padded_inputs()
    listed = [EOS, PAD, 7, 9, 12, 20, 21, 33, 40, 41]
    of_source = Shortlist(np.array(listed), np.zeros(51, int), np.empty(0, int), False)
    others = [token for token in range(model.config.output_vocab_size) if token not in listed]
    found = fast(model, **inputs, max_new_tokens=9, shortlist=of_source, **settings)
    expected = ordinary(model, **inputs, max_new_tokens=9, suppress_tokens=others, **settings)
    if settings.get("output_scores"):
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
        for scores, of_all in zip(found.scores, expected.scores, strict=True):
            torch.testing.assert_close(scores, of_all, rtol=1e-4, atol=1e-4)
        found, expected = found.sequences, expected.sequences
    assert found.tolist() == expected.tolist()
    # where nearly all are listed, all are computed
    wide = Shortlist(np.arange(40), np.zeros(51, int), np.empty(0, int), False)
    assert_same(model, **inputs, **settings)
    plain = fast(model, **inputs, max_new_tokens=9, **{**settings, "return_dict_in_generate": False})
    with_wide = fast(
        model, **inputs, max_new_tokens=9, **{**settings, "return_dict_in_generate": False}, shortlist=wide
    )
    assert plain.tolist() == with_wide.tolist()


def test_the_tokens_off_the_shortlist_count_by_a_sample_of_them():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(30000, 16, generator=generator) * 0.3
    states = torch.randn(4, 16, generator=generator)
    model = restless("decoder-only", hidden_size=16)
    model.lm_head = torch.nn.Linear(16, 30000, bias=False)
    model.lm_head.weight.data = weight
    model.config.vocab_size = 30000
    head, listed = prepared.HeadWeights(model, "float32"), torch.arange(100, 2100)
    few, all_of_them = prepared.ShortlistedHead(head, listed), head.log_probabilities(states)
    error = few.log_probabilities(states)[:, listed] - all_of_them[:, listed]
    without = few.logits(states).log_softmax(-1)[:, listed] - all_of_them[:, listed]
    assert error.abs().max() < 0.3 < 2 < without.abs().min()


def test_a_shortlist_needs_a_source():
    listed = Shortlist(np.arange(5), np.zeros(51, int), np.empty(0, int), False)
    with pytest.raises(ValueError, match="a shortlist needs the token ids of a source; leave it out"):
        restless("decoder-only").generate(**padded_inputs(), shortlist=listed)
    model = restless("encoder-decoder")
    states = model.get_encoder()(**padded_inputs())
    with pytest.raises(ValueError, match="a shortlist needs the token ids of a source; leave it out"):
        model.generate(encoder_outputs=states, shortlist=listed)


# ---------------------------------------------------------------------------------------------------------- other dtypes


def dtypes_here():
    """The rounded dtypes that this processor has."""
    found = []
    for dtype in ("bfloat16", "int8"):
        try:
            FastDecoding.check_dtype(dtype)
            found.append(dtype)
        except ValueError as error:
            assert "use dtype='float32'" in str(error)
    return found


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_rounded_products_are_as_near_as_their_dtype(rows, monkeypatch):
    monkeypatch.setattr(products, "NOT_ROUNDED", 0)
    weight, bias, x = torch.randn(300, 64), torch.randn(300), torch.randn(rows, 64)
    expected = torch.nn.functional.linear(x, weight, bias)
    # a value is off by half a step at most: 2^-9 of itself, or 1/254 of the largest of its row and, of states, 1/127 (7
    # bits are used of them); 64 products of unit variance add up as the square root of their number
    steps = {"bfloat16": 2 * 2**-9, "int8": 3.5 * (1 / 254 + 1 / 127)}
    for dtype in dtypes_here():
        product = Product([weight], [bias], dtype)
        error = (product.for_rows(rows)(x) - expected).square().mean().sqrt()
        assert 0 < error < steps[dtype] * 64**0.5, dtype
        scales = 8 * 64 if (dtype, rows) == ("int8", 1) else 0
        assert product.copied_bytes == weight.nbytes // {"bfloat16": 2, "int8": 4}[dtype] + scales


@pytest.mark.parametrize("architecture", WRITERS)
def test_a_dtype_for_inference_is_saved_with_the_model_which_then_refuses_to_train(
    architecture, tmp_path, monkeypatch
):
    monkeypatch.setattr(products, "NOT_ROUNDED", 0)
    model = restless(architecture)
    expected = fast(model, **padded_inputs(), max_new_tokens=6)
    whole = model.last_decoding.copied_bytes
    for dtype in dtypes_here():
        assert model.optimize_for_inference(dtype) is model
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        found = fast(loaded, **padded_inputs(), max_new_tokens=6)
        assert loaded.decoding_dtype == dtype and loaded.last_decoding.copied_bytes < 0.6 * whole
        assert fast(model, **padded_inputs(), max_new_tokens=6).tolist() == found.tolist()
        # the weights themselves are not rounded
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name])
        assert (
            fast(loaded, **padded_inputs(), max_new_tokens=6, decoding_dtype="float32").tolist() == expected.tolist()
        )
        with pytest.raises(ValueError, match=f"optimized for inference in {dtype} and is not trained; call optimize"):
            loaded.train()
        assert not model.train(False).training and not loaded.eval().training
        loaded.optimize_for_inference("float32")
        loaded.train()(input_ids=tokens(2, 5), labels=tokens(2, 5)).loss.backward()
    with pytest.raises(ValueError, match="dtype='int4' is not one of 'float32', 'bfloat16', 'int8'"):
        model.optimize_for_inference("int4")
    with pytest.raises(ValueError, match="'int4'"):
        model.generate(**padded_inputs(), decoding_dtype="int4")


# --------------------------------------------------------------------------------------------------- weights that change


def changes():
    """Ways in which weights change, each by its name."""

    def one_step(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
        batch = {"input_ids": tokens(2, 5), "labels": tokens(2, 5, seed=3)}
        model.train()(**batch).loss.backward()
        optimizer.step()
        model.eval()

    def in_place(model):
        with torch.no_grad():
            model.lm_head.weight[5:9] *= -3

    def through_data(model):
        for parameter in model.parameters():
            parameter.data.mul_(-1.5)

    def other_data(model):
        model.lm_head.weight.data = -model.lm_head.weight.data

    def loaded(model):
        model.load_state_dict({name: -value for name, value in model.state_dict().items()})

    def replaced(model):
        model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())

    def replaced_module(model):
        head = torch.nn.Linear(*reversed(model.lm_head.weight.shape), bias=False)
        model.lm_head = head

    def there_and_back(model):
        model.to(torch.bfloat16).to(torch.float32)

    def resized(model):
        model.resize_token_embeddings(60, mean_resizing=False)

    return [one_step, in_place, through_data, other_data, loaded, replaced, replaced_module, there_and_back, resized]


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
@pytest.mark.parametrize("architecture", WRITERS)
def test_weights_that_changed_between_calls_are_read_again(architecture, change):
    model = restless(architecture)
    settings = {"no_repeat_ngram_size": 1, "suppress_tokens": [EOS, PAD], "max_new_tokens": 10}
    before = assert_same(model, **padded_inputs(), **settings)
    change(model)
    after = assert_same(model, **padded_inputs(), **settings)
    if change.__name__ not in ("there_and_back", "resized"):
        assert before.tolist() != after.tolist()


def test_memory_of_copies_is_stated_and_freed(monkeypatch):
    for architecture in WRITERS:
        model = restless(architecture, num_hidden_layers=2)
        assert model.free_decoding_memory() == 0
        fast(model, **padded_inputs(), max_new_tokens=3)
        # every matrix has one copy, at this size one for few and one for many rows; embeddings have none
        copied = sum(module.weight.nbytes for module in model.modules() if isinstance(module, torch.nn.Linear))
        assert copied <= model.last_decoding.copied_bytes <= 2 * copied
        monkeypatch.setattr(products, "FEW_ROWS", 1000)
        model.free_decoding_memory()
        for inputs in (padded_inputs(), {"input_ids": tokens(1, 4)}):
            fast(model, **inputs, max_new_tokens=3)
            assert model.last_decoding.copied_bytes == copied
        assert model.free_decoding_memory() == copied and model.free_decoding_memory() == 0
        fast(model, **padded_inputs(), max_new_tokens=3)
        is_there, weights = weakref.ref(model), weakref.ref(prepared._PREPARED[model])
        del model
        gc.collect()
        assert is_there() is None and weights() is None


def test_checkpoints_and_copies_of_a_model_are_as_without_decoding(tmp_path):
    model = restless("encoder-decoder")
    names = list(model.state_dict())
    fast(model, **padded_inputs(), max_new_tokens=3)
    assert list(model.state_dict()) == names
    file = io.BytesIO()
    pickle.dump(model, file)
    assert file.tell() < 2 * sum(p.nbytes for p in model.parameters())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.neg_()
    assert_same(other, **padded_inputs())
    assert_same(model, **padded_inputs())


# ----------------------------------------------------------------------------------------------- left to transformers


def hooked(model):
    model.model.decoder.layers[0].register_forward_hook(lambda *_: None)


def with_other_forward(model):
    model.lm_head.forward = model.lm_head.forward


def with_other_layer(model):
    class Other(torch.nn.Linear):
        pass

    model.lm_head.__class__ = Other


MODELS = {
    "training mode": lambda model: model.train(),
    "lm_head.weight is bfloat16|embed_tokens.weight is bfloat16": lambda model: model.to(torch.bfloat16),
    r"model.decoder.layers.0 has hooks": hooked,
    "lm_head has another forward": with_other_forward,
    "lm_head is a Other": with_other_layer,
    "the model has another forward or is compiled": lambda model: model.compile(backend="eager"),
}
CALLS = {
    "another cache": {"use_cache": False},
    "another cache is": {"cache_implementation": "static"},
    "attentions or hidden states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "prefill_chunk_size": {"prefill_chunk_size": 2},
    "transformers' own": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("architecture", WRITERS)
@pytest.mark.parametrize("reason", MODELS)
def test_models_that_have_to_be_called_are_called(reason, architecture, caplog):
    model = restless(architecture)
    MODELS[reason](model)
    with caplog.at_level(logging.DEBUG, "vanilla_transformer.decoding"):
        model.generate(**padded_inputs(), max_new_tokens=2)
    assert model.last_decoding.path == "ordinary"
    assert any(part in model.last_decoding.reason for part in reason.split("|")), model.last_decoding.reason
    said = [record.getMessage() for record in caplog.records if record.name.startswith("vanilla_transformer")]
    assert said == [f"decoding: ordinary path, since {model.last_decoding.reason}"]


# transformers has no prefill in chunks for encoder-decoders
@pytest.mark.parametrize(
    ("architecture", "reason"),
    [(a, r) for a in WRITERS for r in CALLS if a == "decoder-only" or r != "prefill_chunk_size"],
)
def test_calls_that_need_the_ordinary_path_get_it(architecture, reason):
    model = restless(architecture)
    model.generate(input_ids=tokens(1, 6), max_new_tokens=2, **CALLS[reason])
    assert model.last_decoding.path == "ordinary" and reason in model.last_decoding.reason


def test_given_caches_and_positions_are_left_to_the_ordinary_path():
    model = restless("decoder-only")
    ids = tokens(2, 6)
    cache = model(ids[:, :4], use_cache=True).cache
    model.generate(ids, cache=cache, max_new_tokens=2)
    assert "cache is given" in model.last_decoding.reason
    model.generate(ids, position_ids=torch.arange(3, 9)[None].expand(2, -1), max_new_tokens=2)
    assert "position ids" in model.last_decoding.reason
    paired = restless("encoder-decoder")
    paired.generate(ids, cache=EncoderDecoderCache(DynamicCache(), DynamicCache()), max_new_tokens=2)
    assert "cache" in paired.last_decoding.reason or paired.last_decoding.path == "fast"
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(ids, max_new_tokens=2)
    assert "autocast" in model.last_decoding.reason


def test_a_model_whose_attentions_were_once_asked_for_stays_fast():
    model = restless("encoder-decoder", attn_implementation="eager")
    model.generate(**padded_inputs(), output_attentions=True, return_dict_in_generate=True, max_new_tokens=2)
    assert model.last_decoding.path == "ordinary"
    assert_same(model, **padded_inputs())


def test_invalid_tokens_are_named_as_on_the_ordinary_path():
    for architecture in WRITERS:
        model = restless(architecture)
        for decode in (fast, ordinary):
            with pytest.raises(ValueError, match="token id 99 is outside the vocabulary of 50 tokens"):
                decode(model, input_ids=torch.tensor([[5, 99]]), max_new_tokens=2)


def test_without_the_package_the_files_of_a_checkpoint_decode_as_transformers_does(monkeypatch):
    monkeypatch.setattr(VanillaTransformerGenerationMixin, "decoding_backend", None)
    model = restless("encoder-decoder")
    model.generate(**padded_inputs(), max_new_tokens=2)
    assert model.last_decoding is None and model.free_decoding_memory() == 0
    assert FastDecoding is not None


# -------------------------------------------------------------------------------------------------------------- guards


def test_the_private_parts_of_transformers_are_as_they_are_used():
    """Which of them, and why: a loop is replaced as a whole, so that all that `generate()` prepares stays its own."""
    # the two loops, called by `generate()` with these keywords, found by their names on the class
    for loop, names in (
        (GenerationMixin._sample, ["synced_gpus", "streamer"]),
        (GenerationMixin._beam_search, ["synced_gpus"]),
    ):
        expected = ["self", "input_ids", "logits_processor", "stopping_criteria", "generation_config", *names]
        assert list(inspect.signature(loop).parameters) == [*expected, "model_kwargs"]
    # where the encoder is called, before either of them
    encode = GenerationMixin._prepare_text_encoder_decoder_kwargs_for_generation
    assert list(inspect.signature(encode).parameters) == [
        "self",
        "inputs_tensor",
        "model_kwargs",
        "model_input_name",
        "generation_config",
    ]
    # processors that only forbid tokens are carried out in place, by what they hold
    for processor, names in (
        (logits_process.MinLengthLogitsProcessor(3, 2), ("min_length", "eos_token_id")),
        (
            logits_process.MinNewTokensLengthLogitsProcessor(3, 2, 1),
            ("prompt_length_to_skip", "min_new_tokens", "eos_token_id"),
        ),
        (logits_process.SuppressTokensLogitsProcessor([3]), ("suppress_tokens",)),
        (
            logits_process.SuppressTokensAtBeginLogitsProcessor([3], 1),
            ("begin_suppress_tokens", "begin_index"),
        ),
        (logits_process.RepetitionPenaltyLogitsProcessor(2.0), ("prompt_ignore_length",)),
    ):
        assert set(names) <= set(vars(processor))
    # tensors that `generate()` makes of the tokens in its settings
    config = GenerationConfig(pad_token_id=0, eos_token_id=2, bos_token_id=1)
    tiny_model("decoder-only")._prepare_special_tokens(config, True, device="cpu", batch_size=1)
    assert int(config._pad_token_tensor) == 0 and config._eos_token_tensor.tolist() == [2]


def test_the_decoder_of_an_encoder_only_model_is_not_asked_for():
    assert not LANGUAGE_MODELS["encoder-only"](tiny_config("encoder-only")).can_generate()
