"""The names of [`text_generator`] before version 0.2; this module goes with the next version."""

from collections.abc import Iterator
from typing import Any

from vanilla_transformer.generation.text_generator import Hypothesis, TextGenerator

__all__ = ["Hypothesis", "Translator"]


class Translator(TextGenerator):
    """The name of [`TextGenerator`] before version 0.2."""

    def translate(self, texts: Any, **options: Any) -> Iterator[list[Hypothesis]]:
        """Call [`TextGenerator.generate`], whose `log` was named `report`."""
        if "report" in options:
            options["log"] = options.pop("report")
        return self.generate(texts, **options)
