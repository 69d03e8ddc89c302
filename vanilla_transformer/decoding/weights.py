"""The weights of a model prepared for decoding, and whether they are still those of the model."""

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from vanilla_transformer.decoding import screening
from vanilla_transformer.decoding.products import Product
from vanilla_transformer.decoding.screening import ScreenedArgmax, can_screen
from vanilla_transformer.modeling_vanilla_transformer import sinusoidal_encoding
from vanilla_transformer.positions_vanilla_transformer import apply_rotary_pos_emb, position_bias, rotary_embeddings_of

Function = Callable[[torch.Tensor], torch.Tensor]


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


def norm_function(module: Any) -> Function | None:
    """Return a norm without a module's overhead; `None` for an identity, or where there is none."""
    if module is None or isinstance(module, nn.Identity):
        return None
    weight, shape, eps = module.weight.detach(), module.normalized_shape, module.eps
    if isinstance(module, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, eps)
    bias = _detached(module.bias)
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def product_of(dtype: str, *modules: nn.Linear) -> Product:
    """Return the product with the weights of linear layers, whose outputs follow one another."""
    return Product([module.weight for module in modules], [module.bias for module in modules], dtype)


class LayerWeights:
    """Products and norms of one layer; queries, keys and values in one product, as gate and up projection are."""

    def __init__(self, layer: Any, dtype: str):
        own, feed_forward, config = layer.self_attn, layer.feed_forward, layer.self_attn.config
        self.pre_norm = layer.pre_norm
        self.scaling = own.scaling
        self.heads, self.key_value_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.value_dim = config.head_dim, config.value_dim
        self.activation = torch.relu_ if isinstance(feed_forward.activation, nn.ReLU) else feed_forward.activation
        self.is_gated = feed_forward.gate_proj is not None
        self.products = {
            "qkv": product_of(dtype, own.q_proj, own.k_proj, own.v_proj),
            "out": product_of(dtype, own.o_proj),
            "up": product_of(dtype, *([feed_forward.gate_proj] if self.is_gated else []), feed_forward.up_proj),
            "down": product_of(dtype, feed_forward.down_proj),
        }
        self.norms = [norm_function(layer.self_attn_norm), None, norm_function(layer.feed_forward_norm)]
        self.query_norm, self.key_norm = norm_function(own.q_norm), norm_function(own.k_norm)
        self.cross_query_norm: Function | None = None
        self.cross_key_norm: Function | None = None
        if hasattr(layer, "cross_attn"):
            self.products["cross_query"] = product_of(dtype, layer.cross_attn.q_proj)
            self.products["cross_out"] = product_of(dtype, layer.cross_attn.o_proj)
            self.norms[1] = norm_function(layer.cross_attn_norm)
            self.cross_query_norm = norm_function(layer.cross_attn.q_norm)
            self.cross_key_norm = norm_function(layer.cross_attn.k_norm)


