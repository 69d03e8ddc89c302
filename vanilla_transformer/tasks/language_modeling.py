"""Language models: continuing a text with a decoder, filling in masked tokens with an encoder."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import EvalPrediction, PreTrainedTokenizerBase

from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.texts import TextData, load_texts
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
)
from vanilla_transformer.tasks.task import Example, Part, RowsOfTokens, ScoreColumn, TextTask

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["CausalLanguageModeling", "MaskedLanguageModeling", "MaskedRows", "NextTokenRows"]


SHOWN = 40
"""Tokens of a text at most that an example shows of either half."""


class _TextRows(RowsOfTokens):
    """Texts by themselves, or blocks of one length cut from all texts one after another.

    In training the cuts are at other places in each epoch and every block is full, so a few tokens at the ends are left
    over; in evaluations the cuts begin at the first token and the last block may be short.

    Args:
        texts: the tokens of each text, special tokens included.
        block_size: number of tokens of a block; None for texts by themselves.
        seed: together with the epoch fixes all that is random; None in evaluations.
        overlap: tokens that a row shares with what follows it.
        ids: of each text in the data.

    Raises:
        ValueError: where there are too few tokens for a block.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        block_size: int | None,
        seed: int | None,
        overlap: int = 0,
        ids: list[int] | None = None,
    ):
        self.block_size, self.seed, self.overlap, self.epoch = block_size, seed, overlap, 0
        self.stream = np.concatenate(texts).astype(np.int32)
        self.ends = np.cumsum([len(text) for text in texts])
        if block_size is None:
            self.starts = self.ends - [len(text) for text in texts]
            super().__init__([len(text) - overlap for text in texts], ids)
            return
        room = len(self.stream) - overlap
        if room < (1 if seed is None else 2 * block_size - 1):
            raise ValueError(
                f"{len(self.stream)} tokens are too few for blocks of data.block_size={block_size}; lower it, or give "
                "more text."
            )
        if seed is None:
            lengths = [min(block_size, room - start) for start in range(0, room, block_size)]
        else:
            # with room for the first cut anywhere within a block, so that the number of blocks never changes
            lengths = [block_size] * ((room - block_size + 1) // block_size)
        self.starts = np.arange(len(lengths)) * block_size
        super().__init__(lengths, ids)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def random(self, *more: int) -> np.random.Generator:
        """The same draws for the same seed, epoch and numbers, whichever process asks and in whatever order."""
        return np.random.default_rng([self.seed or 0, self.epoch, *more])

    def tokens(self, index: int) -> np.ndarray:
        """(T,) tokens of a row, with the overlap."""
        start, end = self._span(index)
        return self.stream[start:end].astype(np.int64)

    def ids_of(self, index: int) -> list[int]:
        start, end = self._span(index)
        first, last = np.searchsorted(self.ends, [start, end - 1], side="right").tolist()
        return self._ids(first, last + 1)

    def _span(self, index: int) -> tuple[int, int]:
        """Where a row begins and ends in the stream of all texts, with the overlap."""
        moved = 0 if self.seed is None or self.block_size is None else int(self.random().integers(self.block_size))
        start = int(self.starts[index]) + moved
        return start, start + int(self.lengths[index]) + self.overlap


class NextTokenRows(_TextRows):
    """Rows for a causal language model: `input_ids`, and in `shift_labels` the token that follows each.

    A block of T tokens is compared with T following tokens, so every token of the text is predicted once an epoch.

    Args:
        bos_token_id: begins a text and is not predicted: after the end of a text nothing else could come.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        block_size: int | None = None,
        seed: int | None = None,
        bos_token_id: int | None = None,
        ids: list[int] | None = None,
    ):
        super().__init__(texts, block_size, seed, overlap=1, ids=ids)
        self.bos_token_id = bos_token_id

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = self.tokens(index)
        following = tokens[1:].copy()
        following[following == self.bos_token_id] = IGNORED
        # Trainer counts what the loss is shared by only where there are `labels`; the model then reads `shift_labels`
        return {"input_ids": tokens[:-1], "labels": tokens[:-1], "shift_labels": following}


class MaskedRows(_TextRows):
    """Rows for a masked language model (Devlin et al. 2019, section 3.1): a share of the tokens is to be predicted.

    Of these, 80 % are replaced by the mask token, 10 % by a random token and 10 % by nothing. In training the choice is
    another in each epoch; it depends on seed, epoch and row alone, so that a resumed run makes the same one.

    Args:
        tokenizer: whose special tokens are never chosen and never put in a token's place.
        share: of the tokens of a row; at least one.
    """

    def __init__(
        self,
        texts: list[np.ndarray],
        tokenizer: PreTrainedTokenizerBase,
        share: float = 0.15,
        block_size: int | None = None,
        seed: int | None = None,
        ids: list[int] | None = None,
    ):
        super().__init__(texts, block_size, seed, ids=ids)
        special = set(tokenizer.all_special_ids)
        self.ordinary = np.asarray([token for token in range(len(tokenizer)) if token not in special])
        self.special = np.asarray(sorted(special))
        self.mask_token_id = tokenizer.mask_token_id
        self.share = share

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = self.tokens(index)
        draw = self.random(index)
        eligible = np.flatnonzero(~np.isin(tokens, self.special))
        chosen = draw.permutation(eligible)[: max(1, round(self.share * len(eligible)))]
        labels = np.full_like(tokens, IGNORED)
        labels[chosen] = tokens[chosen]
        inputs = tokens.copy()
        kind = draw.random(len(chosen))
        inputs[chosen[kind < 0.8]] = self.mask_token_id
        replaced = chosen[kind >= 0.9]
        inputs[replaced] = draw.choice(self.ordinary, size=len(replaced))
        return {"input_ids": inputs, "labels": labels}


class LanguageModeling(TextTask):
    """What the two language modeling tasks share: plain texts, in blocks or by themselves, scored by cross entropy."""

    training_defaults = {**TextTask.training_defaults, "metric_for_best_model": "loss"}
    data_fields = TextTask.data_fields | {"block_size"}
    curves = (("accuracy", "accuracy of tokens (%)", 100),)

    def load(self, specification: TextData) -> "tuple[Dataset, DataReport]":
        return load_texts(specification)

    def tokenized(self, part: Part) -> tuple[list[np.ndarray], list[int]]:
        """Tokens and id of each text, with an end of text behind it; without blocks, texts that are too long are reported."""
        limit = None if self.recipe.data.block_size else self.recipe.data.max_length
        end = self.tokenizer.eos_token_id
        texts, ids_of_texts = [], []
        for batch in part.dataset.iter(batch_size=1000):
            encoded = self.tokenizer(
                batch["text"], return_attention_mask=False, verbose=False, split_special_tokens=True
            )["input_ids"]
            for row_id, ids in zip(batch["id"], encoded, strict=True):
                if end is not None and (not ids or ids[-1] != end):
                    ids.append(end)
                if limit is not None and len(ids) > limit:
                    part.report.drop(
                        f"text longer than {limit} tokens (data.max_length; data.block_size would cut it)", row_id
                    )
                else:
                    texts.append(np.asarray(ids))
                    ids_of_texts.append(row_id)
        if not texts:
            raise ValueError(
                "No text is short enough; raise data.max_length. "
                + "; ".join(line.strip() for line in part.report.lines())
            )
        return texts, ids_of_texts

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> torch.Tensor:
        """(B, 3): of each row the summed cross entropy, the number of labels, and how many are predicted right."""
        right = labels[-1] if isinstance(labels, tuple) else labels  # (B, T), the following tokens of a causal model
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), right, ignore_index=IGNORED, reduction="none"
        )
        counted = right != IGNORED
        hits = (logits.argmax(-1) == right) & counted
        return torch.stack([losses.sum(1), counted.sum(1).float(), hits.sum(1).float()], dim=1)

    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        """Means over all labels, not over batches, whose number of labels differs."""
        loss, count, hits = np.asarray(prediction.predictions, dtype=np.float64).sum(axis=0)
        mean = float(loss / max(count, 1))
        return {
            "loss": mean,
            "perplexity": math.exp(min(mean, 700.0)),
            "accuracy": float(hits / max(count, 1)),
            "tokens": int(count),
        }


class CausalLanguageModeling(LanguageModeling):
    """A decoder that continues texts."""

    name = "causal-lm"
    head = VanillaTransformerForCausalLM
    architecture = "decoder-only"
    label_names = ("labels", "shift_labels")
    generates = True
    scores = ("loss", "perplexity", "accuracy")
    pipeline_tag = "text-generation"
    score_columns = (
        ScoreColumn("loss", "cross entropy (nats a token)"),
        ScoreColumn("perplexity", "perplexity"),
        ScoreColumn("tokens", "tokens", "{:,}"),
    )

    @property
    def special_tokens(self) -> dict[str, bool]:
        # no end behind a prompt; the end of a text in training is added here
        return {"add_bos": True, "add_eos": False, "mask_token": False}

    def encode(self, part: Part) -> NextTokenRows:
        seed = self.recipe.seed if part.name == "data.train" else None
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        texts, ids = self.tokenized(part)
        block_size = self.recipe.data.block_size
        return NextTokenRows(texts, block_size, seed, bos_token_id=None if begin == end else begin, ids=ids)

    def score_line(self, scores: dict[str, Any]) -> str:
        return f"cross entropy {scores['loss']:.4f} nats a token  perplexity {scores['perplexity']:.2f}  ({scores['tokens']:,} tokens)"

    def purpose(self) -> str:
        return f"to continue texts{self.in_language}"

    @property
    def intended_use(self) -> str:
        return "Continuing texts such as it was trained on, telling how probable they are, and as a start of further training."

    def examples(self, model: Any, part: Part, rows: Sequence[int]) -> list[Example]:
        """Let the model continue the first half of each text, greedily and for as long as what the text has."""
        found = []
        for text in part.dataset.select(rows)["text"]:
            ids = self.tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"][: 2 * SHOWN]
            half = max(len(ids) // 2, 1)
            inputs = torch.tensor([ids[:half]], device=model.device)
            written = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max(len(ids) - half, 1), do_sample=False
            )
            texts = (ids[:half], ids[half:], written[0, half:])
            found.append(Example(*(self.tokenizer.decode(part, skip_special_tokens=True) for part in texts)))
        return found

    def use(self, text: str) -> str:
        return (
            "import vanilla_transformer  # makes the model type known to transformers\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
            'model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")\n'
            f'inputs = tokenizer([{text!r}], return_tensors="pt")\n'
            "outputs = model.generate(**inputs, do_sample=True, max_new_tokens=100)\n"
            "print(tokenizer.batch_decode(outputs, skip_special_tokens=True))"
        )

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [
            ("loss", "cross entropy, nats a token", scores["loss"]),
            ("perplexity", "perplexity, of a token", scores["perplexity"]),
        ]


class MaskedLanguageModeling(LanguageModeling):
    """An encoder that fills in masked tokens; where classifiers start from when labels are few."""

    name = "masked-lm"
    head = VanillaTransformerForMaskedLM
    architecture = "encoder-only"
    data_fields = LanguageModeling.data_fields | {"masked_share"}
    scores = ("loss", "perplexity", "accuracy")
    pipeline_tag = "fill-mask"
    score_columns = (
        ScoreColumn("loss", "cross entropy (nats a masked token)"),
        ScoreColumn("perplexity", "perplexity"),
        ScoreColumn("accuracy", "accuracy", "{:.1%}"),
        ScoreColumn("tokens", "masked tokens", "{:,}"),
    )

    @property
    def special_tokens(self) -> dict[str, bool]:
        return {"add_bos": False, "add_eos": True, "mask_token": True}

    def encode(self, part: Part) -> MaskedRows:
        if self.tokenizer.mask_token_id is None:
            raise RecipeError("the tokenizer has no mask token; take one that a masked-lm recipe has trained.")
        data = self.recipe.data
        seed = self.recipe.seed if part.name == "data.train" else None
        texts, ids = self.tokenized(part)
        return MaskedRows(texts, self.tokenizer, data.masked_share, data.block_size, seed, ids)

    def score_line(self, scores: dict[str, Any]) -> str:
        return (
            f"cross entropy {scores['loss']:.4f} nats a masked token  accuracy {100 * scores['accuracy']:.1f} %  "
            f"({scores['tokens']:,} masked tokens)"
        )

    def purpose(self) -> str:
        return f"to fill in masked tokens of texts{self.in_language}"

    @property
    def intended_use(self) -> str:
        return "A start for classifiers and taggers of texts such as it was trained on (`start_from` in a recipe)."

    def examples(self, model: Any, part: Part, rows: Sequence[int]) -> list[Example]:
        """Let the model fill in every seventh token of each text, which is hidden from it."""
        found = []
        for text in part.dataset.select(rows)["text"]:
            ids = torch.tensor(self.tokenizer(text, verbose=False)["input_ids"][: 2 * SHOWN])
            hidden = torch.zeros(len(ids), dtype=torch.bool)
            hidden[3::7] = True
            hidden &= ~torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
            shown = ids.masked_fill(hidden, self.tokenizer.mask_token_id)
            inputs = {"input_ids": shown[None], "attention_mask": torch.ones_like(shown[None])}
            filled = torch.where(hidden, self.predicted(model, inputs)[0], ids)
            source = self.tokenizer.decode(shown).replace(self.tokenizer.eos_token or "\0", "")
            plain = (self.tokenizer.decode(part, skip_special_tokens=True) for part in (ids, filled))
            found.append(Example(source, *plain))
        return found

    def use(self, text: str) -> str:
        return (
            "import vanilla_transformer  # makes the model type known to transformers\n"
            "from transformers import AutoModelForMaskedLM, AutoTokenizer\n\n"
            'model, tokenizer = AutoModelForMaskedLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")\n'
            f'inputs = tokenizer([{text!r}], return_tensors="pt")\n'
            "print(tokenizer.batch_decode(model(**inputs).logits.argmax(-1)))"
        )

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [("accuracy", "accuracy of masked tokens", scores["accuracy"])]
