"""What must not go wrong in silence: caches that callers make, labels that a mask leaves out, ties, dropout, backends."""

import pytest
import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    StaticCache,
    Trainer,
    TrainingArguments,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import vanilla_transformer as vt
from closeness import assert_close
from tiny import ARCHITECTURES, PAD, model_inputs, pad_rows, tiny_config, tiny_model, tokens
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerDropout

# Caches ------------------------------------------------------------------------------------------------------------------


def caches(config, kind, length=20):
    """A cache for both attentions as a caller makes it, of the configuration of the model."""
    config = config.get_text_config(decoder=True)
    if kind == "static":
        return EncoderDecoderCache(
            StaticCache(config, max_cache_len=length), StaticCache(config, max_cache_len=length)
        )
    return EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_cache_of_a_windowed_configuration_keeps_the_whole_source(kind):
    model, source, target = tiny_model(sliding_window=4), tokens(2, 9), tokens(2, 6, seed=1)
    expected = model(source, decoder_input_ids=target).logits
    cache = caches(model.config, kind)
    found = [model(source, decoder_input_ids=part, cache=cache).logits for part in target.split([3, 2, 1], dim=1)]
    assert_close(torch.cat(found, dim=1), expected, atol=1e-5)


def test_caches_without_room_and_of_another_source_are_refused():
    model, source = tiny_model(), tokens(2, 9)
    config = model.config.get_text_config(decoder=True)

    def forward(cache, source=source, length=5, model=model):
        inputs = {"decoder_input_ids": tokens(2, length)} if model.config.is_encoder_decoder else {}
        return model(source if inputs else tokens(2, length), cache=cache, **inputs)

    short, long = (lambda: StaticCache(config, max_cache_len=4)), (lambda: StaticCache(config, max_cache_len=20))
    with pytest.raises(ValueError, match="max_cache_len=4 has no room for 5 positions"):
        forward(EncoderDecoderCache(short(), long()))
    with pytest.raises(ValueError, match="max_cache_len=4 has no room for a source of 9 positions"):
        forward(EncoderDecoderCache(long(), short()))
    language_model = tiny_model("decoder-only")
    cache = StaticCache(language_model.config, max_cache_len=7)
    forward(cache, model=language_model)
    with pytest.raises(ValueError, match="max_cache_len=7 has no room for 8 positions"):
        forward(cache, length=3, model=language_model)
    for kind in ("static", "dynamic"):
        cache = caches(model.config, kind)
        forward(cache)
        for other in (12, 7):
            with pytest.raises(ValueError, match=f"source of 9 positions, and this source has {other}"):
                forward(cache, tokens(2, other), length=1)
    pairs = tuple((torch.zeros(2, 4, 3, 4),) * 2 for _ in range(3))
    with pytest.raises(ValueError, match="cache is a tuple: give a Cache"):
        forward(pairs)
    with pytest.raises(ValueError, match="cache is a tuple: give a Cache"):
        forward(pairs, model=language_model)


def test_encoder_outputs_are_left_as_they_are_and_may_be_a_tuple():
    model, source = tiny_model(), tokens(2, 6)
    expected = model.generate(source, num_beams=3, max_new_tokens=5, do_sample=False)
    outputs = model.model.encoder(source)
    before = outputs[0].clone()
    for given in (outputs, outputs, outputs.to_tuple()):
        found = model.generate(encoder_outputs=given, num_beams=3, max_new_tokens=5, do_sample=False)
        assert torch.equal(found, expected)
    assert torch.equal(outputs[0], before)


@pytest.mark.parametrize("architecture", ["encoder-decoder", "decoder-only"])
def test_finished_rows_of_beams_are_filled_up_with_padding(architecture):
    """transformers fills up with the end token where the id of the padding token is 0; it asks whether that is false."""
    model = tiny_model(architecture, scale=0.5)
    ids = tokens(6, 5)
    settings = {"max_new_tokens": 12, "num_beams": 3, "num_return_sequences": 2, "do_sample": False}
    assert model.generation_config.pad_token_id == PAD == 0
    # ends at different places: by the end token, and by a length that differs from row to row
    end = model.generate(ids, **settings)[0, -8].item()
    outputs = model.generate(ids, eos_token_id=end, return_dict_in_generate=True, output_scores=True, **settings)
    written = outputs.sequences[:, 1 if architecture == "encoder-decoder" else ids.shape[1] :]
    filled = 0
    for row in written.tolist():
        if end in row:
            behind = row[row.index(end) + 1 :]
            assert set(behind) <= {PAD}
            filled += len(behind)
    assert filled
    assert torch.equal(model.generate(ids, eos_token_id=end, **settings), outputs.sequences)
    if architecture == "encoder-decoder":
        mask = (torch.arange(5) < torch.tensor([[1], [2], [3], [4], [5], [5]])).long()
        settings.pop("max_new_tokens")
        rows = model.generate(ids, attention_mask=mask, max_length_over_source=0, eos_token_id=None, **settings)
        assert (rows[:, 1:] != PAD).sum(1).tolist() == mask.sum(1).repeat_interleave(2).tolist()


