"""Ablations: which runs they are made of, what the table says of them, and what happens where one does not finish."""

import json
import math
import shutil
import signal
import statistics
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from runs import (
    ROOT,
    equal_weights,
    log_of,
    power_cut,
    quiet,
    recipe_values,
    run,
    weights,
)
from vanilla_transformer import cli
from vanilla_transformer.errors import RecipeError, RunInterrupted
from vanilla_transformer.recipes.recipe import Recipe
from vanilla_transformer.runs import ablation_runs
from vanilla_transformer.runs import run as run_module
from vanilla_transformer.runs.ablation import Ablation
from vanilla_transformer.runs.ablation_runs import run_ablation
from vanilla_transformer.runs.ablation_table import markdown_table, print_table
from vanilla_transformer.trainer.trainer import TokenTrainer
from vanilla_transformer.utils.schema import override_fields
from warm_python import warm_python

CELLS = {
    "pre-norm": {"model.norm_position": "pre"},
    "gated": {"model": {"hidden_act": "silu", "gated_feed_forward": True, "intermediate_size": 20}},
}

# each update multiplies the weights by a million, so that they overflow after a few
HOPELESS = {"learning_rate": 1000, "weight_decay": 1000, "max_grad_norm": 0, "warmup_steps": 0}


def ablation_values(folder, cells=CELLS, **section):
    """Runs of four updates."""
    values = recipe_values(folder, "table")
    values["training"] |= {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "gradient_accumulation_steps": 1}
    values["training"] |= {"predict_with_generate": False, "metric_for_best_model": "loss"}
    values["generation"] = {"num_beams": 1, "max_new_tokens": 5}
    values["averaging"] = {"last": 0}
    return {**values, "ablation": {"cells": dict(cells), **section}}


def ablate(values, overrides=(), log=quiet, drawn=False, **options):
    """Without pictures, which take longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr(run_module, "plot_curves", lambda *args: False)
            patch.setattr(ablation_runs, "plot_ablation", lambda *args: False)
        return run_ablation(Ablation.from_dict(override_fields(values, overrides)), log=log, **options)


def metrics_of(folder):
    return json.loads((Path(folder) / "metrics.json").read_text())


def row(table, name):
    return next(cell for cell in table["cells"] if cell["name"] == name)


def written_in(folder):
    """Every file of the runs in a folder, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.stem != "ablation"}


# What is described ---------------------------------------------------------------------------------------------------


def test_cells_are_the_recipe_with_some_fields_changed(tmp_path):
    values = ablation_values(tmp_path)
    table = Ablation.from_dict(values)
    assert [cell.name for cell in table.cells] == ["baseline", "pre-norm", "gated"]
    base, pre, gated = (cell.recipes[1] for cell in table.cells)
    for cell in (base, pre, gated):
        assert Path(cell.tokenizer.path) == tmp_path / "table" / "tokenizer"
    assert [Path(cell.output_dir).name for cell in (base, pre, gated)] == ["baseline", "pre-norm", "gated"]
    assert {n for n in base.model.keys() | pre.model.keys() if base.model.get(n) != pre.model.get(n)} == {
        "norm_position"
    }
    changed = {n for n in gated.model if base.model.get(n) != gated.model[n]}
    assert changed == {"hidden_act", "gated_feed_forward", "intermediate_size"}
    assert base.training == pre.training == gated.training and base.data == pre.data == gated.data


def test_a_grid_combines_every_choice_with_every_other(tmp_path):
    grid = {
        "model.norm_position": ["post", "pre"],
        "norm": {"LayerNorm": {}, "RMSNorm": {"model.norm_type": "rmsnorm"}},
    }
    table = Ablation.from_dict(ablation_values(tmp_path, {}, grid=grid))
    assert {cell.name: cell.changes for cell in table.cells} == {
        "baseline": {},
        "norm_position=post + RMSNorm": {"model.norm_position": "post", "model.norm_type": "rmsnorm"},
        "norm_position=pre + LayerNorm": {"model.norm_position": "pre"},
        "norm_position=pre + RMSNorm": {"model.norm_position": "pre", "model.norm_type": "rmsnorm"},
    }


