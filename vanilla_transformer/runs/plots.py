"""Curves of a run, and of the runs of an ablation, as pictures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.pictures import fonts_for, picture_format

__all__ = ["plot_ablation", "plot_curves"]

# Okabe and Ito's colours, told apart by colour-blind readers too, without the yellow that is lost on white; black is the
# baseline's. Where there are more lines than colours, the dashes and markers differ.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES, MARKERS = ("solid", "dashed", "dotted", "dashdot"), "osD^vPX"


def _text_as_it_stands(text: str) -> tuple[Any, Callable[[str], str]]:
    """Return matplotlib's settings for text that is no formula, whatever is in it, in fonts that can draw it.

    And a function that puts code points in the place of characters that no font here can draw.
    """
    families, drawable = fonts_for(text)

    def readable(name: str) -> str:
        return "".join(c if c in drawable or c.isspace() else f"U+{ord(c):04X}" for c in name)

    return {"text.parse_math": False, "font.family": families}, readable


def plot_curves(
    log_history: list[dict[str, Any]],
    path: str | Path,
    title: str,
    scores: Sequence[tuple[str, str, float]],
    label_smoothing: float = 0.0,
) -> bool:
    """Draw loss, validation scores and learning rate over the updates.

    Args:
        log_history: of `TrainerState`.
        path: of the PNG.
        title: of the run.
        scores: of evaluations: their keys, labels, and what to multiply them by.
        label_smoothing: of the training loss; that of evaluations has none, so that the two do not compare.

    Returns:
        False where matplotlib is not installed (extra `plots`), and no picture was made.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False

    def series(name: str) -> tuple[list[int], list[float]]:
        points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
        return [p[0] for p in points], [float(p[1]) for p in points]

    style, readable = _text_as_it_stands(title)
    with matplotlib.rc_context(style):
        smoothed = f", labels smoothed by {label_smoothing:g}" if label_smoothing else ""
        figure = Figure(figsize=(12, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        loss_axis, score_axis, rate_axis = figure.subplots(1, 3)
        loss_axis.plot(*series("loss"), label=f"training (with dropout{smoothed})", color="tab:gray", linewidth=1)
        loss_axis.plot(
            *series("eval_loss"), label="validation (without either)" if smoothed else "validation", color="tab:blue"
        )
        loss_axis.set_ylabel("cross entropy per token (nats)")
        for (name, label, scale), color in zip(scores, ("tab:green", "tab:olive", "tab:purple"), strict=False):
            steps, values = series(f"eval_{name}")
            if steps:
                score_axis.plot(steps, [scale * value for value in values], label=label, color=color)
        score_axis.set_ylabel("validation score")
        rate_axis.plot(*series("learning_rate"), color="tab:red", label="learning rate")
        rate_axis.set_ylabel("learning rate")
        for axis in (loss_axis, score_axis, rate_axis):
            axis.set_xlabel("update")
            axis.grid(alpha=0.3)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(fontsize=8)
        figure.suptitle(readable(title))
        with atomic_file(path, "wb") as stream:
            figure.savefig(stream, format=picture_format(path), dpi=120)
    return True


def plot_ablation(table: dict[str, Any], path: str | Path) -> bool:
    """Draw the validation loss of all cells of an ablation over the updates, and how their scores differ from the baseline's.

    Of several seeds the lines and bars are means; a band goes from the lowest to the highest, a whisker a standard deviation
    either way.

    Args:
        table: what `ablation.json` holds.
        path: of the PNG.

    Returns:
        False where matplotlib is not installed (extra `plots`), and no picture was made.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    names = "".join(cell["name"] for cell in table["cells"])
    style, readable = _text_as_it_stands(f"{table['title']}{names}{(table['score'] or {}).get('data', '')}")
    cells = [{**cell, "name": readable(cell["name"])} for cell in table["cells"]]
    score = table["score"] and {**table["score"], "data": readable(table["score"]["data"])}
    shown = {**table, "title": readable(table["title"]), "cells": cells, "score": score}
    with matplotlib.rc_context(style):
        _draw_ablation(Figure, FigureCanvasAgg, shown, path)
    return True


def _draw_ablation(figure_class: Any, canvas_class: Any, table: dict[str, Any], path: str | Path) -> None:
    cells, score = table["cells"], table["score"]
    figure = figure_class(figsize=(13, max(4.5, 1.5 + 0.42 * len(cells))), layout="constrained")
    canvas_class(figure)
    loss_axis, score_axis = figure.subplots(1, 2)

    for number, cell in enumerate(cells):
        curves = [dict(run["curve"]) for run in cell["runs"] if run["curve"]]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        if not steps:
            continue
        losses = [[curve[step] for curve in curves] for step in steps]
        color, dashes = (
            ("black", "solid")
            if number == 0
            else (
                COLORS[(number - 1) % len(COLORS)],
                DASHES[(number - 1) // len(COLORS) % len(DASHES)],
            )
        )
        loss_axis.plot(
            steps,
            [sum(values) / len(values) for values in losses],
            label=str(number),
            color=color,
            linestyle=dashes,
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            linewidth=2.5 if number == 0 else 1.5,
        )
        if len(curves) > 1:
            loss_axis.fill_between(steps, list(map(min, losses)), list(map(max, losses)), color=color, alpha=0.15)
    loss_axis.set_xlabel("update")
    loss_axis.set_ylabel("validation loss (nats)")
    loss_axis.grid(alpha=0.3)
    if loss_axis.get_legend_handles_labels()[0]:
        # a label that begins with an underscore would be left out
        for text in loss_axis.legend(fontsize=9).get_texts():
            text.set_text(cells[int(text.get_text())]["name"])

    scale = 100 if score and score["percent"] else 1
    digits = 4 if score and score["lower_is_better"] else 2
    others = cells[1:]
    for place, cell in enumerate(others):
        delta, spread = cell["score_delta"], cell["score_delta_spread"]
        if delta is None:
            status = next((run["status"] for run in cell["runs"] if run["status"] != "finished"), "no baseline")
            score_axis.annotate(status, (0, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
            continue
        better = (delta < 0) == bool(score and score["lower_is_better"]) and delta != 0
        score_axis.barh(
            place,
            scale * delta,
            xerr=None if spread is None else scale * spread,
            color=COLORS[0] if better else COLORS[1],
            hatch="" if better else "//",
            edgecolor="white",
            capsize=3,
        )
        end = scale * (delta + (spread or 0) * (1 if delta >= 0 else -1))
        score_axis.annotate(
            f"{scale * delta:+.{digits}f}",
            (end, place),
            (4 if delta >= 0 else -4, 0),
            textcoords="offset points",
            ha="left" if delta >= 0 else "right",
            va="center",
            fontsize=9,
        )
    score_axis.axvline(0, color="black", linewidth=1)
    score_axis.set_yticks(range(len(others)), [cell["name"] for cell in others])
    score_axis.set_ylim(len(others) - 0.4, -0.6)
    score_axis.margins(x=0.2)
    score_axis.grid(axis="x", alpha=0.3)
    if score:
        heading = f"{score['heading']}{' (points)' if score['percent'] else ''}, {score['data']}"
        direction = "lower is better" if score["lower_is_better"] else "higher is better"
        score_axis.set_xlabel(f"{heading}: difference to the baseline ({direction})")
    figure.suptitle(table["title"])
    with atomic_file(path, "wb") as stream:
        figure.savefig(stream, format=picture_format(path), dpi=120)
