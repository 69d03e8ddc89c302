"""Products of few rows with a weight, which are bound by how the weight is read from memory."""

from collections.abc import Callable

import torch
from torch.nn.functional import linear

RowsProduct = Callable[[torch.Tensor], torch.Tensor]

SMALL_WEIGHT = 2**18
"""Elements up to which calling oneDNN costs more than its layout saves."""


def _onednn_ops() -> tuple | None:
    """Return the operators that pack a weight and multiply by it, or `None` where this build of torch lacks them."""
    if not torch.backends.mkldnn.is_available():
        return None
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    multiply = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if pack is None or multiply is None else (pack, multiply)


def choose_form(rows: int, outputs: int, inputs: int) -> str:
    """Return the layout of a weight (outputs, inputs) that is fastest for so many rows.

    `"plain"`: as it is. `"transposed"`: its rows are read one after the other in a vector-matrix product. `"packed"`:
    oneDNN's blocks, for two rows and more. Measured on two kinds of processors with weights that no cache held.
    """
    if outputs * inputs <= SMALL_WEIGHT:
        return "transposed"
    if rows == 1:
        return "transposed" if outputs > inputs else "plain"
    return "transposed" if _onednn_ops() is None else "packed"


class Product:
    """`x W^T + b` in float32 of several weights at once, each form built when it is first needed.

    Args:
        weights: (outputs_i, inputs) each; their outputs follow one another.
        biases: (outputs_i,) each, or all `None`.
    """

    def __init__(self, weights: list[torch.Tensor], biases: list[torch.Tensor | None]):
        self.weights = [weight.detach() for weight in weights]
        given = [bias.detach() for bias in biases if bias is not None]
        self.bias = torch.cat(given) if len(given) > 1 else (given[0] if given else None)
        self.shape = (sum(len(weight) for weight in weights), weights[0].shape[1])
        self._forms: dict[str, RowsProduct] = {}
        self.copied_bytes = 0

    def for_rows(self, rows: int) -> RowsProduct:
        """Return the function (rows, inputs) -> (rows, outputs); it is right for any number of rows."""
        form = choose_form(rows, *self.shape)
        if form not in self._forms:
            self._forms[form] = self._build(form)
        return self._forms[form]

    def _build(self, form: str) -> RowsProduct:
        bias = self.bias
        if form == "transposed":
            matrix = torch.cat([weight.t() for weight in self.weights], dim=1).contiguous()
            self.copied_bytes += matrix.nbytes
            if bias is None:
                return lambda x: torch.mm(x, matrix)
            return lambda x: torch.addmm(bias, x, matrix)
        weight = self.weights[0] if len(self.weights) == 1 else torch.cat(self.weights)
        if form == "plain":
            self.copied_bytes += weight.nbytes if len(self.weights) > 1 else 0
            return lambda x: linear(x, weight, bias)
        operators = _onednn_ops()
        assert operators is not None
        pack, multiply = operators
        packed = pack(weight, 16)  # the layout for 2 rows and for 400 is one and the same
        self.copied_bytes += weight.nbytes
        return lambda x: multiply(x, packed, bias, "none", [], "")
