"""A folder of ONNX files, loaded with onnxruntime: it scores and generates rows of token ids."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vanilla_transformer.conversion.parity import largest_difference
from vanilla_transformer.export.onnx_model import file_name, head_outputs
from vanilla_transformer.export.parity import Rows
from vanilla_transformer.generation.text_generator import pad_rows
from vanilla_transformer.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel
from vanilla_transformer.utils.extras import needs

__all__ = ["OnnxRuntime"]


class OnnxRuntime:
    """A model in ONNX files, on the CPU; a loop over its graphs is all that greedy search needs.

    Args:
        folder: that `write_onnx` wrote.
        model: that was exported; read for its sizes and special tokens.
        quantization: of the files.
    """

    def __init__(self, folder: Path, model: VanillaTransformerPreTrainedModel, quantization: str):
        with needs("this export"):
            import onnxruntime
        self.name = f"onnxruntime, {quantization}"
        self.is_exact = quantization == "float32"
        self.config = model.config
        self.ends = _ends(model)
        self.heads, self.width = int(model.config.num_key_value_heads), int(model.config.head_dim)  # type: ignore[arg-type]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()

        def opened(graph: str) -> Any:
            return onnxruntime.InferenceSession(folder / file_name(graph, quantization), options)

        if self.config.is_encoder_decoder:
            self.encoder, self.decoder = opened("encoder_model"), opened("decoder_model_merged")
        else:
            self.decoder = opened("model")
        self.outputs = [output.name for output in self.decoder.get_outputs()]
        self.past = [value.name for value in self.decoder.get_inputs() if value.name.startswith("past_key_values.")]

    @torch.inference_mode()
    def largest_difference(self, model: VanillaTransformerPreTrainedModel, rows: Rows) -> float:
        """Compare logits (of a translator for the rows turned round), padded with others in one batch."""
        tokens, attended = pad_rows(rows, self.config.pad_token_id or 0)
        ids, mask = tokens.numpy(), attended.numpy()
        if self.config.is_encoder_decoder:
            target = torch.flip(tokens, [1])[:, :5] % self.config.output_vocab_size
            expected = model(tokens, attended, decoder_input_ids=target).logits
            found = self._decode(target.numpy(), mask, self._encode(ids, mask), None)["logits"]
            return largest_difference(expected, torch.from_numpy(found))
        if self.config.architecture == "decoder-only":
            expected = model(tokens, attended).logits
            found = self._continue(ids, mask, _positions(mask), None)["logits"]
            return largest_difference(expected[attended.bool()], torch.from_numpy(found)[attended.bool()])
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        known = {value.name for value in self.decoder.get_inputs()}
        found_all = self.decoder.run(None, {name: value for name, value in inputs.items() if name in known})
        output = model(tokens, attended)
        differences = []
        for name, array in zip(head_outputs(model), found_all, strict=True):
            one, other = output[name], torch.from_numpy(array)
            if one.shape[:2] == attended.shape:
                one, other = one[attended.bool()], other[attended.bool()]
            differences.append(largest_difference(one, other))
        return max(differences)

    def write(self, rows: Rows, new_tokens: int) -> Rows | None:
        """Return what greedy search writes behind each row; None for an encoder."""
        if self.config.architecture == "encoder-only":
            return None
        write = self._translate if self.config.is_encoder_decoder else self._go_on
        return [write(row, new_tokens) for row in rows]

    def _translate(self, row: list[int], new_tokens: int) -> list[int]:
        ids, mask = np.array([row]), np.ones((1, len(row)), dtype=np.int64)
        states = self._encode(ids, mask)
        token, past = self.config.start_token_id, None
        written: list[int] = []
        for _ in range(new_tokens):
            result = self._decode(np.array([[token]]), mask, states, past)
            token = int(result["logits"][0, -1].argmax())
            if token in self.ends:
                break
            written.append(token)
            past = {name: result[name.replace("past_key_values", "present", 1)] for name in self.past}
        return written

    def _go_on(self, row: list[int], new_tokens: int) -> list[int]:
        ids, past = np.array([row]), None
        written: list[int] = []
        for _ in range(new_tokens):
            length = len(row) + len(written)
            mask = np.ones((1, length), dtype=np.int64)
            result = self._continue(ids, mask, _positions(mask)[:, length - ids.shape[1] :], past)
            token = int(result["logits"][0, -1].argmax())
            if token in self.ends:
                break
            written.append(token)
            ids = np.array([[token]])
            past = {name: result[name.replace("past_key_values", "present", 1)] for name in self.past}
        return written

    def _encode(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return self.encoder.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    def _decode(self, ids: np.ndarray, mask: np.ndarray, states: np.ndarray, past: dict | None) -> dict[str, Any]:
        inputs = {
            "input_ids": ids,
            "encoder_attention_mask": mask,
            "encoder_hidden_states": states,
            "use_cache_branch": np.array([past is not None]),
            **(self._nothing(len(ids)) if past is None else past),
        }
        return dict(zip(self.outputs, self.decoder.run(None, inputs), strict=True))

    def _continue(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, past: dict | None) -> dict[str, Any]:
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        inputs |= self._nothing(len(ids)) if past is None else past
        return dict(zip(self.outputs, self.decoder.run(None, inputs), strict=True))

    def _nothing(self, batch: int) -> dict[str, np.ndarray]:
        """Return keys and values of no token."""
        return {name: np.zeros((batch, self.heads, 0, self.width), dtype=np.float32) for name in self.past}


def _ends(model: VanillaTransformerPreTrainedModel) -> set[int]:
    ends = model.generation_config.eos_token_id if model.can_generate() else None
    return set(ends if isinstance(ends, list) else [ends])


def _positions(mask: np.ndarray) -> np.ndarray:
    return np.maximum(mask.cumsum(1) - 1, 0)
