"""A page on a model of one's own: translations, their alternatives with scores, and what the model looks at.

    python scripts/app.py runs/mine

It needs `pip install gradio`. As a Space of the Hub, this file is its `app.py`, `MODEL` one of its variables, and requirements.txt
names this package and its extra `app`. A language model continues the text instead.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

# before Gradio is imported: it tells nobody that it runs
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
from PIL import Image

from vanilla_transformer.generation.text_generator import TextGenerator
from vanilla_transformer.inspection.attention import attention_maps, plot_attention

MOST_ALTERNATIVES = 5

MOST_CHARACTERS = 5000
"""Of a text."""


def build_page(generator: TextGenerator, title: str) -> gr.Blocks:
    """Return the page of a model; its functions have names for clients, `/generate` and `/attention`."""
    is_translator = generator.model.config.is_encoder_decoder
    own_beams = generator.model.generation_config.num_beams or 1

    def generate(text: str, alternatives: float) -> tuple[str, list[list[str]]]:
        """Return the best output, and a row of each alternative: its score and its text."""
        if len(text) > MOST_CHARACTERS:
            raise gr.Error(f"The text has {len(text)} characters, more than the {MOST_CHARACTERS} allowed.")
        count = min(max(1, int(alternatives)), MOST_ALTERNATIVES)
        notes: list[str] = []
        options: dict[str, Any] = {
            "num_beams": max(own_beams, count),
            "n_best": count,
            "scores": True,
            "log": notes.append,
        }
        try:
            lines = list(generator.generate(text.splitlines() if is_translator else [text], **options))
        except ValueError as error:
            raise gr.Error(str(error)) from error
        for note in notes:
            gr.Warning(note)
        best = "\n".join(hypotheses[0].text for hypotheses in lines)
        # alternatives are those of one line, as the best of several do not tell the best of all
        rows = lines[0] if len(lines) == 1 else []
        return best, [[f"{row.score:.3f}" if row.score is not None else "", row.text] for row in rows]

    def draw_attention(source: str, target: str) -> Image.Image | None:
        """Return a picture of the cross-attention of the first line, None where there is nothing to see."""
        source, target = source.strip().partition("\n")[0], target.strip().partition("\n")[0]
        if not source or not target:
            return None
        maps = attention_maps(
            generator.model, generator.tokenizer, source, target, target_tokenizer=generator.target_tokenizer
        )
        with TemporaryDirectory() as folder, Image.open(plot_attention(maps, f"{folder}/attention.png")) as picture:
            picture.load()  # before the file goes
            return picture

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.Markdown(f"# {title}")
        with gr.Row():
            source = gr.Textbox(label="Source" if is_translator else "Beginning", lines=3, autofocus=True)
            target = gr.Textbox(label="Output", lines=3, interactive=False)
        count = gr.Slider(1, MOST_ALTERNATIVES, value=1, step=1, label="Outputs")
        button = gr.Button("Translate" if is_translator else "Continue", variant="primary")
        table = gr.Dataframe(headers=["score", "output"], label="Best outputs", interactive=False)
        ran = gr.on([button.click, source.submit], generate, [source, count], [target, table], api_name="generate")
        if is_translator:
            picture = gr.Image(label="Attention: what each written token looks at", interactive=False)
            ran.then(draw_attention, [source, target], picture, api_name="attention")
    return page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", nargs="?", default=os.environ.get("MODEL"), help="folder or Hub id; by default $MODEL"
    )
    parser.add_argument("--title", default=None, help="by default the model's name")
    parser.add_argument("--port", type=int, default=None, help="by default the first free one from 7860 on")
    given = parser.parse_args(arguments)
    if given.model is None:
        parser.error("name a model, here or in the environment variable MODEL")
    try:
        generator = TextGenerator.from_pretrained(given.model)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    page = build_page(generator, given.title or os.path.basename(os.path.normpath(given.model)))
    # fonts of this machine, since the theme's own are fetched from elsewhere
    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"])
    page.launch(server_port=given.port, theme=theme, footer_links=["api"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