def test_settings_and_kinds_that_generation_cannot_have_are_refused_at_once():
    model = tiny_model("decoder-only", position_encoding="alibi")
    for name, value in (("num_beams", 0), ("num_beams", 2.5), ("num_return_sequences", 0)):
        with pytest.raises(ValueError, match=f"{name}={value} must be an integer of at least 1"):
            model.generate(tokens(1, 3), max_new_tokens=2, **{name: value})
    with pytest.raises(ValueError, match="cache_implementation='offloaded' keeps a cache off an accelerator"):
        model.generate(tokens(1, 3), max_new_tokens=2, cache_implementation="offloaded")
    for other, field in (
        (model, "position_encoding='alibi'"),
        (tiny_model("decoder-only", "albert"), "shared_layers=True"),
        (tiny_model(), "architecture='encoder-decoder'"),
    ):
        with pytest.raises(ValueError, match=f"continuous batching .* does not serve {field}"):
            other.generate_batch([[4, 5, 6]], max_new_tokens=2)


# Labels ------------------------------------------------------------------------------------------------------------------

ROWS = [tokens(1, length, seed=length)[0] for length in (5, 2, 7, 3)]


def loss_per_token(model):
    """The mean over all tokens that follow a token, of each row alone."""
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(model(row[None]).logits[0, :-1], row[1:], reduction="none") for row in ROWS
        ]
    return torch.cat(losses).mean()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [PAD, IGNORED])
@pytest.mark.parametrize("training", [False, True])
def test_padding_is_no_target_with_any_labels_on_either_side(side, filler, training):
    model = tiny_model("decoder-only")
    expected = loss_per_token(model)
    ids, mask = pad_rows(ROWS, side)
    labels = ids.masked_fill(mask == 0, filler)
    model.train(training)
    assert_close(model(ids, attention_mask=mask, labels=labels).loss, expected, atol=1e-5)
    following = labels.roll(-1, dims=1)
    following[:, -1] = IGNORED
    assert_close(model(ids, attention_mask=mask, shift_labels=following).loss, expected, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [PAD, IGNORED])
