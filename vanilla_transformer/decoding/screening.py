"""The best token of float32 logits, of which few are computed: int8 products rule the others out."""

from collections.abc import Callable

import torch

from vanilla_transformer.decoding.products import choose_int8_engine, int8_engines, quantize_rows, quantized_product

LARGE_WEIGHT = 2**22
"""Elements of a weight from which reading a quarter of it saves more than looking for the candidates costs."""

MOST_CANDIDATES = 1024
"""Candidates of a row up to which computing them is cheaper than computing all logits."""

CHUNK = 64

Mask = Callable[[torch.Tensor], torch.Tensor]


def can_screen(outputs: int, inputs: int) -> bool:
    """Whether screening a weight (outputs, inputs) saves time, and this build of torch can."""
    return outputs * inputs >= LARGE_WEIGHT and bool(int8_engines())


class ScreenedArgmax:
    """Greedy choice by screening, as in maximum inner product search with quantized vectors.

    A logit `x.w` of int8 products `x'.w'` is off by at most `|x| |w - w'| + |x - x'| |w'|` (Cauchy-Schwarz). Tokens that
    are below the best by more than that cannot be the best; the others are computed in float32.

    Args:
        weight: (V, D) of the output layer.
        bias: (V,) or `None`.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        self.weight, self.bias, size = weight, bias, len(weight)
        fill = -size % CHUNK
        padded = torch.nn.functional.pad(weight, (0, 0, 0, fill))
        offsets = torch.zeros(size) if bias is None else bias
        quantized = quantize_rows(padded)
        rounded = quantized.dequantize()
        self.largest_norm = float(rounded.norm(dim=1).max())
        self.largest_error = float(rounded.sub_(padded).norm(dim=1).max())
        self.copied_bytes = 0
        self._quantized, self._offsets = quantized, torch.nn.functional.pad(offsets, (0, fill), value=-torch.inf)
        self._products: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}

    def _bounds(self, states: torch.Tensor) -> torch.Tensor:
        """Return by how much int8 products of states (rows, D) can be off, (rows, 1)."""
        # dynamic quantization splits the range of all states, 0 in it, into at least 127 steps
        low, high = (float(value) for value in states.aminmax())
        step = (max(high, 0.0) - min(low, 0.0)) / 127
        rounding = self.largest_norm * step / 2 * states.shape[1] ** 0.5
        return states.norm(dim=1, keepdim=True).mul_(self.largest_error).add_(rounding + 1e-4).mul_(1.001)

    def _logits(self, states: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the float32 logits (n,) of `tokens` (n,) behind the states (rows, D) at `rows` (n,)."""
        logits = (self.weight.index_select(0, tokens) * states.index_select(0, rows)).sum(-1)
        return logits if self.bias is None else logits + self.bias.index_select(0, tokens)

    def __call__(self, states: torch.Tensor, mask: Mask) -> torch.Tensor | None:
        """Return the best token (rows,) behind states (rows, D), the first among equals; `None` where too many could be.

        Args:
            mask: sets scores (rows, >= V) of tokens that must not be chosen to minus infinity, in place.
        """
        count = len(states)
        engine = choose_int8_engine(count)
        if engine not in self._products:
            self._products[engine] = quantized_product(self._quantized, self._offsets, engine)
            self.copied_bytes += self._quantized.numel()
        scores = mask(self._products[engine](states)).view(count, -1, CHUNK)
        # the best token is not below the float32 logit of any, as of that with the best score
        maxima = scores.amax(-1)
        chunk = maxima.argmax(-1)
        rows = torch.arange(count)
        likely = scores[rows, chunk].argmax(-1).add_(chunk, alpha=CHUNK)
        least = self._logits(states, rows, likely).unsqueeze(1) - self._bounds(states)  # (rows, 1)
        rows, chunks = (maxima >= least).nonzero(as_tuple=True)
        if len(rows) > MOST_CANDIDATES * count:
            return None
        found, places = (scores[rows, chunks] >= least[rows]).nonzero(as_tuple=True)
        rows, tokens = rows[found], chunks[found].mul_(CHUNK).add_(places)
        if len(rows) == count:
            return likely
        if len(rows) > MOST_CANDIDATES * count:
            return None
        logits = self._logits(states, rows, tokens)
        best = torch.full((count,), -torch.inf).scatter_reduce_(0, rows, logits, "amax")
        is_best = logits == best[rows]
        return torch.full((count,), len(self.weight)).scatter_reduce_(0, rows[is_best], tokens[is_best], "amin")
