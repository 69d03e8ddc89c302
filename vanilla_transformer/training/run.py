"""A run from recipe to finished folder: data, tokenizer, training, averaging, scores, curves, card."""

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Seq2SeqTrainingArguments,
    set_seed,
)
from transformers.trainer_callback import ProgressCallback

from vanilla_transformer.data.batching import TokenBudgetBatchSampler
from vanilla_transformer.data.preparation import iterate_texts, pair_lengths, tokenize_pairs
from vanilla_transformer.data.report import DataReport
from vanilla_transformer.data.sources import load_parallel
from vanilla_transformer.generation.translate import TARGET_TOKENIZER, Translator
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from vanilla_transformer.tokenization import train_tokenizer
from vanilla_transformer.training import RunInterrupted
from vanilla_transformer.training.allocator import keep_freed_memory
from vanilla_transformer.training.averaging import average_weights, find_checkpoints
from vanilla_transformer.training.metrics import GenerationMetrics, TextScores, score_texts
from vanilla_transformer.training.model_card import write_model_card
from vanilla_transformer.training.plots import plot_curves
from vanilla_transformer.training.recipe import Recipe, RecipeError
from vanilla_transformer.training.schedules import noam_peak
from vanilla_transformer.training.trainer import Seq2SeqTokenTrainer, TimeLimit, TokenProgress

__all__ = ["RunResult", "run_recipe"]

METRICS, RECIPE, CURVES = "metrics.json", "recipe.yaml", "curves.png"


@dataclass(frozen=True)
class RunResult:
    """A finished run: its folder, and what `metrics.json` holds."""

    folder: Path
    metrics: dict[str, Any]


@dataclass
class _Tokenizers:
    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase

    @property
    def separate(self) -> bool:
        return self.target is not self.source

    def save(self, folder: Path) -> None:
        self.source.save_pretrained(folder)
        if self.separate:
            self.target.save_pretrained(folder / TARGET_TOKENIZER)


