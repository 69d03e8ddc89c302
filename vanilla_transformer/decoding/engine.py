"""Encoder, prompt and steps of a decoder on prepared weights.

Shapes as in the modeling file and in `cache`, and further:
    Q  queries of a group: tokens of a row that are read together, or beams      R  H / K, queries that share a key
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import embedding
from torch.nn.functional import scaled_dot_product_attention as sdpa

from vanilla_transformer.decoding.cache import FIRST_STEPS, KeyValueCache, Visibility
from vanilla_transformer.decoding.scores import best_tokens
from vanilla_transformer.decoding.screening import Mask
from vanilla_transformer.decoding.weights import LayerFunctions, PreparedWeights, ShortlistedHead, StackWeights

MOST_MISSES = 4
"""How often screening may fail in a call before it is given up."""

FEW_GROUPS, FEW_QUERIES = 8, 64
"""Groups below which, or queries from which, torch's fused attention is faster than two batched products."""

BLOCK = 256
"""Queries whose mask is made together, so that its size is that of a block times what the block sees."""


class Block(NamedTuple):
    """Queries that attend to keys, both from a place up to another, with a mask (G or 1, K or 1, Q * R, N) that is added."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    mask: torch.Tensor | None = None
    is_causal: bool = False


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, blocks: list[Block], scaling: float
) -> torch.Tensor:
    """Return (G * Q, H * d_v) of queries (G * Q, H, d), keys (G, K, N, d) and values (G, K, N, d_v)."""
    groups, heads, _, width = key.shape
    query = query.view(groups, -1, heads, query.shape[1] // heads, width)
    shared = query.shape[3]
    outputs = []
    for (start, stop), (first, last), mask, is_causal in blocks:
        part = query[:, start:stop].permute(0, 2, 1, 3, 4).flatten(2, 3)  # (G, K, Q * R, d)
        keys, values = key[:, :, first:last], value[:, :, first:last]
        # the two products know no order of tokens but that of a mask
        if is_causal or groups < FEW_GROUPS or part.shape[2] >= FEW_QUERIES:
            output = sdpa(part, keys, values, attn_mask=mask, is_causal=is_causal, scale=scaling)
        else:
            part = part.reshape(groups * heads, -1, width)
            if mask is None:
                scores = torch.baddbmm(part.new_empty(()), part, keys.flatten(0, 1).mT, beta=0, alpha=scaling)
            else:
                added = mask.expand(groups, heads, part.shape[1], -1).reshape(groups * heads, part.shape[1], -1)
                scores = torch.baddbmm(added, part, keys.flatten(0, 1).mT, alpha=scaling)
            output = torch.bmm(scores.softmax(-1), values.flatten(0, 1)).unflatten(0, (groups, heads))
        outputs.append(output.unflatten(2, (-1, shared)).permute(0, 2, 1, 3, 4))  # (G, Q, K, R, d_v)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return output.reshape(output.shape[0] * output.shape[1], -1)


def blocks_of(
    stack: StackWeights, kind: str, past: int, count: int, padding_mask: torch.Tensor | None, is_causal: bool
) -> list[Block]:
    """Return how `count` tokens behind `past` others attend in layers of a kind.

    Args:
        padding_mask: (G, past + count), 0 at padding, or `None`.
        is_causal: whether to earlier tokens alone.
    """
    window, length = stack.windows[kind], past + count
    window = None if window is not None and window >= length else window
    is_masked = padding_mask is not None or window is not None or stack.config.has_position_bias
    if not is_masked and (not is_causal or count == 1 or (past == 0 and stack.heads_per_key == 1)):
        return [Block((0, count), (0, length), is_causal=is_causal and count > 1)]
    blocks = []
    for start in range(0, count, BLOCK):
        stop = min(count, start + BLOCK)
        first = 0 if window is None else max(0, past + start - window + is_causal)
        last = past + stop if is_causal else length if window is None else min(length, stop + window)
        distance = torch.arange(first, last) - torch.arange(past + start, past + stop).unsqueeze(-1)  # (Q, N)
        visible = distance <= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            visible = visible & (distance > -window if is_causal else distance.abs() <= window)
        visible = visible[None, None]
        if padding_mask is not None:
            visible = visible & (padding_mask[:, first:last] != 0)[:, None, None]
            # padding sees nothing, and softmax makes nothing of that; what it sees does not count
            visible = visible | (~visible.any(-1, keepdim=True) & (distance == 0))
        mask = torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)  # (G or 1, 1, Q, N)
        if (bias := stack.position_bias(distance, is_causal)) is not None:  # (H, Q, N)
            mask = mask.unsqueeze(2) + bias.unflatten(0, (-1, stack.heads_per_key))  # (G or 1, K, R, Q, N)
            mask = mask.transpose(2, 3).flatten(2, 3)
        else:
            mask = mask.repeat_interleave(stack.heads_per_key, dim=2)
        blocks.append(Block((start, stop), (first, last), mask))
    return blocks


def embed(stack: StackWeights, ids: torch.Tensor, positions: torch.Tensor | int, count: int) -> torch.Tensor:
    """Return states (rows, D) of `ids` (rows,) at `positions` (rows,), or all at one, each below `count`."""
    states = embedding(ids, stack.embeddings)
    if stack.scale != 1:
        states = states.mul_(stack.scale)
    table = stack.positions(count)
    if table is not None:
        states = states.add_(table[positions])
    if stack.first_type is not None:
        states = states.add_(stack.first_type)
    if stack.embedding_norm is not None:
        states = stack.embedding_norm(states)
    return states if stack.projection is None else stack.projection.for_rows(len(ids))(states)


class Source(NamedTuple):
    """What cross-attention attends to: keys and values (G, K, S, d) of every layer, and a mask (G, 1, 1, S) or `None`."""

    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    mask: torch.Tensor | None

    def keep_groups(self, index: torch.Tensor) -> "Source":
        """Return those of the groups in `index`."""
        # layers that are shared have the same
        kept = {id(pair): (pair[0].index_select(0, index), pair[1].index_select(0, index)) for pair in self.pairs}
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return Source([kept[id(pair)] for pair in self.pairs], mask)


def run_layers(
    stack: StackWeights,
    layers: list[LayerFunctions],
    states: torch.Tensor,
    groups: int,
    rotary: dict[str, torch.Tensor],
    blocks: dict[str, list[Block]],
    cache: KeyValueCache | None = None,
    source: Source | None = None,
) -> torch.Tensor:
    """Run states (G * Q, D) through the layers of a stack, and its last norm.

    Args:
        rotary: (2, G * Q or 1, 1, d/2 or less) by kind of layer, where positions are rotary.
        blocks: what attends to what, by kind of layer.
        cache: gets keys and values, and holds those before them; `None` for an encoder.
        source: of cross-attention.
    """
    for index, (kind, layer) in enumerate(zip(stack.kinds, layers, strict=True)):
        query, key, value = layer.project(states, rotary.get(kind))
        key, value = (part.unflatten(0, (groups, -1)).transpose(1, 2) for part in (key, value))  # (G, K, Q, d)
        if cache is not None:
            key, value = cache.write(index, key, value)
        output = attend(query, key, value, blocks[kind], layer.weights.scaling)
        states = layer.add(0, states, layer.out(output))
        if source is not None:
            key, value = source.pairs[index]
            whole = Block((0, len(states) // groups), (0, key.shape[2]), source.mask)
            output = attend(layer.cross_query(states), key, value, [whole], layer.weights.scaling)
            states = layer.add(1, states, layer.cross_out(output))
        states = layer.feed_forward(states)
    return states if stack.norm is None else stack.norm(states)


def encode(stack: StackWeights, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the encoder's states (G, S, D) of `ids` (G, S), with `mask` (G, S), 0 at padding, or `None`."""
    (groups, length), mask = ids.shape, _without_ones(mask)
    positions = _positions(ids, mask)
    rotary = {kind: table[:, positions].unsqueeze(2) for kind, table in stack.rotary(length).items()}
    blocks = {kind: blocks_of(stack, kind, 0, length, mask, is_causal=False) for kind in stack.windows}
    states = embed(stack, ids.flatten(), positions, length)
    return run_layers(stack, stack.for_rows(len(states)), states, groups, rotary, blocks).view(groups, length, -1)


