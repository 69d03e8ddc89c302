#!/usr/bin/env python
"""Train an encoder-decoder in an Accelerate training loop: `python scripts/train_accelerate.py RECIPE.yaml [name=value ...] [--resume]`.

What `vanilla-transformer train` does with transformers' Trainer, written out: the same recipe, data, batches, model and
losses, update by update. To be read from top to bottom, and to be changed where a Trainer is in the way. Of the recipe's
training section it uses learning_rate, warmup_steps, adam_*, gradient_accumulation_steps, max_grad_norm, max_steps,
num_train_epochs, logging_steps, save_strategy, save_steps and per_device_eval_batch_size; it has no generation,
averaging, scores or model card.

On several processes or machines: `accelerate launch --multi_gpu --num_processes 2 scripts/train_accelerate.py RECIPE.yaml`.
"""

import argparse
import json
import shutil
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType, skip_first_batches
from accelerate.utils import broadcast_object_list, send_to_device, set_seed
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch.utils.data import DataLoader

from vanilla_transformer.errors import RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.arguments import training_arguments
from vanilla_transformer.trainer.checkpoints import update_of
from vanilla_transformer.trainer.interruption import Interruption, catch_signals
from vanilla_transformer.trainer.processes import agree_on_errors
from vanilla_transformer.trainer.schedules import inverse_sqrt_schedule
from vanilla_transformer.trainer.training_state import (
    load_random_state,
    load_training_state,
    save_random_state,
    save_training_state,
)
from vanilla_transformer.utils.atomic import (
    atomic_files,
    delete_dir,
    is_temporary,
    new_temporary_dir,
    remove_temporaries,
    replace_dir,
    translate_io_errors,
)
from vanilla_transformer.utils.errors import Terminated, friendly_errors
from vanilla_transformer.utils.locks import LOCK, lock_folder


@dataclass
class Progress:
    """How far training is. Saved with each checkpoint."""

    epoch: int = 0
    batches: int = 0
    """Of this epoch, of this process."""
    updates: int = 0
    logged: int = 0
    """Updates at the last log."""
    loss: float = 0.0
    """Sum of the losses since then."""


def main(recipe: Recipe, resume: bool) -> None:
    settings = training_arguments(recipe, load_best_model_at_end=False)  # which asks for more than this loop has
    other_schedule = settings.lr_scheduler_type != "inverse_sqrt" or settings.lr_scheduler_kwargs
    if recipe.task != "seq2seq" or other_schedule or settings.weight_decay or recipe.max_minutes is not None:
        raise RecipeError(
            "this loop trains seq2seq with lr_scheduler_type inverse_sqrt, without weight_decay and without max_minutes only."
        )
    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise RecipeError(
            "this loop keeps the whole model in each process; use vanilla-transformer train to shard it."
        )
    folder = Path(recipe.output_dir)
    with ExitStack() as lock, catch_signals(accelerator.print) as interruption:
        with agree_on_errors():
            if accelerator.is_main_process:
                lock.enter_context(lock_folder(folder))
        try:
            train(recipe, settings, accelerator, resume, interruption)
        except KeyboardInterrupt as error:
            saved = ", ".join(path.name for path in find_checkpoints(folder)) or "no checkpoint"
            remedy = f"resume with: python scripts/train_accelerate.py {folder / 'recipe.yaml'} --resume"
            raise RunInterrupted(
                f"interrupted by {error}; {saved} is kept", remedy, getattr(error, "number", 2)
            ) from None


def find_checkpoints(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("checkpoint-*") if path.name[11:].isdecimal()), key=update_of)


