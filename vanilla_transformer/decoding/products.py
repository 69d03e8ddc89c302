"""Products of few rows with a weight, which are bound by how the weight is read from memory."""

import threading
import warnings
from collections.abc import Callable

import torch

RowsProduct = Callable[[torch.Tensor], torch.Tensor]

DTYPES = ("float32", "bfloat16", "int8")
_ENGINE_LOCK = threading.Lock()

SMALL_WEIGHT = 2**16
"""Elements below which, for fewer than `FEW_ROWS`, calling oneDNN costs more than its layout saves."""

FEW_ROWS = 16

NOT_ROUNDED = 2**16
"""Elements up to which a weight stays in float32, since a cache holds it."""


MOST_BAGGED = 4096
"""Outputs up to which an embedding bag multiplies a single row fastest in int8."""


def _onednn_ops() -> tuple | None:
    """Return the operators that pack a weight and multiply by it, or `None` where this build of torch lacks them."""
    if not torch.backends.mkldnn.is_available():
        return None
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    multiply = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return None if pack is None or multiply is None else (pack, multiply)


def choose_form(rows: int, outputs: int, inputs: int) -> str:
    """Return the layout of a weight (outputs, inputs) that is fastest for so many rows.

    `"packed"`: oneDNN's blocks, which are read at the speed of the memory for one row, too. `"transposed"`: inputs first,
    for small weights, and where this build of torch has no oneDNN. Measured with weights that no cache held.
    """
    is_small = outputs * inputs < SMALL_WEIGHT and rows < FEW_ROWS
    return "transposed" if is_small or _onednn_ops() is None else "packed"


def check_dtype(dtype: str) -> None:
    """Refuse a dtype of products that there is not, or that this processor or build of torch lacks.

    Raises:
        ValueError: naming those that there are.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not one of {', '.join(map(repr, DTYPES))}.")
    if dtype == "int8" and not int8_engines():
        raise ValueError("this build of torch has no int8 products (fbgemm or onednn); use dtype='float32'.")
    if dtype == "bfloat16" and not (_onednn_ops() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        raise ValueError("this processor or build of torch has no bfloat16 products; use dtype='float32' or 'int8'.")


def int8_engines() -> list[str]:
    return [engine for engine in ("fbgemm", "onednn") if engine in torch.backends.quantized.supported_engines]


def _has_amx() -> bool:
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    return capabilities is not None and bool(capabilities().get("amx_int8"))


def choose_int8_engine(rows: int) -> str:
    """Return the engine whose int8 products are fastest for so many rows: oneDNN's from 32 on, with AMX from 2 on."""
    return int8_engines()[0 if rows < (2 if _has_amx() else 32) else -1]


def quantize_rows(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight (outputs, inputs) in int8, each row scaled by its own largest value."""
    scales = weight.abs().amax(1).clamp(min=1e-8) / 127
    with warnings.catch_warnings():
        # torch means to drop tensors of this kind, and has no other int8 products of a processor's speed so far
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.quantize_per_channel(weight, scales, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)


def quantized_product(quantized: torch.Tensor, bias: torch.Tensor | None, engine: str) -> RowsProduct:
    """Return the product with a weight of `quantize_rows`, for states that are scaled by their range at every call."""
    with _ENGINE_LOCK:
        # the engine is a setting of the process, read where a weight is packed
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = engine
        try:
            packed = torch.ops.quantized.linear_prepack(quantized, bias)
        finally:
            torch.backends.quantized.engine = before
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, True)


def bag_product(weight: torch.Tensor, bias: torch.Tensor | None) -> RowsProduct:
    """Return the product of a single row with a weight (outputs, inputs) in int8, scaled by inputs.

    It is the sum of an embedding bag, whose embeddings are the weight's columns and whose weights are the states, which
    are not rounded.
    """
    outputs, inputs = weight.shape
    packed = torch.ops.quantized.embedding_bag_byte_prepack(weight.t().contiguous())
    index, start = torch.arange(inputs, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    multiply = torch.ops.quantized.embedding_bag_byte_rowwise_offsets

    def product(x: torch.Tensor) -> torch.Tensor:
        output = multiply(packed, index, start, False, 0, False, x.view(inputs))
        return output if bias is None else output.add_(bias)

    return product


class Product:
    """`x W^T + b` in float32 of several weights at once, each form built when it is first needed; or nearly that.

    Args:
        weights: (outputs_i, inputs) each; their outputs follow one another.
        biases: (outputs_i,) each, or all `None`.
        dtype: `"float32"`; `"bfloat16"` or `"int8"` for weights that are rounded to it, with states in it for the product.
    """

    def __init__(self, weights: list[torch.Tensor], biases: list[torch.Tensor | None], dtype: str = "float32"):
        self.dtype = dtype
        self.weights = [weight.detach() for weight in weights]
        given = [bias.detach() for bias in biases if bias is not None]
        self.bias = torch.cat(given) if len(given) > 1 else (given[0] if given else None)
        self.shape = (sum(len(weight) for weight in weights), weights[0].shape[1])
        self._forms: dict[str, RowsProduct] = {}
        self.copied_bytes = 0

    def for_rows(self, rows: int) -> RowsProduct:
        """Return the function (rows, inputs) -> (rows, outputs); those for several rows are right for any number of them."""
        # rounding states costs more than a small weight saves
        is_whole = self.dtype == "float32" or self.shape[0] * self.shape[1] <= NOT_ROUNDED
        form = choose_form(rows, *self.shape) if is_whole else self.dtype
        if form == "int8":
            form = "bag" if rows == 1 and self.shape[0] <= MOST_BAGGED else choose_int8_engine(rows)
        if form not in self._forms:
            self._forms[form] = self._build(form)
        return self._forms[form]

    def of_outputs(self, outputs: torch.Tensor) -> "Product":
        """Return the product with the weights of some of the outputs, of which there is one tensor."""
        (weight,) = self.weights
        bias = None if self.bias is None else self.bias.index_select(0, outputs)
        return Product([weight.index_select(0, outputs)], [bias], self.dtype)

    def _build(self, form: str) -> RowsProduct:
        bias = self.bias
        if form == "transposed":
            matrix = torch.cat([weight.t() for weight in self.weights], dim=1).contiguous()
            self.copied_bytes += matrix.nbytes
            # without a bias torch multiplies one row several times more slowly
            added = matrix.new_zeros(self.shape[0]) if bias is None else bias
            return lambda x: torch.addmm(added, x, matrix)
        weight = self.weights[0] if len(self.weights) == 1 else torch.cat(self.weights)
        if form == "bag":
            self.copied_bytes += weight.numel() + 8 * self.shape[1]
            return bag_product(weight, bias)
        if form in ("fbgemm", "onednn"):
            self.copied_bytes += weight.numel()
            return quantized_product(quantize_rows(weight), bias, form)
        operators = _onednn_ops()
        assert operators is not None
        pack, multiply = operators
        if form == "bfloat16":
            half, half_bias = pack(weight.bfloat16(), 16), None if bias is None else bias.bfloat16()
            self.copied_bytes += weight.nbytes // 2
            return lambda x: multiply(x.bfloat16(), half, half_bias, "none", [], "").float()
        packed = pack(weight, 16)  # the layout for 2 rows and for 400 is one and the same
        self.copied_bytes += weight.nbytes
        return lambda x: multiply(x, packed, bias, "none", [], "")
