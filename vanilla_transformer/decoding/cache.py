"""Keys and values of what has been read and written, in memory that is allocated ahead, and who may see which of them.

Beams of a sentence share one row. Every step writes a slot for each of them, and none is ever moved: each beam sees the
slots that its ancestors wrote, so that exchanging beams exchanges rows of a small mask. Shapes as in the modeling file,
and further:
    G  groups: rows, or sentences with several beams      W  beams of a group, 1 without      N  slots
"""

import math

import torch

FIRST_STEPS = 64
"""Steps for which there is room at first; it is doubled when it is used up."""


class KeyValueCache:
    """Keys and values of self-attention.

    Args:
        layers: depth of the decoder.
        groups: G.
        heads, width: K and d.
        prompt: number of slots of the prompt, one for each token.
        beams: W.
        steps: largest number of tokens that can follow.
    """

    def __init__(self, layers: int, groups: int, heads: int, width: int, prompt: int, beams: int, steps: int):
        self.beams, self.prompt, self.filled = beams, prompt, 0
        self.most = prompt + beams * steps
        slots = prompt + beams * min(steps, FIRST_STEPS)
        self.states = torch.empty(layers, 2, groups, heads, slots, width)

    def add(self, count: int) -> tuple[torch.Tensor, ...]:
        """Take `count` more slots; return the views (2, G, K, count, d) of the layers, into which they are written."""
        if self.filled + count > self.states.shape[4]:
            slots = min(self.most, 2 * self.states.shape[4] - self.prompt)
            grown = self.states.new_empty(
                *self.states.shape[:4], max(slots, self.filled + count), self.states.shape[5]
            )
            grown[:, :, :, :, : self.filled] = self.states[:, :, :, :, : self.filled]
            self.states = grown
        views = self.states.narrow(4, self.filled, count).unbind(0)
        self.filled += count
        return views

    def read(self, first: int) -> tuple[torch.Tensor, ...]:
        """Return the views (2, G, K, N, d) of the layers from slot `first` on."""
        return self.states.narrow(4, first, self.filled - first).unbind(0)

    def slot_of(self, place: int) -> int:
        """Return the first slot of a place in the rows."""
        return place if place < self.prompt else self.prompt + (place - self.prompt) * self.beams

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        used = self.states[:, :, :, :, : self.filled]
        kept = self.states.new_empty(*self.states.shape[:2], len(index), *self.states.shape[3:])
        kept[:, :, :, :, : self.filled] = used.index_select(2, index)
        self.states = kept


class Visibility:
    """Which slots each beam sees, and what is added to its scores for their distance.

    Args:
        prompt_mask: (G, P), 0 at padding; `None` without padding.
        prompt, beams: P and W.
        window: how many places a token sees, itself among them, or `None`.
        key_value_heads: K.

    Attributes:
        bias: (H, places) by distance to an earlier key, or `None`.
    """

    def __init__(
        self,
        prompt_mask: torch.Tensor | None,
        groups: int,
        prompt: int,
        beams: int,
        window: int | None,
        key_value_heads: int,
    ):
        self.prompt, self.beams, self.window, self.key_value_heads = prompt, beams, window, key_value_heads
        self.bias: torch.Tensor | None = None
        self.hidden: torch.Tensor | None = None  # (G, W, N), 0 where a beam sees a slot, minus infinity elsewhere
        if prompt_mask is not None or beams > 1:
            self.hidden = torch.zeros(groups, beams, prompt + beams * FIRST_STEPS)
            if prompt_mask is not None:
                self.hidden[:, :, :prompt].masked_fill_((prompt_mask == 0).unsqueeze(1), -math.inf)
        own = torch.full((beams, beams), -math.inf)
        self.own = own.fill_diagonal_(0.0)

    def first_place(self, place: int) -> int:
        """Return the first place that a token at `place` can see."""
        return 0 if self.window is None else max(0, place - self.window + 1)

    def add_step(self, filled: int) -> None:
        """Let every beam see the slot that it writes, the last of `filled` slots, and not those of the others."""
        if self.hidden is None or self.beams == 1:
            if self.hidden is not None and filled > self.hidden.shape[2]:
                self.hidden = torch.nn.functional.pad(self.hidden, (0, self.hidden.shape[2]))
            return
        if filled > self.hidden.shape[2]:
            self.hidden = torch.nn.functional.pad(self.hidden, (0, self.hidden.shape[2]))
        self.hidden[:, :, filled - self.beams : filled] = self.own

    def mask(self, place: int, first: int, filled: int) -> torch.Tensor | None:
        """Return what is added to the scores of a step, (G or 1, K or 1, W * H/K, N), for slots from `first` on."""
        hidden = None
        if self.hidden is not None:
            hidden = self.hidden[:, None, :, None, first:filled]  # (G, 1, W, 1, N)
        if self.bias is None:
            return hidden
        slots = torch.arange(first, filled)
        places = torch.where(slots < self.prompt, slots, self.prompt + (slots - self.prompt) // self.beams)
        bias = self.bias[:, place - places].unflatten(0, (self.key_value_heads, -1))  # (K, H/K, N)
        bias = bias[None, :, None]  # (1, K, 1, H/K, N)
        return bias.expand(-1, -1, self.beams, -1, -1) if hidden is None else hidden + bias

    def exchange(self, parents: torch.Tensor, filled: int) -> None:
        """Give every beam what its parent sees; `parents` (G, W) counts within a group."""
        assert self.hidden is not None
        seen = self.hidden[:, :, :filled]
        self.hidden[:, :, :filled] = seen.gather(1, parents.unsqueeze(-1).expand(-1, -1, filled))

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        if self.hidden is not None:
            self.hidden = self.hidden.index_select(0, index)