def test_choices_of_a_grid_are_named_like_folders(tmp_path):
    grid = {"training.learning_rate": ["noam * 2.0", 0.5]}
    names = [cell.name for cell in Ablation.from_dict(ablation_values(tmp_path, {}, grid=grid)).cells]
    assert names == ["baseline", "learning_rate=noam-2.0", "learning_rate=0.5"]


def test_seeds_make_a_run_each(tmp_path):
    table = Ablation.from_dict(ablation_values(tmp_path, seeds=[1, 2]))
    assert [(cell.name, seed) for cell, seed in table.runs()][:4] == [
        ("baseline", 1),
        ("pre-norm", 1),
        ("gated", 1),
        ("baseline", 2),
    ]
    recipes = table.cells[1].recipes
    assert {seed: (recipe.seed, Path(recipe.output_dir).name) for seed, recipe in recipes.items()} == {
        1: (1, "pre-norm"),
        2: (2, "pre-norm-seed-2"),
    }


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (
            {"cells": {"a": {"model.norm_positon": "pre"}}},
            "ablation cell 'a': unknown field model.norm_positon; did you mean 'norm_position'?",
        ),
        ({"cells": {"a": {"modelx.dropout": 0}}}, "ablation cell 'a': unknown field modelx; did you mean 'model'?"),
        (
            {"cells": {"a": {"model.norm_position": "middle"}}},
            "ablation cell 'a': model: VanillaTransformerConfig: ",
        ),
        (
            {"cells": {"a": {"model.norm_position": "post"}}},
            "cell 'a' is the baseline over again: model.norm_position",
        ),
        ({"cells": {"a": {}}}, "cell 'a' is the baseline over again"),
        # by another name of the field, and by the value that the preset has
        ({"cells": {"a": {"model.d_ff": 32, "model.intermediate_size": 32}}}, "cell 'a' is the baseline over again"),
        ({"cells": {"a": {"model.num_key_value_heads": 2}}}, "cell 'a' is the baseline over again"),
        (
            {"cells": {"a": {"model.norm_position": "pre"}, "b": {"model": {"norm_position": "pre"}}}},
            "ablation cells 'a' and 'b' are the same model and run",
        ),
        (
            {"cells": {"a": {"model.dropout": 0}}, "grid": {"model.dropout": [0.1, 0]}},
            "ablation cells 'a' and 'dropout=0' are the same model and run",
        ),
        ({"cells": {"a": {"training.max_steps": 9}}}, "training.max_steps must be the same in all cells"),
        ({"cells": {"a": {"data": {"train": {}}}}}, "data.train must be the same in all cells"),
        ({"cells": {"a": {"seed": 2}}}, "seed must be the same in all cells, or they could not be compared; give"),
        ({"cells": {"a": {"output_dir": "x"}}}, "output_dir is set by the ablation"),
        ({"cells": {"a": "pre"}}, "ablation cell 'a' must be a mapping of fields to values"),
        ({"cells": {"../a": {"model.dropout": 0}}}, "ablation cell '../a': the name is that of a folder"),
        ({"cells": {"Tokenizer": {"model.dropout": 0}}}, "ablation cell 'Tokenizer': the name is that of a folder"),
        ({"cells": {False: {"model.dropout": 0}}}, "ablation cell False: a name must be text"),
        (
            {"cells": {"a": {"model.dropout": 0}, "A": {"model.dropout": 0.2}}},
            "two runs of the ablation would have one folder, 'a'",
        ),
        ({"grid": {"model.dropout": 3}}, "ablation.grid.model.dropout must be a list"),
        ({"cells": {"a" * 250: {"model.dropout": 0}}}, "the name of its folder has 250 bytes and 200 are possible"),
        ({"grid": {"start_from": ["runs/a", "runs:a"]}}, "would both be named 'start_from=runs-a'"),
        ({"cells": {"a": {"tokenizer.vocab_size": 280}}}, "cell 'a' is the baseline over again"),
        (
            {"grid": {"a": {"b": {"model.dropout": 0}}, "model.dropout": [0.2]}},
            "ablation.grid: model.dropout is changed by two axes",
        ),
        ({"grid": {"model.dropout": [0.1]}}, "the ablation has no cell beside the baseline"),
        ({}, "the ablation has no cell beside the baseline"),
        ({"cell": {}}, "unknown field ablation.cell; did you mean 'cells'?"),
        ({"seeds": [1, 1]}, "ablation.seeds=[1, 1] must be a list of different whole numbers"),
        ({"seeds": 3}, "ablation.seeds=3 is of the wrong type"),
    ],
)
def test_what_cannot_be_a_table_is_refused(tmp_path, section, sentence):
    values = {**ablation_values(tmp_path), "ablation": section}
    if "seeds" in section:
        values["ablation"] = {"cells": CELLS, **section}
    with pytest.raises(RecipeError) as error:
        Ablation.from_dict(values)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_recipes_with_and_without_cells_are_told_apart(tmp_path):
    values = ablation_values(tmp_path)
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    assert [cell.name for cell in Ablation.load(path, ["ablation.seeds=[3]"]).cells[1:]] == list(CELLS)
    with pytest.raises(RecipeError, match="has an ablation section.*vanilla-transformer ablate"):
        Recipe.load(path)
    del values["ablation"]
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    with pytest.raises(RecipeError, match="has no ablation section.*vanilla-transformer train"):
        Ablation.load(path)


