"""What makes a training step lean: loss without all logits, cheap dropout, layers without padding. Each equals the plain form."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from closeness import assert_close
from tiny import ARCHITECTURES, PAD, pad_rows, tiny_config, tiny_model, tokens
from vanilla_transformer import (
    VanillaTransformerForQuestionAnswering,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerForTokenClassification,
)
from vanilla_transformer.kernels import varlen
from vanilla_transformer.kernels.dropout import dropout
from vanilla_transformer.kernels.loss import _ChunkedCrossEntropy, chunked_cross_entropy
from vanilla_transformer.kernels.varlen import PaddingFreeBatch, SequenceLengths
from vanilla_transformer.kernels_vanilla_transformer import Kernels
from vanilla_transformer.losses_vanilla_transformer import smoothed_cross_entropy

IGNORED = -100


# ------------------------------------------------------------------------------------------------------------------ loss


def random_rows(count, width, vocabulary, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, width, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) / width**0.5).to(dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (count,), generator=generator)
    labels[::5] = IGNORED
    return hidden, weight, labels


def smoothed_target(labels, vocabulary, smoothing, form):
    """The distribution that the definition of each convention says, row by row."""
    wrong = smoothing / vocabulary if form == "uniform" else smoothing / (vocabulary - 1)
    right = 1 - smoothing + (wrong if form == "uniform" else 0)
    target = torch.full((len(labels), vocabulary), wrong, dtype=torch.float64)
    return target.scatter_(1, labels.unsqueeze(1), right)


@pytest.mark.parametrize("form", ["uniform", "others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4, 0.95])
def test_both_conventions_of_smoothing_are_their_definitions(smoothing, form):
    hidden, weight, labels = random_rows(40, 8, 7, dtype=torch.float64)
    logits = hidden @ weight.t()
    counted = labels != IGNORED
    target = smoothed_target(labels[counted], 7, smoothing, form)
    assert_close(target.sum(1), torch.ones(len(target), dtype=torch.float64), atol=1e-6)
    expected = -(target * logits[counted].log_softmax(-1)).sum() / counted.sum()
    for loss in (
        smoothed_cross_entropy(logits, labels, smoothing, label_smoothing_form=form),
        chunked_cross_entropy(hidden, weight, labels, smoothing, label_smoothing_form=form),
    ):
        assert_close(loss.double(), expected, atol=1e-6)
    if form == "uniform":
        plain = nn.functional.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing)
        assert_close(plain, expected, atol=1e-6)


@pytest.mark.parametrize("form", ["uniform", "others"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_the_loss_in_chunks_is_the_plain_loss(monkeypatch, count, smoothing, form):
    """To 1e-6, forward and backward, in chunks that end in the middle, at the end and beyond."""
    monkeypatch.setattr(_ChunkedCrossEntropy, "LOGITS", 0)  # chunks of 256 rows
    hidden, weight, labels = random_rows(count + 1, 16, 300)
    results = []
    for function, arguments in (
        (lambda h, w, *rest: smoothed_cross_entropy(h @ w.t(), *rest), (hidden, weight)),
        (chunked_cross_entropy, (hidden, weight)),
    ):
        loss = function(*arguments, labels, smoothing, torch.tensor(count), form)
        results.append((loss, *torch.autograd.grad(3 * loss, (hidden, weight))))
    for chunked, plain in zip(results[1], results[0], strict=True):
        assert_close(chunked, plain, atol=1e-6)


def test_the_gradients_of_the_loss_in_chunks_are_right_in_float64():
    hidden, weight, labels = random_rows(9, 4, 6, dtype=torch.float64)
    for form in ("uniform", "others"):
        torch.autograd.gradcheck(
            lambda h, w, f=form: chunked_cross_entropy(h, w, labels, 0.1, None, f), (hidden, weight)
        )


def test_certain_and_impossible_tokens_have_a_finite_loss():
    """Logits hundreds apart: the probability of the right token is 0 in float32, and its logarithm is not infinite."""
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    labels = torch.tensor([1, 1])
    loss = chunked_cross_entropy(hidden, weight, labels)
    assert_close(loss, torch.tensor(300.0), atol=1e-4)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, (hidden, weight)))


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_tensor_of_a_training_step_has_tokens_times_vocabulary():
    """Twice as many tokens: the largest tensor stays as it was, the chunk of logits."""
    vocabulary, largest = 5000, []
    model = tiny_model(vocab_size=vocabulary, attn_implementation="sdpa").train()
    for length in (1300, 2600):
        ids = tokens(2, length)
        with Largest() as mode:
            model(ids, labels=ids, skip_logits=True).loss.backward()
        largest.append(mode.elements)
        assert mode.elements < 2 * length * vocabulary / 2
    assert largest[0] == largest[1] == _ChunkedCrossEntropy.LOGITS // vocabulary * vocabulary


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_products_are_short_and_sums_are_long(dtype):
    """The gradient of the projection is a sum over all tokens: kept in float32, however many chunks there are."""
    hidden, weight, labels = random_rows(3000, 16, 40)
    exact = torch.autograd.grad(chunked_cross_entropy(hidden, weight, labels, 0.1), (hidden, weight))
    with torch.autocast("cpu", dtype):
        loss = chunked_cross_entropy(hidden, weight, labels, 0.1)
    assert loss.dtype == torch.float32
    for grad, expected in zip(torch.autograd.grad(loss, (hidden, weight)), exact, strict=True):
        assert grad.dtype == torch.float32
        assert (grad - expected).norm() / expected.norm() < 0.01


@pytest.mark.parametrize("form", ["uniform", "others"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_has_the_convention_of_its_configuration(architecture, form):
    model = tiny_model(architecture, label_smoothing=0.3, label_smoothing_form=form)
    ids = tokens(2, 6)
    for skip_logits in (False, True):
        output = model(ids, labels=ids, skip_logits=skip_logits)
        logits, labels = model(ids, labels=ids).logits, ids
        if architecture == "decoder-only":
            logits, labels = logits[:, :-1], ids[:, 1:]
        expected = smoothed_cross_entropy(logits, labels, 0.3, label_smoothing_form=form)
        assert_close(output.loss, expected, atol=1e-6)
        assert abs(expected - smoothed_cross_entropy(logits, labels, 0.1)) > 1e-3


@pytest.mark.parametrize("what", ["bias", "forward hook", "forward pre-hook", "own forward"])
def test_what_a_projection_is_beside_its_weight_counts(what):
    """The loss without logits must not go past what a user has hung on the projection."""
    model = tiny_model("encoder-only", tie_word_embeddings=False)
    head = model.lm_head
    if what == "bias":
        head.bias = nn.Parameter(torch.arange(50.0) / 25)
    elif what == "forward hook":
        head.register_forward_hook(lambda module, inputs, output: 2 * output)
    elif what == "forward pre-hook":
        head.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    else:
        head.forward = lambda states: states @ head.weight.t() * 2
    ids = tokens(2, 6)
    output = model(ids, labels=ids)
    assert_close(model(ids, labels=ids, skip_logits=True).loss, output.loss, atol=1e-6)
    assert_close(smoothed_cross_entropy(output.logits, ids), output.loss, atol=1e-6)


# --------------------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p):
    torch.manual_seed(0)
    dropped = dropout(torch.ones(400, 1001), p, training=True)
    share = (dropped == 0).double().mean().item()
    assert abs(share - p) < 4 * (p * (1 - p) / dropped.numel()) ** 0.5
    assert abs(dropped.double().mean().item() - 1) < 0.01
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1 / (1 - p)), rtol=1e-4)
    # no column, row or lane of the 64 bits that are drawn at once is dropped more often than others
    for lane in range(4):
        assert abs((dropped.flatten()[lane::4] == 0).double().mean().item() - p) < 0.01


def test_dropout_is_the_same_for_a_seed_and_in_the_backward_pass():
    states = torch.randn(3, 5, 7, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(states, 0.4, training=True)
    second = dropout(states, 0.4, training=True)
    torch.manual_seed(3)
    assert torch.equal(dropout(states, 0.4, training=True), first)
    assert not torch.equal(first, second)
    (grad,) = torch.autograd.grad(first.sum(), states)
    assert torch.equal(grad == 0, first == 0)
    assert_close(grad * states, first, atol=1e-6)
    for off in (dropout(states, 0.4, training=False), dropout(states, 0.0, training=True)):
        assert torch.equal(off, states)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, on its first jvp
def test_dropout_has_second_derivatives_and_torch_func():
    model = tiny_model("encoder-only", dropout=0.2, attn_implementation="eager").train()
    ids, weights = tokens(2, 5), dict(model.named_parameters())

    def loss(weights):
        torch.manual_seed(0)
        return torch.func.functional_call(model, weights, (ids,), {"labels": ids}).loss

    expected = torch.autograd.grad(loss(weights), list(weights.values()), create_graph=True)
    for name, grad in zip(weights, expected, strict=True):
        assert_close(torch.func.grad(loss)(weights)[name], grad, atol=1e-6)
        break
    sum((grad**2).sum() for grad in expected).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())

    states, tangent = torch.randn(2, 4, 6)

    def dropped(states):
        torch.manual_seed(1)
        return dropout(states, 0.3, training=True)

    output, along = torch.func.jvp(dropped, (states,), (tangent,))
    assert output.abs().sum() > 0 and (output == 0).any()
    assert_close(along, output / states * tangent, atol=1e-6)


def test_dropout_keeps_one_byte_an_element():
    states = torch.randn(64, 64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        dropout(states, 0.1, training=True)
    assert [tensor.element_size() * tensor.numel() for tensor in kept] == [states.numel()]


# ------------------------------------------------------------------------------------------------------- without padding

SOURCES, TARGETS = (7, 3, 5, 5, 1), (2, 6, 4, 4, 5)


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def rows_of(lengths, seed):
    return [tokens(1, n, seed=seed + 10 * i + n)[0] for i, n in enumerate(lengths)]


def alone(model, sources, targets):
    """Loss, summed over labels, and gradients of sequence after sequence; the logits of each."""
    logits, total = [], 0
    for source, target in zip(sources, targets, strict=True):
        output = model(source[None], labels=target[None], num_items_in_batch=1, skip_logits=False)
        output.loss.backward()
        logits.append(output.logits[0])
        total += output.loss.detach()
    return total, gradients(model), logits


def padded_batch(sources, targets, side, architecture):
    ids, mask = pad_rows(sources, side)
    labels = torch.full((len(targets), max(map(len, targets))), IGNORED)
    for row, target in enumerate(targets):
        place = (
            slice(len(target)) if side == "right" or architecture == "encoder-decoder" else slice(-len(target), None)
        )
        labels[row, place] = target
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed_batch(sources, targets, architecture):
    positions = torch.cat([torch.arange(len(row)) for row in sources])[None]
    batch = {"input_ids": torch.cat(sources)[None], "position_ids": positions, "labels": torch.cat(targets)[None]}
    if architecture == "encoder-decoder":
        shifted = [torch.cat([torch.tensor([1]), target[:-1]]) for target in targets]
        batch["decoder_input_ids"] = torch.cat(shifted)[None]
        batch["decoder_position_ids"] = torch.cat([torch.arange(len(row)) for row in targets])[None]
    if architecture == "decoder-only":
        # the first token of a sequence follows nothing
        starts = torch.tensor([0, *map(len, targets)]).cumsum(0)[:-1]
        batch["labels"][0, starts] = IGNORED
    return batch


def sides(architecture):
    sources = rows_of(SOURCES, 0)
    return sources, rows_of(TARGETS, 100) if architecture == "encoder-decoder" else sources


def counting(monkeypatch):
    """How often attention went sequence by sequence."""
    calls, original = [], varlen.variable_length_attention

    def counted(*args, lengths, **kwargs):
        calls.append(lengths)
        return original(*args, lengths=lengths, **kwargs)

    monkeypatch.setattr(varlen, "variable_length_attention", counted)
    return calls


OVERRIDES = {
    "paper": {},
    "rotary": {"position_encoding": "rope"},
    "learned-pre-norm": {"position_encoding": "learned", "norm_position": "pre"},
    "grouped-query": {"num_key_value_heads": 2},
    "window": {"sliding_window": 2},
}


@pytest.mark.parametrize("form", ["left", "right", "packed"])
@pytest.mark.parametrize("overrides", OVERRIDES.values(), ids=OVERRIDES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_is_padded_is_alone(monkeypatch, architecture, overrides, form):
    """Loss and gradients of all weights, in training, where no layer sees padding; and in eval, with masks."""
    model = tiny_model(architecture, **overrides).train()
    sources, targets = sides(architecture)
    total, expected, _ = alone(model, sources, targets)
    if form == "packed":
        batch = packed_batch(sources, targets, architecture)
    else:
        batch = padded_batch(sources, targets, form, architecture)
    calls = counting(monkeypatch)
    for training in (True, False):
        for skip_logits in (False, True):
            model.train(training)
            if skip_logits:
                calls.clear()
            loss = model(**batch, num_items_in_batch=1, skip_logits=skip_logits).loss
            loss.backward()
            assert_close(loss.detach(), total, atol=2e-5)
            for name, gradient in gradients(model).items():
                assert_close(gradient, expected[name], atol=2e-5)
    layers = 2 + 2 * 3 if architecture == "encoder-decoder" else 2
    assert len(calls) == (layers if form == "packed" else 0)
    model.train()
    if architecture == "encoder-decoder" and form != "packed":  # as transformers' collator makes them
        batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    model(**batch, skip_logits=True)
    assert len(calls) >= layers
    assert all(sum(lengths.queries) in (sum(SOURCES), sum(TARGETS)) for lengths in calls)


@pytest.mark.parametrize("form", ["left", "right", "packed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_code_of_a_folder_alone_trains_to_the_same_weights(monkeypatch, architecture, form):
    """By plain operations, since the kernels of the package do not travel with a model."""
    model = tiny_model(architecture, label_smoothing=0.1, output_bias="trained").train()
    sources, targets = sides(architecture)
    if form == "packed":
        batch = packed_batch(sources, targets, architecture)
    else:
        batch = padded_batch(sources, targets, form, architecture)
    results = []
    for kernels in (Kernels.used, Kernels()):
        monkeypatch.setattr(Kernels, "used", kernels)
        output = model(**batch)
        output.loss.backward()
        results.append((output.logits, output.loss.detach(), gradients(model)))
    (logits, loss, expected), (plain_logits, plain_loss, plain) = results
    assert logits is plain_logits is None
    assert_close(plain_loss, loss, atol=1e-6)
    for name, gradient in plain.items():
        assert_close(gradient, expected[name], atol=2e-5)


def test_pairs_in_a_row_need_the_package_for_flash_attention(monkeypatch):
    model = tiny_model().train()
    monkeypatch.setattr(Kernels, "used", Kernels())
    model.config._attn_implementation_internal = "flash_attention_2"
    batch = packed_batch(*sides("encoder-decoder"), "encoder-decoder")
    with pytest.raises(
        ValueError, match="several pairs in a row cannot be told apart by flash attention here; install"
    ):
        model.model.decoder(
            batch["labels"].clamp(min=0),
            position_ids=batch["decoder_position_ids"],
            encoder_hidden_states=torch.zeros(*batch["input_ids"].shape, 16),
            encoder_position_ids=batch["position_ids"],
            use_cache=False,
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs_have_the_shape_of_the_batch_and_nothing_at_padding(architecture):
    model = tiny_model(architecture).train()
    sources, targets = sides(architecture)
    _, _, expected = alone(model, sources, targets)
    batch = padded_batch(sources, targets, "right", architecture)
    if architecture == "encoder-decoder":
        batch["decoder_attention_mask"] = (batch["labels"] != IGNORED).long()
    logits = model(**batch, skip_logits=False).logits
    assert logits.shape[:2] == batch["labels"].shape
    for row, one in enumerate(expected):
        assert_close(logits[row, : len(one)], one, atol=1e-5)
        assert not logits[row, len(one) :].any()


def test_states_and_maps_of_all_layers_have_the_shape_of_the_batch():
    for implementation, wanted in (("sdpa", "output_hidden_states"), ("eager", "output_attentions")):
        model = tiny_model(attn_implementation=implementation).train()
        sources, targets = sides("encoder-decoder")
        batch = padded_batch(sources, targets, "right", "encoder-decoder")
        output = model(**batch, **{wanted: True})
        found = output.encoder_hidden_states if wanted == "output_hidden_states" else output.encoder_attentions
        assert all(states.shape[0] == len(SOURCES) for states in found)


@pytest.mark.parametrize(
    "head", [VanillaTransformerForSequenceClassification, VanillaTransformerForTokenClassification]
)
@pytest.mark.parametrize("architecture", ["encoder-only", "decoder-only"])
def test_classifiers_without_padding(architecture, head):
    config = tiny_config(architecture, num_labels=3)
    torch.manual_seed(0)
    model = head(config)
    ids, mask = pad_rows(rows_of(SOURCES, 0), "left")
    labels = torch.arange(5) % 3 if head is VanillaTransformerForSequenceClassification else ids % 3
    labels = labels if labels.dim() == 1 else labels.masked_fill(mask == 0, IGNORED)
    results = []
    for training in (True, False):
        model.train(training)
        output = model(ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        results.append((output.loss.detach(), gradients(model)))
    (loss, grads), (expected, expected_grads) = results
    assert_close(loss, expected, atol=1e-6)
    for name, gradient in grads.items():
        assert_close(gradient, expected_grads[name], atol=1e-5)


def test_rows_that_cannot_be_unpadded_still_train():
    """A row of padding alone, in the source, in the target or in both: finite, and the others are as they were."""
    model = tiny_model().train()
    sources, targets = sides("encoder-decoder")
    total, expected, _ = alone(model, sources, targets)
    batch = padded_batch(sources, targets, "right", "encoder-decoder")
    empty = {"input_ids": PAD, "attention_mask": 0, "labels": IGNORED}
    extended = {name: torch.cat([rows, torch.full_like(rows[:1], empty[name])]) for name, rows in batch.items()}
    loss = model(**extended, num_items_in_batch=1, skip_logits=True).loss
    loss.backward()
    assert_close(loss.detach(), total, atol=2e-5)
    for name, gradient in gradients(model).items():
        assert_close(gradient, expected[name], atol=2e-5)
    extended["labels"][-1, 0] = 7  # a target without a source
    loss = model(**extended, num_items_in_batch=1, skip_logits=True).loss
    loss.backward()
    assert loss.isfinite() and all(gradient.isfinite().all() for gradient in gradients(model).values())


def test_gradient_checkpointing_without_padding():
    model = tiny_model(dropout=0.2).train()
    sources, targets = sides("encoder-decoder")
    batch = padded_batch(sources, targets, "right", "encoder-decoder")
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        model(**batch, skip_logits=True).loss.backward()
        results.append(gradients(model))
        model.activation_checkpointing_enable()
    for name, gradient in results[0].items():
        assert_close(results[1][name], gradient, atol=1e-6)


@pytest.mark.parametrize("form", ["right", "packed"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_flash_attention_gets_the_bounds_of_the_sequences(monkeypatch, architecture, form):
    """Its kernels need an accelerator; what stands in for them here computes by the same arguments."""
    model = tiny_model(architecture).train()
    sources, targets = sides(architecture)
    total, expected, _ = alone(model, sources, targets)

    def flash(module, query, key, value, attention_mask, scaling, dropout, sliding_window, **kwargs):
        assert attention_mask is None and query.shape[0] == 1
        bounds = [kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]]
        assert all(bound.dtype == torch.int32 and bound[0] == 0 for bound in bounds)
        queries, keys = (bound.diff().tolist() for bound in bounds)
        assert (max(queries), max(keys)) == (kwargs["max_length_q"], kwargs["max_length_k"])
        lengths = SequenceLengths(queries, keys)
        return varlen.variable_length_attention(module, query, key, value, None, lengths, scaling, dropout)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", flash)
    model.config._attn_implementation_internal = "flash_attention_2"
    if form == "packed":
        batch = packed_batch(sources, targets, architecture)
    else:
        batch = padded_batch(sources, targets, form, architecture)
    loss = model(**batch, num_items_in_batch=1, skip_logits=True).loss
    loss.backward()
    assert_close(loss.detach(), total, atol=2e-5)
    for name, gradient in gradients(model).items():
        assert_close(gradient, expected[name], atol=2e-5)


def test_a_long_row_and_back():
    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1]]).bool()
    states = torch.arange(24.0).view(4, 3, 2)
    unpadded = PaddingFreeBatch.from_mask(mask, [3, 0, 1])
    assert unpadded.lengths == [2, 2, 3]
    long = unpadded.unpad(states)
    assert torch.equal(long[0], torch.cat([states[3, [0, 2]], states[0, 1:], states[1]]))
    assert torch.equal(unpadded.pad(long), states * mask.unsqueeze(-1))
    packed = PaddingFreeBatch.from_packed(torch.tensor([[0, 0, 1], [0, 1, 1]]))
    assert packed.lengths == [2, 1, 1, 2]
    assert torch.equal(packed.pad(packed.unpad(states[:2])), states[:2])
    assert SequenceLengths([2, 2, 3], [1, 1, 1]).blocks == [(2, 2, 1, None, None), (1, 3, 1, None, None)]


def test_blocks_of_like_queries_share_a_batch_with_masked_keys():
    """Pairs of many lengths: fewer calls, the same outputs and gradients as pair by pair."""
    model = tiny_model()
    attention = model.model.decoder.layers[0].cross_attn
    queries, keys = [2] * 5 + [3] * 4, [4, 1, 3, 2, 5, 2, 6, 1, 2]
    lengths = SequenceLengths(queries, keys)
    assert [(block.sequences, block.queries, block.keys) for block in lengths.blocks] == [(5, 2, 5), (4, 3, 6)]
    assert all(len(block) == 5 for block in lengths.blocks)
    states, source = torch.randn(1, sum(queries), 16), torch.randn(1, sum(keys), 16)
    results = []
    for alone in (False, True):
        inputs = [states.clone().requires_grad_(), source.clone().requires_grad_()]
        if alone:
            parts = zip(*(x.split(n, 1) for x, n in zip(inputs, (queries, keys), strict=True)), strict=True)
            output = torch.cat([attention(q, k)[0] for q, k in parts], 1)
        else:
            output = attention(*inputs, lengths=lengths)[0]
        results.append((output, *torch.autograd.grad((output**2).sum(), [*inputs, *attention.parameters()])))
    for together, one_by_one in zip(*results, strict=True):
        assert_close(together, one_by_one, atol=1e-4)


def loss_and_gradients(model, implementation, **batch):
    model.set_attn_implementation(implementation)
    loss = model.train()(**batch).loss
    loss.backward()
    return loss.detach(), gradients(model)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_window_counts_padding_between_tokens(architecture):
    """As the masks of the other paths do; there padding must stay."""
    model = tiny_model(architecture, sliding_window=1 if architecture == "encoder-only" else 2)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 0]])
    ids = tokens(3, 6).masked_fill(mask == 0, PAD)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}
    if architecture == "encoder-decoder":
        batch |= {"labels": tokens(3, 6, seed=1), "decoder_attention_mask": mask}
    loss, grads = loss_and_gradients(model, "sdpa", **batch)
    expected, expected_grads = loss_and_gradients(model, "eager", **batch)
    assert_close(loss, expected, atol=1e-5)
    for name, gradient in grads.items():
        assert_close(gradient, expected_grads[name], atol=5e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "tagger"])
def test_labels_at_padding_do_not_count(architecture, side):
    """Nothing is computed there in training, so the loss must not depend on whether a collator has hidden them."""
    if architecture == "tagger":
        torch.manual_seed(0)
        model = VanillaTransformerForTokenClassification(tiny_config("encoder-only", num_labels=50))
    else:
        model = tiny_model(architecture, label_smoothing=0.1)
    ids, mask = pad_rows(rows_of(SOURCES, 0), side)
    name = "decoder_attention_mask" if architecture == "encoder-decoder" else "attention_mask"
    batch = {"input_ids": ids, name: mask}
    if architecture == "encoder-decoder":
        batch["decoder_input_ids"] = ids.flip(0)
    labels_name = "shift_labels" if architecture == "decoder-only" else "labels"
    for training in (True, False):
        model.train(training)
        shown, hidden = (
            model(**batch, **{labels_name: labels}).loss for labels in (ids, ids.masked_fill(mask == 0, IGNORED))
        )
        assert_close(shown, hidden, atol=1e-6)


def test_an_answer_at_padding_does_not_count():
    torch.manual_seed(0)
    model = VanillaTransformerForQuestionAnswering(tiny_config("encoder-only"))
    ids, mask = pad_rows(rows_of(SOURCES, 0), "right")
    batch = {"input_ids": ids, "attention_mask": mask}
    inside, outside = torch.tensor([6, 2, 4, 3, 0]), torch.tensor([6, 2, 5, 3, 0])  # the third row has 5 tokens
    beyond = outside.masked_fill(outside == 5, 99)
    losses = [model(**batch, start_positions=inside, end_positions=end).loss for end in (outside, beyond, inside)]
    assert_close(losses[0], losses[1], atol=1e-6)
    assert losses[0].isfinite() and losses[0] != losses[2]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("sources", "targets"),
    [([[0, 1, 0, 1, 0, 1]], [[0, 1, 0, 1]]), ([[0, 1, 0, 1], [0, 1, 2, 3]], [[0, 1, 2, 3], [0, 1, 0, 1]])],
)
def test_packed_rows_have_a_target_for_each_source(sources, targets, training):
    """Also where only the sum over the rows is right, and each target would go with another row's source."""
    model = tiny_model().train(training)
    sources, targets = torch.tensor(sources), torch.tensor(targets)
    with pytest.raises(ValueError, match=r"rows of \[.*\] sources cannot hold \[.*\] targets: position_ids"):
        model(
            tokens(*sources.shape),
            position_ids=sources,
            decoder_input_ids=tokens(*targets.shape),
            decoder_position_ids=targets,
        )
