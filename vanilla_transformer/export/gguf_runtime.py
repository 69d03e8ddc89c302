"""A GGUF file, loaded again by the reader of transformers: it scores and generates rows of token ids."""

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from vanilla_transformer.conversion.parity import largest_difference
from vanilla_transformer.export.gguf_model import FILE_NAME
from vanilla_transformer.export.parity import Rows, written_by_generate
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel

__all__ = ["GGUFRuntime"]


class GGUFRuntime:
    """The model that transformers reads from a GGUF file, of its own class (Llama, GPT-2), which llama.cpp's layouts name.

    Args:
        folder: that `write_gguf` wrote.
        quantization: of the file.
        vocab_size: of the model.
    """

    def __init__(self, folder: Path, quantization: str, vocab_size: int):
        self.name = f"GGUF, {quantization}"
        self.is_exact = quantization == "float32"
        config = AutoConfig.from_pretrained(folder, gguf_file=FILE_NAME)
        if config.model_type == "gpt2":  # the reader leaves these two sizes at their defaults
            config.n_positions, config.n_inner = config.n_ctx, config.feed_forward_length
            config.vocab_size = vocab_size
        with redirect_stderr(StringIO()):  # the reader draws a bar of its own
            self.model = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=FILE_NAME, config=config, dtype=torch.float32
            ).eval()

    @torch.inference_mode()
    def largest_difference(self, model: VanillaTransformerPreTrainedModel, rows: Rows) -> float:
        """Compare the logits of each row."""
        return max(
            largest_difference(model(ids).logits, self.model(ids).logits)
            for ids in map(torch.tensor, ([r] for r in rows))
        )

    def write(self, rows: Rows, new_tokens: int) -> Rows:
        """Return what greedy search writes behind each row."""
        return written_by_generate(self.model, rows, new_tokens)