def test_values_that_transformers_or_the_machine_refuses_are_refused_before_training(tmp_path):
    values = ablation_values(tmp_path, {"a": {"training.optim": "adamm"}})
    with pytest.raises(RecipeError, match="ablation cell 'a': training: .*adamm"):
        ablate(values)
    assert not (tmp_path / "table").exists()


# A finished table ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A table of three cells and two seeds, made by the command; its folder, recipe and what the command printed."""
    folder = tmp_path_factory.mktemp("finished")
    values = ablation_values(folder, seeds=[1, 2])
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    command = [warm_python(), "-m", "vanilla_transformer.cli", "ablate", str(folder / "recipe.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return folder / "table", values, done


def test_a_normal_table_prints_no_warning_and_draws_its_picture(finished):
    folder, _, done = finished
    for sign in ("Warning", "warning", "[transformers]", "Traceback", "deprecated"):
        assert sign not in done.stdout + done.stderr, done.stderr
    assert "run 6 of 6: gated, seed 2" in done.stderr
    for text in ("pre-norm", "model.norm_position=pre", "validation loss", "BLEU, unseen"):
        assert text in done.stdout
    assert (folder / "ablation.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} == {
        "ablation.json",
        "ablation.md",
        "ablation.png",
        "ablation.yaml",
        "tokenizer",
        *("baseline", "baseline-seed-2", "pre-norm", "pre-norm-seed-2", "gated", "gated-seed-2"),
    }


def test_the_numbers_of_the_table_are_those_of_the_runs(finished):
    folder, values, _ = finished
    table = json.loads((folder / "ablation.json").read_text())
    assert table["score"]["key"] == "bleu" and table["score"]["data"] == "unseen"
    differences = {}
    for cell in table["cells"]:
        names = (cell["name"], f"{cell['name']}-seed-2")
        metrics = [metrics_of(folder / name) for name in names]
        scores = [m["test"]["unseen"]["bleu"] for m in metrics]
        losses = [min(e["eval_loss"] for e in log_of(folder / name) if "eval_loss" in e) for name in names]
        assert [r["status"] for r in cell["runs"]] == ["finished", "finished"]
        assert [r["score"] for r in cell["runs"]] == scores
        assert [r["validation_loss"] for r in cell["runs"]] == losses
        assert cell["score"] == pytest.approx(sum(scores) / 2)
        assert cell["score_spread"] == pytest.approx(abs(scores[0] - scores[1]) / math.sqrt(2))
        assert cell["validation_loss"] == pytest.approx(sum(losses) / 2)
        assert cell["validation_loss_spread"] == pytest.approx(statistics.stdev(losses))
        assert {m["training"]["parameters"] for m in metrics} == {cell["parameters"]}
        assert cell["updates"] == metrics[0]["training"]["updates"] == 4
        differences[cell["name"]] = [losses, scores]
    for name in CELLS:
        for key, own, base in zip(
            ("validation_loss", "score"), differences[name], differences["baseline"], strict=True
        ):
            deltas = [a - b for a, b in zip(own, base, strict=True)]
            assert row(table, name)[f"{key}_delta"] == pytest.approx(statistics.fmean(deltas))
            assert row(table, name)[f"{key}_delta_spread"] == pytest.approx(statistics.stdev(deltas))
    # seeds differ, and the models do
    assert row(table, "baseline")["validation_loss_spread"] > 0
    assert row(table, "baseline")["parameters"] != row(table, "pre-norm")["parameters"]


def test_the_text_says_what_the_numbers_are(finished):
    folder, _, _ = finished
    table = json.loads((folder / "ablation.json").read_text())
    text = (folder / "ablation.md").read_text()
    lines = text.splitlines()
    shown = next(line for line in lines if line.startswith("| pre-norm |"))
    cell = row(table, "pre-norm")
    assert f"{cell['validation_loss']:.4f} ± {cell['validation_loss_spread']:.4f}" in shown
    assert f"{cell['validation_loss_delta']:+.4f}" in shown and f"{cell['parameters']:,}" in shown
    assert "- Scores are BLEU (nrefs:1|" in text and "Means of the seeds 1, 2" in text
    assert "![" in text and "(ablation.png)" in text
    header = next(line for line in lines if line.startswith("| cell"))
    assert {line.count("|") - line.count("\\|") for line in lines if line.startswith("|")} == {header.count("|")}


def test_a_cell_is_the_run_that_its_recipe_makes_alone(finished, tmp_path):
    folder, _, _ = finished
    recipe = Recipe.load(folder / "gated" / "recipe.yaml", [f"output_dir={tmp_path / 'alone'}"])
    run(recipe.to_dict())
    assert equal_weights(weights(tmp_path / "alone"), weights(folder / "gated"))


def test_a_finished_table_is_not_trained_again_but_grows(finished):
    folder, values, _ = finished
    before, described = written_in(folder), json.loads((folder / "ablation.json").read_text())
    with pytest.raises(RecipeError, match="is not empty; give --resume"):
        ablate(values)
    more = {**values, "ablation": {"cells": {**CELLS, "no-positions": {"model.position_encoding": "none"}}}}
    table = ablate(more, resume=True)
    assert [cell["name"] for cell in table["cells"]] == ["baseline", "pre-norm", "gated", "no-positions"]
    assert {path: time for path, time in written_in(folder).items() if path in before} == before
    lines = []
    assert ablate(more, resume=True, log=lines.append) == table
    assert sum("is finished" in line for line in lines) == 4
    with pytest.raises(RecipeError, match="model.dropout of cell 'baseline' differs from"):
        ablate(more, ["model.dropout=0.4"], resume=True)
    shutil.rmtree(folder / "no-positions")
    assert ablate(values, resume=True, drawn=True) == described


def test_cells_and_seeds_that_a_resumed_table_no_longer_names_stay_in_it(tmp_path):
    values = ablation_values(tmp_path, {"pre-norm": CELLS["pre-norm"]}, seeds=[1, 2])
    first = ablate(values)
    written = written_in(tmp_path / "table")
    other = ablation_values(tmp_path, {"gated": CELLS["gated"]}, seeds=[1])
    table = ablate(other, resume=True)
    assert [cell["name"] for cell in table["cells"]] == ["baseline", "gated", "pre-norm"] and table["seeds"] == [1, 2]
    assert row(table, "baseline") == row(first, "baseline") and row(table, "pre-norm") == row(first, "pre-norm")
    assert row(table, "gated")["validation_loss_delta"] == pytest.approx(
        row(table, "gated")["validation_loss"] - row(first, "baseline")["runs"][0]["validation_loss"]
    )
    assert written.items() <= written_in(tmp_path / "table").items(), "nothing is trained again"
    assert ablate(other, resume=True) == table
    # what was deleted is no longer part of it
    for seed in ("", "-seed-2"):
        shutil.rmtree(tmp_path / "table" / f"pre-norm{seed}")
    assert [cell["name"] for cell in ablate(other, resume=True)["cells"]] == ["baseline", "gated"]
    (tmp_path / "table" / "ablation.json").write_text('{"score": null, "cells": [{"name": 3}]}')
    with pytest.raises(RecipeError, match="ablation.json is damaged .*; delete it, and the table is made again"):
        ablate(other, resume=True)


def test_a_picture_that_cannot_be_drawn_costs_no_more_than_the_picture(finished, tmp_path, monkeypatch):
    values = ablation_values(tmp_path, {"pre-norm": CELLS["pre-norm"]})
    lines = []

    def broken(*args):
        raise KeyError("no such font")

    monkeypatch.setattr(run_module, "plot_curves", broken)
    monkeypatch.setattr(run_module, "write_model_card", broken)
    monkeypatch.setattr(ablation_runs, "plot_ablation", broken)
    table = ablate(values, log=lines.append, drawn=True)
    assert all(run["status"] == "finished" for cell in table["cells"] for run in cell["runs"])
    folder = tmp_path / "table"
    assert "curves.png was not drawn (KeyError: 'no such font'); trainer_state.json holds its numbers." in lines
    assert "README.md was not written (KeyError: 'no such font'); metrics.json holds what it would say." in lines
    assert "ablation.png was not drawn (KeyError: 'no such font'); ablation.json holds its numbers." in lines
    assert weights(folder / "baseline") and "ablation.png" not in (folder / "ablation.md").read_text()


def test_a_tokenizer_that_is_there_already_is_a_choice(tmp_path):
    values = ablation_values(tmp_path, {"words": {"tokenizer.path": str(tmp_path / "words")}})
    (recipe,) = Ablation.from_dict(values).cells[1].recipes.values()
    assert recipe.tokenizer.path == str(tmp_path / "words")


# Runs that do not finish ---------------------------------------------------------------------------------------------


def test_an_interrupted_table_goes_on_to_the_same_result(finished, tmp_path, monkeypatch):
    whole, values = finished[0], ablation_values(tmp_path)
    step = TokenTrainer.training_step

    def interrupted(self, *args, **kwargs):
        if Path(self.args.output_dir).name == "pre-norm" and self.state.global_step == 3:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with (
        monkeypatch.context() as patch,
        pytest.raises(
            RunInterrupted,
            match="checkpoint-2 is kept; resume with: vanilla-transformer ablate .*ablation.yaml --resume",
        ),
    ):
        patch.setattr(TokenTrainer, "training_step", interrupted)
        ablate(values)
    folder = tmp_path / "table"
    table = json.loads((folder / "ablation.json").read_text())
    assert [cell["runs"][0]["status"] for cell in table["cells"]] == ["finished", "waiting", "waiting"]
    before = written_in(folder / "baseline")
    lines = []
    table = ablate(values, resume=True, log=lines.append)
    assert any(line.startswith("resuming from") and line.endswith("checkpoint-2") for line in lines)
    assert before and written_in(folder / "baseline") == before
    unbroken = json.loads((whole / "ablation.json").read_text())
    for name in ("baseline", "pre-norm", "gated"):
        assert equal_weights(weights(folder / name), weights(whole / name))
        own, other = row(table, name)["runs"][0], row(unbroken, name)["runs"][0]
        for key in ("seed", "status", "updates", "validation_loss", "score", "curve"):
            assert own[key] == other[key]


def test_a_signal_that_is_lost_in_a_destructor_still_ends_the_table_before_its_next_run(tmp_path, monkeypatch):
    """Python prints what is raised there, and continues."""

    class Freed:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    values, lost = ablation_values(tmp_path), []

    def collect():
        if not lost:
            lost.append(Freed())
            lost[0] = None

    monkeypatch.setattr(ablation_runs, "gc", SimpleNamespace(collect=collect))  # after each run
    with pytest.raises(RunInterrupted, match="interrupted .* by SIGTERM; .* ablate .*ablation.yaml --resume"):
        ablate(values)
    assert lost and [p.parent.name for p in (tmp_path / "table").glob("*/metrics.json")] == ["baseline"]


def test_a_killed_run_is_a_failed_one_and_goes_on(tmp_path):
    values = ablation_values(tmp_path)
    original = ablation_runs.run_recipe

    def failing(recipe, **options):
        if Path(recipe.output_dir).name == "pre-norm":
            with power_cut(3):
                original(recipe, **options)
            raise RuntimeError("power\n cut")
        return original(recipe, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation_runs, "run_recipe", failing)
        table = ablate(values)
    cell = row(table, "pre-norm")
    assert (cell["runs"][0]["status"], cell["runs"][0]["reason"]) == ("failed", "RuntimeError: power cut")
    assert [step for step, _ in cell["runs"][0]["curve"]] == [2]
    assert cell["score"] is None and row(table, "gated")["score"] is not None
    table = ablate(values, resume=True)
    assert row(table, "pre-norm")["runs"][0]["status"] == "finished" and row(table, "pre-norm")["updates"] == 4


@pytest.mark.parametrize("name", ["trainer_state.json", "metrics.json", "diverged.json", "recipe.yaml"])
def test_a_damaged_run_is_a_failed_one_until_it_is_deleted(finished, tmp_path, name):
    whole = tmp_path / "table"
    shutil.copytree(finished[0], whole)
    values = ablation_values(tmp_path)
    damaged = whole / "pre-norm" / name
    if name == "recipe.yaml":
        damaged.unlink()
    else:
        damaged.write_text("{}")
    # runs know where they are
    for recipe in whole.rglob("recipe.yaml"):
        recipe.write_text(recipe.read_text().replace(str(finished[0].parent), str(tmp_path)))
    table = ablate(values, resume=True)
    run = row(table, "pre-norm")["runs"][0]
    assert run["status"] == "failed" and str(damaged) in run["reason"]
    assert [row(table, other)["runs"][0]["status"] for other in ("baseline", "gated")] == ["finished"] * 2
    shutil.rmtree(whole / "pre-norm")
    assert row(ablate(values, resume=True), "pre-norm")["runs"][0]["status"] == "finished"


def test_a_disk_that_is_full_from_the_start_ends_in_one_sentence(tmp_path, monkeypatch):
    values = ablation_values(tmp_path)
    for kept in (Path, PreTrainedTokenizerBase):

        def full(*args, **kwargs):
            raise Exception("No space left on device (os error 28)")

        with monkeypatch.context() as patch:
            patch.setattr(kept, "write_text" if kept is Path else "save_pretrained", full)
            with pytest.raises(OSError, match="could not be written: No space left on device.*; make room and"):
                ablate(values)
    assert not any(path.name.endswith("partial") for path in (tmp_path / "table").iterdir())
    assert all(cell["runs"][0]["status"] == "finished" for cell in ablate(values, resume=True)["cells"])


def test_a_diverged_cell_is_a_row_that_says_why(tmp_path, capsys):
    hopeless = {f"training.{name}": value for name, value in HOPELESS.items()}
    values = ablation_values(tmp_path, {"hopeless": hopeless, **CELLS})
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    for options in ([], ["--resume"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["ablate", str(path), *options])
        assert end.value.code == 1
        printed = capsys.readouterr()
        assert "hopeless: diverged at update" in printed.out
    assert "delete it to train it again" in printed.err
    table = json.loads((tmp_path / "table" / "ablation.json").read_text())
    cell = row(table, "hopeless")
    assert cell["runs"][0]["status"] == "diverged" and "diverged at update" in cell["runs"][0]["reason"]
    assert cell["score"] is None and cell["score_delta"] is None
    assert cell["parameters"] == row(table, "baseline")["parameters"]
    assert all(row(table, name)["runs"][0]["status"] == "finished" for name in ("baseline", *CELLS))
    assert "| diverged |" in (tmp_path / "table" / "ablation.md").read_text()


def test_a_table_without_its_baseline_has_no_differences(tmp_path):
    values = ablation_values(tmp_path)
    values["training"] |= HOPELESS
    sane = {"training.learning_rate": 0.01, "training.weight_decay": 0, "training.max_grad_norm": 1.0}
    values["ablation"]["cells"] = {"sane": sane}
    table = ablate(values)
    assert [cell["runs"][0]["status"] for cell in table["cells"]] == ["diverged", "finished"]
    assert row(table, "sane")["score"] is not None and row(table, "sane")["score_delta"] is None


def test_data_that_cannot_be_read_ends_a_table_before_training(tmp_path):
    values = ablation_values(tmp_path)
    Path(values["data"]["test"]["unseen"]["source"]).unlink()
    with pytest.raises(FileNotFoundError):
        ablate(values)
    assert not (tmp_path / "table").exists()


def test_folders_of_something_else_are_not_touched(tmp_path):
    values = ablation_values(tmp_path)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "notes.txt").write_text("mine")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(RecipeError, match="holds no ablation"):
            ablate(values, **options)
    with pytest.raises(RecipeError, match="give one of them"):
        ablate(values, resume=True, overwrite=True)
    assert (tmp_path / "table" / "notes.txt").read_text() == "mine"
    (tmp_path / "table" / "notes.txt").unlink()
    (tmp_path / "table" / "ablation.yaml").write_text("{}")
    (tmp_path / "table" / "old").mkdir()
    ablate(values, overwrite=True)
    assert not (tmp_path / "table" / "old").exists() and (tmp_path / "table" / "gated" / "metrics.json").is_file()


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="runs in one process"):
        ablate(ablation_values(tmp_path))


# Other tasks, other tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "key", "percent"),
    [
        ("causal-lm", "loss", False),
        ("masked-lm", "accuracy", True),
        ("sequence-classification", "accuracy", True),
        ("token-classification", "f1", True),
    ],
)
def test_every_task_is_compared_by_its_own_score(tmp_path, task, key, percent):
    from test_tasks import recipe

    values = recipe(tmp_path, task)
    values["training"] |= {"max_steps": 2, "eval_steps": 1, "save_steps": 1, "gradient_accumulation_steps": 1}
    values["ablation"] = {"cells": {"pre-norm": {"model.norm_position": "pre"}}}
    table = ablate(values, drawn=True)
    assert (tmp_path / "run" / "ablation.png").read_bytes().startswith(b"\x89PNG")
    score = table["score"]
    assert (score["key"], score["percent"], score["lower_is_better"]) == (key, percent, key == "loss")
    for cell in table["cells"]:
        metrics = metrics_of(tmp_path / "run" / cell["name"])
        assert cell["score"] == metrics["test"]["unseen"][key] and cell["validation_loss"] is not None
        assert cell["parameters"] == metrics["training"]["parameters"]
    shown = next(line for line in markdown_table(table).splitlines() if line.startswith("| pre-norm"))
    value = row(table, "pre-norm")["score"]
    assert f"{100 * value:.2f}" in shown if percent else f"{value:.4f}" in shown


