"""All choices x architectures: whatever is combined, the model keeps its promises, or its configuration refuses."""

import itertools

import pytest
import torch
from torch import nn
from transformers import GenerationConfig
from transformers.models.t5.modeling_t5 import T5Attention

import vanilla_transformer as vt
from choices import CHOICES, cover, fields_of, is_possible, name_of
from closeness import assert_close
from tiny import LANGUAGE_MODELS, SMALL, pad_rows, randomise, tiny_model, tokens
from vanilla_transformer.kernels.loss import chunked_cross_entropy
from vanilla_transformer.losses_vanilla_transformer import smoothed_cross_entropy
from vanilla_transformer.positions_vanilla_transformer import alibi_slopes, relative_buckets

COMBINATIONS, IMPOSSIBLE = cover()
LENGTHS, TARGET_LENGTHS = (6, 3, 9), (5, 8, 2)


def model_of(options, **overrides):
    config = vt.VanillaTransformerConfig(**{**fields_of(options), **overrides})
    torch.manual_seed(0)
    return randomise(LANGUAGE_MODELS[config.architecture](config)).eval()


def inputs_of(config, sources, targets):
    """One batch of these rows, padded on the right, with token types where there are any."""
    ids, mask = pad_rows(sources, "right")
    batch = {"input_ids": ids, "attention_mask": mask}
    if config.type_vocab_size:
        batch["token_type_ids"] = ids % 2
    if config.is_encoder_decoder:
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = pad_rows(targets, "right")
    return batch


def rows():
    return (
        [tokens(1, n, seed=n)[0] for n in LENGTHS],
        [tokens(1, n, seed=20 + n)[0] for n in TARGET_LENGTHS],
    )


def test_the_rules_are_those_of_the_configuration():
    """What no combination may hold is refused in one sentence; every other pair of options is in some combination."""
    names = list(CHOICES)
    for (first, i), (second, j) in IMPOSSIBLE:
        fields = {**SMALL, **CHOICES["architecture"][0], **CHOICES[names[first]][i], **CHOICES[names[second]][j]}
        for architecture in CHOICES["architecture"] if "architecture" not in (names[first], names[second]) else [{}]:
            with pytest.raises(ValueError, match=r"^VanillaTransformerConfig: [^\n]*$"):
                vt.VanillaTransformerConfig(**{**fields, **architecture})
    covered = set().union(*(itertools.combinations(enumerate(options), 2) for options in COMBINATIONS))
    counts = [len(options) for options in CHOICES.values()]
    pairs = sum(a * b for a, b in itertools.combinations(counts, 2))
    assert len(covered) + len(IMPOSSIBLE) == pairs and len(IMPOSSIBLE) == 8
    assert not is_possible({**SMALL, "architecture": "encoder-only", "embedding_size": 8})


