"""What an encoder-decoder attends to while it writes a target for a source.

S: source tokens, T: target tokens, the end-of-sentence token among both where the tokenizer adds it.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanilla_transformer.utils.atomic import atomic_file
from vanilla_transformer.utils.extras import needs
from vanilla_transformer.utils.pictures import fonts_for, picture_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AttentionMaps", "attention_maps", "plot_attention"]

Kind = Literal["cross", "encoder", "decoder"]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one pair. Every row, the last axis of each map, sums to one.

    Attributes:
        source_tokens: S readable pieces of the source.
        target_tokens: T readable pieces of the target: what the model writes in each row of `decoder` and `cross`.
        decoder_tokens: T readable pieces that the decoder reads: the start token, then the target without its last.
        encoder: (layers, heads, S, S), float32 on the CPU.
        decoder: (layers, heads, T, T); row t looks back on `decoder_tokens` up to t.
        cross: (layers, heads, T, S); row t looks at the source while `target_tokens[t]` is written.
    """

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    decoder_tokens: tuple[str, ...]
    encoder: torch.Tensor
    decoder: torch.Tensor
    cross: torch.Tensor


@torch.no_grad()
def attention_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    target_tokenizer: PreTrainedTokenizerBase | None = None,
    **generate_options: Any,
) -> AttentionMaps:
    """Compute all attention weights of an encoder-decoder for one source and one target.

    Works with whatever attention backend the model uses: for the one forward pass that needs the weights it computes
    with "eager", the only one that has them, and is as before afterwards.

    Args:
        model: any sequence-to-sequence model of transformers.
        tokenizer: of the source, and of the target where `target_tokenizer` is None.
        source: the text to read.
        target: the text to write; None takes what the model generates for `source`.
        target_tokenizer: of the target, where vocabularies are separate.
        generate_options: of `generate()`, such as `num_beams`, for `target=None`.

    Raises:
        ValueError: for a model that is not an encoder-decoder, or a text without a token.
    """
    if not model.config.is_encoder_decoder:
        raise ValueError(
            f"attention maps are of a source and a target, and {type(model).__name__} is "
            f"{'a decoder alone' if model.can_generate() else 'an encoder alone'}: give an encoder-decoder, such as a "
            "translator; output_attentions=True gives the weights of this one, loaded with "
            f'{"AutoModelForCausalLM" if model.can_generate() else "AutoModel"} and attn_implementation="eager".'
        )
    target_tokenizer = tokenizer if target_tokenizer is None else target_tokenizer
    source_ids = tokenizer(source, return_tensors="pt", split_special_tokens=True)["input_ids"].to(model.device)
    if source_ids.numel() == 0 or not source.strip():
        raise ValueError(f"The source {source!r} has no token to attend to: give a text that is not empty.")

    if target is not None and not target.strip():
        raise ValueError(f"The target {target!r} has no token: give a text that is not empty.")
    was_training = model.training
    model.eval()
    try:
        if target is None:
            sequence = model.generate(source_ids, attention_mask=torch.ones_like(source_ids), **generate_options)[:1]
        else:
            labels = target_tokenizer(text_target=target, return_tensors="pt", split_special_tokens=True)[
                "input_ids"
            ].to(model.device)
            start = torch.full_like(source_ids[:, :1], _start_token(model))
            sequence = torch.cat([start, labels.to(source_ids.dtype)], dim=1)
        if sequence.shape[1] < 2:
            raise ValueError("The target has no token: give a text that is not empty.")
        with _eager_attention(model):
            outputs = model(
                input_ids=source_ids,
                attention_mask=torch.ones_like(source_ids),
                decoder_input_ids=sequence[:, :-1],
                output_attentions=True,
                use_cache=False,
            )
    finally:
        model.train(was_training)

    def stacked(layers: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(layers)).float().cpu()  # each (1, heads, queries, keys)

    decoder_tokens = readable_tokens(target_tokenizer, sequence[0].tolist())
    return AttentionMaps(
        source_tokens=readable_tokens(tokenizer, source_ids[0].tolist()),
        target_tokens=decoder_tokens[1:],
        decoder_tokens=decoder_tokens[:-1],
        encoder=stacked(outputs.encoder_attentions),
        decoder=stacked(outputs.decoder_attentions),
        cross=stacked(outputs.cross_attentions),
    )


