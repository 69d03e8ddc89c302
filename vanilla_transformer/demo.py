"""The demonstration: a translator of written dates, amounts and durations into their machine-readable forms.

Data from CLDR through Babel, so nothing is downloaded and every answer is exact.
"""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from vanilla_transformer.data.normalization import normalization_splits
from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.inspection.attention import attention_maps, plot_attention
from vanilla_transformer.recipes.recipe import Recipe, RecipeError
from vanilla_transformer.runs.run import run_recipe
from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.errors import best_effort
from vanilla_transformer.utils.log import Log, renamed_log
from vanilla_transformer.utils.schema import override_fields

RECIPE = "demo.yaml"
SHOWN = 12
"""Rows of the table."""


def run_demo(output: Path, overrides: Iterable[str] = (), log: Log = print, say: Log | None = None) -> dict[str, Any]:
    """Write the data, train by `demo.yaml`, translate unseen inputs, print a table and draw the attention.

    Args:
        output: folder of the run; an earlier demonstration in it is replaced.
        overrides: recipe fields, `name=value`.
        log: receives lines of progress.
        say: the name of `log` until the next version.

    Returns:
        The metrics of the run.
    """
    log = renamed_log(log, say)
    # the recipe
    values = yaml.safe_load(resources.files(__package__).joinpath(RECIPE).read_text(encoding="utf-8"))
    data = output.with_name(output.name + "-data")
    values["output_dir"] = str(output)
    for name in ("train", "validation"):
        values["data"][name] = {"path": str(data / f"{name}.tsv")}
    values["data"]["test"] = {"unseen": {"path": str(data / "test.tsv")}}
    recipe = Recipe.from_dict(override_fields(values, overrides))

    # its data
    if (output / "recipe.yaml").is_file() and not data.is_dir():
        raise RecipeError(f"{output} holds a run that is not the demonstration; name another folder with --output.")
    log("writing dates, amounts and durations in six languages ...")
    splits = normalization_splits()
    data.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        with atomic_file(data / f"{name}.tsv") as stream:
            stream.writelines(f"{source}\t{target}\n" for source, target in pairs)
    result = run_recipe(recipe, overwrite=True, log=log)

    # what the model makes of unseen inputs, and where it looks
    generator = TextGenerator.from_pretrained(result.folder)
    shown = splits["test"][:SHOWN]
    outputs = generator.generate([source for source, _ in shown])
    table = Table(title="Unseen inputs")
    for column in ("input", "output", "expected", ""):
        table.add_column(column)
    for (source, target), hypotheses in zip(shown, outputs, strict=True):
        written = hypotheses[0].text
        table.add_row(source, written, target, "yes" if written == target else "NO")
    Console().print(table)

    picture = result.folder / "attention.png"
    example = max(splits["test"][:100], key=lambda pair: len(pair[1]) if len(pair[0]) < 45 else 0)
    drawn = ""
    with best_effort("the attention was not drawn", "everything else is there", log):
        plot_attention(attention_maps(generator.model, generator.tokenizer, example[0]), picture)
        drawn = f"; attention drawn in {picture}"
    exact = result.metrics["test"]["unseen"]["exact_match"]
    Console().print(
        f"{100 * exact:.1f} % of {len(splits['test']):,} unseen inputs exactly right{drawn}\n"
        f"Try it: echo 'Sonntag, 29. November 2026' | vanilla-transformer generate --model {result.folder}",
        soft_wrap=True,
        highlight=False,
    )
    return result.metrics
