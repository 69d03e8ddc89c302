"""Batches by token budget for any `Trainer` of transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.streaming import TokenBudgetStream


class TokenBudgetMixin(Trainer):
    """Let a `Trainer` train on batches by token budget; evaluation keeps its fixed number of rows.

        class MyTrainer(TokenBudgetMixin, Seq2SeqTrainer): ...

        sampler = TokenBudgetBatchSampler(lengths, max_tokens=4096, seed=1)
        trainer = MyTrainer(model, args, train_dataset=rows, batch_sampler=sampler, data_collator=collator)
        trainer.train(resume_from_checkpoint=True)  # resumes at the very batch it stopped at

    Rows that come as a stream need no sampler: `train_dataset=TokenBudgetStream(rows, 4096, repeat=True)`, with
    `max_steps` in the arguments. All processes get equally many batches either way.

    Args:
        batch_sampler: over the training data. It and, where these have `set_epoch`, the data are told each epoch.
        train_collator: makes the batches of training where they differ from those of evaluation, as packed ones do;
            None for `data_collator`.

    Raises:
        ValueError: for a stream that ends, or one with a sampler.
    """

    def __init__(
        self,
        *args: Any,
        batch_sampler: TokenBudgetBatchSampler | None = None,
        train_collator: Callable[[list[Any]], Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.batch_sampler = batch_sampler
        self.train_collator = train_collator or self.data_collator
        if isinstance(self.train_dataset, TokenBudgetStream):
            if batch_sampler is not None:
                raise ValueError("a TokenBudgetStream makes its own batches; leave out batch_sampler.")
            if not self.train_dataset.repeat:
                raise ValueError(
                    "Trainer counts the updates of a stream, not its epochs; give TokenBudgetStream repeat=True, and "
                    "max_steps in the arguments."
                )
        elif batch_sampler is not None:
            self.add_callback(_EpochOfBatches(batch_sampler, self.train_dataset))

    def training_rows(self) -> tuple[Any, Callable[[list[Any]], Any]]:
        """Return the training data, and what makes a batch of their rows."""
        return self.train_dataset, self.train_collator

    def get_train_dataloader(self) -> DataLoader:
        streamed = isinstance(self.train_dataset, TokenBudgetStream)
        if self.batch_sampler is None and not streamed:
            return super().get_train_dataloader()
        batches: dict[str, Any] = {"batch_size": None} if streamed else {"batch_sampler": self.batch_sampler}
        rows, collator = self.training_rows()
        if self.args.dataloader_persistent_workers:
            # for each new set of workers a loader draws a number, from the state that dropout draws from; a run that is
            # resumed has one set more than the unbroken one
            batches["generator"] = torch.Generator()
        loader = DataLoader(
            rows,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            **batches,
        )
        # a stream gives each process its rank's batches itself
        return loader if streamed else self.accelerator.prepare(loader)


class _EpochOfBatches(TrainerCallback):
    """Tell the sampler, and training data that differ from epoch to epoch, the number of the epoch.

    transformers 5.24 looks for it one wrapper deep; a run that is resumed on several processes has it two deep.
    """

    def __init__(self, sampler: TokenBudgetBatchSampler, data: Any):
        self.sampler = sampler
        self.data = data

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        epoch = int(state.epoch or 0)
        self.sampler.set_epoch(epoch)
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)
