"""Attention maps say what the model computes, with any backend, and the pictures can be read."""

import sys

import pytest
import torch
from PIL import Image
from transformers import MarianConfig, MarianMTModel

from tiny import tiny_model
from vanilla_transformer.inspection import attention_maps, plot_attention
from vanilla_transformer.inspection.attention import readable_tokens
from vanilla_transformer.tokenization import train_character_tokenizer, train_tokenizer

SOURCE, TARGET = "Montag, 3. März 2025", "2025-03-03"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([SOURCE, TARGET, "ein Haus", "a house"] * 3, 270)


@pytest.fixture
def model():
    return tiny_model(vocab_size=270)


@pytest.fixture(scope="module")
def maps(tokenizer):
    return attention_maps(tiny_model(vocab_size=270), tokenizer, SOURCE, TARGET)


def test_shapes_rows_and_tokens(maps):
    source, target = len(maps.source_tokens), len(maps.target_tokens)
    assert maps.encoder.shape == (2, 4, source, source)
    assert maps.decoder.shape == (3, 4, target, target)
    assert maps.cross.shape == (3, 4, target, source)
    for weights in (maps.encoder, maps.decoder, maps.cross):
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert torch.equal(maps.decoder, maps.decoder.tril())
    assert "".join(maps.source_tokens) == SOURCE + "</s>"
    assert "".join(maps.target_tokens) == TARGET + "</s>"
    assert maps.decoder_tokens == ("<s>", *maps.target_tokens[:-1])


def test_cross_attention_is_softmax_of_scaled_products(model, tokenizer):
    """The first decoder layer by hand, from the states that go into its cross-attention."""
    inputs = {}
    attention = model.model.decoder.layers[0].cross_attn
    handle = attention.register_forward_pre_hook(
        lambda module, args, kwargs: inputs.update(args=args, kwargs=kwargs), with_kwargs=True
    )
    maps = attention_maps(model, tokenizer, SOURCE, TARGET)
    handle.remove()
    states = [value for value in (*inputs["args"], *inputs["kwargs"].values()) if torch.is_tensor(value)]
    states = [value for value in states if value.dim() == 3]
    queries, keys = states[0], states[1]
    heads, width = 4, 4
    q = attention.q_proj(queries).view(1, -1, heads, width).transpose(1, 2)
    k = attention.k_proj(keys).view(1, -1, heads, width).transpose(1, 2)
    expected = (q @ k.transpose(-1, -2) / width**0.5).softmax(-1)
    torch.testing.assert_close(maps.cross[0], expected[0].detach())


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex_attention"])
def test_any_backend_gives_the_same_maps_and_is_set_back(model, tokenizer, maps, backend):
    model.set_attn_implementation(backend)
    model.train()
    found = attention_maps(model, tokenizer, SOURCE, TARGET)
    assert model.config._attn_implementation == backend
    assert model.training
    for kind in ("encoder", "decoder", "cross"):
        torch.testing.assert_close(getattr(found, kind), getattr(maps, kind))


def test_the_backend_is_set_back_after_a_failure(model, tokenizer):
    model.set_attn_implementation("sdpa")
    handle = model.model.decoder.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        attention_maps(model, tokenizer, SOURCE, TARGET)
    handle.remove()
    assert model.config._attn_implementation == "sdpa"


def test_without_a_target_the_generated_one_is_shown(model, tokenizer):
    ids = tokenizer(SOURCE, return_tensors="pt").input_ids
    sequence = model.generate(ids, max_new_tokens=7, num_beams=2)
    maps = attention_maps(model, tokenizer, SOURCE, max_new_tokens=7, num_beams=2)
    assert maps.target_tokens == readable_tokens(tokenizer, sequence[0].tolist())[1:]
    assert maps.cross.shape[2] == sequence.shape[1] - 1


def test_separate_vocabularies(tokenizer):
    target_tokenizer = train_character_tokenizer([TARGET], add_eos=True)
    model = tiny_model(vocab_size=270, target_vocab_size=len(target_tokenizer))
    maps = attention_maps(model, tokenizer, SOURCE, TARGET, target_tokenizer=target_tokenizer)
    assert maps.target_tokens == (*TARGET, "</s>")


def test_another_family_of_transformers(tokenizer):
    config = MarianConfig(
        vocab_size=270, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=2,
    )  # fmt: skip
    maps = attention_maps(MarianMTModel(config), tokenizer, SOURCE, TARGET)
    assert maps.encoder.shape[:2] == (1, 2)
    assert maps.cross.shape[:2] == (2, 2)


