"""Heads that classify: sequences, tokens, spans."""

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.utils import logging

import vanilla_transformer as vt
from closeness import assert_close
from test_modeling import collate_uneven, one_sgd_step
from tiny import ARCHITECTURES, LANGUAGE_MODELS, PAD, pad_rows, tiny_config, tiny_model, tokens

SEQUENCE, TOKEN, SPAN = (
    vt.VanillaTransformerForSequenceClassification,
    vt.VanillaTransformerForTokenClassification,
    vt.VanillaTransformerForQuestionAnswering,
)
AUTO = {
    SEQUENCE: AutoModelForSequenceClassification,
    TOKEN: AutoModelForTokenClassification,
    SPAN: AutoModelForQuestionAnswering,
    vt.VanillaTransformerModel: AutoModel,
}
SERVED = [(SEQUENCE, architecture) for architecture in ARCHITECTURES]
SERVED += [(head, architecture) for head in (TOKEN, SPAN) for architecture in ("encoder-only", "decoder-only")]


def logits_of(output):
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    return output.get("logits", output[0])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize(("head", "architecture"), SERVED)
def test_padding_changes_nothing(head, architecture, norm_position, side):
    model = tiny_model(architecture, model_class=head, num_labels=3, norm_position=norm_position)
    rows = [tokens(1, n, seed=n)[0] for n in (7, 3, 1)]
    for extra, filler in ((0, PAD), (4, 33)):
        ids, mask = pad_rows(rows, side, extra, filler)
        logits = logits_of(model(input_ids=ids, attention_mask=mask))
        for i, row in enumerate(rows):
            alone = logits_of(model(input_ids=row[None]))[0]
            assert_close(logits[i] if head is SEQUENCE else logits[i][mask[i].bool()], alone)


def test_what_is_pooled():
    ids = tokens(2, 5)
    encoder = tiny_model("encoder-only", model_class=SEQUENCE, num_labels=3)
    assert_close(encoder(ids).logits, encoder.score(encoder.model(ids).last_hidden_state.mean(1)))
    decoder = tiny_model("decoder-only", model_class=SEQUENCE, num_labels=3)
    assert_close(decoder(ids).logits, decoder.score(decoder.model(ids).last_hidden_state[:, -1]))
    both = tiny_model("encoder-decoder", model_class=SEQUENCE, num_labels=3, decoder_start_token_id=7)
    start = torch.full((2, 1), 7)
    states = both.model(ids, decoder_input_ids=start).last_hidden_state
    assert_close(both(ids).logits, both.score(states[:, 0]))
    # a target that is given is pooled at its last token, on whichever side its padding is
    for side in ("left", "right"):
        target, target_mask = pad_rows([tokens(1, 4)[0], tokens(1, 2)[0]], side)
        logits = both(ids, decoder_input_ids=target, decoder_attention_mask=target_mask).logits
        for i, length in enumerate((4, 2)):
            own = target[i][target_mask[i].bool()][None]
            assert own.shape == (1, length)
            assert_close(logits[i], both(ids[i : i + 1], decoder_input_ids=own).logits[0])


