"""Runs and saved models of a few seconds, shared by the test modules."""

import random

import torch

from tiny import tiny_model
from vanilla_transformer.tokenization import train_tokenizer

WORDS = ("red", "green", "blue", "dog", "cat", "house", "tree", "river", "stone", "sun")


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