def train(recipe: Recipe, settings: Any, accelerator: Accelerator, resume: bool, interruption: Interruption) -> None:
    folder = Path(recipe.output_dir)
    saved = find_checkpoints(folder)
    checkpoint = saved[-1] if saved else None
    with agree_on_errors():
        if not resume and folder.is_dir() and not all(is_temporary(p) or p.name == LOCK for p in folder.iterdir()):
            raise RecipeError(
                f"output_dir {folder} is not empty; give --resume, or output_dir=... for another folder."
            )
        if checkpoint and (changed := recipe.changes_since(Recipe.load(folder / "recipe.yaml"))):
            raise RecipeError(f"--resume resumes the run as it was started; set back {', '.join(changed)}.")
    set_seed(recipe.seed)

    # Data: texts, tokenizer, rows of tokens, batches by token budget, which accelerate gives to the processes by rank
    task = recipe.new_task()
    parts = task.read(
        recipe.splits("data.train", "data.validation"), folder if checkpoint else None, accelerator.print
    )
    train, validation = parts["data.train"], parts["data.validation"].tokenized
    sampler = task.batch_sampler(train)
    model = task.model(recipe.config(**task.config_fields()), accelerator.print)
    loader = DataLoader(task.train_data(train.tokenized), batch_sampler=sampler, collate_fn=task.train_collator(model))
    own = validation.select(range(accelerator.process_index, len(validation), accelerator.num_processes))
    evaluated = DataLoader(task.train_data(own), settings.per_device_eval_batch_size, collate_fn=task.collator(model))

    # Adam (section 5.3), with a rate that rises for warmup_steps updates and falls with the root of their number
    betas = (settings.adam_beta1, settings.adam_beta2)
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate, betas, settings.adam_epsilon, fused=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accumulated = settings.gradient_accumulation_steps
    total = settings.max_steps
    if total < 1:
        total = int(settings.num_train_epochs * -(-len(loader) // accumulated))
    scheduler = inverse_sqrt_schedule(optimizer, settings.get_warmup_steps(total))

    progress = Progress()
    if accelerator.is_main_process:
        with translate_io_errors(folder, "make room and start again"), atomic_files(folder) as temporary:
            recipe.save(temporary / "recipe.yaml")
            task.save(temporary)
        remove_temporaries(folder)
    set_seed(recipe.seed)  # what dropout draws does not depend on how much the start of the model has drawn
    random_state = None
    if checkpoint:
        state = load_training_state(checkpoint, optimizer, scheduler, accelerator.num_processes)
        if unknown := state.keys() - vars(progress).keys():
            raise ValueError(f"{checkpoint} is damaged: it has the unknown field {min(unknown)!r}; delete it.")
        progress = Progress(**state)
        try:
            load_model(accelerator.unwrap_model(model), str(checkpoint / "model.safetensors"))
        except (SafetensorError, RuntimeError) as error:
            raise ValueError(f"{checkpoint}/model.safetensors is damaged ({error}); delete {checkpoint}.") from error
        load_random_state(checkpoint, accelerator.process_index)
        # a loader draws a number when it starts, which is to be undone where it had started before
        random_state = torch.get_rng_state() if 0 < progress.batches < len(loader) else None
        accelerator.print(f"resuming after update {progress.updates}")

    losses = torch.tensor(progress.loss, device=accelerator.device)
    with interruption.deferred():  # until the update in hand is made
        while progress.updates < total:
            loader.set_epoch(progress.epoch)
            sampler.set_epoch(progress.epoch)  # which accelerate's loader does on one process only
            model.train()
            rest = iter(skip_first_batches(loader, progress.batches) if progress.batches < len(loader) else [])
            # so many batches make an update, at the end of an epoch those that are left
            while progress.updates < total and (group := list(islice(rest, accumulated))):
                if random_state is not None:
                    torch.set_rng_state(random_state)
                    random_state = None
                # The loss of an update is the mean over all target tokens of its batches, on all processes. DDP takes the
                # mean of gradients over processes, so the sum over tokens has to be multiplied by their number.
                tokens = accelerator.reduce(sum((batch["labels"] != -100).sum() for batch in group))
                for batch in group:
                    with nullcontext() if batch is group[-1] else accelerator.no_sync(model):
                        loss = model(**batch, num_items_in_batch=tokens, skip_logits=True).loss
                        loss = loss * accelerator.num_processes
                        accelerator.backward(loss)
                    losses += loss.detach()
                if settings.max_grad_norm:
                    accelerator.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
                rate = float(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                progress.updates += 1
                progress.batches += len(group)

                if progress.updates % settings.logging_steps == 0:
                    mean = accelerator.reduce(losses, "mean").item() / (progress.updates - progress.logged)
                    log(accelerator, folder, progress, loss=mean, learning_rate=rate)
                    losses, progress.logged = torch.zeros_like(losses), progress.updates
                number = interruption.requested()
                if number or (settings.save_strategy == "steps" and progress.updates % settings.save_steps == 0):
                    progress.loss = accelerator.reduce(losses, "mean").item()
                    save(accelerator, folder, progress, model, optimizer, scheduler)
                if number:
                    raise Terminated(number)
            if progress.batches == len(loader):
                progress.epoch, progress.batches = progress.epoch + 1, 0
            log(accelerator, folder, progress, eval_loss=evaluate(accelerator, model, evaluated))
            if settings.save_strategy == "epoch" and progress.batches == 0:
                progress.loss = accelerator.reduce(losses, "mean").item()
                save(accelerator, folder, progress, model, optimizer, scheduler)

    if accelerator.is_main_process:
        remedy = "make room and resume with --resume"
        with translate_io_errors(f"the model in {folder}", remedy), atomic_files(folder) as temporary:
            accelerator.unwrap_model(model).save_pretrained(temporary)


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: Any, batches: DataLoader) -> float:
    """Return the mean cross entropy of all target tokens of all processes, without label smoothing."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=accelerator.device)  # summed loss, tokens
    with torch.random.fork_rng([]):  # a loader draws a number when it starts: training does not depend on evaluations
        reader = iter(batches)
    for batch in reader:
        batch = send_to_device(batch, accelerator.device)
        tokens = (batch["labels"] != -100).sum()
        total += torch.stack([model(**batch, label_smoothing=0.0).loss.double() * tokens, tokens.double()])
    loss, tokens = accelerator.reduce(total).tolist()
    return loss / tokens


def log(accelerator: Accelerator, folder: Path, progress: Progress, **values: float) -> None:
    """Write a line to the screen and to `log.jsonl`."""
    if accelerator.is_main_process:
        line = json.dumps({"step": progress.updates, "epoch": progress.epoch, **values})
        print(line, flush=True)
        with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def save(
    accelerator: Accelerator, folder: Path, progress: Progress, model: Any, optimizer: Any, scheduler: Any
) -> None:
    """Save model, optimizer, schedule, progress and random states atomically, in the place of those before."""
    names = [new_temporary_dir(folder).name if accelerator.is_main_process else None]
    unfinished = folder / str(broadcast_object_list(names)[0])
    try:
        with translate_io_errors(folder / f"checkpoint-{progress.updates}", "make room and resume with --resume"):
            save_random_state(unfinished, accelerator.process_index)
            if accelerator.is_main_process:
                save_model(accelerator.unwrap_model(model), str(unfinished / "model.safetensors"))
                save_training_state(unfinished, optimizer, scheduler, asdict(progress), accelerator.num_processes)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            old = list(folder.glob("checkpoint-*"))
            replace_dir(unfinished, folder / f"checkpoint-{progress.updates}")
            for path in old:
                delete_dir(path)
    finally:
        if accelerator.is_main_process:  # the others are through before it has moved the folder
            shutil.rmtree(unfinished, ignore_errors=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="name=value")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in the output folder")
    given = parser.parse_intermixed_args()
    with friendly_errors(sys.argv[1:]):
        try:
            main(Recipe.load(given.recipe, given.overrides), given.resume)
        except RunInterrupted as error:
            print(error, file=sys.stderr)
            sys.exit(128 + error.number)