def run_recipe(
    recipe: Recipe, *, resume: bool = False, overwrite: bool = False, say: Callable[[str], None] = print
) -> RunResult:
    """Train, score and save what a recipe describes.

    Args:
        recipe: the run.
        resume: go on from the last checkpoint in the output folder.
        overwrite: delete what stands in the output folder.
        say: receives lines of progress for people.

    Raises:
        RecipeError: for a recipe that cannot be run as it stands, and for an output folder that holds something, unless
            `resume` or `overwrite` says what to do with it.
        FileNotFoundError, ValueError: for data that cannot be read; see `load_parallel`.
        RunInterrupted: on Ctrl-C during training.
    """
    if _accelerator() is None:
        keep_freed_memory()
    folder = Path(recipe.output_dir)
    arguments = _training_arguments(recipe)
    first_process = arguments.process_index == 0
    if first_process:
        _check_folder(folder, resume=resume, overwrite=overwrite)
    else:
        say = _say_nothing
    if resume and (folder / RECIPE).is_file():
        _check_same_run(recipe, Recipe.load(folder / RECIPE))
    finished = find_checkpoints(folder) if resume else []
    checkpoint = finished[-1] if finished else None
    set_seed(recipe.seed)

    parts = {name: load_parallel(recipe.parallel_data(name)) for name in recipe.data_parts()}
    tokenizers = _tokenizers(recipe, parts["data.train"][0], folder if checkpoint else None)
    train, train_report = _tokenized(recipe, *parts["data.train"], tokenizers)
    validation, validation_report = _tokenized(recipe, *parts["data.validation"], tokenizers)
    reports = {"train": train_report, "validation": validation_report}
    reports |= {name.removeprefix("data.test."): parts[name][1] for name in parts if name.startswith("data.test.")}
    for report in reports.values():
        say(str(report))

    sampler = TokenBudgetBatchSampler(
        pair_lengths(train), recipe.batches.max_tokens, max_sentences=recipe.batches.max_sentences, seed=recipe.seed
    )
    say(
        f"{len(sampler)} batches an epoch of at most {recipe.batches.max_tokens} tokens a side, "
        f"{100 * sampler.padding_share():.1f} % padding"
    )
    model = _model(recipe, tokenizers)
    say(f"{model.config.num_parameters():,} parameters, {model.config.architecture}")
    # not before all else is known to be in order: this deletes a run that is overwritten
    if first_process:
        _clear_folder(folder, keep=resume)
        recipe.save(folder / RECIPE)
        tokenizers.save(folder)
    arguments.distributed_state.wait_for_everyone()
    if resume:
        say(
            f"going on from {checkpoint}" if checkpoint else f"{folder} has no checkpoint yet: starting from the first"
        )
    trainer = Seq2SeqTokenTrainer(
        model=model,
        args=arguments,
        train_dataset=train.select_columns(["input_ids", "labels"]),
        eval_dataset=_for_evaluation(validation, recipe.evaluation.sentences),
        data_collator=DataCollatorForSeq2Seq(tokenizers.source, model=model),
        compute_metrics=GenerationMetrics(
            tokenizers.target,
            min(len(validation), recipe.evaluation.sentences or len(validation)),
            recipe.evaluation.tokenize,
        ),
        batch_sampler=sampler,
        target_tokenizer=tokenizers.target if tokenizers.separate else None,
    )
    progress = TokenProgress()
    if not arguments.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(progress)
    if recipe.max_minutes is not None:
        trainer.add_callback(TimeLimit(trainer, recipe.max_minutes))
    try:
        _train(trainer, checkpoint, folder)
    finally:
        progress.close()

    metrics: dict[str, Any] = {
        "training": _training_facts(trainer, recipe, train),
        "data": {name: report.to_dict() for name, report in reports.items()},
        "hardware": _hardware(),
    }
    metrics["model"] = _choose_weights(recipe, trainer, folder, tokenizers, parts["data.validation"][0], say)
    translator = Translator(model, tokenizers.source, tokenizers.target)
    metrics["test"] = {}
    for name in recipe.data.test:
        metrics["test"][name] = _score(translator, parts[f"data.test.{name}"][0], recipe, say, name)

    if trainer.is_world_process_zero():
        _finish(recipe, trainer, folder, metrics, say)
    return RunResult(folder, metrics)


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"output_dir {folder} is a file; name a folder.")
    if resume and overwrite:
        raise RecipeError("--resume goes on with a run and --overwrite deletes it; give one of them.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    is_run = (folder / RECIPE).is_file()
    if overwrite and not is_run:
        raise RecipeError(
            f"output_dir {folder} holds files but no run, so it is not overwritten; name another folder."
        )
    if resume and not is_run:
        raise RecipeError(f"output_dir {folder} holds no run to go on with; name its folder, or leave out --resume.")
    if not resume and not overwrite:
        raise RecipeError(
            f"output_dir {folder} is not empty; give --resume to go on with the run in it, --overwrite to start it "
            "again, or output_dir=... for another folder."
        )


def _check_same_run(recipe: Recipe, begun: Recipe) -> None:
    if changed := recipe.changes_since(begun):
        raise RecipeError(
            f"--resume goes on with the run as it was begun, but {', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
            " from its recipe.yaml; set back what changed, or start another run in another output_dir."
        )


def _clear_folder(folder: Path, *, keep: bool) -> None:
    """Make the folder empty, or take out of the run in it what was not written to its end."""
    if not keep and folder.is_dir():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for partial in set(folder.glob("checkpoint-*")) - set(find_checkpoints(folder)):
        shutil.rmtree(partial)


def _say_nothing(line: str) -> None:
    """What all processes but the first say."""


def _tokenizers(recipe: Recipe, train: Dataset, ready: Path | None) -> _Tokenizers:
    """Trained on the training text, loaded by the recipe's path, or of the run that is continued."""
    section = recipe.tokenizer
    if ready is not None or section.path is not None:
        folder = ready or Path(section.path or "")
        source = AutoTokenizer.from_pretrained(folder)
        separate = folder / TARGET_TOKENIZER
        return _Tokenizers(source, AutoTokenizer.from_pretrained(separate) if separate.is_dir() else source)

    def trained(*columns: str) -> PreTrainedTokenizerBase:
        return train_tokenizer(
            iterate_texts(train, *columns),
            section.vocab_size,
            min_frequency=section.min_frequency,
            lowercase=section.lowercase,
            split_digits=section.split_digits,
        )

    if section.shared:
        tokenizer = trained("source", "target")
        return _Tokenizers(tokenizer, tokenizer)
    return _Tokenizers(trained("source"), trained("target"))


def _tokenized(
    recipe: Recipe, dataset: Dataset, report: DataReport, tokenizers: _Tokenizers
) -> tuple[Dataset, DataReport]:
    encoded = tokenize_pairs(
        dataset,
        tokenizers.source,
        tokenizers.target if tokenizers.separate else None,
        max_source_length=recipe.data.max_source_length,
        max_target_length=recipe.data.max_target_length,
        report=report,
    )
    return encoded, report


def _for_evaluation(dataset: Dataset, sentences: int | None) -> Dataset:
    """The first pairs, sorted by length so that the batches of the evaluation hold little padding."""
    if sentences is not None:
        dataset = dataset.select(range(min(sentences, len(dataset))))
    order = sorted(range(len(dataset)), key=pair_lengths(dataset).sum(axis=1).tolist().__getitem__, reverse=True)
    return dataset.select(order).select_columns(["input_ids", "labels"])


def _model(recipe: Recipe, tokenizers: _Tokenizers) -> VanillaTransformerForConditionalGeneration:
    source, target = tokenizers.source, tokenizers.target
    fields = {name: getattr(target, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    if tokenizers.separate:
        fields["target_vocab_size"] = len(target)
    config = recipe.config(vocab_size=len(source), **fields)
    for side, tokenizer, size in (
        ("vocab_size", source, config.vocab_size),
        ("target_vocab_size", target, config.output_vocab_size),
    ):
        if len(tokenizer) > size:
            raise RecipeError(
                f"the tokenizer has {len(tokenizer)} tokens but model.{side} is {size}, so some tokens have no "
                "embedding; raise it, or leave it out to follow the tokenizer."
            )
    model = VanillaTransformerForConditionalGeneration(config)
    for name, value in recipe.generation.items():
        setattr(model.generation_config, name, value)
    return model


def _training_arguments(recipe: Recipe) -> Seq2SeqTrainingArguments:
    # use_cpu: without it transformers 5.24 lets several processes on CPUs each train a model of its own
    machine = {"use_cpu": _accelerator() is None, "dataloader_pin_memory": _accelerator() == "cuda"}
    fields = {**machine, **recipe.training}
    fields.setdefault("save_total_limit", max(recipe.averaging.last, 1) + 1)
    if fields["learning_rate"] == "noam":
        fields["learning_rate"] = noam_peak(recipe.config().hidden_size, int(fields["warmup_steps"]))
    try:
        return Seq2SeqTrainingArguments(
            output_dir=recipe.output_dir,
            seed=recipe.seed,
            generation_num_beams=recipe.evaluation.num_beams,
            **fields,
        )
    except (TypeError, ValueError) as error:
        raise RecipeError(f"training: {error}") from error


def _train(trainer: Seq2SeqTokenTrainer, checkpoint: Path | None, folder: Path) -> None:
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except SafetensorError as error:
        raise ValueError(f"{checkpoint} is damaged ({error}); delete it and go on from the one before it.") from error
    except KeyboardInterrupt:
        saved = find_checkpoints(folder)
        kept = f"{saved[-1].name} is kept; go on with --resume" if saved else "no checkpoint was saved yet"
        raise RunInterrupted(f"interrupted at update {trainer.state.global_step}; {kept}.") from None


def _choose_weights(
    recipe: Recipe,
    trainer: Seq2SeqTokenTrainer,
    folder: Path,
    tokenizers: _Tokenizers,
    validation: Dataset,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Compare the best checkpoint with the mean of the last ones on the validation text; the model keeps the better."""
    model = trainer.model
    metric = trainer.args.metric_for_best_model.removeprefix("eval_")
    metric = "bleu" if metric == "loss" else metric  # which is not among the scores of text
    translator = Translator(model, tokenizers.source, tokenizers.target)
    facts: dict[str, Any] = {}
    best = trainer.state.best_model_checkpoint
    kept = "best" if best else "last"
    scores = {kept: _score(translator, validation, recipe, say, f"validation, {kept} checkpoint")}
    if best:
        facts["best_checkpoint"] = Path(best).name
    last = find_checkpoints(folder)[-recipe.averaging.last :] if recipe.averaging.last > 1 else []
    if len(last) > 1:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(average_weights(last), strict=False)
        model.tie_weights()
        scores["average"] = _score(
            translator, validation, recipe, say, f"validation, mean of the last {len(last)} checkpoints"
        )
        facts["averaged_checkpoints"] = [f.name for f in last]
        if scores["average"][metric] >= scores[kept][metric]:
            kept = "average"
        else:
            model.load_state_dict(before)
    facts["weights"] = kept
    facts["validation"] = scores
    return facts


def _score(
    translator: Translator, dataset: Dataset, recipe: Recipe, say: Callable[[str], None], name: str
) -> dict[str, Any]:
    """Scores of generated text against the references as they stand in the files."""
    started = time.monotonic()
    outputs = [best[0].text for best in translator.translate(dataset["source"])]
    seconds = time.monotonic() - started
    scores: TextScores = score_texts(
        outputs, list(dataset["target"]), recipe.evaluation.tokenize, lowercase=recipe.tokenizer.lowercase
    )
    say(
        f"{name}: BLEU {scores.bleu}  chrF {scores.chrf}  exact match {100 * scores.exact_match:.1f} %  "
        f"({scores.sentences} sentences in {seconds:.0f} s)  {scores.bleu_signature}"
    )
    return {**scores.to_dict(), "seconds": round(seconds, 1)}


def _training_facts(trainer: Seq2SeqTokenTrainer, recipe: Recipe, train: Dataset) -> dict[str, Any]:
    speeds = [entry["tokens_per_second"] for entry in trainer.state.log_history if "tokens_per_second" in entry]
    return {
        "minutes": round(trainer.minutes, 1),
        "updates": trainer.state.global_step,
        "epochs": round(float(trainer.state.epoch or 0), 2),
        "pairs": len(train),
        "tokens_per_second": sorted(speeds)[len(speeds) // 2] if speeds else None,
        "parameters": trainer.model.config.num_parameters(),
        "processes": trainer.args.world_size,
    }


def _accelerator() -> str | None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if accelerator is None else accelerator.type


def _hardware() -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _accelerator() or "cpu",
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _finish(
    recipe: Recipe,
    trainer: Seq2SeqTokenTrainer,
    folder: Path,
    metrics: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    """Write what makes the folder a model that anyone can load, beside the checkpoints."""
    try:
        trainer.model.save_pretrained(folder)
    except SafetensorError as error:  # what safetensors makes of a full disk
        raise OSError(
            f"the model could not be written to {folder} ({error}); make room, then go on with --resume."
        ) from error
    trainer.state.save_to_json(str(folder / "trainer_state.json"))
    (folder / METRICS).write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if not plot_curves(trainer.state.log_history, folder / CURVES, title=folder.name):
        say("curves.png was not drawn: it needs matplotlib, which pip install 'vanilla-transformer[plots]' brings.")
    write_model_card(folder, recipe, metrics)
    say(f"finished: {folder}")
