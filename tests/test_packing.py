"""Packed batches: the sampler that fills them, the collators, and runs on them."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening

from runs import recipe_values, word_tokenizer
from test_tasks import recipe as recipe_of_task
from tiny import tiny_model
from vanilla_transformer.data import TokenBudgetBatchSampler
from vanilla_transformer.data.collators import PackingCollator, PaddingCollator, Seq2SeqPackingCollator
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.tasks import TASKS
from vanilla_transformer.trainer.checkpoints import find_checkpoints


def some_lengths(count=500, seed=0):
    return np.random.default_rng(seed).integers(1, 30, (count, 2))


@pytest.mark.parametrize("count", ["longer", "both"])
@pytest.mark.parametrize("max_sentences", [None, 7])
def test_the_budget_of_a_packed_batch_is_the_sum_of_its_tokens(count, max_sentences):
    lengths = some_lengths()
    sampler = TokenBudgetBatchSampler(lengths, 100, max_sentences=max_sentences, count=count, packed=True, seed=3)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler), "or a run could not count its way back"
        assert sorted(index for batch in batches for index in batch) == list(range(500))
        for batch in batches:
            cost = lengths[batch].sum(1) if count == "both" else lengths[batch].max(1)
            assert cost.sum() <= 100 and len(batch) <= (max_sentences or 500)
        epochs.append(batches)
    assert epochs[0] != epochs[1] != epochs[2]
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert sampler.padding_share() == 0
    # lengths are mixed: a batch is no sample of one length
    spread = [np.ptp(lengths[batch].max(1)) for batch in epochs[0] if len(batch) > 3]
    assert np.mean(spread) > 8


def test_a_row_that_exceeds_the_budget_of_a_packed_batch_is_named():
    with pytest.raises(ValueError, match=r"Pair 1 \(9 source and 2 target tokens\) exceeds the budget"):
        TokenBudgetBatchSampler([(1, 1), (9, 2)], 8, packed=True)


def pairs(count=9, seed=0):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 9, (count, 2))
    return [
        {"input_ids": draw.integers(4, 40, s).tolist(), "labels": draw.integers(4, 40, t).tolist()} for s, t in lengths
    ]


@pytest.mark.parametrize("training", [True, False])
def test_packed_pairs_have_the_loss_of_padded_ones(training):
    model = tiny_model(label_smoothing=0.1).train(training)
    rows = pairs()
    padded = DataCollatorForSeq2Seq(word_tokenizer(), model=model)([dict(row) for row in rows])
    packed = Seq2SeqPackingCollator(model.config.start_token_id)(rows)
    assert {len(value) for value in packed.values()} == {1}
    assert packed["input_ids"].numel() == sum(len(row["input_ids"]) for row in rows)
    losses = []
    for batch in (dict(padded), packed):
        loss = model(**batch).loss
        losses.append(
            (loss.item(), [grad.norm().item() for grad in torch.autograd.grad(loss, list(model.parameters()))])
        )
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-5)
    assert losses[0][1] == pytest.approx(losses[1][1], abs=1e-4)


def test_packed_texts_are_those_of_transformers():
    """Its own collator for decoders, and the loss of the texts padded."""
    model = tiny_model("decoder-only")
    rows = sorted(({"input_ids": row["input_ids"]} for row in pairs()), key=lambda row: len(row["input_ids"]))
    theirs = DataCollatorWithFlattening(return_tensors="pt")(rows)
    ours = PackingCollator(causal=True)([{**row, "labels": row["input_ids"]} for row in rows])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    padded = PaddingCollator(0)([{**row, "labels": row["input_ids"]} for row in rows])
    assert model(**ours).loss.item() == pytest.approx(model(**padded).loss.item(), abs=1e-5)


def test_packed_rows_keep_their_labels():
    model = tiny_model("encoder-only")
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in pairs()]
    packed, padded = PackingCollator()(rows), PaddingCollator(0)(rows)
    assert (packed["labels"] != -100).all()
    assert model(**packed).loss.item() == pytest.approx(model(**padded).loss.item(), abs=1e-5)


def test_a_mask_in_the_rows_does_not_join_them():
    """Rows from a tokenizer have one, and with a mask the model reads one long text."""
    model = tiny_model("decoder-only")
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in pairs()]
    masked = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    collate = PackingCollator(causal=True)
    assert model(**collate(masked)).loss == model(**collate(rows)).loss


@pytest.mark.parametrize("training", [True, False])
def test_labels_that_do_not_count_are_packed_as_they_are_padded(training):
    """A prompt within the target, for one."""
    model = tiny_model().train(training)
    rows = pairs()
    for row in rows[::2]:
        row["labels"] = [-100, *row["labels"][:1], -100, *row["labels"]]
    padded = DataCollatorForSeq2Seq(word_tokenizer(), model=model)([dict(row) for row in rows])
    packed = Seq2SeqPackingCollator(model.config.start_token_id, model.config.pad_token_id)(rows)
    assert model(**packed).loss.item() == pytest.approx(model(**dict(padded)).loss.item(), abs=1e-5)


@pytest.mark.parametrize("empty", ["input_ids", "labels"])
def test_a_pair_with_an_empty_side_is_not_packed(empty):
    with pytest.raises(ValueError, match=f"a pair with empty {empty} cannot be packed"):
        Seq2SeqPackingCollator(1)([*pairs(), {"input_ids": [5], "labels": [5], empty: []}])


@pytest.mark.parametrize("labels", [1, [1, 2, 3]])
def test_labels_that_are_not_of_tokens_are_not_packed(labels):
    with pytest.raises(ValueError, match="rows whose labels are not one for each of the input_ids"):
        PackingCollator()([{"input_ids": [5, 6], "labels": labels}])


def trained(recipe, **options):
    said = []
    return run_recipe(recipe, log=said.append, **options), said


@pytest.mark.parametrize("task", [name for name in TASKS if TASKS[name].packs and name != "constituency-parsing"])
def test_runs_on_packed_batches(tmp_path, task):
    """No padding, a loss that falls, and what is resumed in an epoch gets the batches of the unbroken run."""
    if task == "seq2seq":
        values = recipe_values(tmp_path)
    else:
        values = recipe_of_task(tmp_path, task)
        values["training"] |= {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "no"}
        values["training"] |= {"load_best_model_at_end": False, "logging_steps": 1, "max_steps": 8}
    values["batches"] = {**values.get("batches", {}), "packing": True}
    values["data"]["test"] = {}
    result, said = trained(Recipe.from_dict(values))
    assert any("0.0 % padding" in line for line in said)
    log = json.loads((result.folder / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in log if "loss" in entry]
    assert all(entry["padding_share"] == 0 for entry in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]

    weights = (result.folder / "model.safetensors").read_bytes()
    for checkpoint in find_checkpoints(result.folder)[1:]:
        shutil.rmtree(checkpoint)
    trained(Recipe.from_dict(values), resume=True)
    assert (result.folder / "model.safetensors").read_bytes() == weights


def test_a_label_of_a_whole_row_cannot_be_packed(tmp_path):
    values = recipe_of_task(tmp_path, "sequence-classification")
    values["batches"] = {"packing": True}
    with pytest.raises(RecipeError, match="batches.packing has no effect for task sequence-classification"):
        Recipe.from_dict(values)
