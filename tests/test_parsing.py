"""Constituency parsing as a task: from a file of bracketed trees to scores of labelled brackets."""

import json
import random

import pytest
from huggingface_hub import ModelCard

pytest.importorskip("nltk")

from vanilla_transformer.data.trees import read_tree
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.scoring.brackets import score_trees
from vanilla_transformer.utils.log import no_log


def write_trees(path, count, seed):
    """Write sentences of a small grammar, and one line that is no tree."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        subject = f"(NP (DT the) (NN {draw.choice(['dog', 'cat', 'cow'])}))"
        place = f" (PP (IN in) (NP (DT the) (NN {draw.choice(['house', 'garden'])})))" * draw.randrange(2)
        verb = draw.choice(["(VBD slept)", "(VBD saw) (NP (PRP it))"])
        lines.append(f"( (S {subject} (VP {verb}{place}) (. .)))")
    path.write_text("\n".join([*lines, "(S (NP"]) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a parser for some updates; return its folder."""
    folder = tmp_path_factory.mktemp("parsing")
    for name, count in (("train", 60), ("validation", 8), ("unseen", 8)):
        write_trees(folder / f"{name}.mrg", count, seed=len(name))
    recipe = Recipe.from_dict(
        {
            "task": "constituency-parsing",
            "output_dir": str(folder / "run"),
            "data": {
                "train": {"path": str(folder / "train.mrg")},
                "validation": {"path": str(folder / "validation.mrg")},
                "test": {"unseen": {"path": str(folder / "unseen.mrg")}},
            },
            "model": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "dropout": 0.0,
                "norm_position": "pre",
            },
            "batches": {"max_tokens": 300},
            "training": {
                "max_steps": 12,
                "learning_rate": 0.004,
                "lr_scheduler_type": "constant_with_warmup",
                "warmup_steps": 10,
                "eval_strategy": "no",
                "save_strategy": "no",
                "load_best_model_at_end": False,
            },
            "averaging": {"last": 0},
            "evaluation": {"num_beams": 1},
            "generation": {"num_beams": 2, "max_length_over_source": 30},
        }
    )
    run_recipe(recipe, log=no_log)
    return folder / "run"


def test_a_parser_is_scored_by_the_brackets_of_what_it_writes(finished):
    metrics = json.loads((finished / "metrics.json").read_text())
    scores = metrics["test"]["unseen"]
    assert scores["sentences"] == 8 and 0 <= scores["well_formed"] <= 1
    assert "not a tree" in json.dumps(metrics["data"]["unseen"]) and metrics["data"]["unseen"]["kept"] == 8
    (outputs,) = (finished / "outputs").glob("unseen*")
    trees = outputs.read_text().splitlines()
    gold = [read_tree(line) for line in (finished.parent / "unseen.mrg").read_text().splitlines()[:-1]]
    found = [read_tree(tree) for tree in trees]
    assert scores["f1"] == round(score_trees(found, gold).f1, 2)
    card = (finished / "README.md").read_text()
    assert "| F1 |" in card and "labelled brackets" in card
    data = ModelCard.load(finished / "README.md").data
    assert data.pipeline_tag == "text-generation" and data.eval_results[0].metric_value == scores["f1"]


def test_a_saved_parser_reads_words_and_writes_brackets(finished):
    generator = TextGenerator.from_pretrained(finished)
    assert generator.tokenizer.tokenize("the dog 's") == ["the", "dog", "<unk>"]
    assert {"(S", ")S", "XX"} < set(generator.target_tokenizer.get_vocab())
    assert generator.model.generation_config.max_length_over_source == 30
    ((best,),) = generator.generate(["the dog slept in the house ."])
    assert set(best.text.split()) <= set(generator.target_tokenizer.get_vocab())
