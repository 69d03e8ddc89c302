import itertools
import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.utils import logging

import vanilla_transformer as vt
from closeness import assert_close
from tiny import BOS, EOS, LANGUAGE_MODELS, PAD, model_inputs, pad_rows, tiny_config, tiny_model, tokens

WRITERS = ("encoder-decoder", "decoder-only")
CACHES = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "none": {"use_cache": False},
}
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "three of four beams": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6},
}


def restless(architecture, variant="paper", **overrides):
    """A model that does not just repeat its last token, as a tied random one does."""
    return tiny_model(architecture, variant, **{"tie_word_embeddings": False, **overrides})


def generate(model, ids, mask=None, **settings):
    """No token twice, so that what is written shows the order of many logits at every step."""
    defaults = {"max_new_tokens": 8, "do_sample": False, "no_repeat_ngram_size": 1}
    return model.generate(ids, attention_mask=mask, **{**defaults, **settings})


def new_tokens(model, row, width):
    """What was written, without what rows are filled up with: beam search of transformers takes the end token for 0."""
    row = row if model.config.is_encoder_decoder else row[width:]
    row = row.tolist()
    while row and row[-1] in (PAD, EOS):
        row.pop()
    return row


def test_the_models_of_these_tests_are_restless():
    for architecture in WRITERS:
        written = generate(restless(architecture), tokens(4, 6), suppress_tokens=[EOS, PAD])
        assert len(set(written[:, -8:].flatten().tolist())) > 8
        assert len({tuple(row) for row in written[:, -8:].tolist()}) == 4


# -------------------------------------------------------------------------------------------- caches, batches, backends


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    ("architecture", "variant"),
    [(a, v) for a in WRITERS for v in ("paper", "pre-norm", "learned", "grouped-query", "multi-query-wide-heads")]
    + [("encoder-decoder", v) for v in ("separate-untied", "shallow-encoder", "shallow-decoder")],
)
def test_cached_is_uncached(architecture, variant, search):
    model = restless(architecture, variant)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "left")
    outputs = {}
    for cache, settings in CACHES.items():
        outputs[cache] = generate(
            model, ids, mask, **settings, **SEARCHES[search], return_dict_in_generate=True, output_scores=True
        )
    for cache in ("static", "none"):
        assert outputs[cache].sequences.tolist() == outputs["dynamic"].sequences.tolist()
        if search != "greedy":
            assert_close(outputs[cache].sequences_scores, outputs["dynamic"].sequences_scores, atol=1e-4)


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("architecture", "side"),
    # a prompt that ends in padding cannot be continued
    [("encoder-decoder", "left"), ("encoder-decoder", "right"), ("decoder-only", "left")],
)
def test_batch_is_alone(architecture, cache, side, search):
    model = restless(architecture)
    rows = [tokens(1, n, seed=n)[0] for n in (6, 3, 5, 1)]
    settings = {**CACHES[cache], **SEARCHES[search]}
    alone = [new_tokens(model, generate(model, row[None], **settings)[0], len(row)) for row in rows]
    for extra in (0, 3):
        ids, mask = pad_rows(rows, side, extra)
        together = generate(model, ids, mask, **settings)
        assert [new_tokens(model, row, ids.shape[1]) for row in together] == alone
        if not extra:  # a mask that is not given is read off the padding
            assert generate(model, ids, **settings).tolist() == together.tolist()


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("architecture", WRITERS)
def test_eager_is_sdpa(architecture, search):
    model = restless(architecture)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "left")
    written = []
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        written.append(generate(model, ids, mask, **SEARCHES[search]).tolist())
    assert written[0] == written[1]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_decoder_prompts_of_different_length_are_continued_as_each_alone(search, cache):
    """Prompts padded on the left say what each prompt says alone, and their positions follow the mask.

    Reported in huggingface/transformers#15556.
    """
    model = restless("encoder-decoder")
    sources = tokens(2, 6)
    prompts = [torch.cat([torch.tensor([BOS]), tokens(1, n, seed=n)[0]]) for n in (1, 4)]
    ids, mask = pad_rows(prompts, "left")
    settings = {"max_new_tokens": 6, **CACHES[cache], **SEARCHES[search]}
    widths = []
    model.model.decoder.register_forward_pre_hook(
        lambda _, args: widths.append(args[1].shape[-1]) if args[1] is not None else None
    )
    together = generate(model, sources, decoder_input_ids=ids, decoder_attention_mask=mask, **settings)
    if cache != "static":
        assert widths == list(range(ids.shape[1], ids.shape[1] + len(widths)))
    for i, prompt in enumerate(prompts):
        alone = generate(model, sources[i : i + 1], decoder_input_ids=prompt[None], **settings)[0]
        assert new_tokens(model, together[i][ids.shape[1] :], 0) == new_tokens(model, alone[len(prompt) :], 0)