@pytest.mark.parametrize("options", COMBINATIONS, ids=map(name_of, range(len(COMBINATIONS)), COMBINATIONS))
def test_a_combination_keeps_all_promises(options, tmp_path):
    model = model_of(options)
    config = model.config
    assert config.num_parameters() == model.num_parameters()
    sources, targets = rows()
    batch = inputs_of(config, sources, targets)
    written = targets if config.is_encoder_decoder else sources
    mask = batch["decoder_attention_mask" if config.is_encoder_decoder else "attention_mask"].bool()
    cached = {} if config.architecture == "encoder-only" else {"use_cache": False}

    # padded = alone
    with torch.no_grad():
        logits = model(**batch, **cached).logits
        alone = [
            model(**inputs_of(config, [source], [target]), **cached).logits[0]
            for source, target in zip(sources, targets, strict=True)
        ]
    assert_close(logits[mask], torch.cat(alone), atol=2e-5)

    # packed = alone
    def packed(parts):
        positions = torch.cat([torch.arange(len(part)) for part in parts])
        return torch.cat(list(parts))[None], positions[None]

    row = dict(zip(("input_ids", "position_ids"), packed(sources), strict=True))
    if config.type_vocab_size:
        row["token_type_ids"] = row["input_ids"] % 2
    if config.is_encoder_decoder:
        row |= dict(zip(("decoder_input_ids", "decoder_position_ids"), packed(targets), strict=True))
    with torch.no_grad():
        assert_close(model(**row, **cached).logits[0], torch.cat(alone), atol=2e-5)

    # cached = uncached: in steps, and by what generate() writes with each kind of cache
    if config.architecture != "encoder-only":
        cache, steps = None, []
        side = "decoder_input_ids" if config.is_encoder_decoder else "input_ids"
        one = inputs_of(config, sources[:1], targets[:1])
        given = {name: value for name, value in one.items() if "attention_mask" not in name}
        with torch.no_grad():
            for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
                given[side] = one[side][:, part]
                if config.type_vocab_size:
                    given["token_type_ids"] = one["token_type_ids"][:, part]
                output = model(**given, cache=cache, use_cache=True)
                cache = output.cache
                steps.append(output.logits[0])
        assert_close(torch.cat(steps), alone[0][:5], atol=2e-5)
        prompts, prompt_mask = pad_rows(sources, "left")
        settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 1}
        texts = [
            model.generate(
                prompts, attention_mask=prompt_mask, generation_config=GenerationConfig(**settings, **kind)
            ).tolist()
            for kind in ({"use_cache": False}, {}, {"cache_implementation": "static"})
        ]
        assert texts[0] == texts[1] == texts[2]

    # saved = loaded
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=config._attn_implementation)
    assert {**loaded.config.to_dict(), "_name_or_path": ""} == {**config.to_dict(), "_name_or_path": ""}
    assert loaded.num_parameters() == model.num_parameters()
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**batch, **cached).logits, logits)

    # a step of training: finite, every parameter has a part in it, and the loss without padding in layers is the loss
    labels = pad_rows(written, "right", filler=-100)[0]
    inputs = {name: value for name, value in batch.items() if not name.startswith("decoder")}
    plain = model(**inputs, labels=labels).loss
    model.train()
    loss = model(**inputs, labels=labels, skip_logits=True).loss
    assert_close(loss, plain, atol=2e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not without
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert model(**inputs, labels=labels, skip_logits=True).loss.isfinite()


@pytest.mark.slow
@pytest.mark.parametrize("options", COMBINATIONS, ids=map(name_of, range(len(COMBINATIONS)), COMBINATIONS))
@torch.no_grad()
def test_a_combination_is_exported(options):
    model = model_of(options)
    batch = inputs_of(model.config, *rows())

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(batch, inputs, strict=True)), use_cache=False).logits

    program = torch.export.export(Logits(), tuple(batch.values())).module()
    mask = batch["decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"].bool()
    assert_close(program(*batch.values())[mask], Logits()(*batch.values())[mask], atol=2e-5)


# ------------------------------------------------------------------------------------------- what is added to the scores


def test_slopes_of_alibi_are_the_published_ones():
    """Press et al. 2022, section 3: 1/2 ... 1/256 for 8 heads, 2^-0.5 ... 2^-8 for 16; BLOOM's rule for others."""
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert_close(alibi_slopes(16), torch.tensor([2 ** (-i / 2) for i in range(1, 17)]), atol=0)
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert_close(
        alibi_slopes(12),
        torch.tensor([2.0**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
        atol=2e-5,
    )


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 9), (16, 40)])
def test_buckets_are_those_of_t5(is_causal, buckets, farthest):
    distance = torch.arange(-300, 301)
    # private, since transformers has the formula nowhere else
    expected = T5Attention._relative_position_bucket(distance, not is_causal, buckets, farthest)
    assert torch.equal(relative_buckets(distance, is_causal, buckets, farthest), expected)