def test_a_plain_trainer_has_the_mean_per_token_also_under_accumulation(side, filler, tmp_path):
    """It counts labels before the model sees them, by a method that is not public; without it the loss was too small."""
    start = tiny_model("decoder-only").state_dict()

    def collate(rows):
        ids, mask = pad_rows([row["input_ids"] for row in rows], side)
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, filler)}

    def trained(batch, accumulation):
        model = tiny_model("decoder-only")
        model.load_state_dict(start)
        arguments = TrainingArguments(
            tmp_path,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            learning_rate=0.1,
            optim="sgd",
            max_grad_norm=0,
            logging_steps=1,
            logging_nan_inf_filter=False,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = Trainer(model, arguments, data_collator=collate, train_dataset=[{"input_ids": row} for row in ROWS])
        trainer.train()
        return next(log["loss"] for log in trainer.state.log_history if "loss" in log), model.state_dict()

    expected = loss_per_token(tiny_model("decoder-only"))
    (whole, weights), (parts, same) = trained(4, 1), trained(1, 4)
    assert whole == pytest.approx(expected.item(), rel=1e-5) and parts == pytest.approx(whole, rel=1e-5)
    for name, weight in weights.items():
        assert_close(same[name], weight, atol=1e-6)


def test_labels_of_other_heads_count_as_they_take_part(tmp_path):
    ids, mask = pad_rows(ROWS, "right")
    for architecture, model_class in (
        ("encoder-only", vt.VanillaTransformerForMaskedLM),
        ("encoder-only", vt.VanillaTransformerForTokenClassification),
        ("encoder-decoder", None),
    ):
        model = tiny_model(architecture, model_class=model_class)
        name = "decoder_attention_mask" if architecture == "encoder-decoder" else "attention_mask"
        labels = ids % model.config.num_labels if "Token" in str(model_class) else ids
        counted = model.counted_labels({"labels": labels, name: mask})["labels"]
        assert (counted != IGNORED).sum() == mask.sum()
        inputs = {"input_ids": ids, name: mask, "labels": labels}
        assert_close(model(**inputs, num_items_in_batch=mask.sum()).loss, model(**inputs).loss, atol=1e-6)
    classifier = tiny_model("encoder-only", model_class=vt.VanillaTransformerForSequenceClassification)
    assert classifier.counted_labels({"labels": torch.tensor([0, 1])}) == {}


def test_packed_targets_are_shifted_within_each_pair():
    model = tiny_model(variant="paper")
    sources, targets = tokens(1, 9), tokens(1, 7, seed=3)
    source_positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    target_positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    parts = [(sources[:, :4], targets[:, :3]), (sources[:, 4:], targets[:, 3:])]
    expected = sum(model(source, labels=target, num_items_in_batch=7).loss for source, target in parts)
    packed = {"position_ids": source_positions, "decoder_position_ids": target_positions}
    for training in (False, True):
        model.train(training)
        assert_close(model(sources, labels=targets, **packed).loss, expected, atol=1e-5)
    # the same said by masks of blocks
    of_source, of_target = torch.tensor([0] * 4 + [1] * 5), torch.tensor([0] * 3 + [1] * 4)
    masks = {
        "attention_mask": (of_source[:, None] == of_source)[None, None],
        "cross_attention_mask": (of_target[:, None] == of_source)[None, None],
        "decoder_attention_mask": ((of_target[:, None] == of_target) & torch.ones(7, 7).tril().bool())[None, None],
    }
    assert_close(model(sources, labels=targets, **packed, **masks).loss, expected, atol=1e-5)


def test_targets_with_padding_on_the_left_begin_with_the_start_token():
    model, source, target = tiny_model(), tokens(1, 5), tokens(1, 4, seed=2)
    labels, mask = pad_rows([target[0]], "left", extra=3)
    found = model(source, labels=labels, decoder_attention_mask=mask).loss
    assert_close(found, model(source, labels=target).loss, atol=1e-5)


def test_packed_texts_do_not_predict_each_other():
    model = tiny_model("decoder-only", variant="bert")
    positions = torch.cat([torch.arange(len(row)) for row in ROWS])[None]
    packed, types = torch.cat(ROWS)[None], (torch.cat(ROWS) % 2)[None]
    alone = [
        model(row[None], token_type_ids=(row % 2)[None], labels=row[None], num_items_in_batch=13).loss for row in ROWS
    ]
    for training in (False, True):
        model.train(training)
        found = model(packed, position_ids=positions, token_type_ids=types, labels=packed).loss
        assert_close(found, sum(alone), atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_batch_without_any_label_costs_nothing(architecture):
    model = tiny_model(architecture).train()
    ids, mask = pad_rows(ROWS, "right")
    for skip_logits in (None, True, False):
        loss = model(ids, attention_mask=mask, labels=torch.full_like(ids, IGNORED), skip_logits=skip_logits).loss
        loss.backward()
        assert loss == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_leaves_logits_out_unless_they_are_asked_for(architecture):
    # sdpa has no second derivatives
    model = tiny_model(architecture, attn_implementation="eager")
    batch = {"input_ids": tokens(2, 5), "labels": tokens(2, 5, seed=1)}
    evaluated = model(**batch)
    assert evaluated.logits is not None
    model.train()
    trained = model(**batch)
    assert trained.logits is None
    assert_close(trained.loss, evaluated.loss, atol=1e-6)
    assert_close(model(**batch, skip_logits=False).logits, evaluated.logits, atol=1e-6)
    if architecture != "encoder-only":
        assert_close(model(**batch, logits_to_keep=2).logits, evaluated.logits[:, -2:], atol=1e-6)
    # gradients of gradients, and of weights alone, are those of all logits
    weight = model.lm_head.weight

    def second(**options):
        (first,) = torch.autograd.grad(model(**batch, **options).loss, weight, create_graph=True)
        return torch.autograd.grad((first**2).sum(), weight)[0]

    assert_close(second(), second(skip_logits=False), atol=1e-5)


# Ties, dropout, backends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", ["paper", "separate", "two-way", "shared-untied", "shallow-encoder", "marian", "untied"]
)
def test_an_output_that_is_untied_later_reloads_to_equal_logits(variant, tmp_path):
    model = tiny_model(variant=variant)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() + 1)
    model.save_pretrained(tmp_path)
    inputs = model_inputs(model)
    for kind in (type(model), AutoModelForSeq2SeqLM):
        loaded, report = kind.from_pretrained(tmp_path, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("model_class", [vt.VanillaTransformerModel, vt.VanillaTransformerForSequenceClassification])
def test_a_base_model_or_classifier_whose_configuration_is_untied_later_reloads_equal(model_class, tmp_path):
    model = tiny_model(model_class=model_class)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    loaded = model_class.from_pretrained(tmp_path).eval()
    inputs = model_inputs(model)
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])