# ---------------------------------------------------------------------------------------------------------- start token


def test_training_and_generation_begin_with_the_same_start_token(tmp_path):
    """Reported in huggingface/transformers#8218 and #14439."""
    labels = tokens(2, 4)
    for ids, start in (({"decoder_start_token_id": 7, "bos_token_id": 3}, 7), ({"bos_token_id": 3}, 3)):
        model = restless("encoder-decoder", **ids)
        model.save_pretrained(tmp_path)
        for same in (model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
            assert (same.prepare_decoder_input_ids_from_labels(labels)[:, 0] == start).all()
            assert (generate(same, tokens(2, 5))[:, 0] == start).all()
            assert (generate(same, tokens(2, 5), decoder_start_token_id=9)[:, 0] == 9).all()
    model = restless("encoder-decoder", bos_token_id=None)
    with pytest.raises(ValueError, match="decoder_start_token_id.*bos_token_id"):
        generate(model, tokens(2, 5))
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        model.prepare_decoder_input_ids_from_labels(labels)


# ---------------------------------------------------------------------------------------------------------------- beams


@pytest.mark.parametrize("architecture", WRITERS)
@pytest.mark.parametrize("variant", ["paper", "pre-norm"])
def test_beams_are_the_same_with_and_without_cache(architecture, variant):
    """Reported in huggingface/transformers#46612."""
    model = restless(architecture, variant, vocab_size=12)
    ids = tokens(3, 5, vocab_size=12)
    settings = {
        "no_repeat_ngram_size": 0,
        "num_beams": 4,
        "num_return_sequences": 4,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    cached, uncached = (generate(model, ids, use_cache=use, **settings) for use in (True, False))
    assert cached.sequences.tolist() == uncached.sequences.tolist()
    assert_close(cached.sequences_scores, uncached.sequences_scores, atol=1e-4)
    # beams were indeed exchanged, or nothing was tested
    order = cached.beam_indices % 4
    assert (order[:, 1:] != order[:, :-1]).any()


def every_hypothesis(model, ids, steps, normalise):
    """All outputs of at most `steps` tokens with their scores, by brute force, best first."""
    width = 1 if model.config.is_encoder_decoder else ids.shape[1]
    hypotheses = []
    vocabulary = range(model.config.vocab_size)
    for length in range(1, steps + 1):
        for body in itertools.product([t for t in vocabulary if t != EOS], repeat=length - 1):
            hypotheses += [(*body, EOS)] + ([(*body, t) for t in vocabulary if t != EOS] if length == steps else [])
    scores = {}
    for length in range(1, steps + 1):
        some = torch.tensor([h for h in hypotheses if len(h) == length])
        if model.config.is_encoder_decoder:
            decoder_ids = torch.cat([torch.full((len(some), 1), BOS), some], 1)
            logits = model(input_ids=ids.expand(len(some), -1), decoder_input_ids=decoder_ids).logits
        else:
            logits = model(input_ids=torch.cat([ids.expand(len(some), -1), some], 1)).logits
        log_probabilities = logits[:, width - 1 : -1].log_softmax(-1).gather(2, some[..., None]).sum((1, 2))
        for hypothesis, log_probability in zip(some.tolist(), log_probabilities.tolist(), strict=True):
            scores[tuple(hypothesis)] = log_probability / normalise(length)
    return sorted(scores.items(), key=lambda item: -item[1])


@pytest.mark.parametrize(
    ("settings", "normalise"),
    [
        ({"length_penalty": 0.0}, lambda length: 1),
        ({"length_penalty": 1.0}, lambda length: length),
        ({"length_penalty": 0.6}, lambda length: length**0.6),
        ({"length_penalty": 0.6, "length_penalty_form": "power"}, lambda length: length**0.6),
        ({"length_penalty": 0.6, "length_penalty_form": "gnmt"}, lambda length: ((5 + length) / 6) ** 0.6),
        ({"length_penalty": 2.0, "length_penalty_form": "gnmt"}, lambda length: ((5 + length) / 6) ** 2.0),
    ],
)
@pytest.mark.parametrize("architecture", WRITERS)
def test_beams_of_full_width_equal_exhaustive_search(architecture, settings, normalise):
    """Reported in huggingface/transformers#46612."""
    model = restless(architecture, vocab_size=8)
    ids = tokens(1, 4, vocab_size=8)
    with torch.no_grad():
        expected = every_hypothesis(model, ids, 3, normalise)[:10]
    output = generate(
        model,
        ids,
        max_new_tokens=3,
        num_beams=64,
        num_return_sequences=10,
        early_stopping="never",
        no_repeat_ngram_size=0,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    found = [tuple(row[: row.index(EOS) + 1] if EOS in row else row) for row in output.sequences[:, start:].tolist()]
    assert found == [hypothesis for hypothesis, _ in expected]
    assert_close(output.sequences_scores, torch.tensor([score for _, score in expected]), atol=1e-4)


def test_length_penalty_form_is_kept_in_the_generation_config(tmp_path):
    model = restless("encoder-decoder")
    ids = tokens(3, 6)
    settings = {"num_beams": 4, "length_penalty": 0.6, "return_dict_in_generate": True, "output_scores": True}
    power = generate(model, ids, **settings).sequences_scores
    gnmt = generate(model, ids, length_penalty_form="gnmt", **settings).sequences_scores
    assert not torch.isclose(power, gnmt).any()
    model.generation_config.length_penalty_form = "gnmt"
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["length_penalty_form"] == "gnmt"
    torch.testing.assert_close(generate(loaded, ids, **settings).sequences_scores, gnmt)
    whole = GenerationConfig(
        max_new_tokens=8, do_sample=False, no_repeat_ngram_size=1, length_penalty_form="gnmt", **settings
    )
    torch.testing.assert_close(model.generate(ids, whole).sequences_scores, gnmt)
    assert type(whole.length_penalty) is float
    with pytest.raises(ValueError, match="length_penalty_form='paper' is neither 'power' nor 'gnmt'"):
        generate(model, ids, length_penalty_form="paper", **settings)


def test_results_of_beams_do_not_depend_on_the_batch():
    model = restless("encoder-decoder")
    rows = [tokens(1, n, seed=n)[0] for n in (2, 9, 5)]
    ids, mask = pad_rows(rows, "right")
    for early_stopping in (False, True, "never"):
        settings = {
            "num_beams": 4,
            "max_new_tokens": None,
            "max_length_over_source": 3,
            "length_penalty": 0.6,
            "length_penalty_form": "gnmt",
            "early_stopping": early_stopping,
            "return_dict_in_generate": True,
            "output_scores": True,
        }
        together = generate(model, ids, mask, **settings)
        for i, row in enumerate(rows):
            alone = generate(model, row[None], **settings)
            assert new_tokens(model, together.sequences[i], 0) == new_tokens(model, alone.sequences[0], 0)
            assert_close(together.sequences_scores[i], alone.sequences_scores[0], atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_beams_leave_cross_attention_in_place(cache, monkeypatch):
    """Keys and values of the source are computed once, and are the same storage at every step."""
    model = restless("encoder-decoder")
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "right")
    storage, projections = [], []
    attention = model.model.decoder.layers[1].cross_attn
    attention.k_proj.register_forward_hook(lambda *_: projections.append(1))
    original = type(model)._reorder_cache

    def watched(self, cache, beam_idx):
        before = cache.self_attention_cache.layers[1].keys.clone()
        cache = original(self, cache, beam_idx)
        assert torch.equal(cache.self_attention_cache.layers[1].keys, before[beam_idx])
        # within a source, or leaving cross-attention alone would be wrong
        assert (beam_idx // 4).tolist() == [0] * 4 + [1] * 4
        layer = cache.cross_attention_cache.layers[1]
        storage.append((layer.keys.data_ptr(), layer.values.data_ptr()))
        for tensor in (layer.keys, layer.values):
            assert torch.equal(tensor[beam_idx], tensor)
        return cache

    monkeypatch.setattr(type(model), "_reorder_cache", watched)
    generate(model, ids, mask, num_beams=4, suppress_tokens=[EOS], **CACHES[cache])
    assert len(storage) > 5 and len(set(storage)) == 1 and len(projections) == 1


# -------------------------------------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("margin", [0, 4])
@pytest.mark.parametrize("side", ["left", "right"])
def test_length_over_source_is_that_of_each_row(side, margin, search):
    model = restless("encoder-decoder")
    rows = [tokens(1, n, seed=n)[0] for n in (3, 7, 5)]
    ids, mask = pad_rows(rows, side, extra=2)
    settings = {"max_new_tokens": None, "max_length_over_source": margin, "suppress_tokens": [EOS, PAD]}
    settings |= SEARCHES[search]
    together = generate(model, ids, mask, **settings)
    for i, row in enumerate(rows):
        written = new_tokens(model, together[i], 0)
        assert len(written) == 1 + len(row) + margin  # the start token is given, not written
        assert written == new_tokens(model, generate(model, row[None], **settings)[0], 0)


def test_length_over_source_with_prompts_embeddings_and_returned_sequences():
    model = restless("encoder-decoder")
    ids = tokens(2, 5)
    settings = {"max_new_tokens": None, "max_length_over_source": 2, "suppress_tokens": [EOS, PAD]}
    for prompt in (torch.tensor([[BOS, 9, 8], [BOS, 7, 6]]), torch.tensor([[9, 8], [7, 6]])):
        assert generate(model, ids, decoder_input_ids=prompt, **settings).shape == (2, 3 + 7)
    assert generate(model, ids, num_beams=3, num_return_sequences=3, **settings).shape == (6, 1 + 7)
    embeds = model.get_input_embeddings()(ids)
    settings["no_repeat_ngram_size"] = 1
    with_embeds = model.generate(inputs_embeds=embeds, do_sample=False, **settings)
    assert with_embeds.tolist() == generate(model, ids, **settings).tolist()
    encoded = model.get_encoder()(ids)
    with_states = model.generate(encoder_outputs=encoded, do_sample=False, **settings)
    assert with_states.tolist() == with_embeds.tolist()


def test_length_over_source_is_saved_and_can_be_replaced(tmp_path):
    model = restless("encoder-decoder")
    model.generation_config.max_length_over_source = 4
    model.generation_config.suppress_tokens = [EOS, PAD]
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ids = tokens(2, 5)
    for same in (model, loaded):
        assert same.generate(ids).shape == (2, 1 + 9)
        assert same.generate(ids, max_new_tokens=3).shape == (2, 1 + 3)
        assert same.generate(ids, max_length=3).shape == (2, 3)
        assert same.generate(ids, max_length_over_source=1).shape == (2, 1 + 6)
        assert same.generate(ids, GenerationConfig(max_new_tokens=3)).shape == (2, 1 + 3)
        assert same.generate(ids, GenerationConfig(max_length_over_source=1)).shape == (2, 1 + 6)
        assert same.generate(ids, GenerationConfig(num_beams=2)).shape == (2, 1 + 9)
    with pytest.raises(ValueError, match="max_length_over_source needs a source"):
        restless("decoder-only").generate(ids, max_length_over_source=3)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("architecture", WRITERS)
def test_decoding_reaches_the_limit_of_learned_positions_and_no_further(architecture, cache, num_beams):
    """Reported in facebookresearch/fairseq#119."""
    model = restless(architecture, "learned", max_position_embeddings=16)
    ids = tokens(2, 5)
    settings = {"max_new_tokens": None, "num_beams": num_beams, "suppress_tokens": [EOS, PAD], **CACHES[cache]}
    # the last token is written, not read, so it needs no position
    for total in (15, 16, 17):
        written = generate(model, ids, max_length=total, **settings)
        assert written.shape == (2, total)
        assert (
            written.tolist()
            == generate(
                model, ids, max_length=total, **{**settings, "use_cache": False, "cache_implementation": None}
            ).tolist()
        )
    with pytest.raises(ValueError, match="17 tokens.*16 learned positions") as caught:
        generate(model, ids, max_length=18, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("architecture", WRITERS)
def test_sources_and_prompts_reach_the_limit_of_learned_positions(architecture):
    """Reported in facebookresearch/fairseq#119."""
    model = restless(architecture, "learned", max_position_embeddings=16)
    assert generate(model, tokens(2, 16), max_new_tokens=1).shape[0] == 2
    with pytest.raises(ValueError, match="17 tokens.*16 learned positions"):
        generate(model, tokens(2, 17), max_new_tokens=1)


@pytest.mark.parametrize("architecture", WRITERS)
def test_default_length_fits_the_learned_positions(architecture):
    """Reported in facebookresearch/fairseq#119."""
    model = restless(architecture, "learned", max_position_embeddings=16)
    assert model.generate(tokens(2, 5), suppress_tokens=[EOS, PAD]).shape == (2, 16)


@pytest.mark.parametrize("architecture", WRITERS)
def test_sinusoids_decode_beyond_the_trained_length(architecture):
    model = restless(architecture, max_position_embeddings=16)
    settings = {"max_new_tokens": 30, "suppress_tokens": [EOS, PAD]}
    written = generate(model, tokens(1, 5), **settings)
    assert written.tolist() == generate(model, tokens(1, 5), use_cache=False, **settings).tolist()


# --------------------------------------------------------------------------------------------- forward with a cache


def fresh_cache(model, kind, source_length):
    own = model.config.get_text_config(decoder=True)
    if kind == "dynamic":
        return EncoderDecoderCache(DynamicCache(), DynamicCache()) if source_length else DynamicCache(config=own)
    cache = StaticCache(config=own, max_cache_len=16)
    return EncoderDecoderCache(cache, StaticCache(config=own, max_cache_len=source_length)) if source_length else cache


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("variant", ["paper", "learned"])
@pytest.mark.parametrize("architecture", WRITERS)
def test_chunks_of_any_size_on_a_cache_equal_one_pass(architecture, variant, kind, attention, padded):
    """12 tokens at once = chunks of 5, 4 and 3, and a later token leaves earlier logits alone.

    Reported in pytorch/pytorch#108108.
    """
    model = restless(architecture, variant, attn_implementation=attention)
    inputs = model_inputs(model, length=12, target_length=12)
    side = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    mask_name = side.replace("input_ids", "attention_mask")
    mask = torch.ones(2, 12, dtype=torch.long)
    if padded:
        mask[0, :3] = 0
        inputs[mask_name] = mask
    elif not model.config.is_encoder_decoder:
        del inputs["attention_mask"]
    expected = model(**inputs).logits

    def in_chunks(sizes, inputs):
        cache = fresh_cache(model, kind, 12 if model.config.is_encoder_decoder else None)
        logits, start = [], 0
        for size in sizes:
            chunk = {**inputs, side: inputs[side][:, start : start + size]}
            if padded:
                chunk[mask_name] = mask[:, : start + size]
            output = model(**chunk, cache=cache, use_cache=True)
            assert output.cache is cache
            logits.append(output.logits)
            start += size
        return torch.cat(logits, 1)

    for sizes in ((5, 4, 3), (12,), (1,) * 12):
        assert_close(in_chunks(sizes, inputs)[mask.bool()], expected[mask.bool()], atol=1e-5)
    other = {**inputs, side: inputs[side].clone()}
    other[side][:, 8] = (other[side][:, 8] + 1) % 50
    changed = in_chunks((5, 4, 3), other)
    assert_close(changed[:, :8][mask[:, :8].bool()], expected[:, :8][mask[:, :8].bool()])
    assert not torch.isclose(changed[:, 8:], expected[:, 8:]).all(-1).any()


def test_old_name_of_the_cache_is_understood():
    """A model that took `past_key_values` into its keywords would ignore it in silence."""
    for architecture in WRITERS:
        model = restless(architecture)
        inputs = model_inputs(model, length=6, target_length=6)
        side = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
        inputs.pop("attention_mask")
        expected = model(**inputs).logits
        first = model(**{**inputs, side: inputs[side][:, :4]}, use_cache=True)
        with pytest.warns(FutureWarning, match="past_key_values"):
            second = model(**{**inputs, side: inputs[side][:, 4:]}, past_key_values=first.cache)
        assert_close(second.logits, expected[:, 4:])


def test_unequal_depths_size_the_caches():
    for depths in ((1, 3), (3, 1)):
        model = restless("encoder-decoder", num_hidden_layers=depths[0], decoder_layers=depths[1])
        for cache in ("dynamic", "static"):
            output = generate(model, tokens(2, 5), return_dict_in_generate=True, **CACHES[cache])
            assert len(output.cache.self_attention_cache) == len(output.cache.cross_attention_cache) == depths[1]


# ------------------------------------------------------------------------------------------------- everything else asked


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_beams": 3}, {"max_length": 9, "max_new_tokens": None}, {"min_new_tokens": 8, "max_new_tokens": 8}],
)
@pytest.mark.parametrize("architecture", WRITERS)
def test_generation_from_embeddings_equals_that_from_ids(architecture, settings):
    """The model scales embeddings, so plain rows of the table are what is given, and are scaled once.

    Reported in huggingface/transformers#28953 and #32911.
    """
    model = restless(architecture)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (4, 2)], "left")
    embeds = model.get_input_embeddings()(ids)
    settings = {"max_new_tokens": 5, "do_sample": False, **settings}
    expected = model.generate(ids, attention_mask=mask, **settings)
    written = model.generate(inputs_embeds=embeds, attention_mask=mask, **settings)
    assert written.tolist() == expected[:, 0 if model.config.is_encoder_decoder else 4 :].tolist()
    with pytest.raises(ValueError):
        model.generate(ids, inputs_embeds=embeds, attention_mask=mask, max_new_tokens=3) if (
            model.config.is_encoder_decoder
        ) else model(input_ids=ids, inputs_embeds=embeds)


@pytest.mark.parametrize("helper", ["prompt lookup", "assistant", "assistant of another depth"])
@pytest.mark.parametrize("architecture", WRITERS)
def test_assisted_decoding_equals_greedy_decoding(architecture, helper):
    """Reported in huggingface/transformers#47361."""
    model = restless(architecture)
    ids = tokens(1, 6)
    ids[0, 3:] = ids[0, :3]  # something to look up
    greedy = generate(model, ids, max_new_tokens=20, suppress_tokens=[EOS, PAD])
    if helper == "prompt lookup":
        settings = {"prompt_lookup_num_tokens": 3}
    else:
        assistant = (
            restless(architecture)
            if helper == "assistant"
            else restless(
                architecture,
                num_hidden_layers=1,
                **({"decoder_layers": 1} if architecture == "encoder-decoder" else {}),
            )
        )
        settings = {"assistant_model": assistant}
    encoder_runs, cross_lengths, steps = [], [], []
    if model.config.is_encoder_decoder:
        model.model.encoder.register_forward_hook(lambda *_: encoder_runs.append(1))
        model.model.decoder.register_forward_hook(
            lambda module, args, kwargs, output: cross_lengths.append(
                output.cache.cross_attention_cache.get_seq_length()
            ),
            with_kwargs=True,
        )
    model.lm_head.register_forward_hook(lambda *_: steps.append(1))
    assisted = generate(model, ids, max_new_tokens=20, suppress_tokens=[EOS, PAD], **settings)
    assert assisted.tolist() == greedy.tolist()
    if helper == "assistant":
        assert len(steps) < 20  # or nothing was assisted
    if model.config.is_encoder_decoder:
        assert len(encoder_runs) == 1 and set(cross_lengths) == {6}


def test_precomputed_encoder_outputs():
    model = restless("encoder-decoder")
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "right")
    expected = generate(model, ids, mask)
    for settings in ({}, {"num_beams": 1, **CACHES["static"]}):
        encoded = model.get_encoder()(ids, mask)
        assert (
            model.generate(
                encoder_outputs=encoded,
                attention_mask=mask,
                max_new_tokens=8,
                do_sample=False,
                no_repeat_ngram_size=1,
                **settings,
            ).tolist()
            == expected.tolist()
        )
    as_tuple = (model.get_encoder()(ids, mask).last_hidden_state,)
    inputs = {"decoder_input_ids": tokens(2, 4), "attention_mask": mask}
    assert_close(model(encoder_outputs=as_tuple, **inputs).logits, model(input_ids=ids, **inputs).logits, atol=0)


@pytest.mark.parametrize("architecture", WRITERS)
def test_sampling_is_reproducible(architecture):
    model = restless(architecture)
    written = []
    for _ in range(2):
        torch.manual_seed(5)
        written.append(model.generate(tokens(2, 5), max_new_tokens=8, do_sample=True, top_k=20).tolist())
    assert written[0] == written[1]
    assert written[0] != generate(model, tokens(2, 5)).tolist()


@pytest.mark.parametrize("architecture", WRITERS)
def test_streaming(architecture):
    class Streamer:
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended = True

    model, streamer = restless(architecture), Streamer()
    written = generate(model, tokens(1, 5), streamer=streamer)
    assert streamer.tokens == written[0].tolist() and streamer.ended


@pytest.mark.parametrize("architecture", WRITERS)
def test_attentions_and_states_inside_generate(architecture):
    model = restless(architecture, attn_implementation="eager")
    output = generate(
        model,
        tokens(2, 5),
        max_new_tokens=3,
        suppress_tokens=[EOS, PAD],
        output_attentions=True,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    if model.config.is_encoder_decoder:
        assert len(output.encoder_attentions) == 2 and len(output.encoder_hidden_states) == 3
        assert [len(step) for step in output.cross_attentions] == [3] * 3
        assert output.cross_attentions[2][0].shape == (2, 4, 1, 5)
        assert output.decoder_attentions[2][0].shape == (2, 4, 1, 3)
        assert [len(step) for step in output.decoder_hidden_states] == [4] * 3
    else:
        assert output.attentions[0][0].shape == (2, 4, 5, 5) and output.attentions[2][0].shape == (2, 4, 1, 7)
        assert [len(step) for step in output.hidden_states] == [3] * 3


@pytest.mark.parametrize("architecture", WRITERS)
def test_generating_says_nothing(architecture, caplog, recwarn):
    model = restless(architecture)
    ids, mask = pad_rows([tokens(1, n, seed=n)[0] for n in (6, 3)], "left")
    propagates = logging.get_logger("transformers").propagate
    logging.get_logger("transformers").propagate = True
    try:
        for search, cache in itertools.product(SEARCHES.values(), CACHES.values()):
            generate(model, ids, mask, **search, **cache)
        if model.config.is_encoder_decoder:
            model.generation_config.max_length_over_source = 5
            model.generation_config.length_penalty_form = "gnmt"
            model.generation_config.max_length = 30
            model.generation_config.num_beams = 2
            model.generate(ids, attention_mask=mask)
            model.generate(input_ids=ids, attention_mask=mask, max_length_over_source=3)
            model.generate(ids, GenerationConfig(max_length_over_source=3, num_beams=3), attention_mask=mask)
    finally:
        logging.get_logger("transformers").propagate = propagates
    assert [r.getMessage() for r in caplog.records if r.levelname in ("WARNING", "ERROR")] == []
    assert [str(warning.message) for warning in recwarn] == []


def test_encoder_only_does_not_generate():
    model = LANGUAGE_MODELS["encoder-only"](tiny_config("encoder-only"))
    assert not model.can_generate()
    assert all(LANGUAGE_MODELS[a](tiny_config(a)).can_generate() for a in WRITERS)
    assert isinstance(model, vt.VanillaTransformerPreTrainedModel)


@pytest.mark.parametrize("architecture", WRITERS)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_constrained_decoding(architecture, num_beams):
    """The one kind of constraint that transformers 5.24 still ships; contrastive search it leaves to code from the Hub."""
    model = tiny_model(architecture)
    allowed = [7, 11, 13, 17]
    settings = {"num_beams": num_beams, "max_new_tokens": 6, "do_sample": False}
    free = model.generate(tokens(2, 5), **settings)
    bound = model.generate(tokens(2, 5), prefix_allowed_tokens_fn=lambda row, ids: allowed, **settings)
    written = bound[:, 1:] if architecture == "encoder-decoder" else bound[:, 5:]
    assert set(written.flatten().tolist()) <= set(allowed)
    assert free.tolist() != bound.tolist()
    # greedily: of the allowed tokens the likeliest at each step
    if num_beams == 1:
        for length in range(1, written.shape[1]):
            prefix = bound[:, : bound.shape[1] - written.shape[1] + length]
            inputs = {"decoder_input_ids": prefix} if architecture == "encoder-decoder" else {}
            ids = tokens(2, 5) if architecture == "encoder-decoder" else prefix
            with torch.no_grad():
                logits = model(ids, **inputs).logits[:, -1, allowed]
            assert [allowed[i] for i in logits.argmax(-1)] == written[:, length].tolist()