def test_cells_with_tokens_of_their_own_are_marked_and_scored_on_validation_data(tmp_path):
    values = ablation_values(tmp_path, {"small [a]": {"tokenizer.vocab_size": 265}})
    values["data"]["test"] = {}
    with pytest.raises(RecipeError, match="the name is that of a folder"):
        Ablation.from_dict(values)
    values["ablation"]["cells"] = {"small": {"tokenizer.vocab_size": 265}}
    table = ablate(values)
    base, small = table["cells"]
    assert base["parameters"] - small["parameters"] == 15 * 16
    assert "Losses per token of small" in markdown_table(table)
    scores = metrics_of(tmp_path / "table" / "small")["model"]
    assert table["score"]["data"] == "validation"
    assert small["score"] == scores["validation"][scores["weights"]]["bleu"]


def test_separate_vocabularies_are_shared_by_all_cells(tmp_path):
    values = ablation_values(tmp_path, {"pre-norm": CELLS["pre-norm"]})
    table = ablate(values, ["tokenizer.shared=false"])
    tokenizers = [
        (tmp_path / "table" / name / "target_tokenizer" / "tokenizer.json").read_text()
        for name in ("baseline", "pre-norm")
    ]
    assert tokenizers[0] == tokenizers[1]
    assert (
        row(table, "baseline")["parameters"] == metrics_of(tmp_path / "table" / "baseline")["training"]["parameters"]
    )


