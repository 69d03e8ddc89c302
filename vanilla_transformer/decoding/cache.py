"""Keys and values of what has been read and written, in memory that is allocated ahead, and who may see which of them.

Beams of a sentence share one row. Every step writes a slot for each of them, and none is ever moved: each beam sees the
slots that its ancestors wrote, so that exchanging beams exchanges rows of a small mask. Shapes as in the modeling file,
and further:
    G  groups: rows, or sentences with several beams      W  beams of a group, 1 without      N  slots
"""

import math

import torch
from torch.nn.functional import pad

FIRST_STEPS = 64
"""Steps for which there is room at first; it is doubled when it is used up."""


class KeyValueCache:
    """Keys and values of self-attention.

    Args:
        layers: depth of the decoder.
        groups: G.
        heads: K.
        widths: of keys and of values, d and d_v.
        prompt: number of slots of the prompt, one for each token.
        beams: W.
        steps: largest number of tokens that can follow.
    """

    def __init__(
        self, layers: int, groups: int, heads: int, widths: tuple[int, int], prompt: int, beams: int, steps: int
    ):
        self.beams, self.prompt, self.filled = beams, prompt, 0
        self.most = prompt + beams * steps
        slots = prompt + beams * min(steps, FIRST_STEPS)
        self.states = [torch.empty(layers, groups, heads, slots, width) for width in widths]  # keys, then values

    def add(self, count: int) -> None:
        """Take `count` more slots, which `write` fills."""
        slots = self.states[0].shape[3]
        if self.filled + count > slots:
            more = max(min(self.most, 2 * slots - self.prompt), self.filled + count) - slots
            self.states = [pad(states, (0, 0, 0, more)) for states in self.states]
        self.filled += count

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values (G, K, count, d) of a layer into the last slots; return those of all (G, K, N, d)."""
        keys, values = (states[layer, :, :, : self.filled] for states in self.states)
        keys[:, :, -key.shape[2] :] = key
        values[:, :, -key.shape[2] :] = value
        return keys, values

    def drop(self, count: int) -> None:
        """Forget the last `count` slots."""
        self.filled -= count

    def slot_of(self, place: int) -> int:
        """Return the first slot of a place in the rows."""
        return place if place < self.prompt else self.prompt + (place - self.prompt) * self.beams

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        slots = self.states[0].shape[3]
        used = [states[:, :, :, : self.filled].index_select(1, index) for states in self.states]
        self.states = [pad(states, (0, 0, 0, slots - self.filled)) for states in used]


class Visibility:
    """Which slots each beam sees.

    Args:
        prompt_mask: (G, P), 0 at padding; `None` without padding.
        groups, prompt, beams: G, P and W.

    Attributes:
        hidden: (G, W, N), 0 where a beam sees a slot, minus infinity elsewhere; `None` where each sees all.
    """

    def __init__(self, prompt_mask: torch.Tensor | None, groups: int, prompt: int, beams: int):
        self.beams = beams
        self.hidden: torch.Tensor | None = None
        if prompt_mask is not None or beams > 1:
            self.hidden = torch.zeros(groups, beams, prompt + beams * FIRST_STEPS)
            if prompt_mask is not None:
                self.hidden[:, :, :prompt].masked_fill_((prompt_mask == 0).unsqueeze(1), -math.inf)
        self.own = torch.full((beams, beams), -math.inf).fill_diagonal_(0.0)

    def add_step(self, filled: int) -> None:
        """Let every beam see the slot that it writes, the last of `filled` slots, and not those of the others."""
        if self.hidden is None:
            return
        if filled > self.hidden.shape[2]:
            self.hidden = pad(self.hidden, (0, self.hidden.shape[2]))
        if self.beams > 1:
            self.hidden[:, :, filled - self.beams : filled] = self.own

    def exchange(self, parents: torch.Tensor, filled: int) -> None:
        """Give every beam what its parent sees; `parents` (G, W) counts within a group."""
        assert self.hidden is not None
        seen = self.hidden[:, :, :filled]
        self.hidden[:, :, :filled] = seen.gather(1, parents.unsqueeze(-1).expand(-1, -1, filled))

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        if self.hidden is not None:
            self.hidden = self.hidden.index_select(0, index)
