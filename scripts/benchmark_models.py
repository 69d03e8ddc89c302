"""Models of this package for benchmarks of training steps that take a function from the name of a size to a model.

Such as `benchmark_models:translator`, with this folder in PYTHONPATH.
"""

from typing import Any

from vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from vanilla_transformer.training.allocator import keep_freed_memory

# name: width, heads, layers of each stack, inner width, vocabulary
SIZES = {"base": (512, 8, 6, 2048, 37000), "tiny": (128, 4, 4, 256, 10000)}


class Translator(VanillaTransformerForConditionalGeneration):
    """As `TokenTrainer` trains it: the loss alone, since nobody looks at the logits of a training step."""

    def forward(self, **inputs: Any) -> Any:
        return super().forward(**inputs, skip_logits=self.training and "labels" in inputs)


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
        pad_token_id=vocabulary - 1,
        bos_token_id=1,
        eos_token_id=0,
        decoder_start_token_id=vocabulary - 1,
    )
    return Translator(config)


def translator_as_in_runs(size: str) -> Translator:
    """The same with the memory settings of `vanilla-transformer train`, which hold for the whole process."""
    keep_freed_memory()
    return translator(size)
