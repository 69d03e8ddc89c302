"""Batches by token budget: both sides counted, streams, and their use in a `Trainer` of one's own and in a plain loop."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset, IterableDataset, config, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker
from torch.utils.data._utils.worker import WorkerInfo
from transformers import Trainer, TrainerCallback, TrainingArguments

from tiny import tiny_model
from vanilla_transformer.data import TokenBudgetBatchSampler, TokenBudgetStream, batching
from vanilla_transformer.data.batching import cut_by_sum, order_by_cost, pair_costs
from vanilla_transformer.data.collators import PaddingCollator
from vanilla_transformer.data.streaming import row_lengths
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.trainer.token_batches import TokenBudgetMixin
from vanilla_transformer.trainer.trainer import TokenTrainer


def rows_of(count, seed=0, longest=12):
    """Pairs of tokens; the first source token and the first label together tell the rows apart."""
    draw = np.random.default_rng(seed)
    return [
        {
            "input_ids": [4 + n % 40, *draw.integers(4, 44, draw.integers(0, longest)).tolist()],
            "labels": [4 + n // 40, *draw.integers(4, 44, draw.integers(0, longest)).tolist()],
        }
        for n in range(count)
    ]


def numbers(batch):
    return [row["input_ids"][0] - 4 + 40 * (row["labels"][0] - 4) for row in batch]


def lengths_of(rows):
    return np.array([(len(row["input_ids"]), len(row["labels"])) for row in rows])


# Both sides counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["sampler", "stream"])
def test_both_sides_are_counted_where_that_is_asked_for(make):
    rows = rows_of(400)
    lengths = lengths_of(rows)

    def batches(count):
        if make == "sampler":
            return list(TokenBudgetBatchSampler(lengths, 60, count=count))
        return [numbers(batch) for batch in TokenBudgetStream(rows, 60, count=count, pool_size=100)]

    both, longer = batches("both"), batches("longer")
    assert sorted(i for batch in both for i in batch) == list(range(400))
    assert all(len(batch) * lengths[batch].sum(axis=1).max() <= 60 for batch in both)
    assert all(len(batch) * lengths[batch].max() <= 60 for batch in longer)
    assert any(lengths[batch].sum() > 60 for batch in longer)
    assert len(both) > len(longer)


def test_a_way_of_counting_that_is_none_is_refused():
    for make in (
        lambda: TokenBudgetBatchSampler([(1, 1)], 8, count="sum"),
        lambda: TokenBudgetStream([], 8, count=""),
    ):
        with pytest.raises(ValueError, match="count must be 'longer' or 'both'"):
            make()
    with pytest.raises(ValueError, match=r"Pair 0 \(3 source and 4 target tokens\).*at least 7"):
        TokenBudgetBatchSampler([(3, 4)], 6, count="both")
    data = {"train": {"path": "a.tsv"}, "validation": {"path": "b.tsv"}}
    assert Recipe.from_dict({"output_dir": "x", "data": data, "batches": {"count": "both"}}).batches.count == "both"
    with pytest.raises(RecipeError, match=r"batches.count='sum' must be 'longer' or 'both'"):
        Recipe.from_dict({"output_dir": "x", "data": data, "batches": {"count": "sum"}})


# Streams -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool_size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_stream_gives_every_row_once_within_the_budget(pool_size, shuffle):
    rows = rows_of(500)
    stream = TokenBudgetStream(rows, 64, max_sentences=20, pool_size=pool_size, shuffle=shuffle)
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        batches = list(stream)
        assert sorted(n for batch in batches for n in numbers(batch)) == list(range(500))
        for batch in batches:
            assert len(batch) * lengths_of(batch).max() <= 64 and len(batch) <= 20


def test_a_stream_reads_no_further_than_its_pool():
    read = []

    class Rows:
        def __iter__(self):
            for row in rows_of(500):
                read.append(row)
                yield row

    next(iter(TokenBudgetStream(Rows(), 64, pool_size=50)))
    assert len(read) == 50


def test_a_larger_pool_means_less_padding_nearly_none_more_than_with_all_rows_at_hand():
    rows = rows_of(1000, longest=30)

    def padding(batches):
        padded = sum(len(batch) * lengths_of(batch).max(axis=0).sum() for batch in batches)
        return 1 - lengths_of(rows).sum() / padded

    small, large = (padding(TokenBudgetStream(rows, 300, pool_size=size)) for size in (20, 1000))
    whole = TokenBudgetBatchSampler(lengths_of(rows), 300).padding_share()
    assert large < small - 0.1
    assert large == pytest.approx(whole, abs=0.03)


def test_a_stream_depends_on_seed_and_epoch_only():
    def epochs(seed, which):
        stream = TokenBudgetStream(rows_of(300), 64, pool_size=100, seed=seed)
        found = []
        for epoch in which:
            stream.set_epoch(epoch)
            found.append([numbers(batch) for batch in stream])
        return found

    first, other, again = epochs(3, [0, 1, 0])
    assert first == again and first != other
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}
    assert epochs(3, [1]) == [other]
    assert epochs(4, [0]) != [first]


def test_an_endless_stream_is_one_epoch_after_another():
    rows = rows_of(100)
    endless = iter(TokenBudgetStream(rows, 64, repeat=True))
    stream = TokenBudgetStream(rows, 64)
    for epoch in range(3):
        stream.set_epoch(epoch)
        for batch in stream:
            assert numbers(next(endless)) == numbers(batch)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("repeat", [False, True])
def test_a_stream_goes_on_where_it_stopped(workers, repeat):
    def loader(stream):
        return DataLoader(stream, batch_size=None, collate_fn=numbers, num_workers=workers)

    def stream():
        return TokenBudgetStream(rows_of(300), 64, pool_size=100, seed=5, repeat=repeat)

    def take(batches, count):
        return [batch for _, batch in zip(range(count), batches, strict=False)]

    unbroken = stream()
    unbroken.set_epoch(2)
    whole = take(loader(unbroken), 200 if repeat else 10**6)
    assert whole == take(unbroken_of(stream), len(whole)), "workers change nothing"
    assert len(whole) > 40
    for stop in (0, 1, 40):
        resumed = stream()
        resumed.load_state_dict({"epoch": 2, "batches": stop})
        assert take(loader(resumed), 200 - stop if repeat else 10**6) == whole[stop:]


def unbroken_of(make):
    stream = make()
    stream.set_epoch(2)
    return (numbers(batch) for batch in stream)


def test_the_state_of_a_stream_says_how_far_it_is():
    rows = rows_of(100)
    stream = TokenBudgetStream(rows, 64, seed=5, repeat=True)
    length = len(list(TokenBudgetStream(rows, 64, seed=5)))
    batches = iter(DataLoader(stream, batch_size=None, collate_fn=numbers))
    states = []
    for _ in range(length + 3):
        next(batches)
        states.append(stream.state_dict())
    assert states[:2] == [{"epoch": 0, "batches": 1}, {"epoch": 0, "batches": 2}]
    assert states[-1] == {"epoch": 1, "batches": 3}
    resumed = TokenBudgetStream(rows, 64, seed=5, repeat=True)
    resumed.load_state_dict(states[-1])
    assert numbers(next(iter(resumed))) == next(batches)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count", [3, 100, 290])
def test_all_processes_get_equally_many_batches_of_a_stream(drop_last, count):
    rows = rows_of(count)
    whole = [numbers(batch) for batch in TokenBudgetStream(rows, 64, pool_size=50)]
    for processes in (2, 3, 5):
        parts = [
            [
                numbers(batch)
                for batch in TokenBudgetStream(
                    rows, 64, pool_size=50, drop_last=drop_last, num_processes=processes, process_index=index
                )
            ]
            for index in range(processes)
        ]
        dealt = [batch for step in zip(*parts, strict=True) for batch in step]
        if drop_last:
            assert dealt == whole[: len(whole) // processes * processes]
        else:
            assert dealt[: len(whole)] == whole and len(dealt) - len(whole) < processes
            assert all(batch in whole[:processes] for batch in dealt[len(whole) :])


def test_a_stream_of_the_library_is_told_its_epoch():
    rows = IterableDataset.from_generator(rows_of, gen_kwargs={"count": 200}).shuffle(seed=1, buffer_size=200)
    stream = TokenBudgetStream(rows, 64, pool_size=1, shuffle=False)
    epochs = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        epochs.append([numbers(batch) for batch in stream])
    assert epochs[0] != epochs[1] and sorted(map(tuple, epochs[0])) == sorted(map(tuple, epochs[1]))


def order_one_key_after_the_other(lengths, costs, generator, pool_size):
    """`order_by_cost` as its definition reads."""
    tie = np.arange(len(lengths)) if generator is None else generator.permutation(len(lengths))
    pool = np.zeros(len(lengths), dtype=np.int64)
    if generator is not None:
        shuffled = np.lexsort((tie, -costs))
        keys = -costs[shuffled]
        start, end = (np.searchsorted(keys, keys, side=side) for side in ("left", "right"))
        pool[shuffled] = (np.arange(len(lengths)) - start) // np.minimum(pool_size, (end - start + 1) // 2)
    return np.lexsort((tie, -lengths[:, 1], -lengths[:, 0], pool, -costs))


def bounds_row_by_row(costs, max_tokens, max_sentences):
    """`cut_by_sum` as its definition reads."""
    bounds, spent = [0], 0
    for place, cost in enumerate(costs.tolist()):
        if spent + cost > max_tokens or (max_sentences is not None and place - bounds[-1] == max_sentences):
            bounds.append(place)
            spent = 0
        spent += cost
    return [*bounds, len(costs)]


@pytest.mark.parametrize("count", ["longer", "both"])
@pytest.mark.parametrize("shape", ["ragged", "all alike", "far apart", "one", "empty sides"])
def test_batches_are_those_of_the_definition(shape, count):
    """The very batches of every version before: a run that was started with one resumes with the next."""
    draw = np.random.default_rng(0)
    lengths = {
        "ragged": draw.integers(1, 30, (3000, 2)),
        "all alike": np.full((1000, 2), 7),
        "far apart": draw.integers(1, 2**30, (500, 2)),  # does not fit into one number
        "one": np.array([[3, 4]]),
        "empty sides": draw.integers(0, 2, (300, 2)),
    }[shape]
    costs = pair_costs(lengths, count)
    assert (costs == (lengths.max(axis=1) if count == "longer" else lengths.sum(axis=1))).all()
    for pool_size in (1, 7, 1024):
        expected = order_one_key_after_the_other(lengths, costs, np.random.default_rng(5), pool_size)
        assert (order_by_cost(lengths, costs, np.random.default_rng(5), pool_size) == expected).all()
    expected = order_one_key_after_the_other(lengths, costs, None, 1024)
    assert (order_by_cost(lengths, costs, None, 1024) == expected).all()
    for most in (None, 1, 5):
        budget = int(costs.max()) * 3
        assert cut_by_sum(costs, budget, most).tolist() == bounds_row_by_row(costs, budget, most)


def test_the_order_of_an_epoch_is_drawn_once_for_its_padding_and_its_batches(monkeypatch):
    lengths = lengths_of(rows_of(300))
    plain = TokenBudgetBatchSampler(lengths, 64, seed=3)
    expected = [list(plain), list(plain)]
    assert expected[0] == expected[1]
    drawn = []
    monkeypatch.setattr(batching, "order_by_cost", lambda *args: drawn.append(1) or order_by_cost(*args))
    sampler = TokenBudgetBatchSampler(lengths, 64, seed=3)
    share = sampler.padding_share()
    assert list(sampler) == expected[0] and len(drawn) == 1
    padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in expected[0])
    assert share == pytest.approx(1 - lengths.sum() / padded)
    sampler.set_epoch(1)
    sampler.padding_share()
    sampler.set_epoch(0)
    assert list(sampler) == expected[0]


def streamed_files(folder, kind, files):
    """300 rows in so many files, as a data set that is read as it comes."""
    rows = rows_of(300)
    bounds = np.linspace(0, len(rows), files + 1).astype(int)
    paths = []
    for number, (start, end) in enumerate(pairwise(bounds)):
        paths.append(str(folder / f"{number}.{kind}"))
        table = Dataset.from_list(rows[start:end])
        table.to_json(paths[-1]) if kind == "json" else table.to_parquet(paths[-1])
    return load_dataset(kind, data_files=paths, split="train", streaming=True)


def in_worker(stream, workers, index):
    """The batches that one worker of a `DataLoader` gives, without the process."""
    info = WorkerInfo(id=index, num_workers=workers, seed=0, dataset=stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_worker_info", info)
        return [numbers(batch) for batch in stream]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("files", [1, 2, 3])
def test_a_streamed_data_set_gives_every_row_once_with_any_number_of_workers(tmp_path, monkeypatch, kind, files):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = streamed_files(tmp_path, kind, files)

    def stream(batches=0, **options):
        made = TokenBudgetStream(rows, 64, pool_size=100, seed=5, **options)
        made.load_state_dict({"epoch": 1, "batches": batches})
        return made

    whole = [numbers(batch) for batch in stream()]
    assert sorted(number for batch in whole for number in batch) == list(range(300))
    for workers in (1, 2, 3):
        for done in (0, 7):
            given = [iter(in_worker(stream(done), workers, index)) for index in range(workers)]
            turns = (next(given[turn % workers], None) for turn in range(len(whole) - done))
            assert list(turns) == whole[done:] and all(next(rest, None) is None for rest in given)
    for index in range(2):  # of two processes, each with workers
        part = stream(num_processes=2, process_index=index, drop_last=True)
        dealt = [in_worker(part, 2, number) for number in range(2)]
        assert sum(map(len, dealt)) == len(whole) // 2
        assert dealt[0] == whole[index::4][: len(dealt[0])]


def test_a_streamed_data_set_in_real_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    stream = TokenBudgetStream(streamed_files(tmp_path, "json", 1), 64, pool_size=100, seed=5)
    whole = [numbers(batch) for batch in stream]
    loader = DataLoader(stream, batch_size=None, collate_fn=numbers, num_workers=2)
    assert list(loader) == whole == list(loader)


def test_rows_that_are_divided_already_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = split_dataset_by_node(streamed_files(tmp_path, "json", 2), rank=0, world_size=2)
    with pytest.raises(ValueError, match="divided among processes already .* give it all rows"):
        TokenBudgetStream(rows, 64)


@pytest.mark.parametrize("label", [3, 0.5, np.int64(3), np.float32(0.5), torch.tensor(3)])
def test_one_label_is_no_row_of_tokens(label):
    assert row_lengths({"input_ids": [5, 6], "labels": label}) == (2, 0)
    assert row_lengths({"input_ids": [5, 6], "labels": torch.tensor([3])}) == (2, 1)


def test_a_stream_that_would_look_for_batches_without_end_is_refused():
    stream = TokenBudgetStream([{"input_ids": [5]}], 4, repeat=True, drop_last=True, num_processes=2, process_index=0)
    with pytest.raises(ValueError, match="an epoch has fewer batches than there are processes; give more rows"):
        next(iter(stream))


def test_impossible_streams_are_refused():
    with pytest.raises(ValueError, match="pool_size must be at least 1, but is 0"):
        TokenBudgetStream([], 8, pool_size=0)
    with pytest.raises(ValueError, match="give both, or neither"):
        TokenBudgetStream([], 8, num_processes=2)
    with pytest.raises(ValueError, match="process_index must be 0 to 1, but is 2"):
        TokenBudgetStream([], 8, num_processes=2, process_index=2)
    rows = [{"input_ids": [4], "labels": [5]}, {"input_ids": [4] * 3, "labels": [5] * 9}]
    with pytest.raises(ValueError, match=r"Row 1 \(3 source and 9 target tokens\).*max_tokens=8.*at least 9"):
        list(TokenBudgetStream(rows, 8))
    once = TokenBudgetStream(iter(rows), 9)
    assert len(list(once)) == 2
    once.set_epoch(1)
    with pytest.raises(ValueError, match="no rows in epoch 1.*only once"):
        list(once)


# In a Trainer of one's own -------------------------------------------------------------------------------------------


class MyTrainer(TokenBudgetMixin, Trainer):
    """What a user with nothing but a `Trainer` writes."""

    def training_step(self, model, inputs, *args, **kwargs):
        self.seen = [*getattr(self, "seen", []), numbers_of_batch(inputs)]
        return super().training_step(model, inputs, *args, **kwargs)


def numbers_of_batch(batch):
    return (batch["input_ids"][:, 0] - 4 + 40 * (batch["labels"][:, 0] - 4)).tolist()


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == self.step
        control.should_save |= state.global_step == self.step


def trainer_of(folder, trainer_class=MyTrainer, **options):
    arguments = options.pop("arguments", {})
    return trainer_class(
        model=tiny_model(num_hidden_layers=1, decoder_layers=1, dropout=0.1),
        args=TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_strategy="no",
            **arguments,
        ),
        data_collator=PaddingCollator(0),
        **options,
    )


def data(kind, rows):
    if kind == "stream":
        return {
            "train_dataset": TokenBudgetStream(rows, 64, pool_size=60, seed=3, repeat=True),
            "arguments": {"max_steps": 12},
        }
    sampler = TokenBudgetBatchSampler(lengths_of(rows), 64, seed=3)
    return {"train_dataset": rows, "batch_sampler": sampler, "arguments": {"num_train_epochs": 2}}


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_any_trainer_takes_batches_by_token_budget_and_goes_on_where_it_stopped(kind, tmp_path):
    rows = rows_of(100)
    unbroken = trainer_of(tmp_path / "unbroken", **data(kind, rows))
    unbroken.train()
    source = data(kind, rows)
    stream, expected = source.get("batch_sampler") or source["train_dataset"], []
    for epoch in range(2):
        stream.set_epoch(epoch)
        if kind == "sampler":
            expected += list(stream)
        else:
            expected = [numbers(batch) for _, batch in zip(range(24), stream, strict=False)]
            break
    assert unbroken.seen == expected

    stopped = trainer_of(tmp_path / "stopped", **data(kind, rows), callbacks=[StopAt(9)])
    stopped.train()
    assert stopped.state.global_step == 9
    resumed = trainer_of(tmp_path / "stopped", **data(kind, rows))
    resumed.train(resume_from_checkpoint=True)
    assert stopped.seen + resumed.seen == unbroken.seen
    for name, weight in unbroken.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_a_stream_that_a_trainer_cannot_count_is_refused(tmp_path):
    rows = rows_of(10)
    options = {"arguments": {"max_steps": 1}}
    with pytest.raises(ValueError, match="repeat=True"):
        trainer_of(tmp_path, train_dataset=TokenBudgetStream(rows, 64), **options)
    with pytest.raises(ValueError, match="leave out batch_sampler"):
        sampler = TokenBudgetBatchSampler(lengths_of(rows), 64)
        stream = TokenBudgetStream(rows, 64, repeat=True)
        trainer_of(tmp_path, train_dataset=stream, batch_sampler=sampler, **options)


@pytest.mark.parametrize("kind", ["sampler", "stream"])
def test_the_log_has_the_padding_of_what_was_trained_on(kind, tmp_path):
    batches = []

    class Trained(TokenTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            batches.append(numbers_of_batch(inputs))
            return super().training_step(model, inputs, *args, **kwargs)

    rows = rows_of(100)
    trainer = trainer_of(tmp_path, Trained, **data(kind, rows))
    trainer.train()
    logged = [entry["padding_share"] for entry in trainer.state.log_history if "loss" in entry]
    lengths = lengths_of(rows)
    steps = [batches[i : i + 2] for i in range(0, len(batches), 2)]
    for share, step in zip(logged, steps, strict=True):
        padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in step)
        assert share == pytest.approx(1 - sum(lengths[batch].sum() for batch in step) / padded, abs=1e-4)
    assert all("tokens_per_second" in entry for entry in trainer.state.log_history if "loss" in entry)


# In a loop of one's own ----------------------------------------------------------------------------------------------


def test_a_plain_loop_with_accelerate_trains_on_the_batches_of_each_epoch():
    rows = rows_of(100)
    sampler = TokenBudgetBatchSampler(lengths_of(rows), 64, seed=3)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(rows, batch_sampler=sampler, collate_fn=PaddingCollator(0)))
    for epoch in (1, 0, 2):
        loader.set_epoch(epoch), sampler.set_epoch(epoch)
        seen = [numbers_of_batch(batch) for batch in loader]
        sampler.set_epoch(epoch)
        assert seen == list(sampler)
