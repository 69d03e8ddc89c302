"""Encoder, prompt and steps of a decoder on prepared weights. Shapes as in the modeling file and in `cache`."""

import math
from typing import Any

import torch
from torch.nn.functional import embedding
from torch.nn.functional import scaled_dot_product_attention as sdpa

from vanilla_transformer.decoding.cache import FIRST_STEPS, KeyValueCache, Visibility
from vanilla_transformer.decoding.scores import best_tokens
from vanilla_transformer.decoding.screening import Mask
from vanilla_transformer.decoding.weights import PreparedWeights, ShortlistedHead, StackWeights
from vanilla_transformer.positions_vanilla_transformer import apply_rotary_pos_emb

MOST_MISSES = 4

FEW_GROUPS = 8
"""Groups below which torch's fused attention is faster than two batched products."""


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Return (G, K, Q, d) of queries (G, K, Q, d), keys and values (G, K, N, d); `mask` (G or 1, K or 1, Q or 1, N) is added."""
    groups, heads, queries, width = query.shape
    if groups < FEW_GROUPS:
        return sdpa(query, key, value, attn_mask=mask, scale=scaling)
    query, key, value = query.reshape(-1, queries, width), key.flatten(0, 1), value.flatten(0, 1)
    if mask is None:
        scores = torch.baddbmm(query.new_empty(()), query, key.transpose(1, 2), beta=0, alpha=scaling)
    else:
        mask = mask.expand(groups, heads, queries, -1).reshape(groups * heads, queries, -1)
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(-1), value).view(groups, heads, queries, width)


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


def run_whole(
    stack: StackWeights,
    ids: torch.Tensor,
    positions: torch.Tensor,
    padding_mask: torch.Tensor | None,
    window: int | None,
    cache: tuple[torch.Tensor, ...] | None = None,
    cross: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    cross_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run a stack over whole rows: the source in both directions, or a prompt from left to right.

    Args:
        ids, positions: (G, T).
        padding_mask: (G, T), 0 at padding, or `None`.
        window: of the model.
        cache: views (2, G, K, T, d) of the layers, which are filled; `None` for an encoder.
        cross: keys and values (G, K, S, d) of every layer's source, with `cross_mask` (G, 1, 1, S).

    Returns:
        States (G, T, D).
    """
    (groups, length), is_causal = ids.shape, cache is not None
    heads, key_value_heads, width = stack.heads, stack.key_value_heads, stack.head_dim
    mask = _mask_of_whole(stack, length, padding_mask, window, is_causal)
    count = int(positions.max()) + 1
    states = embed(stack, ids.flatten(), positions.flatten(), count)
    rotations = stack.rotations(count)
    rotary = None if rotations is None else rotations[:, positions]  # (2, G, T, d/2)
    for index, layer in enumerate(stack.for_rows(len(states))):
        qkv = layer.qkv(layer.attention_input(0, states)).view(groups, length, -1, width).transpose(1, 2)
        query, key, value = qkv.split([heads, key_value_heads, key_value_heads], dim=1)  # (G, H or K, T, d)
        if rotary is not None:
            query, key = apply_rotary_pos_emb(query, rotary), apply_rotary_pos_emb(key, rotary)
        if cache is not None:
            cache[index][0].copy_(key)
            cache[index][1].copy_(value)
        output = sdpa(
            query,
            key.repeat_interleave(heads // key_value_heads, dim=1),
            value.repeat_interleave(heads // key_value_heads, dim=1),
            attn_mask=mask,
            is_causal=is_causal and mask is None,
            scale=layer.weights.scaling,
        )
        states = layer.add(0, states, layer.out(output.transpose(1, 2).reshape(len(states), -1)))
        if cross is not None:
            query = layer.cross_query(layer.attention_input(1, states)).view(
                groups, length, key_value_heads, -1, width
            )
            query = query.permute(0, 2, 1, 3, 4).flatten(2, 3)  # (G, K, T * H/K, d)
            output = sdpa(query, *cross[index], attn_mask=cross_mask, scale=layer.weights.scaling)
            output = output.unflatten(2, (length, -1)).permute(0, 2, 1, 3, 4).reshape(len(states), -1)
            states = layer.add(1, states, layer.cross_out(output))
        states = layer.feed_forward(states)
    states = states if stack.norm is None else stack.norm(states)
    return states.view(groups, length, -1)


def _mask_of_whole(
    stack: StackWeights, length: int, padding_mask: torch.Tensor | None, window: int | None, is_causal: bool
) -> torch.Tensor | None:
    """Return what is added to scores, (G or 1, H or 1, T, T); `None` where nothing is or only later tokens are hidden."""
    has_bias = stack.kind in ("alibi", "relative")
    window = None if window is not None and window >= length else window
    if padding_mask is None and window is None and not has_bias:
        return None
    places = torch.arange(length)
    distance = places - places.unsqueeze(-1)  # (T, T)
    visible = torch.ones(1, 1, length, length, dtype=torch.bool)
    if is_causal:
        visible = visible & (distance <= 0)
    if window is not None:
        visible = visible & (distance > -window if is_causal else distance.abs() <= window)
    if padding_mask is not None:
        visible = visible & (padding_mask != 0)[:, None, None]
        # padding sees nothing, and softmax makes nothing of that; what it sees does not count
        visible = visible | (~visible.any(-1, keepdim=True) & (distance == 0))
    mask = torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)
    return mask + stack.bias_of_distances(distance, is_causal) if has_bias else mask


class Engine:
    """Decoder of one batch: a prompt, then a token for every row at each step.

    Args:
        weights: prepared weights.
        config: of the model.
        beams: W; rows of a group stand next to one another.
        steps: largest number of tokens that can follow the prompt.
        shortlist: (n,) the tokens that have a logit, or `None` for all.
    """

    def __init__(
        self, weights: PreparedWeights, config: Any, beams: int, steps: int, shortlist: torch.Tensor | None = None
    ):
        self.weights, self.stack, self.beams, self.steps = weights, weights.decoder, beams, steps
        self.window = config.sliding_window
        self.cross: list[tuple[torch.Tensor, torch.Tensor]] | None = None
        self.cross_mask: torch.Tensor | None = None
        self.positions: torch.Tensor | int = 0
        self.head = weights.head
        if shortlist is not None and ShortlistedHead.is_worthwhile(self.head, shortlist):
            self.head = ShortlistedHead(self.head, shortlist)
        self.misses = 0  # of screening, which a model without clear preferences is not worth

    def read_source(self, states: torch.Tensor, mask: torch.Tensor | None) -> None:
        """Project the source (G, S, D), with `mask` (G, S) or `None`, to keys and values of every layer."""
        groups, length, stack = *states.shape[:2], self.stack
        assert stack.cross is not None
        projected = stack.cross.for_rows(groups * length)(states.flatten(0, 1))
        layers = projected.view(groups, length, -1, 2, stack.key_value_heads, stack.head_dim)
        layers = layers.permute(2, 3, 0, 4, 1, 5).contiguous()  # (layers, 2, G, K, S, d)
        pairs = [tuple(layer.unbind(0)) for layer in layers.unbind(0)]
        self.cross = pairs if len(pairs) == len(stack.layers) else pairs * len(stack.layers)  # type: ignore[assignment]
        if mask is not None and not bool(mask.all()):
            hidden = torch.zeros(groups, 1, 1, length).masked_fill_((mask == 0)[:, None, None], -math.inf)
            self.cross_mask = hidden

    def read_prompt(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Read the prompt (G, P), with `mask` (G, P) or `None`; return the last states (G, D)."""
        (groups, length), stack = ids.shape, self.stack
        if mask is not None and bool(mask.all()):
            mask = None
        self.cache = KeyValueCache(
            len(stack.layers), groups, stack.key_value_heads, stack.head_dim, length, self.beams, self.steps
        )
        self.visibility = Visibility(
            mask,
            groups,
            length,
            self.beams,
            self.window,
            stack.key_value_heads,
        )
        self.place = length
        positions = torch.arange(length).expand(groups, length)
        self.positions = length
        if mask is not None:
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
            self.positions = (positions[:, -1] + 1).repeat_interleave(self.beams)
        self._compute_tables(length + min(self.steps, FIRST_STEPS))
        states = run_whole(
            stack, ids, positions, mask, self.window, self.cache.add(length), self.cross, self.cross_mask
        )
        self.layers = self.stack.for_rows(groups * self.beams)
        return states[:, -1]

    def _compute_tables(self, count: int) -> None:
        """Compute what depends on positions or distances below `count`."""
        self.table_length = count
        self.rotations = self.stack.rotations(count)
        self.visibility.bias = self.stack.score_bias(count)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Read a token of every row (G * W,), row by row of a group; return the last states (G * W, D)."""
        stack, beams = self.stack, self.beams
        rows, heads, width = len(tokens), stack.key_value_heads, stack.head_dim
        groups = rows // beams
        if self.place >= self.table_length:
            self._compute_tables(2 * self.table_length)
        targets = self.cache.add(beams)
        filled = self.cache.filled
        self.visibility.add_step(filled)
        first = self.cache.slot_of(self.visibility.first_place(self.place))
        mask = self.visibility.mask(self.place, first, filled)
        group_heads = stack.heads // heads
        if mask is not None:  # (G or 1, K or 1, W, 1 or H/K, N) to (G or 1, K or 1, Q, N)
            mask = mask.expand(-1, -1, -1, group_heads, -1).flatten(2, 3)
        reads = self.cache.read(first)
        count = self.place + 1 if isinstance(self.positions, int) else int(self.positions.max()) + 1
        states = embed(stack, tokens, self.positions, count)
        rotary = None if self.rotations is None else self.rotations[:, self.positions].view(2, -1, 1, width // 2)
        for index, layer in enumerate(self.layers):
            # self-attention over the slots that are seen
            qkv = layer.qkv(layer.attention_input(0, states)).view(rows, -1, width)
            if rotary is not None:
                turned = apply_rotary_pos_emb(qkv[:, : stack.heads + heads].unsqueeze(2), rotary).squeeze(2)
                qkv = torch.cat([turned, qkv[:, stack.heads + heads :]], dim=1)
            new = qkv[:, stack.heads :].view(groups, beams, 2, heads, width)
            targets[index].copy_(new.permute(2, 0, 3, 1, 4))
            key, value = reads[index].unbind(0)
            output = self._attend(qkv[:, : stack.heads], key, value, mask, layer.weights.scaling)
            states = layer.add(0, states, layer.out(output))
            # cross-attention: beams are further queries of the keys of their source
            if self.cross is not None:
                query = layer.cross_query(layer.attention_input(1, states)).view(rows, -1, width)
                output = self._attend(query, *self.cross[index], self.cross_mask, layer.weights.scaling)
                states = layer.add(1, states, layer.cross_out(output))
            states = layer.feed_forward(states)
        self.place += 1
        self.positions = self.positions + 1
        return states if stack.norm is None else stack.norm(states)

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

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
    ) -> torch.Tensor:
        """Return (G * W, H * d) of queries (G * W, H, d)."""
        groups, heads, _, width = key.shape
        if self.beams == 1:
            query = query.view(groups, heads, -1, width)  # (G, K, H/K, d)
            return attend(query, key, value, mask, scaling).reshape(groups, -1)
        query = query.view(groups, self.beams, heads, -1, width).permute(0, 2, 1, 3, 4)
        output = attend(query.flatten(2, 3), key, value, mask, scaling)  # (G, K, W * H/K, d)
        return output.unflatten(2, (self.beams, -1)).permute(0, 2, 1, 3, 4).reshape(groups * self.beams, -1)

    def exchange(self, parents: torch.Tensor) -> None:
        """Let every beam follow its parent, (G, W), counted within its group; positions are equal there."""
        self.visibility.exchange(parents, self.cache.filled)

    def keep_groups(self, index: torch.Tensor) -> None:
        """Drop all groups but those in `index`."""
        self.cache.keep_groups(index)
        self.visibility.keep_groups(index)
        if isinstance(self.positions, torch.Tensor):
            self.positions = self.positions.view(-1, self.beams).index_select(0, index).flatten()
        if self.cross is not None:
            kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
            for pair in self.cross:
                if id(pair) not in kept:
                    kept[id(pair)] = (pair[0].index_select(0, index), pair[1].index_select(0, index))
            self.cross = [kept[id(pair)] for pair in self.cross]
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask.index_select(0, index)