@pytest.mark.parametrize("variant", ["separate", "shallow-encoder", "untied"])
def test_sequence_classification_of_other_encoder_decoders(variant):
    model = tiny_model("encoder-decoder", variant, model_class=SEQUENCE)
    output = model(tokens(2, 5), labels=torch.tensor([0, 1]))
    output.loss.backward()
    assert output.logits.shape == (2, 2) and model.model.encoder.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("count", [None, 7])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("problem", "num_labels", "labels"),
    [
        ("single_label_classification", 3, torch.tensor([0, 2, -100])),
        ("regression", 1, torch.tensor([0.5, -1.0, 2.0])),
        ("regression", 2, torch.tensor([[0.5, 1.0], [-1.0, 0.0], [2.0, 3.0]])),
        ("multi_label_classification", 3, torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]])),
    ],
)
def test_loss_by_kind_of_problem(architecture, problem, num_labels, labels, count):
    options = {} if count is None else {"num_items_in_batch": torch.tensor(count)}
    given = problem if (problem, num_labels) == ("regression", 2) else None
    model = tiny_model(
        architecture, model_class=SEQUENCE, num_labels=num_labels, problem_type=given, label_smoothing=0.1
    )
    output = model(tokens(3, 5), labels=labels, **options)
    logits = output.logits
    if problem == "single_label_classification":
        total, kept = nn.functional.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.1), 2
    elif problem == "regression":
        total, kept = (logits.view(labels.shape) - labels).pow(2).sum(), labels.numel()
    else:
        total = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        kept = labels.numel()
    assert_close(output.loss, total / (kept if count is None else count))
    assert model.config.problem_type == problem  # recorded for pipelines, which choose softmax or sigmoid by it


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("architecture", ["encoder-only", "decoder-only"])
def test_loss_over_tokens(architecture, smoothing):
    model = tiny_model(architecture, model_class=TOKEN, num_labels=4, label_smoothing=smoothing)
    labels = torch.tensor([[0, 1, 2, -100], [3, -100, -100, -100]])
    output = model(tokens(2, 4), labels=labels)
    flat = output.logits.flatten(0, 1), labels.flatten()
    assert_close(output.loss, nn.functional.cross_entropy(*flat, label_smoothing=smoothing))
    halved = model(tokens(2, 4), labels=labels, num_items_in_batch=8).loss
    assert_close(halved, output.loss / 2)


@pytest.mark.parametrize("architecture", ["encoder-only", "decoder-only"])
def test_loss_over_spans(architecture):
    model = tiny_model(architecture, model_class=SPAN, label_smoothing=0.1)
    ids, mask = pad_rows([tokens(1, 6)[0], tokens(1, 4)[0]], "right", extra=2)
    starts, ends = torch.tensor([1, 9]), torch.tensor([[3], [2]])  # the second start was cut off
    output = model(ids, mask, start_positions=starts, end_positions=ends)
    start_loss = nn.functional.cross_entropy(output.start_logits[:1, :6], starts[:1])
    end_loss = (
        nn.functional.cross_entropy(output.end_logits[:1, :6], torch.tensor([3]))
        + nn.functional.cross_entropy(output.end_logits[1:, :4], torch.tensor([2]))
    ) / 2
    assert_close(output.loss, (start_loss + end_loss) / 2)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert not model.accepts_loss_kwargs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "kind", "head"),
    [
        (architecture, kind, head)
        for kind, head in {
            "single": SEQUENCE,
            "numbers": SEQUENCE,
            "several": SEQUENCE,
            "tokens": TOKEN,
            "spans": SPAN,
        }.items()
        for architecture in head.supported_architectures
    ],
)
def test_accumulation_in_trainer_equals_one_batch(tmp_path, architecture, kind, head):
    """Reported in huggingface/transformers#47688 and #37766."""
    features = []
    for i, n in enumerate((3, 9, 5, 2)):
        feature = {"input_ids": tokens(1, n, seed=n)[0].tolist(), "attention_mask": [1] * n}
        if kind == "spans":
            feature |= {"start_positions": i % 2, "end_positions": 1}
        else:
            feature["labels"] = {
                "single": i % 3,
                "numbers": float(i),
                "several": [1.0, 0.0, float(i % 2)],
                "tokens": [t % 3 for t in feature["input_ids"]],
            }[kind]
        features.append(feature)

    def step(batch_size):
        model = tiny_model(architecture, model_class=head, num_labels=1 if kind == "numbers" else 3)
        return one_sgd_step(model, features, tmp_path, batch_size, collate, learning_rate=0.05)

    def collate(features):
        batch = collate_uneven(
            [{k: v for k, v in f.items() if k in ("input_ids", "attention_mask")} for f in features]
        )
        for name in set(features[0]) - set(batch):
            values = [f[name] for f in features]
            batch[name] = (
                collate_uneven([{"labels": v} for v in values])["labels"]
                if kind == "tokens"
                else (torch.tensor(values))
            )
        return batch

    (whole, whole_loss), (parts, parts_loss) = step(4), step(1)
    assert whole_loss == pytest.approx(parts_loss, abs=2e-4)
    for name, tensor in whole.items():
        assert_close(parts[name], tensor, atol=2e-6)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(
    ("head", "architecture"), [*SERVED, *((vt.VanillaTransformerModel, a) for a in ARCHITECTURES)]
)
def test_save_load_and_resize(tmp_path, head, architecture, tie):
    model = tiny_model(architecture, model_class=head, num_labels=3, tie_word_embeddings=tie)
    model.save_pretrained(tmp_path)
    loaded, report = AUTO[head].from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is head and not any(report.values())
    batch = {"input_ids": tokens(2, 5)}
    if head is vt.VanillaTransformerModel and architecture == "encoder-decoder":
        batch["decoder_input_ids"] = tokens(2, 3)
    before = logits_of(model(**batch))
    assert_close(logits_of(loaded(**batch)), before, atol=0)
    loaded.resize_token_embeddings(57)
    assert_close(logits_of(loaded(**batch)), before)
    loaded.save_pretrained(tmp_path)
    again = AUTO[head].from_pretrained(tmp_path)
    assert again.config.vocab_size == 57
    assert_close(logits_of(again(**batch)), before)
    if architecture == "encoder-decoder":
        encoder, decoder = again.base_model.encoder, again.base_model.decoder
        assert (decoder.embed_tokens.weight is encoder.embed_tokens.weight) == tie
        assert len(decoder.embed_tokens.weight) == 57
        separate = tiny_model(architecture, model_class=head, num_labels=3, target_vocab_size=43)
        with pytest.raises(ValueError, match="separate vocabularies of 50 source and 43 target tokens"):
            separate.resize_token_embeddings(57)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(("head", "architecture"), SERVED)
