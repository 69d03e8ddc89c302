"""The model card of a run: what it does, how to use it, how it was made and how it scores."""

from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vanilla_transformer.training.recipe import Recipe

__all__ = ["write_model_card"]

TEMPLATE = "model_card_template.md"


def write_model_card(folder: Path, recipe: Recipe, metrics: dict[str, Any]) -> Path:
    """Write `README.md` into a run's folder.

    Args:
        folder: of the run.
        recipe: as run.
        metrics: as in `metrics.json`.
    """
    languages = [code for code in (recipe.data.source_language, recipe.data.target_language) if code]
    title = recipe.card.title or folder.name
    data = ModelCardData(
        language=languages or None,
        license=recipe.card.license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla-transformer", "trained-from-scratch"],
        model_name=title,
        eval_results=_results(
            metrics["test"] or {"validation": metrics["model"]["validation"][metrics["model"]["weights"]]}
        ),
    )
    text = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    body = environment.from_string(text).render(
        title=title,
        recipe=recipe,
        metrics=metrics,
        languages=languages,
        recipe_yaml=yaml.safe_dump(recipe.to_dict(), sort_keys=False, allow_unicode=True, width=100),
        has_curves=(folder / "curves.png").is_file(),
    )
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")
    path = folder / "README.md"
    card.save(path)
    return path


def _results(tests: dict[str, dict[str, Any]]) -> list[EvalResult]:
    results = []
    for name, scores in tests.items():
        for metric, label, signature in (("bleu", "BLEU", "bleu_signature"), ("chrf", "chrF", "chrf_signature")):
            results.append(
                EvalResult(
                    task_type="translation",
                    dataset_type=name,
                    dataset_name=name,
                    metric_type=metric,
                    metric_name=f"{label} ({scores[signature]})",
                    metric_value=scores[metric],
                )
            )
    return results