def _start_token(model: PreTrainedModel) -> int:
    """Return what the decoder reads first: `generate()` looks in the same places in the same order."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            if (token := getattr(config, name, None)) is not None:
                return token
    raise ValueError(f"{type(model).__name__} has no decoder_start_token_id: set it in model.generation_config.")


@contextmanager
def _eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model compute with the eager backend, the one that gives its weights, and set it back."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def readable_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, ...]:
    """Give each token as the piece of text that it adds, so that the pieces joined are the decoded text.

    A token that ends inside a character (byte-level tokenizers cut any character that they have no token for) adds
    nothing yet and reads "…"; the token that ends the character reads as the character.
    """
    pieces, text = [], ""
    for end in range(1, len(ids) + 1):
        decoded = tokenizer.decode(ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = decoded.rstrip("\ufffd")
        if not whole.startswith(text):
            # A decoder that rewrites what came before: the token's own name says more than a wrong piece.
            pieces.append(tokenizer.convert_ids_to_tokens(ids[end - 1]))
        elif whole == text:
            pieces.append("…" if decoded != whole else "")
        else:
            pieces.append(whole[len(text) :])
        text = whole
    return tuple(pieces)


def plot_attention(
    maps: AttentionMaps,
    path: str | Path,
    *,
    kind: Kind = "cross",
    layer: int | None = None,
    head: int | Literal["each"] | None = None,
    title: str | None = None,
) -> Path:
    """Draw attention weights as a heat map: keys from left to right, queries from top to bottom.

    Args:
        maps: of `attention_maps`.
        path: of the PNG; missing folders are made.
        kind: "cross" (what the target looks at in the source), "encoder" or "decoder" (self-attention).
        layer: number of a layer from 0, negative from the top; None for the mean over all layers.
        head: number of a head from 0; None for the mean over all heads; "each" for a picture of each side by side.
        title: above the picture; None names what is shown.

    Returns:
        The path of the picture.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: for a kind, layer or head that there is not.
    """
    with needs("a picture of attention"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    sides = {
        "cross": (maps.source_tokens, maps.target_tokens, "Cross-attention", "source, read", "target, written"),
        "encoder": (maps.source_tokens, maps.source_tokens, "Encoder self-attention", "source", "source"),
        "decoder": (
            maps.decoder_tokens,
            maps.target_tokens,
            "Decoder self-attention",
            "target, read",
            "target, written",
        ),
    }
    picture_format(path)
    if kind not in sides:
        raise ValueError(f"There is no attention kind {kind!r}: choose one of {', '.join(sides)}.")
    keys, queries, name, key_label, query_label = sides[kind]
    weights = getattr(maps, kind)  # (layers, heads, queries, keys)
    layers, heads = weights.shape[:2]

    if layer is None:
        weights = weights.mean(0)
        shown = f"mean of {layers} layers" if layers > 1 else "one layer"
    else:
        number = _index("layer", layer, layers)
        weights = weights[number]
        shown = f"layer {number} of {layers}"
    if head == "each":
        panels = [(f"head {number}", weights[number]) for number in range(heads)]
        shown += ", each head"
    elif head is None:
        panels = [("", weights.mean(0))]
        shown += f", mean of {heads} heads" if heads > 1 else ", one head"
    else:
        number = _index("head", head, heads)
        panels = [("", weights[number])]
        shown += f", head {number} of {heads}"

    counted = "" if layer is None and head is None else ", counted from 0"
    title = title or f"{name}, {shown}{counted}"
    fonts, drawable = fonts_for("".join((*keys, *queries, title)))
    key_labels, query_labels = ([_readable(token, drawable) for token in side] for side in (keys, queries))

    # Sizes in inches. A cell is as large as its label needs, and smaller where the picture would outgrow any screen.
    cell = min(0.3, max(0.12, 40 / max(len(keys), len(queries))))
    label_size = cell * 72 * 0.52  # points
    panel_width = cell * len(keys) + max(map(len, query_labels)) * label_size / 100 + 0.5
    panel_height = cell * len(queries) + max(map(len, key_labels)) * label_size / 100 + 0.6
    # The number of columns that makes the whole a little wider than high, of those that leave no hole in the last row.
    columns = min(
        (count for count in range(1, len(panels) + 1) if len(panels) % count == 0),
        key=lambda count: abs(math.log(count * panel_width / (-(-len(panels) // count) * panel_height) / 1.4)),
    )
    rows = -(-len(panels) // columns)
    width = max(columns * panel_width + 1.1, 2.8)
    title_lines = textwrap.wrap(title, int((width - 0.3) / 0.095))
    height = max(rows * panel_height, 2.0) + 0.25 + 0.2 * len(title_lines)
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (panel_name, panel) in zip(grid, panels, strict=True):
        # 0 to 1 in every picture, so that attention to all alike is pale and pictures can be compared
        image = axes.imshow(panel.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        _label(axes, key_labels, query_labels, label_size, fonts)
        axes.set_xlabel(key_label, color="dimgray", fontsize=9)
        axes.set_ylabel(query_label, color="dimgray", fontsize=9)
        if panel_name:
            axes.set_title(panel_name, fontsize=10)
    bar = figure.colorbar(image, ax=list(grid), shrink=0.8, fraction=0.05, pad=0.02, aspect=25)
    bar.set_label("attention weight", color="dimgray", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    figure.suptitle("\n".join(title_lines), fontsize=11, fontfamily=fonts, parse_math=False)

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "wb") as stream:
        figure.savefig(stream, format=picture_format(path), facecolor="white")
    return path


def _index(what: str, number: int, count: int) -> int:
    if not isinstance(number, int) or not -count <= number < count:
        raise ValueError(f"There is no {what} {number!r}: the model has {count}, numbered from 0 to {count - 1}.")
    return number % count


def _label(axes: "Axes", keys: Sequence[str], queries: Sequence[str], size: float, fonts: list[str]) -> None:
    # Without parse_math=False two dollar signs in one token would be set as a formula.
    style: dict[str, Any] = {"fontsize": size, "fontfamily": fonts, "parse_math": False}
    axes.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 2 else 0, **style)
    axes.set_yticks(range(len(queries)), queries, **style)
    axes.tick_params(length=0)
    axes.spines[:].set_color("lightgray")
    # Thin white lines between the cells, so that a weight can be followed to its label.
    axes.set_xticks([position + 0.5 for position in range(len(keys) - 1)], minor=True)
    axes.set_yticks([position + 0.5 for position in range(len(queries) - 1)], minor=True)
    axes.grid(which="minor", color="lightgray", linewidth=0.4)
    axes.tick_params(which="minor", length=0)


def _readable(token: str, drawable: frozenset[str]) -> str:
    """Show spaces, which tell where words begin, as a mark; what no font can draw as its code point."""
    return "".join(
        "␣" if character == " " else character if character in drawable else f"U+{ord(character):04X}"
        for character in token
    )
