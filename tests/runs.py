"""Runs and saved models of a few seconds, and what is read of them, shared by the test modules."""

import importlib.util
import json
import os
import random
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny import tiny_model
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.tasks.metrics import GenerationMetrics
from vanilla_transformer.tokenization import train_tokenizer
from vanilla_transformer.trainer.trainer import TokenTrainer
from vanilla_transformer.utils.schema import override_fields
from warm_python import warm_python

ROOT = Path(__file__).parent.parent

WORDS = ("red", "green", "blue", "dog", "cat", "house", "tree", "river", "stone", "sun")


def load_script(name):
    """A file of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reversed_words(count, seed):
    """Pairs of a few words and the same words in reverse order."""
    draw = random.Random(seed)
    sources = [[draw.choice(WORDS) for _ in range(draw.randint(1, 5))] for _ in range(count)]
    return [(" ".join(words), " ".join(reversed(words))) for words in sources]


def write_pairs(folder, name, pairs):
    """Two aligned text files, as the data section of a recipe names them."""
    paths = {}
    for side, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        path = folder / f"{name}.{side}"
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        paths[side] = str(path)
    return paths


def recipe_values(folder, output="run"):
    """A recipe of nine updates, with everything on that can make a resumed run differ; its data stands in `folder`."""
    folder.mkdir(exist_ok=True)
    return {
        "output_dir": str(folder / output),
        "data": {
            "source_language": "en",
            "target_language": "en",
            "train": write_pairs(folder, "train", reversed_words(120, 0)),
            "validation": write_pairs(folder, "validation", reversed_words(21, 1)),
            "test": {"unseen": write_pairs(folder, "test", reversed_words(16, 2))},
        },
        "tokenizer": {"vocab_size": 280},
        "model": {
            "preset": "transformer-tiny",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "dropout": 0.1,
        },
        "batches": {"max_tokens": 200},
        "training": {
            "learning_rate": 0.01,
            "warmup_steps": 5,
            "num_train_epochs": 3,
            "gradient_accumulation_steps": 2,
            "logging_steps": 1,
            "max_grad_norm": 1.0,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "save_strategy": "steps",
            "save_steps": 4,
            "per_device_eval_batch_size": 8,
        },
        "averaging": {"last": 2},
        "generation": {"num_beams": 2, "max_length_over_source": 2},
    }


def every_update(folder, **training):
    """The same with an evaluation and a checkpoint after every update."""
    values = recipe_values(folder)
    values["training"] |= {"eval_steps": 1, "save_steps": 1, "gradient_accumulation_steps": 1, **training}
    values["data"]["test"] = {}
    return values


def quiet(line):
    pass


def run(values, overrides=(), log=quiet, **options):
    return run_recipe(Recipe.from_dict(override_fields(values, overrides)), log=log, **options)


def run_on_two(*command, python=None):
    """A command of Python in two processes, which must end well."""
    python = python or warm_python()
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    environment["PYTHON_EXEC"] = python
    done = subprocess.run([*launch, *map(str, command)], capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr
    return done


@contextmanager
def power_cut(update):
    """Within it training ends in an error after so many updates."""
    original = TokenTrainer.training_step

    def failing(self, *args, **kwargs):
        if self.state.global_step == update:
            raise RuntimeError("power cut")
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(TokenTrainer, "training_step", failing)
        yield


@contextmanager
def files_of_at_most(size):
    """Within it no file can be written beyond so many bytes, as on a disk that is full by then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def scripted(monkeypatch, scores, name="bleu"):
    """Evaluations give these scores, one after the other, also where a run is resumed."""
    left = iter(scores)
    monkeypatch.setattr(
        GenerationMetrics, "__call__", lambda self, prediction: {"bleu": 0.0, "chrf": 0.0, name: next(left)}
    )


def weights(folder, name="model.safetensors"):
    return load_file(Path(folder) / name)


def equal_weights(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def log_of(folder):
    """What was logged, entry by entry, by the state in a folder."""
    return json.loads((Path(folder) / "trainer_state.json").read_text())["log_history"]


def logged(folder, name):
    """What was logged under a name, by update."""
    return {entry["step"]: entry[name] for entry in log_of(folder) if name in entry}


def history(folder):
    """What was logged of the training itself: time and speed are left out, and the summary at the end."""
    names = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss", "eval_bleu", "eval_chrf")
    entries = [{name: entry[name] for name in names if name in entry} for entry in log_of(folder)]
    return [entry for entry in entries if "loss" in entry or "eval_loss" in entry]


def word_tokenizer(vocab_size=280):
    return train_tokenizer([source for source, _ in reversed_words(100, 0)], vocab_size)


def save_translator(folder, tokenizer=None, **config):
    """A model with random weights and its tokenizer, as a finished run leaves them; returns the model."""
    tokenizer = word_tokenizer() if tokenizer is None else tokenizer
    model = tiny_model(**{"vocab_size": len(tokenizer), "num_hidden_layers": 1, "decoder_layers": 1, **config})
    with torch.no_grad():
        model.get_output_embeddings().weight[1] -= 100  # ids that mean nothing in a text
    model.generation_config.max_length_over_source = -2
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model