def test_checkpoints_move_between_heads(tmp_path, head, architecture, tie, caplog):
    """What is new is named; everything else is kept."""
    pretrained = tiny_model(architecture, tie_word_embeddings=tie)
    pretrained.save_pretrained(tmp_path)
    new = {"qa_outputs.weight", "qa_outputs.bias"} if head is SPAN else {"score.weight", "score.bias"}
    propagates = logging.get_logger("transformers").propagate
    logging.get_logger("transformers").propagate = True
    try:
        labels = {} if head is SPAN else {"num_labels": 3}
        model, report = head.from_pretrained(tmp_path, output_loading_info=True, **labels)
    finally:
        logging.get_logger("transformers").propagate = propagates
    assert set(report["missing_keys"]) == new
    assert set(report["unexpected_keys"]) == (set() if tie else {"lm_head.weight"})
    assert all(name in caplog.text for name in (n.split(".")[0] for n in new))
    for name, tensor in pretrained.model.state_dict().items():
        assert_close(model.model.state_dict()[name], tensor, atol=0)
    model.save_pretrained(tmp_path / "back")
    back, report = LANGUAGE_MODELS[architecture].from_pretrained(tmp_path / "back", output_loading_info=True)
    assert set(report["missing_keys"]) == (set() if tie else {"lm_head.weight"})
    assert set(report["unexpected_keys"]) == new
    if tie:
        inputs = {"input_ids": tokens(1, 4)} | (
            {"decoder_input_ids": tokens(1, 3)} if architecture == "encoder-decoder" else {}
        )
        assert_close(back(**inputs).logits, pretrained(**inputs).logits, atol=0)


@pytest.mark.parametrize("head", [TOKEN, SPAN])
def test_refusals_name_what_serves(head):
    with pytest.raises(ValueError, match=head.__name__) as caught:
        head(tiny_config("encoder-decoder"))
    for served in (SEQUENCE, LANGUAGE_MODELS["encoder-decoder"]):
        assert served.__name__ in str(caught.value)
    assert LANGUAGE_MODELS["decoder-only"].__name__ not in str(caught.value) and "\n" not in str(caught.value)


def test_labels_have_names(tmp_path):
    names = {0: "bad", 1: "good", 2: "mixed"}
    model = tiny_model("encoder-only", model_class=SEQUENCE, id2label=names, label2id={v: k for k, v in names.items()})
    assert model.score.out_features == 3
    model.save_pretrained(tmp_path)
    assert SEQUENCE.from_pretrained(tmp_path).config.id2label == names