def test_what_looks_like_markup_is_printed_as_it_is(finished, tmp_path):
    table = json.loads((finished[0] / "ablation.json").read_text())
    table["cells"][1]["changes"] = {"model.eos_token_id": [1, 2]}
    for width in (90, 200):  # below the columns and in one
        with (tmp_path / "out").open("w") as stream:
            print_table(table, Console(file=stream, width=width))
        printed = (tmp_path / "out").read_text()
        assert "model.eos_token_id=[1, 2]" in printed and ("what differs" in printed) == (width == 200)
        assert all(f"{cell['score_delta']:+.2f} ± " in printed for cell in table["cells"][1:])


def test_the_costs_of_each_cell_stand_in_the_table(finished):
    table = json.loads((finished[0] / "ablation.json").read_text())
    assert "| MFLOPs/token | memory (MB) |" in markdown_table(table)
    base, pre, gated = table["cells"]
    for cell in (base, pre, gated):
        # a token passes one of the two stacks: some 6 operations for each weight of a matrix there, and attention
        assert 2 * cell["parameters"] < cell["flops_per_token"] < 12 * cell["parameters"]
        assert 50 < cell["peak_memory_mb"] < 20_000
    assert base["flops_per_token"] == pytest.approx(pre["flops_per_token"], rel=0.01)
    assert gated["flops_per_token"] != base["flops_per_token"]


