"""Language models: continuing a text with a decoder, filling in masked tokens with an encoder."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import EvalPrediction

from vanilla_transformer.data.rows import TEXTS
from vanilla_transformer.data.token_datasets import CausalLMDataset, MaskedLMDataset
from vanilla_transformer.errors import RecipeError
from vanilla_transformer.losses_vanilla_transformer import IGNORED
from vanilla_transformer.modeling_vanilla_transformer import (
    VanillaTransformerForCausalLM,
    VanillaTransformerForMaskedLM,
)
from vanilla_transformer.tasks.task import Example, ScoreColumn, Split, TokenizedSplit
from vanilla_transformer.tasks.text_task import TextTask

if TYPE_CHECKING:
    pass

__all__ = ["CausalLanguageModeling", "MaskedLanguageModeling"]

SHOWN = 40
"""Tokens of a text at most that an example shows of either half."""


class LanguageModeling(TextTask):
    """What the two language modeling tasks share: plain texts, in blocks or by themselves, scored by cross entropy."""

    training_defaults = {**TextTask.training_defaults, "metric_for_best_model": "loss"}
    data_fields = TextTask.data_fields | {"block_size"}
    row_type = TEXTS
    curves = (("accuracy", "accuracy of tokens (%)", 100),)

    def tokenize(self, split: Split) -> tuple[list[np.ndarray], list[int]]:
        """Return tokens and id of each text, an end of text behind it; without blocks, too long texts are dropped and reported."""
        limit = None if self.settings.data.block_size else self.settings.data.max_length
        end = self.tokenizer.eos_token_id
        texts, ids_of_texts = [], []
        for batch in split.dataset.iter(batch_size=1000):
            encoded = self.tokenizer(
                batch["text"], return_attention_mask=False, verbose=False, split_special_tokens=True
            )["input_ids"]
            for row_id, ids in zip(batch["id"], encoded, strict=True):
                if end is not None and (not ids or ids[-1] != end):
                    ids.append(end)
                if limit is not None and len(ids) > limit:
                    split.report.drop(
                        f"text longer than {limit} tokens (data.max_length; data.block_size would cut it)", row_id
                    )
                else:
                    texts.append(np.asarray(ids))
                    ids_of_texts.append(row_id)
        if not texts:
            raise ValueError(
                "No text is short enough; raise data.max_length. "
                + "; ".join(line.strip() for line in split.report.lines())
            )
        return texts, ids_of_texts

    @staticmethod
    def reduced_logits(logits: Any, labels: Any) -> torch.Tensor:
        """Return (B, 3): of each row the summed cross entropy, the number of labels, and how many are predicted right."""
        right = labels[-1] if isinstance(labels, tuple) else labels  # (B, T), the following tokens of a causal model
        losses = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), right, ignore_index=IGNORED, reduction="none"
        )
        counted = right != IGNORED
        hits = (logits.argmax(-1) == right) & counted
        return torch.stack([losses.sum(1), counted.sum(1).float(), hits.sum(1).float()], dim=1)

    def metrics(self, prediction: EvalPrediction, names: list[Any]) -> dict[str, float]:
        """Return means over all labels, not over batches, whose number of labels differs."""
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
    intended_use = (
        "Generating text in the domain of the training data, scoring how probable texts are, and as pretrained weights for "
        "fine-tuning."
    )
    usage = """
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
inputs = tokenizer([{text!r}], return_tensors="pt")
outputs = model.generate(**inputs, do_sample=True, max_new_tokens=100)
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
"""

    @property
    def special_tokens(self) -> dict[str, bool]:
        # no end behind a prompt; the end of a text in training is added here
        return {"add_bos": True, "add_eos": False, "mask_token": False}

    def encode(self, split: Split) -> CausalLMDataset:
        seed = self.settings.seed if split.name == "data.train" else None
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        texts, ids = self.tokenize(split)
        block_size = self.settings.data.block_size
        return CausalLMDataset(texts, block_size, seed, bos_token_id=None if begin == end else begin, ids=ids)

    def score_line(self, scores: dict[str, Any]) -> str:
        return f"cross entropy {scores['loss']:.4f} nats a token  perplexity {scores['perplexity']:.2f}  ({scores['tokens']:,} tokens)"

    def purpose(self) -> str:
        return f"to continue texts{self.in_language}"

    def examples(self, model: Any, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        """Let the model continue the first half of each text, greedily and for as long as what the text has."""
        found = []
        for text in split.dataset.select(rows)["text"]:
            ids = self.tokenizer(text, return_attention_mask=False, verbose=False)["input_ids"][: 2 * SHOWN]
            half = max(len(ids) // 2, 1)
            inputs = torch.tensor([ids[:half]], device=model.device)
            written = model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max(len(ids) - half, 1), do_sample=False
            )
            texts = (ids[:half], ids[half:], written[0, half:])
            found.append(Example(*(self.tokenizer.decode(text, skip_special_tokens=True) for text in texts)))
        return found

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
    intended_use = (
        "Pretrained weights for fine-tuning classifiers and taggers in the domain of the training data (`start_from` in a "
        "recipe)."
    )
    usage = """
from transformers import AutoModelForMaskedLM, AutoTokenizer

model, tokenizer = AutoModelForMaskedLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")
inputs = tokenizer([{text!r}], return_tensors="pt")
print(tokenizer.batch_decode(model(**inputs).logits.argmax(-1)))
"""

    @property
    def special_tokens(self) -> dict[str, bool]:
        return {"add_bos": False, "add_eos": True, "mask_token": True}

    def encode(self, split: Split) -> MaskedLMDataset:
        if self.tokenizer.mask_token_id is None:
            raise RecipeError("the tokenizer has no mask token; take one that a masked-lm recipe has trained.")
        data = self.settings.data
        seed = self.settings.seed if split.name == "data.train" else None
        texts, ids = self.tokenize(split)
        return MaskedLMDataset(texts, self.tokenizer, data.masked_share, data.block_size, seed, ids)

    def score_line(self, scores: dict[str, Any]) -> str:
        return (
            f"cross entropy {scores['loss']:.4f} nats a masked token  accuracy {100 * scores['accuracy']:.1f} %  "
            f"({scores['tokens']:,} masked tokens)"
        )

    def purpose(self) -> str:
        return f"to fill in masked tokens of texts{self.in_language}"

    def examples(self, model: Any, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        """Let the model fill in every seventh token of each text, which is hidden from it."""
        found = []
        for text in split.dataset.select(rows)["text"]:
            ids = torch.tensor(self.tokenizer(text, verbose=False)["input_ids"][: 2 * SHOWN])
            hidden = torch.zeros(len(ids), dtype=torch.bool)
            hidden[3::7] = True
            hidden &= ~torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))
            shown = ids.masked_fill(hidden, self.tokenizer.mask_token_id)
            inputs = {"input_ids": shown[None], "attention_mask": torch.ones_like(shown[None])}
            filled = torch.where(hidden, self.predicted(model, inputs)[0], ids)
            source = self.tokenizer.decode(shown).replace(self.tokenizer.eos_token or "\0", "")
            plain = (self.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in (ids, filled))
            found.append(Example(source, *plain))
        return found

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [("accuracy", "accuracy of masked tokens", scores["accuracy"])]