def test_bytes_of_one_character_join_where_it_ends(tokenizer):
    text = "aß中🙂 $"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    pieces = readable_tokens(tokenizer, ids)
    assert pieces == ("a", "…", "ß", "…", "…", "中", "…", "…", "…", "🙂", " ", "$")


def test_a_model_of_one_stack_and_empty_texts_are_refused(model, tokenizer):
    for architecture, automatic in (("decoder-only", "AutoModelForCausalLM"), ("encoder-only", "AutoModel")):
        with pytest.raises(ValueError, match=f"give an encoder-decoder.* loaded with {automatic} and"):
            attention_maps(tiny_model(architecture, vocab_size=270), tokenizer, SOURCE, TARGET)
    bare = train_character_tokenizer([SOURCE])
    with pytest.raises(ValueError, match="source '' has no token"):
        attention_maps(model, bare, "", TARGET)
    with pytest.raises(ValueError, match="target '' has no token"):
        attention_maps(model, bare, "M", "")


def drawn_figure(monkeypatch):
    """Keep the figure that is drawn next."""
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: figures.append(self) or save(self, *args, **kwargs)
    )
    return figures


def assert_nothing_is_clipped(figure):
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    texts = [
        figure._suptitle,
        *(text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)),
    ]
    texts += [label for axes in figure.axes for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    for text in texts:
        if text.get_text() and text.get_visible():
            box = text.get_window_extent(renderer)
            assert page.x0 <= box.x0 + 1 and box.x1 <= page.x1 + 1, text.get_text()
            assert page.y0 <= box.y0 + 1 and box.y1 <= page.y1 + 1, text.get_text()


@pytest.mark.parametrize(
    ("options", "panels", "title"),
    [
        ({}, 1, "Cross-attention, mean of 3 layers, mean of 4 heads"),
        ({"layer": -1, "head": 1}, 1, "Cross-attention, layer 2 of 3, head 1 of 4, counted from 0"),
        (
            {"kind": "encoder", "layer": 0, "head": "each"},
            4,
            "Encoder self-attention, layer 0 of 2, each head, counted from 0",
        ),
        ({"kind": "decoder", "title": "12 $ and 5 $"}, 1, "12 $ and 5 $"),
    ],
)
def test_pictures_show_the_weights_under_their_labels(maps, tmp_path, monkeypatch, options, panels, title):
    figures = drawn_figure(monkeypatch)
    path = plot_attention(maps, tmp_path / "new" / "attention.png", **options)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert min(image.size) > 200
    (figure,) = figures
    assert figure._suptitle.get_text().replace("\n", " ") == title
    drawn = [axes for axes in figure.axes if axes.images]
    assert len(drawn) == panels
    rows = [axes.get_subplotspec().rowspan.start for axes in drawn]
    assert len({rows.count(row) for row in rows}) == 1, "a row of heads is not full"
    assert figure.axes[-1].get_ylim() == (0, 1), "the scale beside it"
    weights = getattr(maps, options.get("kind", "cross"))
    weights = weights[options["layer"]] if "layer" in options else weights.mean(0)
    head = options.get("head")
    expected = weights if head == "each" else [weights.mean(0) if head is None else weights[head]]
    for axes, panel in zip(drawn, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(axes.images[0].get_array().data), panel)
        assert axes.images[0].get_clim() == (0, 1)  # so that attention to all alike is pale
        assert len(axes.get_xticklabels()) == panel.shape[1]
        assert len(axes.get_yticklabels()) == panel.shape[0]
    assert_nothing_is_clipped(figure)


def test_labels_of_any_script_are_drawn_without_a_missing_glyph(model, tokenizer, tmp_path, monkeypatch, recwarn):
    figures = drawn_figure(monkeypatch)
    maps = attention_maps(model, tokenizer, "12 $ Ω中🙂", "5 $\n")
    plot_attention(maps, tmp_path / "attention.png")
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
    axes = figures[0].axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert "$" in labels
    assert "Ω" in labels
    assert "␣" in "".join(labels)
    assert "U+000A" in [label.get_text() for label in axes.get_yticklabels()]
    assert not any(label.get_parse_math() for label in axes.get_xticklabels())
    assert_nothing_is_clipped(figures[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "both"}, "no attention kind 'both': choose one of cross, encoder, decoder"),
        ({"layer": 3}, "no layer 3: the model has 3, numbered from 0 to 2"),
        ({"head": -5}, "no head -5"),
        ({"head": "all"}, "no head 'all'"),
    ],
)
def test_what_there_is_not_is_refused(maps, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        plot_attention(maps, tmp_path / "attention.png", **options)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence_says_what_to_install(maps, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_attention(maps, tmp_path / "attention.png")