def test_a_table_that_is_scored_by_the_validation_loss_has_it_once(finished):
    table = json.loads((finished[0] / "ablation.json").read_text())
    loss = {
        "key": "loss",
        "heading": "cross entropy",
        "label": "cross entropy",
        "percent": False,
        "lower_is_better": True,
    }
    for data, columns in (("validation", 10), ("unseen", 12)):
        table["score"] = {**loss, "data": data}
        lines = [line for line in markdown_table(table).splitlines() if line.startswith("|")]
        assert {line.count("|") - 1 for line in lines} == {columns}
        assert ("validation loss" in lines[0]) == (data == "unseen")


def test_names_of_a_table_are_no_markdown(finished):
    table = json.loads((finished[0] / "ablation.json").read_text())
    table["title"], table["cells"][1]["name"] = "Mine\n# <b>", "a*b* | $c$"
    text = markdown_table(table)
    assert text.startswith("# Mine # \\<b>\n") and r"| a\*b\* \| \$c\$ |" in text


def test_the_table_of_multi30k_has_every_choice():
    table = Ablation.load(ROOT / "scripts" / "recipes" / "multi30k_ablation.yaml")
    config = {cell.name: next(iter(cell.recipes.values())).config() for cell in table.cells}
    assert {c.norm_position for c in config.values()} == {"post", "pre"}
    assert {c.norm_type for c in config.values()} == {"layernorm", "rmsnorm"}
    assert {c.gated_feed_forward for c in config.values()} == {False, True}
    assert {c.position_encoding for c in config.values()} == {
        "sinusoidal",
        "learned",
        "rope",
        "relative",
        "none",
    }
    sizes = {name: c.num_parameters() for name, c in config.items() if c.position_encoding == "sinusoidal"}
    assert max(sizes.values()) < 1.01 * min(sizes.values())


def test_a_resumed_table_is_of_the_data_that_it_was_begun_with(tmp_path):
    """The name of a file stays, what stands in it does not."""
    values = ablation_values(tmp_path, {"pre-norm": CELLS["pre-norm"]})
    ablate(values)
    before = written_in(tmp_path / "table")
    source = Path(values["data"]["train"]["source"])
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("red", "dog"), encoding="utf-8")
    assert source.read_text(encoding="utf-8") != text
    with pytest.raises(RecipeError, match=r"different data: train changed since .*baseline was trained"):
        ablate(values, resume=True)
    assert written_in(tmp_path / "table") == before
    source.write_text(text, encoding="utf-8")
    ablate(values, resume=True)
