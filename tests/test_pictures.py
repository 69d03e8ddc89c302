"""Pictures of runs: any name is drawn as it stands, and one that cannot be drawn costs itself alone."""

import json
import warnings

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.figure import Figure

from runs import recipe_values, run
from vanilla_transformer.runs.plots import plot_ablation, plot_curves
from vanilla_transformer.utils.pictures import fonts_for

LOG = [{"step": 1, "loss": 3.0, "learning_rate": 0.1}, {"step": 2, "eval_loss": 2.0, "eval_bleu": 5.0}]
FORMULAS = ["price $5 and $6", "$", "$x_1$", r"\frac{a}{b} $\broken{$", "_{}^", "100 %", "\\"]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn; a warning, of a glyph that no font has, is an error."""
    found, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: found.append(self) or save(self, *args, **kwargs)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield found


def table_of(names, title="table"):
    cells = [
        {
            "name": name,
            "runs": [{"curve": [[1, 3.0], [2, 2.0]], "status": "finished"}],
            "score_delta": number,
            "score_delta_spread": None,
        }
        for number, name in enumerate(names)
    ]
    score = {"percent": False, "heading": "BLEU", "data": names[-1], "lower_is_better": False}
    return {"title": title, "cells": cells, "score": score}


@pytest.mark.parametrize("name", FORMULAS)
def test_text_is_never_a_formula(name, figures, tmp_path):
    assert plot_curves(LOG, tmp_path / "curves.png", name, (("bleu", "BLEU", 1),), 0.1)
    assert plot_ablation(table_of(["baseline", name], name), tmp_path / "ablation.png")
    curves, ablation = figures
    assert curves._suptitle.get_text() == ablation._suptitle.get_text() == name
    labels = [text.get_text() for text in ablation.axes[0].get_legend().get_texts()]
    assert labels == ["baseline", name] and ablation.axes[1].get_yticklabels()[0].get_text() == name
    assert not curves._suptitle.get_parse_math()


def test_the_legend_says_which_loss_is_smoothed(figures, tmp_path):
    plot_curves(LOG, tmp_path / "curves.png", "run", (), 0.1)
    plot_curves(LOG, tmp_path / "curves.png", "run", (), 0.0)
    smoothed, plain = ([text.get_text() for text in f.axes[0].get_legend().get_texts()] for f in figures)
    assert smoothed == ["training (with dropout, labels smoothed by 0.1)", "validation (without either)"]
    assert plain == ["training (with dropout)", "validation"]


def test_chinese_is_drawn_where_a_font_is_there_and_named_by_its_number_elsewhere(figures, tmp_path, monkeypatch):
    name = "\U000200a4 run"  # a rare character
    fonts_for.cache_clear()
    own = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    assert plot_curves(LOG, tmp_path / "curves.png", name, ())
    assert figures[-1]._suptitle.get_text() == "U+200A4 run"

    pen = TTGlyphPen(None)
    for point in ((100, 0), (100, 700), (600, 700)):
        (pen.lineTo if pen.points else pen.moveTo)(point)
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "rare"])
    builder.setupCharacterMap({0x200A4: "rare"})
    builder.setupGlyf({".notdef": TTGlyphPen(None).glyph(), "rare": pen.glyph()})
    builder.setupHorizontalMetrics({".notdef": (500, 0), "rare": (700, 100)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Rare Characters", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "rare.ttf")
    fonts_for.cache_clear()
    font_manager.fontManager.addfont(tmp_path / "rare.ttf")
    assert plot_curves(LOG, tmp_path / "curves.png", name, ())
    assert figures[-1]._suptitle.get_text() == name
    fonts_for.cache_clear()


def test_a_picture_that_cannot_be_drawn_costs_the_picture_alone(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("no such\nfont")

    monkeypatch.setattr(Figure, "suptitle", broken)
    said, values = [], recipe_values(tmp_path)
    values["output_dir"] = str(tmp_path / "price $5 and $6")
    result = run(values, ["training.max_steps=1", "data.test={}", "averaging.last=0"], log=said.append)
    assert "curves.png was not drawn (ValueError: no such); trainer_state.json holds its numbers." in said
    names = {path.name for path in result.folder.iterdir()}
    assert {"model.safetensors", "metrics.json", "README.md"} <= names and "curves.png" not in names
    assert "curves.png" not in (result.folder / "README.md").read_text()
    assert json.loads((result.folder / "metrics.json").read_text())["training"]["updates"] == 1