class LayerFunctions:
    """The functions of a layer for a number of rows."""

    def __init__(self, weights: LayerWeights, rows: int):
        self.weights = weights
        chosen = {name: product.for_rows(rows) for name, product in weights.products.items()}
        self.qkv, self.out, self.up, self.down = (chosen[name] for name in ("qkv", "out", "up", "down"))
        self._cross_query: Any = chosen.get("cross_query")
        self.cross_out: Any = chosen.get("cross_out")
        self.before = weights.norms if weights.pre_norm else [None, None, None]
        self.after = [None, None, None] if weights.pre_norm else weights.norms

    def _input(self, index: int, states: torch.Tensor) -> torch.Tensor:
        """Return what sublayer `index` reads: the normalised states where norms come first."""
        norm = self.before[index]
        return states if norm is None else norm(states)

    def add(self, index: int, states: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return the residual sum of sublayer `index`, normalised where norms come last; `output` is overwritten."""
        norm = self.after[index]
        total = output.add_(states)
        return total if norm is None else norm(total)

    def project(
        self, states: torch.Tensor, rotary: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries (rows, H, d), keys (rows, K, d) and values (rows, K, d_v) of states (rows, D).

        Args:
            rotary: (2, rows or 1, 1, d/2 or less) of the positions, or `None`.
        """
        own, rows = self.weights, len(states)
        qkv, width = self.qkv(self._input(0, states)), (own.heads + own.key_value_heads) * own.head_dim
        both = qkv[:, :width].view(rows, -1, own.head_dim)
        value = qkv[:, width:].view(rows, own.key_value_heads, own.value_dim)
        if own.query_norm is not None and own.key_norm is not None:
            both = torch.cat([own.query_norm(both[:, : own.heads]), own.key_norm(both[:, own.heads :])], dim=1)
        if rotary is not None:
            both = apply_rotary_pos_emb(both.unsqueeze(2), rotary).squeeze(2)
        return both[:, : own.heads], both[:, own.heads :], value

    def cross_query(self, states: torch.Tensor) -> torch.Tensor:
        """Return the queries (rows, H, d) of cross-attention for states (rows, D)."""
        query = self._cross_query(self._input(1, states)).view(len(states), -1, self.weights.head_dim)
        return query if self.weights.cross_query_norm is None else self.weights.cross_query_norm(query)

    def feed_forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return states (rows, D) behind the feed-forward network."""
        inner = self.up(self._input(2, states))
        if self.weights.is_gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = self.weights.activation(gate) * inner
        else:
            inner = self.weights.activation(inner)
        return self.add(2, states, self.down(inner))


class StackWeights:
    """Embedding, positions and layers of an encoder or decoder.

    Attributes:
        kinds: of its layers, in order; `windows` has the window of each kind, `None` where there is none.
    """

    def __init__(self, stack: Any, dtype: str):
        config = stack.config
        self.config = config
        self.embeddings = stack.embed_tokens.weight.detach()
        self.scale = stack.embed_scale
        self.embed_positions, self.relative_bias = stack.embed_positions, stack.relative_bias
        types = stack.embed_token_types
        self.first_type = None if types is None else types.weight.detach()[0]
        self.embedding_norm = norm_function(stack.embed_norm)
        self.projection = None if stack.embed_projection is None else product_of(dtype, stack.embed_projection)
        layers = stack.layers_in_order()
        built = {id(layer): LayerWeights(layer, dtype) for layer in stack.layers}
        self.layers = [built[id(layer)] for layer in layers]
        self.kinds = config.attention_kinds[: len(layers)]
        self.windows = {k: config.sliding_window if k == "sliding_attention" else None for k in self.kinds}
        self.heads_per_key = config.num_attention_heads // config.num_key_value_heads
        self.norm = norm_function(stack.norm)
        self.cross = None
        if stack.has_cross_attention:
            attentions = [layer.cross_attn for layer in (layers[:1] if len(built) == 1 else layers)]
            self.cross = product_of(dtype, *(p for a in attentions for p in (a.k_proj, a.v_proj)))
        self._table = torch.empty(0, 0)

    def products(self) -> Iterator[Product]:
        """Yield every product once."""
        for layer in {id(layer): layer for layer in self.layers}.values():
            yield from layer.products.values()
        yield from (product for product in (self.projection, self.cross) if product is not None)

    def for_rows(self, rows: int) -> list[LayerFunctions]:
        """Return the functions of every layer, in order, for a number of rows."""
        built = {id(layer): LayerFunctions(layer, rows) for layer in self.layers}
        return [built[id(layer)] for layer in self.layers]

    def positions(self, count: int) -> torch.Tensor | None:
        """Return the table (>= count, E) that is added to embeddings, computed to double its length where it is short."""
        if self.embed_positions is not None:
            table = self.embed_positions.weight.detach()[self.embed_positions.offset :]
            if count > len(table):
                self.embed_positions(torch.tensor([[count - 1]]))  # raises the error that names the limit
            return table
        if self.config.position_encoding != "sinusoidal":
            return None
        if len(self._table) < count:
            places = torch.arange(max(64, 2 ** (count - 1).bit_length())) + self.config.position_offset
            self._table = sinusoidal_encoding(places, self.config.embedding_width, self.config.sinusoidal_form)
        return self._table

    def rotary(self, count: int) -> dict[str, torch.Tensor]:
        """Return cosines and sines (2, count, d/2 or less) of rotary positions, by kind of layer."""
        if self.config.position_encoding != "rope":
            return {}
        return {kind: rotary_embeddings_of(self.config, kind, torch.arange(count)) for kind in self.windows}

    def position_bias(self, distance: torch.Tensor, is_causal: bool) -> torch.Tensor | None:
        """Return what is added to scores (H, T, S) at `distance` (T, S), place of the key less that of the query."""
        if not self.config.has_position_bias:
            return None
        return position_bias(self.config, self.relative_bias, distance, is_causal).detach()


class HeadWeights:
    """From the last states to logits."""

    def __init__(self, model: Any, dtype: str):
        self.scale, self.dtype = model.config.output_scale, dtype
        bias = model.lm_head.bias if model.output_bias is None else model.output_bias
        self.product = Product([model.lm_head.weight], [bias], dtype)
        self._screen: ScreenedArgmax | None = None
        self.transform, self.transform_norm = None, None
        if model.output_transform is not None:
            self.transform = product_of(dtype, model.output_transform.dense)
            self.transform_norm = norm_function(model.output_transform.norm)
            self.activation = model.output_transform.activation

    def products(self) -> Iterator[Product | ScreenedArgmax]:
        """Yield what holds copies of weights."""
        yield from (product for product in (self.product, self.transform, self._screen) if product is not None)

    def inputs(self, states: torch.Tensor) -> torch.Tensor:
        """Return what is multiplied by the output weights (rows, D), of the last states (rows, D)."""
        if self.transform is not None:
            states = self.activation(self.transform.for_rows(len(states))(states))
            states = states if self.transform_norm is None else self.transform_norm(states)
        return states if self.scale == 1 else states * self.scale

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (rows, V) behind the last states (rows, D)."""
        return self.product.for_rows(len(states))(self.inputs(states))

    def log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logarithms (rows, V) of the softmax of `logits`."""
        return self.logits(states).log_softmax(-1)

    def screen(self) -> ScreenedArgmax | None:
        """Return what finds the best token without most logits; `None` where that would save nothing."""
        if self._screen is None and self.dtype == "float32" and can_screen(*self.product.shape):
            self._screen = ScreenedArgmax(self.product.weights[0], self.product.bias)
        return self._screen


class ShortlistedHead(HeadWeights):
    """From the last states to the logits of a shortlist; the others are minus infinity.

    What the others add to the denominator of the softmax is estimated from a sample of them, without which beams that
    leave much to the others would gain on those that do not.

    Args:
        whole: head of all tokens.
        tokens: (n,) the shortlist.
    """

    SAMPLE = 512

    @classmethod
    def is_worthwhile(cls, whole: HeadWeights, tokens: torch.Tensor) -> bool:
        """Whether so few logits are computed faster."""
        outputs, inputs = whole.product.shape
        return outputs * inputs >= screening.LARGE_WEIGHT and 2 * len(tokens) < outputs

    def __init__(self, whole: HeadWeights, tokens: torch.Tensor):
        vars(self).update(vars(whole))
        self.size, self.tokens = whole.product.shape[0], tokens
        is_other = torch.ones(self.size, dtype=torch.bool).index_fill_(0, tokens, False)
        others = is_other.nonzero().squeeze(1)
        self.sample = others[:: max(1, len(others) // self.SAMPLE)]
        self.gain = math.log(max(1, len(others)) / max(1, len(self.sample)))
        self.product = whole.product.of_outputs(tokens)
        self.sampled = whole.product.of_outputs(self.sample)

    def _spread(self, logits: torch.Tensor) -> torch.Tensor:
        spread = logits.new_full((len(logits), self.size), -math.inf)
        return spread.index_copy_(1, self.tokens, logits)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self._spread(super().logits(states))

    def log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        logits = super().logits(states)
        others = self.sampled.for_rows(len(states))(self.inputs(states)).add_(self.gain)
        total = torch.cat([logits, others], dim=1).logsumexp(-1, keepdim=True)
        return self._spread(logits.sub_(total))

    def screen(self) -> None:
        return None


class PreparedWeights:
    """What decoding reads of a model, in layouts of its own.

    Copies take, in float32 and beside the model, at most `4 * (decoder + encoder matrices + head)` bytes, and matrices
    below `products.SMALL_WEIGHT` elements up to twice that; greedy decoding has a head above `screening.LARGE_WEIGHT`
    elements in int8 instead, one byte an element. Each is built when it is first needed. In bfloat16 a copy takes half of
    that, in int8 a quarter.

    Args:
        model: any that `eligibility` lets through.
        tensors: its parameters and buffers.
        dtype: of products, `"float32"`, `"bfloat16"` or `"int8"`.
    """

    def __init__(self, model: Any, tensors: list[torch.Tensor], dtype: str = "float32"):
        base = model.model
        self.dtype = dtype
        self.encoder = StackWeights(base.encoder, dtype) if model.config.is_encoder_decoder else None
        self.decoder = StackWeights(base.decoder, dtype)
        self.head = HeadWeights(model, dtype)
        # holding them keeps their addresses from being given to others
        self._tensors = [tensor.detach() for tensor in tensors]
        self._identities = [_identity(tensor) for tensor in tensors]
        # an edit through `.data` leaves the version alone, so one value of every row of every matrix is compared too
        once = {id(tensor): detached for tensor, detached in zip(tensors, self._tensors, strict=True)}.values()
        self._samples = [t.view(-1)[:: t.shape[-1] + 1] for t in once if t.dim() > 0]
        self._values = torch.cat(self._samples)

    def are_current(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the tensors of the model are still those, with the values, that were prepared."""
        identities = [_identity(tensor) for tensor in tensors]
        return identities == self._identities and torch.equal(torch.cat(self._samples), self._values)

    def copied_bytes(self) -> int:
        """Return the memory of all copies in bytes."""
        stacks = [stack for stack in (self.encoder, self.decoder, self.head) if stack is not None]
        return sum(product.copied_bytes for stack in stacks for product in stack.products())


def _identity(tensor: torch.Tensor) -> tuple[int, int, int]:
    return id(tensor), tensor.data_ptr(), tensor._version


_PREPARED: weakref.WeakKeyDictionary[nn.Module, PreparedWeights] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def prepared_weights(model: Any, tensors: list[torch.Tensor], dtype: str = "float32") -> PreparedWeights:
    """Return the weights of a model prepared for decoding: those of an earlier call, unless the model's have changed.

    Args:
        tensors: the model's parameters and buffers.
    """
    with _LOCK:
        weights = _PREPARED.get(model)
        if weights is None or weights.dtype != dtype or not weights.are_current(tensors):
            _PREPARED.pop(model, None)
            weights = _PREPARED[model] = PreparedWeights(model, tensors, dtype)
        return weights


def free_prepared_weights(model: nn.Module) -> int:
    """Forget the prepared weights of a model; return how many bytes their copies took."""
    with _LOCK:
        weights = _PREPARED.pop(model, None)
    return 0 if weights is None else weights.copied_bytes()