def _without_ones(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None or bool(mask.all()) else mask


def _positions(ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the positions (G * T,) of tokens (G, T)."""
    if mask is None:
        return torch.arange(ids.shape[1]).expand_as(ids).flatten()
    return (mask.long().cumsum(-1) - 1).clamp(min=0).flatten()


class Engine:
    """Decoder of one batch: a prompt, then a token for every row at each step.

    Args:
        weights: prepared weights.
        beams: W; rows of a group stand next to one another.
        steps: largest number of tokens that can follow the prompt.
        shortlist: (n,) the tokens that have a logit, or `None` for all.
    """

    def __init__(self, weights: PreparedWeights, beams: int, steps: int, shortlist: torch.Tensor | None = None):
        self.weights, self.stack, self.beams, self.steps = weights, weights.decoder, beams, steps
        self.source: Source | None = None
        self.head = weights.head
        if shortlist is not None and ShortlistedHead.is_worthwhile(self.head, shortlist):
            self.head = ShortlistedHead(self.head, shortlist)
        self.misses = 0  # of screening, which a model without clear preferences is not worth

    def read_source(self, states: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Project the source (G, S, D), with `mask` (G, S) or `None`, to keys and values of every layer."""
        (groups, length), config, layers = states.shape[:2], self.stack.config, self.stack.layers
        assert self.stack.cross is not None
        projected = self.stack.cross.for_rows(groups * length)(states.flatten(0, 1))
        heads, widths = config.num_key_value_heads, (config.head_dim, config.value_dim)
        parts = projected.view(groups, length, -1, heads * sum(widths)).split([heads * w for w in widths], dim=-1)
        # (layers, G, K, S, d) each
        keys, values = (
            part.unflatten(-1, (heads, width)).permute(2, 0, 3, 1, 4).contiguous()
            for part, width in zip(parts, widths, strict=True)
        )
        normed = (
            key if layer.cross_key_norm is None else layer.cross_key_norm(key)
            for key, layer in zip(keys, layers, strict=False)
        )
        pairs = list(zip(normed, values, strict=True))
        mask, hidden = _without_ones(mask), None
        if mask is not None:
            hidden = torch.zeros(groups, 1, 1, length).masked_fill_((mask == 0)[:, None, None], -math.inf)
        self.source = Source(pairs if len(pairs) == len(layers) else pairs * len(layers), hidden)

    def read_prompt(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Read the prompt (G, P), with `mask` (G, P) or `None`; return the last states (G, D)."""
        (groups, length), stack, mask = ids.shape, self.stack, _without_ones(mask)
        config = stack.config
        widths = config.head_dim, config.value_dim
        self.cache = KeyValueCache(
            len(stack.layers), groups, config.num_key_value_heads, widths, length, self.beams, self.steps
        )
        self.visibility = Visibility(mask, groups, length, self.beams)
        self.place, positions = length, _positions(ids, mask)
        self.positions: torch.Tensor | int = length
        if mask is not None:
            self.positions = (positions.view(groups, -1)[:, -1] + 1).repeat_interleave(self.beams)
        self._compute_tables(length + min(self.steps, FIRST_STEPS))
        rotary = {kind: table[:, positions].unsqueeze(2) for kind, table in self.rotary.items()}
        blocks = {kind: blocks_of(stack, kind, 0, length, mask, is_causal=True) for kind in stack.windows}
        self.cache.add(length)
        states = embed(stack, ids.flatten(), positions, length)
        layers = stack.for_rows(len(states))
        states = run_layers(stack, layers, states, groups, rotary, blocks, self.cache, self.source)
        self.layers = stack.for_rows(groups * self.beams)
        return states.view(groups, length, -1)[:, -1]

    def _compute_tables(self, count: int) -> None:
        """Compute what depends on positions or distances below `count`."""
        self.table_length = count
        self.rotary = self.stack.rotary(count)
        bias = self.stack.position_bias(-torch.arange(count).unsqueeze(0), is_causal=True)
        self.bias = None if bias is None else bias[:, 0]  # (H, count), by distance to an earlier key

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read a token of every row (G * W,), row by row of a group; return the last states (G * W, D)."""
        stack = self.stack
        if self.place >= self.table_length:
            self._compute_tables(2 * self.table_length)
        self.cache.add(self.beams)
        self.visibility.add_step(self.cache.filled)
        blocks = {kind: [self._block_of_step(window)] for kind, window in stack.windows.items()}
        count = self.place + 1 if isinstance(self.positions, int) else int(self.positions.max()) + 1
        states = embed(stack, tokens, self.positions, count)
        width = -1 if isinstance(self.positions, int) else len(tokens)
        rotary = {kind: table[:, self.positions].view(2, abs(width), 1, -1) for kind, table in self.rotary.items()}
        groups = len(tokens) // self.beams
        states = run_layers(stack, self.layers, states, groups, rotary, blocks, self.cache, self.source)
        self.place += 1
        self.positions = self.positions + 1
        return states

    def _block_of_step(self, window: int | None) -> Block:
        """Return what the next token of every row attends to in layers with such a window."""
        first = 0 if window is None else self.cache.slot_of(max(0, self.place - window + 1))
        filled, hidden, mask = self.cache.filled, self.visibility.hidden, None
        if hidden is not None:
            mask = hidden[:, None, :, None, first:filled]  # (G, 1, W, 1, N)
        if self.bias is not None:
            slots, prompt = torch.arange(first, filled), self.cache.prompt
            places = torch.where(slots < prompt, slots, prompt + (slots - prompt) // self.beams)
            bias = self.bias[:, self.place - places].unflatten(0, (-1, self.stack.heads_per_key))[None, :, None]
            mask = bias.expand(-1, -1, self.beams, -1, -1) if mask is None else mask + bias  # (G or 1, K, W, R, N)
        if mask is not None:  # to (G or 1, K or 1, W * R, N)
            mask = mask.expand(-1, -1, -1, self.stack.heads_per_key, -1).flatten(2, 3)
        return Block((0, self.beams), (first, filled), mask)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (rows, V) behind the last states (rows, D): minus infinity off the shortlist."""
        return self.head.logits(states)

    def log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logarithms (rows, V) of the softmax of `logits`."""
        return self.head.log_probabilities(states)

    def best_tokens(self, states: torch.Tensor, mask: Mask) -> torch.Tensor:
        """Return the best token (rows,) behind the last states (rows, D); see [`ScreenedArgmax`] for `mask`."""
        if self.misses < MOST_MISSES and (screen := self.head.screen()) is not None:
            tokens = screen(self.head.inputs(states), mask)
            if tokens is not None:
                return tokens
            self.misses += 1
        return best_tokens(mask(self.logits(states)))

    def exchange(self, parents: torch.Tensor) -> None:
        """Let every beam follow its parent, (G, W), counted within its group; positions are equal there."""
        self.visibility.exchange(parents, self.cache.filled)

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        self.cache.keep_groups(index)
        self.visibility.keep_groups(index)
        if isinstance(self.positions, torch.Tensor):
            self.positions = self.positions.view(-1, self.beams).index_select(0, index).flatten()
        if self.source is not None:
            self.source = self.source.keep_groups(index)
