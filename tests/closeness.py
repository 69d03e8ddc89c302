"""Equality of tensors up to what the order of additions makes of them, on any processor."""

import torch

__all__ = ["EXACT", "assert_close"]

EXACT = 0.0
"""For results of the same operations on the same shapes, which are equal bit by bit on one machine."""


def assert_close(actual, expected, atol=1e-5):
    """Assert that two tensors are equal up to rounding.

    Processors add in other orders (vector width, blocking, fused multiply-adds), so results of the same formula differ by a few
    roundings of their largest terms. An error of rounding grows with the values: `atol` is what is allowed where the
    largest value is 1 (1e-5 is 84 units in the last place of float32, for a stack of layers of about as many dependent
    operations; 1e-6 is 8 of them, for a single one), and as many times that as the largest value is.

    Args:
        actual: of any shape.
        expected: of the same shape and dtype.
        atol: at scale 1; `EXACT` asks for the same bits.

    Raises:
        AssertionError: where they differ by more, in shape or in dtype.
    """
    scale = 1.0
    if atol and expected.numel():
        scale = max(1.0, float(expected.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()))
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol * scale)
