"""The model card of a run: what it does, how to use it, how it was made and how it scores."""

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vanilla_transformer.training.recipe import Recipe
from vanilla_transformer.training.tasks import Task

__all__ = ["write_model_card"]

TEMPLATE = "model_card_template.md"


def write_model_card(folder: Path, recipe: Recipe, task: Task, metrics: dict[str, Any]) -> Path:
    """Write `README.md` into a folder with what belongs to a run.

    Args:
        folder: where it goes; the card shows the curves that stand there.
        recipe: as run.
        task: of the run.
        metrics: as in `metrics.json`.
    """
    codes = (recipe.data.source_language, recipe.data.target_language, recipe.data.language)
    languages = list(dict.fromkeys(code for code in codes if code))
    title = recipe.card.title or Path(recipe.output_dir).name
    data = ModelCardData(
        language=languages or None,
        license=recipe.card.license,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=["vanilla-transformer", "trained-from-scratch"],
        model_name=title,
        eval_results=_results(
            task, metrics["test"] or {"validation": metrics["model"]["validation"][metrics["model"]["weights"]]}
        ),
    )
    text = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    body = environment.from_string(text).render(
        title=title,
        recipe=recipe,
        metrics=metrics,
        task=task,
        score_rows=_score_rows(task, metrics),
        recipe_yaml=yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, width=100),
        has_curves=(folder / "curves.png").is_file(),
    )
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")
    path = folder / "README.md"
    card.save(path)
    return path


def _score_rows(task: Task, metrics: dict[str, Any]) -> list[list[str]]:
    """The table of scores: on which data, then a cell for each of the task's columns."""
    words = {"average": "mean of the last", "average_best": "mean of the best", "ema": "moving average of the"}
    scored = {
        f"validation, {words.get(name, name)} weights": scores
        for name, scores in metrics["model"]["validation"].items()
    }
    scored |= metrics["test"]
    return [
        [name, *(column.format.format(scores[column.key]).replace("|", "\\|") for column in task.score_columns)]
        for name, scores in scored.items()
    ]


def _results(task: Task, tests: dict[str, dict[str, Any]]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type=task.pipeline_tag,
            dataset_type=name,
            dataset_name=name,
            metric_type=metric,
            metric_name=label,
            metric_value=value,
        )
        for name, scores in tests.items()
        for metric, label, value in task.results(scores)
    ]