@pytest.mark.parametrize("variant", ["paper", "separate", "two-way"])
@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["lm_head", "embed_tokens"]])
def test_a_merged_adapter_that_trains_whole_modules_reloads_equal(variant, saved, tmp_path):
    peft = pytest.importorskip("peft")
    model = tiny_model(variant=variant)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, modules_to_save=saved, init_lora_weights=False))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter))
    merged = adapted.merge_and_unload().eval()
    merged.save_pretrained(tmp_path)
    inputs = model_inputs(merged)
    assert torch.equal(type(merged).from_pretrained(tmp_path).eval()(**inputs).logits, merged(**inputs).logits)


def test_emptied_models_stay_tied_and_are_initialised_as_embeddings():
    with torch.device("meta"):
        model = vt.VanillaTransformerForConditionalGeneration(tiny_config(hidden_size=64))
    model = model.to_empty(device="cpu")
    embedding = model.model.encoder.embed_tokens.weight
    assert model.lm_head.weight is embedding and model.model.decoder.embed_tokens.weight is embedding
    model.init_weights()
    assert embedding[1:].std().item() == pytest.approx(64**-0.5, rel=0.1) and not embedding[PAD].any()


def test_dropout_follows_the_configuration_and_what_is_set_on_its_modules():
    model = tiny_model(dropout=0.3, attention_dropout=0.3, activation_dropout=0.3).train()
    inputs = model_inputs(model)

    def is_random():
        return not torch.equal(model(**inputs).logits, model(**inputs).logits)

    modules = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert len(modules) == 2 + 2 * 3 + 3 * 4 and all(type(module) is VanillaTransformerDropout for module in modules)
    assert is_random()
    for module in modules:  # as TRL's `disable_dropout` does
        module.p = 0
    assert not is_random()
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        setattr(model.config, name, 0.5)
        assert is_random()
        setattr(model.config, name, 0)
        assert not is_random()


@pytest.mark.parametrize("share", [0.9999924, 0.9999999])
def test_a_share_of_dropout_next_to_one_is_that_of_torch(share):
    model = tiny_model(dropout=share).train()
    assert model(tokens(2, 5), labels=tokens(2, 5)).loss.isfinite()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 2}, {"position_encoding": "alibi"}])
def test_a_registered_backend_gets_masks(architecture, options):
    calls = []

    def backend(*args, **kwargs):
        calls.append(1)
        return sdpa_attention_forward(*args, **kwargs)

    AttentionInterface.register("counting", backend)
    model = tiny_model(architecture, **options)
    inputs = model_inputs(model)
    inputs["attention_mask"][0, :3] = 0
    expected = model(**inputs)[0]
    other = type(model)(tiny_config(architecture, attn_implementation="counting", **options)).eval()
    other.load_state_dict(model.state_dict())
    model.set_attn_implementation("counting")
    for one in (model, other):
        before = len(calls)
        # states at padding have no meaning
        seen = slice(None) if architecture == "encoder-decoder" else inputs["attention_mask"].bool()
        assert_close(one(**inputs)[0][seen], expected[seen], atol=1e-5)
        assert len(calls) > before


# Shapes, heads ---------------------------------------------------------------------------------------------------------------


def test_wrong_shapes_end_in_a_sentence():
    decoder, both = tiny_model("decoder-only"), tiny_model()
    classifier = tiny_model("encoder-only", model_class=vt.VanillaTransformerForSequenceClassification)
    for call, sentence in (
        (lambda: decoder(tokens(2, 5)[0]), r"input_ids of shape \(5,\) must be \(batch, tokens\)"),
        (lambda: decoder(inputs_embeds=torch.zeros(5, 16)), "must be .batch, tokens, width"),
        (lambda: decoder(inputs_embeds=torch.zeros(2, 5, 7)), "must have the width of the model's embeddings, 16"),
        (lambda: decoder(torch.zeros(2, 5)), "token ids are integers, not torch.float32"),
        (lambda: decoder(tokens(2, 5), labels=tokens(3, 5)), "do not fit 2 rows of 5 positions"),
        (lambda: both(tokens(2, 5), labels=tokens(3, 5)), "2 sources do not fit 3 rows"),
        (lambda: both(tokens(2, 5), decoder_input_ids=tokens(2, 4), labels=tokens(2, 5)), "do not fit 2 rows of 4"),
        (lambda: both(tokens(2, 5)), "decoder_input_ids and decoder_inputs_embeds, or labels"),
        (lambda: classifier(tokens(2, 5), labels=torch.tensor([0, 1, 0])), "do not fit 2 rows"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_the_wrong_auto_class_is_told_the_right_one(tmp_path):
    tiny_model("decoder-only").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="load it with AutoModelForCausalLM"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tiny_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="load it with AutoModelForSeq2SeqLM"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
