"""What a task is told of a run: sections of the recipe, and the defaults of sections that come from the paper.

Recipes are made of these sections; a task reads them and knows nothing of recipes.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from vanilla_transformer.trainer.adapter import AdapterSection

__all__ = [
    "PAPER_GENERATION",
    "PAPER_TRAINING",
    "TRAINING_DEFAULTS",
    "BatchSection",
    "DataSection",
    "EvaluationSection",
    "TaskSettings",
    "TokenizerSection",
]


@dataclass
class TokenizerSection:
    """The tokenizer, trained on the run's own training text.

    Attributes:
        kind: "bpe", pieces of words, from which text comes back unchanged. For tasks on texts of one kind also "wordpiece",
            pieces of what stands between spaces, from which token-classification can tell words apart later and which is
            its default; "characters"; or "words", the most frequent of what stands between spaces.
        vocab_size: exact number of entries, special tokens included; of each side where they are separate. Of words, the most.
        shared: for pairs: one vocabulary for both sides (section 5.1), or one each.
        min_frequency: pairs of symbols seen less often are not merged.
        lowercase: lower the case of all text.
        split_digits: every digit is a token of its own.
        path: a folder or Hub id of a ready tokenizer instead.
    """

    kind: str | None = None
    vocab_size: int = 10000
    shared: bool = True
    min_frequency: int = 2
    lowercase: bool = False
    split_digits: bool = False
    path: str | None = None


@dataclass
class DataSection:
    """Where the text comes from; the fields of `ParallelData` (seq2seq) or `TextData` (all other tasks) describe each split.

    Attributes:
        train, validation: the text.
        test: named test sets, scored at the end.
        source_language, target_language: codes such as `en`; keys of JSON lines and columns of Parquet, and for the card.
        max_source_length, max_target_length: longer pairs, in tokens with special tokens, are dropped and reported.
        language: of texts that come alone, for the card.
        max_length: of these, in tokens with special tokens: longer texts are cut where they get one label, else dropped;
            either is reported.
        block_size: language models read all texts as one, cut in blocks of so many tokens; None for texts by themselves.
        masked_share: of the tokens of a text, which masked-lm hides.
        license: of the data, in any words, for the model card.
    """

    train: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, Any] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    source_language: str | None = None
    target_language: str | None = None
    max_source_length: int = 256
    max_target_length: int = 256
    language: str | None = None
    max_length: int = 512
    block_size: int | None = None
    masked_share: float = 0.15
    license: str | None = None

    def splits(self) -> dict[str, dict[str, Any]]:
        """Return the fields of every split by its place in the recipe."""
        tests = {f"data.test.{name}": split for name, split in self.test.items()}
        return {"data.train": self.train, "data.validation": self.validation, **tests}


@dataclass
class BatchSection:
    """Batches by token budget.

    Attributes:
        max_tokens: sentences times the longest source or target of a batch stay within it (fairseq's `--max-tokens`).
            With several processes each has a batch of its own in every step.
        max_sentences: and the number of pairs, or texts or blocks, within this.
        count: "longer": a pair counts as its longer side, or "both": as source and target together.
        packing: several pairs or texts in one row, without padding; the budget holds for the sum of their tokens, and
            lengths are mixed.
    """

    max_tokens: int = 4096
    max_sentences: int | None = None
    count: str = "longer"
    packing: bool = False


@dataclass
class EvaluationSection:
    """Evaluation during training; `training.eval_strategy` and `eval_steps` say how often.

    Attributes:
        sentences: on the first so many rows of the validation data; None for all.
        num_beams: for seq2seq, beams during training; the final scores use `generation`.
        tokenize: for seq2seq, sacrebleu's tokenizer; "none" where the text is tokenised already.
    """

    sentences: int | None = None
    num_beams: int = 1
    tokenize: str = "13a"


class TaskSettings(Protocol):
    """The sections of a recipe that a task answers for; a recipe is one."""

    seed: int
    start_from: str | None
    adapter: AdapterSection
    data: DataSection
    tokenizer: TokenizerSection
    model: dict[str, Any]
    batches: BatchSection
    training: dict[str, Any]
    evaluation: EvaluationSection
    generation: dict[str, Any]


# Adam of section 5.3
_ADAM: dict[str, Any] = {
    "optim": "adamw_torch_fused",  # Adam, as there is no weight decay
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_epsilon": 1e-9,
    "weight_decay": 0.0,
}

PAPER_TRAINING: dict[str, Any] = {
    **_ADAM,
    "learning_rate": "noam",
    "lr_scheduler_type": "inverse_sqrt",
    "warmup_steps": 4000,
    "max_grad_norm": 0.0,
}
"""Training arguments of section 5.3."""

PAPER_GENERATION: dict[str, Any] = {
    "num_beams": 4,
    "length_penalty": 0.6,
    "length_penalty_form": "gnmt",
    "max_length_over_source": 50,
}
"""Beam search of section 6.1."""

TRAINING_DEFAULTS: dict[str, Any] = {
    **_ADAM,
    "num_train_epochs": 20,
    "per_device_eval_batch_size": 64,
    "logging_steps": 50,
    "report_to": "none",
    "save_strategy": "epoch",
    "eval_strategy": "epoch",
    "load_best_model_at_end": True,
}
"""What every run of this package needs."""
