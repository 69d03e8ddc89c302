"""What the training benchmarks measure: this package's translator and transformers' MarianMT, in two sizes, and batches for both."""

import random
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

# name: width, heads, layers of each stack, inner width, vocabulary
SIZES = {"base": (512, 8, 6, 2048, 37000), "tiny": (128, 4, 4, 256, 10000)}


class Translator(VanillaTransformerForConditionalGeneration):
    """As `TokenTrainer` trains it: the loss alone, since nobody looks at the logits of a training step."""

    def forward(self, **inputs: Any) -> Any:
        return super().forward(**inputs, skip_logits=self.training and "labels" in inputs)


def _ids(vocabulary: int) -> dict[str, int]:
    return {
        "pad_token_id": vocabulary - 1,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "decoder_start_token_id": vocabulary - 1,
    }


def translator(size: str) -> Translator:
    """An untrained encoder-decoder; padding and start token are the last of the vocabulary, the end token is 0."""
    width, heads, layers, inner, vocabulary = SIZES[size]
    config = VanillaTransformerConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        dropout=0.1,
        label_smoothing=0.1,
        **_ids(vocabulary),
    )
    return Translator(config)


def marian(size: str) -> MarianMTModel:
    """The same of transformers, with sdpa."""
    width, heads, layers, inner, vocabulary = SIZES[size]
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", inner))
    }
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary,
            decoder_vocab_size=vocabulary,
            d_model=width,
            activation_function="relu",
            dropout=0.1,
            scale_embedding=True,
            max_position_embeddings=512,
            forced_eos_token_id=None,
            **sides,
            **_ids(vocabulary),
        )
    )


def batch(kind: str, pairs: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Pairs of random tokens, padded.

    Args:
        kind: "dense": 64 tokens a side. "ragged": lengths from a log-normal distribution with a mean of 25. "bucketed":
            pairs of like lengths out of fifty times as many.
    """
    draw = random.Random(0)

    def length(mean: float, sigma: float) -> int:
        return min(128, max(3, round(mean * draw.lognormvariate(-(sigma**2) / 2, sigma))))

    count = pairs * (50 if kind == "bucketed" else 1)
    sources = [64 if kind == "dense" else length(25, 0.6) for _ in range(count)]
    lengths = [(n, n if kind == "dense" else length(n, 0.2)) for n in sources]
    if kind == "bucketed":
        middle = 2 * count // 3
        lengths = sorted(lengths)[middle : middle + pairs]
    pad = vocabulary - 1
    generator = torch.Generator().manual_seed(0)
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(
            [torch.randint(2, pad - 1, (pair[side],), generator=generator) for pair in lengths],
            batch_first=True,
            padding_value=filler,
        )
        for side, (name, filler) in enumerate((("input_ids", pad), ("labels", -100)))
    }
    return {**padded, "attention_mask": (padded["input_ids"] != pad).long()}


def loss_of(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy with smoothed labels: this package's own, or as one writes it for MarianMT, which has none."""
    if isinstance(model, Translator):
        return model(**inputs).loss
    labels = inputs["labels"]
    logits = model(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
        use_cache=False,
    ).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1)


MODELS = {"MarianMT": marian, "ours": translator}