@pytest.mark.parametrize("architecture", LANGUAGE_MODELS)
@pytest.mark.parametrize("encoding", ["alibi", "relative"])
def test_scores_get_what_the_formula_says(architecture, encoding):
    """Attention of the first layer, by hand: softmax(q k / sqrt(d) + bias of the distance)."""
    model = tiny_model(architecture, position_encoding=encoding, attn_implementation="eager")
    ids = tokens(1, 7)
    stack = model.model.decoder if architecture == "decoder-only" else model.model.encoder
    with torch.no_grad():
        kwargs = {"output_attentions": True}
        found = stack(ids, **kwargs).attentions[0][0]
        states, attention = stack.embed(ids, None, torch.arange(7)[None]), stack.layers[0].self_attn
        query, key = (p(states)[0].unflatten(-1, (4, 4)).transpose(0, 1) for p in (attention.q_proj, attention.k_proj))
        scores = query @ key.transpose(1, 2) / 2
        for i in range(7):
            for j in range(7):
                if encoding == "alibi":
                    scores[:, i, j] -= torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]) * abs(i - j)
                else:
                    later = 16 if architecture != "decoder-only" and j > i else 0
                    scores[:, i, j] += stack.relative_bias.weight[later + abs(i - j)]
        if architecture == "decoder-only":
            scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    assert_close(found, scores.softmax(-1), atol=2e-5)


@pytest.mark.parametrize("encoding", ["alibi", "relative"])
def test_backends_without_a_number_for_each_head_are_refused(encoding):
    with pytest.raises(ValueError, match=f"'flex_attention' cannot add what position_encoding='{encoding}' adds"):
        tiny_model(position_encoding=encoding, attn_implementation="flex_attention")
    model = tiny_model(position_encoding=encoding)
    with pytest.raises(ValueError, match="use 'sdpa' or 'eager'"):
        model.set_attn_implementation("flex_attention")


@pytest.mark.parametrize("variant", ["t5", "alibi", "albert"])
@pytest.mark.parametrize("architecture", LANGUAGE_MODELS)
def test_checkpointing_and_short_floats(architecture, variant):
    """Gradients of recomputed layers are those of kept ones; under bf16 autocast rows of padding alone stay finite."""
    ids, mask = tokens(3, 6), torch.ones(3, 6, dtype=torch.long)
    mask[1, 4:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    gradients = []
    for reentrant in (None, False, True):
        model = tiny_model(architecture, variant).train()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model(ids, attention_mask=mask, labels=labels).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            assert_close(other[name], gradient, atol=2e-5)
    model = tiny_model(architecture, variant)
    mask[1] = 0
    with torch.autocast("cpu", torch.bfloat16):
        assert model(ids, attention_mask=mask, labels=ids).logits.isfinite().all()


# ------------------------------------------------------------------------------------------------------------- the output


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("form", ["uniform", "others"])
def test_the_loss_in_chunks_knows_the_bias(smoothing, form):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((9, 4), (6, 4), (6,))
    )
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, -100, 1])

    def loss(hidden, weight, bias):
        return chunked_cross_entropy(hidden, weight, labels, smoothing, None, form, bias=bias)

    plain = smoothed_cross_entropy(nn.functional.linear(hidden, weight, bias), labels, smoothing, None, form)
    assert_close(loss(hidden, weight, bias).float(), plain.float(), atol=1e-6)
    torch.autograd.gradcheck(loss, (hidden, weight, bias))


@pytest.mark.parametrize("variant", ["marian", "albert"])
def test_a_resized_vocabulary_keeps_its_output_bias(variant):
    model = tiny_model(variant=variant)
    ids = tokens(2, 5)
    before = model(ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(57)
    assert_close(model(ids, decoder_input_ids=ids).logits[..., :50], before, atol=2e-5)
    model.resize_token_embeddings(41)
    assert_close(model(ids, decoder_input_ids=ids).logits, before[..., :41], atol=2e-5)


def test_token_types_are_added_and_checked():
    model = tiny_model("encoder-only", "bert")
    ids = tokens(2, 5)
    types = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids, token_type_ids=torch.zeros_like(ids)).logits)
        assert not torch.allclose(model(ids).logits, model(ids, token_type_ids=types).logits)
    with pytest.raises(ValueError, match="token type 2 is none of the model's 2 types"):
        model(ids, token_type_ids=types * 2)
    with pytest.raises(ValueError, match="the model has no token types"):
        tiny_model("encoder-only")(ids, token_type_ids=types)
