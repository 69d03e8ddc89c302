"""Curves of a run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot_curves"]


def plot_curves(
    log_history: list[dict[str, Any]],
    path: str | Path,
    title: str,
    scores: Sequence[tuple[str, str, float]],
    loss_label: str = "cross entropy per token (nats)",
) -> bool:
    """Draw loss, validation scores and learning rate over the updates.

    Args:
        log_history: of `TrainerState`.
        path: of the PNG.
        title: of the run.
        scores: of evaluations: their keys, labels, and what to multiply them by.
        loss_label: of the axis.

    Returns:
        False where matplotlib is not installed (extra `plots`), and no picture was made.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False

    def series(name: str) -> tuple[list[int], list[float]]:
        points = [(entry["step"], entry[name]) for entry in log_history if name in entry]
        return [p[0] for p in points], [float(p[1]) for p in points]

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axis, score_axis, rate_axis = figure.subplots(1, 3)
    loss_axis.plot(*series("loss"), label="training", color="tab:gray", linewidth=1)
    loss_axis.plot(*series("eval_loss"), label="validation", color="tab:blue")
    loss_axis.set_ylabel(loss_label)
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
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    return True
