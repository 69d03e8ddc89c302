"""The recipes of the paper's own models: their values against sections 5 and 6, and two updates on toy text."""

from pathlib import Path

import pytest

from runs import quiet, write_pairs
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.run import run_recipe

RECIPES = Path(__file__).parents[1] / "scripts" / "recipes"
NAMES = ("paper_base", "paper_big", "paper_big_en_fr")


@pytest.mark.parametrize(
    ("name", "parameters", "dropout", "last", "updates"),
    [
        ("paper_base", 63_082_496, 0.1, 5, 100_000),
        ("paper_big", 214_245_376, 0.3, 20, 300_000),
        ("paper_big_en_fr", 209_125_376, 0.1, 20, 300_000),
    ],
)
def test_the_recipes_of_the_paper_say_what_sections_5_and_6_say(name, parameters, dropout, last, updates):
    recipe = Recipe.load(RECIPES / f"{name}.yaml")
    config = recipe.config(vocab_size=recipe.tokenizer.vocab_size, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    assert config.num_parameters() == parameters and config.dropout == dropout
    assert (config.norm_position, config.label_smoothing, config.tie_word_embeddings) == ("post", 0.1, True)
    training = recipe.training
    assert (training["adam_beta1"], training["adam_beta2"], training["adam_epsilon"]) == (0.9, 0.98, 1e-9)
    assert (training["learning_rate"], training["warmup_steps"], training["max_steps"]) == ("noam", 4000, updates)
    assert recipe.batches.max_tokens * 8 == 25_000 and recipe.averaging.last == last
    beams = ("num_beams", "length_penalty", "length_penalty_form", "max_length_over_source")
    assert [recipe.generation[field] for field in beams] == [4, 0.6, "gnmt", 50]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_recipes_of_the_paper_run(name, tmp_path):
    pairs = [(f"{n} cats", f"{n} chats") for n in range(40)]
    files = {split: write_pairs(tmp_path, split, pairs) for split in ("train", "validation", "unseen")}
    small = ["tokenizer.vocab_size=270", "batches.max_tokens=100", "model.num_hidden_layers=1"]
    short = ["training.max_steps=2", "generation.num_beams=1", "generation.max_length_over_source=2"]
    values = Recipe.load(RECIPES / f"{name}.yaml", [*small, *short, f"output_dir={tmp_path}/run"]).to_dict()
    values["data"] |= {"train": files["train"], "validation": files["validation"], "test": {"toy": files["unseen"]}}
    result = run_recipe(Recipe.from_dict(values), log=quiet)
    assert result.metrics["training"]["updates"] == 2 and result.metrics["test"]["toy"]["sentences"] == 40
