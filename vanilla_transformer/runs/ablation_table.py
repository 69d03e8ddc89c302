"""The table of an ablation for people: as Markdown, and in a terminal. Both are made of what `ablation.json` holds."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vanilla_transformer.trainer.checkpoints import LOWER_IS_BETTER
from vanilla_transformer.utils.public import escape_markdown

COMPARED = ("validation_loss", "score")
"""What is also given as a difference to the baseline."""

# column: what it shows, its format and what it is multiplied by
_MEASURED = {
    "updates": ("updates", ",.0f", 1.0),
    "minutes": ("minutes", ".1f", 1.0),
    "tokens/s": ("tokens_per_second", ",.0f", 1.0),
    "MFLOPs/token": ("flops_per_token", ",.1f", 1e-6),
    "memory (MB)": ("peak_memory_mb", ",.0f", 1.0),
}


def format_changes(changes: Mapping[str, Any]) -> str:
    """Return the changes of a cell as name=value, the values as YAML has them."""
    return ", ".join(
        f"{name}={json.dumps(value) if isinstance(value, bool) else value}" for name, value in changes.items()
    )


def _columns(table: dict[str, Any]) -> list[str]:
    score = table["score"] or {"heading": "score", "data": "", "percent": False}
    heading = f"{score['heading']}{' (%)' if score['percent'] else ''}, {score['data']}".removesuffix(", ")
    losses = [] if _is_scored_by_loss(table) else ["validation loss", "Δ loss"]
    return ["cell", "what differs", "parameters", *_MEASURED, *losses, heading, "Δ"]


def _is_scored_by_loss(table: dict[str, Any]) -> bool:
    """Return whether the score is the loss on the validation data, which needs no columns of its own then."""
    score = table["score"]
    return bool(score) and score["key"] == "loss" and score["data"] == "validation"


def _texts(table: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table as they are shown."""
    score = table["score"] or {"percent": False, "key": ""}
    scale, digits = (100 if score["percent"] else 1), (4 if score["key"] in LOWER_IS_BETTER else 2)

    def written(row: dict[str, Any], name: str, form: str, scale: float = 1) -> str:
        if row[name] is None:
            return "–"
        text = format(scale * row[name], f"{'+' if name.endswith('_delta') else ''}{form}")
        spread = row[f"{name}_spread"] if name.startswith(COMPARED) else None
        return text if spread is None else f"{text} ± {scale * spread:{form}}"

    rows = []
    for row in table["cells"]:
        unfinished = [run["status"] for run in row["runs"] if run["status"] != "finished"]
        losses = () if _is_scored_by_loss(table) else ("validation_loss", "validation_loss_delta")
        scored = written(row, "score", f".{digits}f", scale)
        rows.append(
            [
                row["name"],
                format_changes(row["changes"]) or "–",
                "–" if row["parameters"] is None else f"{row['parameters']:,}",
                *(written(row, *measured) for measured in _MEASURED.values()),
                *(written(row, name, ".4f") for name in losses),
                unfinished[0] if len(unfinished) == len(row["runs"]) else scored,
                written(row, "score_delta", f".{digits}f", scale),
            ]
        )
    return rows


def _notes(table: dict[str, Any]) -> list[str]:
    """Return what has to be known to read the table, and what became of runs that did not finish."""
    score, seeds = table["score"], table["seeds"]
    lowest = "Validation loss is the lowest of a run's evaluations, in nats, without label smoothing; "
    notes = [
        f"{'' if _is_scored_by_loss(table) else lowest}Δ is to the baseline.",
        "MFLOPs/token: millions of floating-point operations of a training step for each token, in matrix products, counted "
        "on one batch; memory: the peak in training, of tensors on an accelerator, else of the whole process.",
    ]
    if score and score["label"] != score["heading"]:
        notes.append(f"Scores are {score['label']}.")
    chance = "One seed: how far runs differ by chance is not known; ablation.seeds=[1,2,3] would tell."
    means = (
        f"Means of the seeds {', '.join(map(str, seeds))} ± standard deviation; Δ is between runs of the same seed."
    )
    notes.append(means if len(seeds) > 1 else chance)
    if own := ", ".join(row["name"] for row in table["cells"] if row["own_tokens"]):
        notes.append(f"Losses per token of {own}, which has tokens of its own, do not compare with the others.")
    runs = ((row["name"], run) for row in table["cells"] for run in row["runs"])
    seed = ", seed {}" if len(seeds) > 1 else ""
    return notes + [f"{name}{seed.format(run['seed'])}: {run['reason']}" for name, run in runs if run["reason"]]


def markdown_table(table: dict[str, Any], picture: str | None = None) -> str:
    """Return the text of `ablation.md`.

    Args:
        table: what `ablation.json` holds.
        picture: a file to show under the table.
    """

    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(escape_markdown(text) for text in texts)} |"

    columns = _columns(table)
    lines = [f"# {escape_markdown(table['title'])}", "", line(columns), f"|{'---|' * 2}{'---:|' * (len(columns) - 2)}"]
    lines += [line(texts) for texts in _texts(table)]
    # outside a table a bar is nothing but that
    lines += ["", *(f"- {escape_markdown(note)}".replace("\\|", "|") for note in _notes(table))]
    if hardware := table["hardware"]:
        threads = f"{hardware['threads']} thread{'s' if hardware['threads'] > 1 else ''}"
        lines += [f"- Trained on {hardware['device']} ({hardware['machine']}, {threads}), torch {hardware['torch']}."]
    if picture:
        lines += ["", f"![validation loss and differences to the baseline]({picture})"]
    return "\n".join(lines) + "\n"


def print_table(table: dict[str, Any], console: Console | None = None) -> None:
    """Print the table; a narrow terminal gets its results in columns, and what differs below.

    Args:
        table: what `ablation.json` holds.
        console: of rich; by default standard output, with room for whole lines where that is no terminal.
    """
    if console is None:
        console = Console()
        if not console.is_terminal:
            console.width = 210
    narrow = console.width < 180
    columns, rows = _columns(table), _texts(table)
    shown = Table(title=Text(table["title"]))
    kept = [n for n, column in enumerate(columns) if not narrow or column not in ("what differs", *_MEASURED)]
    for number in kept:
        shown.add_column(
            Text(columns[number]),
            justify="left" if number < 2 else "right",
            min_width=None if columns[number] == "what differs" else max(len(row[number]) for row in rows),
        )
    for row in rows:
        shown.add_row(*(Text(row[number]) for number in kept))
    console.print(shown)
    differences = [f"{row['name']}: {format_changes(row['changes'])}" for row in table["cells"][1:]] if narrow else []
    for note in [*differences, *_notes(table)]:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
