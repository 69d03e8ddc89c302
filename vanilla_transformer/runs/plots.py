"""Curves of a run, and of the runs of an ablation, as pictures."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.pictures import fonts_for, picture_format

# Okabe and Ito's colours, which colour-blind readers can distinguish too, without the yellow that is lost on white; black is
# the baseline's. Where there are more lines than colours, the dashes and markers differ.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES, MARKERS = ("solid", "dashed", "dotted", "dashdot"), "osD^vPX"


@contextmanager
def _figure(path: str | Path, text: str, **size: Any) -> Iterator[tuple[Any, Callable[[str], str]]]:
    """Give a figure that is saved at the end of the block; text in it is no formula, whatever is in it.

    Args:
        path: of the picture.
        text: all that will stand in it beside this module's own, for fonts that can draw it.

    Yields:
        The figure, and a function that puts code points in the place of characters that no font here can draw.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    families, drawable = fonts_for(text)

    def readable(name: str) -> str:
        return "".join(c if c in drawable or c.isspace() else f"U+{ord(c):04X}" for c in name)

    with matplotlib.rc_context({"text.parse_math": False, "font.family": families}):
        figure = Figure(layout="constrained", **size)
        FigureCanvasAgg(figure)
        yield figure, readable
        with atomic_file(path, "wb") as stream:
            figure.savefig(stream, format=picture_format(path), dpi=120)


def _can_draw() -> bool:
    """Return whether matplotlib (extra `plots`) is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


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
    if not _can_draw():
        return False

    def series(name: str) -> tuple[list[int], list[float]]:
        points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
        return [p[0] for p in points], [float(p[1]) for p in points]

    with _figure(path, title, figsize=(12, 3.6)) as (figure, readable):
        smoothed = f", labels smoothed by {label_smoothing:g}" if label_smoothing else ""
        loss_axis, score_axis, rate_axis = figure.subplots(1, 3)
        # one picture each: loss, scores, learning rate
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
    if not _can_draw():
        return False
    cells, score = table["cells"], table["score"]
    text = f"{table['title']}{''.join(cell['name'] for cell in cells)}{(score or {}).get('data', '')}"
    with _figure(path, text, figsize=(13, max(4.5, 1.5 + 0.42 * len(cells)))) as (figure, readable):
        loss_axis, score_axis = figure.subplots(1, 2)
        _draw_losses(loss_axis, cells, readable)
        _draw_scores(score_axis, cells, score, readable)
        figure.suptitle(readable(table["title"]))
    return True


def _draw_losses(axis: Any, cells: list[dict[str, Any]], readable: Callable[[str], str]) -> None:
    for number, cell in enumerate(cells):
        curves = [dict(run["curve"]) for run in cell["runs"] if run["curve"]]
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        if not steps:
            continue
        losses = [[curve[step] for curve in curves] for step in steps]
        turn, color = divmod(number - 1, len(COLORS))
        style = {"color": "black", "linewidth": 2.5}
        if number:
            style = {"color": COLORS[color], "linestyle": DASHES[turn % len(DASHES)], "linewidth": 1.5}
        means = [sum(values) / len(values) for values in losses]
        axis.plot(steps, means, label=str(number), marker=MARKERS[number % len(MARKERS)], markersize=4, **style)
        if len(curves) > 1:
            low, high = list(map(min, losses)), list(map(max, losses))
            axis.fill_between(steps, low, high, color=style["color"], alpha=0.15)
    axis.set_xlabel("update")
    axis.set_ylabel("validation loss (nats)")
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        # a label that begins with an underscore would be left out
        for text in axis.legend(fontsize=9).get_texts():
            text.set_text(readable(cells[int(text.get_text())]["name"]))


def _draw_scores(axis: Any, cells: list[dict[str, Any]], score: Any, readable: Callable[[str], str]) -> None:
    scale = 100 if score and score["percent"] else 1
    lower_is_better = bool(score and score["lower_is_better"])
    others = cells[1:]
    for place, cell in enumerate(others):
        delta, spread = cell["score_delta"], cell["score_delta_spread"]
        if delta is None:
            text = next((run["status"] for run in cell["runs"] if run["status"] != "finished"), "no baseline")
            end, side = 0.0, 1
        else:
            text, side = f"{scale * delta:+.{4 if lower_is_better else 2}f}", 1 if delta >= 0 else -1
            end = scale * (delta + (spread or 0) * side)
            better = (delta < 0) == lower_is_better and delta != 0
            axis.barh(
                place,
                scale * delta,
                xerr=None if spread is None else scale * spread,
                color=COLORS[0] if better else COLORS[1],
                hatch="" if better else "//",
                edgecolor="white",
                capsize=3,
            )
        alignment = "left" if side > 0 else "right"
        axis.annotate(
            text, (end, place), (4 * side, 0), textcoords="offset points", ha=alignment, va="center", fontsize=9
        )
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(others)), [readable(cell["name"]) for cell in others])
    axis.set_ylim(len(others) - 0.4, -0.6)
    axis.margins(x=0.2)
    axis.grid(axis="x", alpha=0.3)
    if score:
        heading = f"{score['heading']}{' (points)' if score['percent'] else ''}, {readable(score['data'])}"
        direction = "lower is better" if lower_is_better else "higher is better"
        axis.set_xlabel(f"{heading}: difference to the baseline ({direction})")
