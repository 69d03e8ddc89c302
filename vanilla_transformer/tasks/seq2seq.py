"""Text to text with an encoder-decoder: translation, summarization, anything that stands in pairs."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    Trainer,
)

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.data.collators import Seq2SeqPackingCollator
from vanilla_transformer.data.config import DataConfig, ParallelData
from vanilla_transformer.data.preparation import pair_lengths, tokenize_pairs
from vanilla_transformer.data.rows import PAIRS
from vanilla_transformer.decoding.shortlist import Shortlist
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.loading import TARGET_TOKENIZER, has_target_tokenizer
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.scoring import score_texts
from vanilla_transformer.tasks.metrics import GenerationMetrics
from vanilla_transformer.tasks.settings import PAPER_GENERATION, PAPER_TRAINING, TRAINING_DEFAULTS, DataSection
from vanilla_transformer.tasks.task import Example, ScoreColumn, Split, Task, TokenizedSplit, load_tokenizer
from vanilla_transformer.trainer.trainer import Seq2SeqTokenTrainer
from vanilla_transformer.utils.languages import language_name
from vanilla_transformer.utils.log import no_log
from vanilla_transformer.utils.public import escape_markdown
from vanilla_transformer.utils.quiet import shows_bars

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Seq2Seq"]


class Seq2Seq(Task):
    """Trained on pairs of texts, scored by BLEU, chrF and exact match of generated text."""

    name = "seq2seq"
    head = VanillaTransformerForConditionalGeneration
    architecture = "encoder-decoder"
    arguments_class = Seq2SeqTrainingArguments
    trainer_class = Seq2SeqTokenTrainer
    training_defaults = {
        **TRAINING_DEFAULTS,
        **PAPER_TRAINING,
        "metric_for_best_model": "bleu",
        "predict_with_generate": True,
    }
    model_defaults = {"label_smoothing": 0.1}  # section 5.4
    generation_defaults = PAPER_GENERATION
    generates = True
    data_fields = frozenset({"source_language", "target_language", "max_source_length", "max_target_length"})
    tokenizer_fields = frozenset({"shared"})
    evaluation_fields = frozenset({"num_beams", "tokenize"})
    split_fields = frozenset({field.name for field in fields(ParallelData)})
    generation_fields = frozenset({"length_penalty_form", "max_length_over_source"})
    curves: ClassVar[tuple[tuple[str, str, float], ...]] = (
        ("bleu", "BLEU", 1),
        ("chrf", "chrF", 1),
        ("exact_match", "exact match (%)", 100),
    )
    row_type = PAIRS
    noun = "pairs"
    scores: ClassVar[tuple[str, ...]] = ("bleu", "chrf", "exact_match", "loss")
    pipeline_tag = "translation"
    other_pipeline_tags: ClassVar[tuple[str, ...]] = ("summarization",)
    score_columns: ClassVar[tuple[ScoreColumn, ...]] = (
        ScoreColumn("bleu", "BLEU"),
        ScoreColumn("chrf", "chrF"),
        ScoreColumn("exact_match", "exact match", "{:.1%}"),
        ScoreColumn("sentences", "sentences"),
        ScoreColumn("bleu_signature", "signature"),
    )

    target_tokenizer: PreTrainedTokenizerBase
    training_rows: "Dataset | None" = None  # of which a shortlist is counted

    @property
    def separate(self) -> bool:
        """Return whether source and target have vocabularies of their own."""
        return self.target_tokenizer is not self.tokenizer

    @classmethod
    def data_config(cls, fields: Mapping[str, Any], data: DataSection) -> DataConfig:
        languages = {"source_language": data.source_language, "target_language": data.target_language}
        return ParallelData(**{**languages, **fields})

    @classmethod
    def length_limit(cls, data: DataSection) -> tuple[int, str]:
        return max(data.max_source_length, data.max_target_length), "max_source_length and max_target_length"

    def train_tokenizers(self, train: Split) -> None:
        data = self.settings.data
        longest = {"source": data.max_source_length - 1, "target": data.max_target_length - 1}  # without </s>
        if self.settings.tokenizer.shared:
            self.tokenizer = self.target_tokenizer = self.train_tokenizer(train, ["source", "target"], longest)
        else:
            self.tokenizer = self.train_tokenizer(train, ["source"], longest)
            self.target_tokenizer = self.train_tokenizer(train, ["target"], longest)

    def load_tokenizers(self, ready: str | Path) -> None:
        self.tokenizer = self.target_tokenizer = load_tokenizer(ready)
        if has_target_tokenizer(ready):
            self.target_tokenizer = load_tokenizer(ready, TARGET_TOKENIZER)

    def record_lengths(self) -> None:
        # the target's first, as it may be the same tokenizer, and sources are what is read
        self.target_tokenizer.model_max_length = self.settings.data.max_target_length
        self.tokenizer.model_max_length = self.settings.data.max_source_length

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self.separate:
            self.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
        if self.training_rows is not None:
            rows = self.training_rows.select(Shortlist.chosen_pairs(len(self.training_rows))).with_format("numpy")
            pairs = ((row["input_ids"], row["labels"]) for row in rows)
            Shortlist.count(
                pairs,
                source_vocab_size=len(self.tokenizer),
                target_vocab_size=len(self.target_tokenizer),
                special_tokens=self.target_tokenizer.all_special_ids,
                copies=not self.separate,
            ).save(folder)

    def encode(self, split: Split) -> "Dataset":
        return tokenize_pairs(
            split.dataset,
            self.tokenizer,
            self.target_tokenizer if self.separate else None,
            max_source_length=self.settings.data.max_source_length,
            max_target_length=self.settings.data.max_target_length,
            report=split.report,
        )

    def train_data(self, rows: "Dataset") -> "Dataset":
        self.training_rows = rows
        return rows.select_columns(["input_ids", "labels"])

    def evaluated_rows(self, rows: "Dataset", first: int | None = None) -> "Dataset":
        """Return the first rows, or all, in the order of an evaluation."""
        rows = rows.select(range(min(first or len(rows), len(rows))))
        order = sorted(range(len(rows)), key=pair_lengths(rows).sum(axis=1).tolist().__getitem__, reverse=True)
        return rows.select(order)

    def evaluation_data(self, rows: "Dataset", first: int | None = None) -> "Dataset":
        return self.evaluated_rows(rows, first).select_columns(["input_ids", "labels"])

    def ids(self, split: TokenizedSplit, rows: Sequence[int]) -> list[int]:
        return split.tokenized.select_columns("id")[list(rows)]["id"]

    def lengths(self, rows: "Dataset") -> np.ndarray:
        return pair_lengths(rows)

    def config_fields(self) -> dict[str, Any]:
        special = {n: getattr(self.target_tokenizer, n) for n in ("pad_token_id", "bos_token_id", "eos_token_id")}
        if (preset := self.settings.model.get("preset")) is not None:
            published = VanillaTransformerConfig.from_preset(preset)
            # the token that it starts the decoder with is one of these, under another id
            start = published.decoder_start_token_id
            if start is not None:
                meant = next(name for name in special if getattr(published, name) == start)
                special["decoder_start_token_id"] = special[meant]
        separate = {"target_vocab_size": len(self.target_tokenizer)} if self.separate else {}
        return {"vocab_size": len(self.tokenizer), **special, **separate}

    def vocabularies(self, config: Any) -> list[tuple[str, PreTrainedTokenizerBase, int]]:
        return [
            ("vocab_size", self.tokenizer, config.vocab_size),
            ("target_vocab_size", self.target_tokenizer, config.output_vocab_size),
        ]

    def collator(self, model: Any) -> DataCollatorForSeq2Seq:
        return DataCollatorForSeq2Seq(self.tokenizer, model=model)

    def packer(self, model: Any) -> Seq2SeqPackingCollator:
        return Seq2SeqPackingCollator(model.config.start_token_id, model.config.pad_token_id)

    def trainer_options(self, validation: TokenizedSplit) -> dict[str, Any]:
        evaluation = self.settings.evaluation
        sentences = min(len(validation.tokenized), evaluation.sentences or len(validation.tokenized))
        metrics = GenerationMetrics(self.target_tokenizer, sentences, evaluation.tokenize)
        return {
            "compute_metrics": metrics if self.settings.training["predict_with_generate"] else None,
            "target_tokenizer": self.target_tokenizer if self.separate else None,
        }

    def score(self, trainer: Trainer, split: TokenizedSplit) -> tuple[dict[str, Any], list[str]]:
        """Score generated text against the references as they stand in the files; what training drops is scored too."""
        outputs, seconds = self.timed_outputs(trainer, split)
        references, settings = list(split.dataset["target"]), self.settings
        scores = score_texts(outputs, references, settings.evaluation.tokenize, lowercase=settings.tokenizer.lowercase)
        return {**scores.to_dict(), "seconds": seconds}, outputs

    def timed_outputs(self, trainer: Trainer, split: TokenizedSplit) -> tuple[list[str], float]:
        """Return what the trainer's model writes for each source of a split, and how many seconds that took."""
        started = time.monotonic()
        sources = split.dataset["source"]
        with tqdm(total=len(sources), disable=not shows_bars(), leave=False, unit=" texts") as bar:
            outputs = self._written(trainer.model, sources, done=bar.update)
        return outputs, round(time.monotonic() - started, 1)

    def examples(self, model: PreTrainedModel, split: TokenizedSplit, rows: Sequence[int]) -> list[Example]:
        pairs = split.dataset.select(rows)
        return list(map(Example, pairs["source"], pairs["target"], self._written(model, pairs["source"], log=no_log)))

    def _written(self, model: PreTrainedModel, sources: Iterable[str], **options: Any) -> list[str]:
        generator = TextGenerator(model, self.tokenizer, self.target_tokenizer)
        return [best[0].text for best in generator.generate(sources, **options)]

    def score_line(self, scores: dict[str, Any]) -> str:
        return (
            f"BLEU {scores['bleu']}  chrF {scores['chrf']}  exact match {100 * scores['exact_match']:.1f} %  "
            f"({scores['sentences']} sentences in {scores['seconds']:.0f} s)  {scores['bleu_signature']}"
        )

    def purpose(self) -> str:
        codes = (self.settings.data.source_language, self.settings.data.target_language)
        languages = [escape_markdown(language_name(code)) for code in codes if code]
        if self._translates:
            return f"to translate {' into '.join(languages)}"
        return f"to generate a target text for each source text{f' ({languages[0]})' if languages else ''}"

    @property
    def _translates(self) -> bool:
        data = self.settings.data
        return (
            None not in (data.source_language, data.target_language) and data.source_language != data.target_language
        )

    @property
    def intended_use(self) -> str:
        does = "Translating sentences" if self._translates else "Generating a target text for each source text"
        return f"{does} in the domain of the training data, where a person checks the output."

    def use(self, text: str) -> str:
        separate = self.separate
        target = 'target_tokenizer = AutoTokenizer.from_pretrained(".", subfolder="target_tokenizer")\n'
        return (
            "import vanilla_transformer  # makes the model type known to transformers\n"
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            'model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained("."), AutoTokenizer.from_pretrained(".")\n'
            + (target if separate else "")
            + f'inputs = tokenizer([{text!r}], return_tensors="pt", padding=True)\n'
            f"print({'target_' if separate else ''}tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))"
        )

    def results(self, scores: dict[str, Any]) -> list[tuple[str, str, float]]:
        return [
            ("bleu", f"BLEU ({scores['bleu_signature']})", scores["bleu"]),
            ("chrf", f"chrF ({scores['chrf_signature']})", scores["chrf"]),
        ]

    def metric_args(self, metric: str) -> dict[str, Any]:
        lowercase = {"lowercase": self.settings.tokenizer.lowercase}
        return lowercase | ({"tokenize": self.settings.evaluation.tokenize} if metric == "bleu" else {})
