"""What each deviation from the paper's base model changes, and where it comes from: data, and the text made of them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Explanation:
    """Of a field with a value other than the paper's.

    Attributes:
        change: what it changes; `{c.hidden_size}` and the like stand for fields of the configuration, `{inner}` for the
            width of all heads together, `{rows}` for the rows of a table of learned positions, `{outputs}` for the width
            that the output projection starts from.
        origin: the paper or the code base that has it.
    """

    change: str
    origin: str


ANY = object()
"""In place of a value: all that have no explanation of their own."""

SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "decoder_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")

EXPLANATIONS: dict[str, dict[Any, Explanation]] = {
    "architecture": {
        "encoder-only": Explanation(
            "one stack, whose tokens see all others; no decoder and no cross-attention, so it reads and does not write",
            "BERT, Devlin et al. 2019",
        ),
        "decoder-only": Explanation(
            "one stack, whose tokens see those before them; no encoder and no cross-attention, so what is read stands "
            "before what is written",
            "Liu et al. 2018, arXiv:1801.10198; GPT",
        ),
    },
    "target_vocab_size": {
        ANY: Explanation(
            "{c.vocab_size:,} tokens are read and {c.target_vocab_size:,} others are written, with embeddings for each",
            "Bahdanau et al. 2015, arXiv:1409.0473; FSMT",
        )
    },
    "num_key_value_heads": {
        1: Explanation(
            "multi-query attention: {c.num_attention_heads} query heads share one head of keys and values, and a cache "
            "holds (2, T, {c.head_dim}) numbers a layer",
            "Shazeer 2019, arXiv:1911.02150",
        ),
        ANY: Explanation(
            "grouped-query attention: {c.num_attention_heads} query heads share {c.num_key_value_heads} heads of keys "
            "and values, and a cache holds (2, T, {c.num_key_value_heads}, {c.head_dim}) numbers a layer",
            "Ainslie et al. 2023, arXiv:2305.13245; Llama 3, Qwen2",
        ),
    },
    "value_head_dim": {
        ANY: Explanation(
            "a head's values have {c.value_head_dim} numbers, its queries and keys {c.head_dim}; table 3 (B) makes the latter "
            "smaller and loses quality",
            "section 3.2.2, where d_k and d_v are two numbers; table 3, rows (B)",
        )
    },
    "head_dim": {
        ANY: Explanation(
            "{c.num_attention_heads} heads of {c.head_dim} are {inner} wide, projected from and to {c.hidden_size}",
            "T5 (d_kv), Raffel et al. 2020",
        )
    },
    "hidden_act": {
        "gelu": Explanation(
            "x Phi(x), with the normal distribution's Phi, in place of max(0, x)",
            "Hendrycks and Gimpel 2016, arXiv:1606.08415; GPT, BERT",
        ),
        "gelu_new": Explanation(
            "x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, close to GELU's x Phi(x), in place of max(0, x)",
            "GPT-2's code, Radford et al. 2019",
        ),
        "silu": Explanation(
            "x sigmoid(x) in place of max(0, x)", "Ramachandran et al. 2017, arXiv:1710.05941; Llama, Qwen2"
        ),
        "swish": Explanation(
            "x sigmoid(x) in place of max(0, x)", "Ramachandran et al. 2017, arXiv:1710.05941; Marian's OPUS-MT"
        ),
        ANY: Explanation("transformers' activation of this name in place of max(0, x)", "transformers, ACT2FN"),
    },
    "gated_feed_forward": {
        True: Explanation(
            "W_down (act(W_gate x) * (W_up x)), three matrices of {c.hidden_size} x {c.intermediate_size}, in place of "
            "W_down act(W_up x), two",
            "Shazeer 2020, arXiv:2002.05202; T5 1.1, Llama",
        )
    },
    "norm_type": {
        "rmsnorm": Explanation(
            "g x / sqrt(mean(x^2) + eps): states are scaled but not centred, and there is no bias",
            "Zhang and Sennrich 2019, arXiv:1910.07467; T5, Llama",
        )
    },
    "norm_position": {
        "pre": Explanation(
            "x + sublayer(norm(x)) in place of norm(x + sublayer(x)): sums run through all layers unnormalised, which "
            "trains deep stacks without a long warm-up",
            "tensor2tensor; Xiong et al. 2020, arXiv:2002.04745; GPT-2, T5, Llama",
        )
    },
    "norm_eps": {
        1e-5: Explanation(
            "added to the variance under the root", "PyTorch's default: fairseq, Marian, BART, RoBERTa; GPT-2, Llama 2"
        ),
        1e-12: Explanation("added to the variance under the root", "BERT, Devlin et al. 2019"),
        ANY: Explanation(
            "added to the variance under the root", "elsewhere: tensor2tensor 1e-6, PyTorch 1e-5, BERT 1e-12"
        ),
    },
    "norm_bias": {False: Explanation("norms scale and add nothing", "nanoGPT (bias=False), MPT")},
    "final_norm": {
        True: Explanation("each stack ends in one norm more, although its layers end in one", "torch.nn.Transformer"),
        False: Explanation(
            "stacks end without a norm, so that sums of all sublayers go out as they are",
            "Marian with --transformer-preprocess n",
        ),
    },
    "position_encoding": {
        "learned": Explanation(
            "{rows:,} trained vectors of {c.embedding_width} a stack in place of sines; longer texts are refused",
            "Gehring et al. 2017, arXiv:1705.03122; BERT, GPT-2, BART",
        ),
        "rope": Explanation(
            "queries and keys of self-attention are turned by angles in step with their positions, so that scores "
            "depend on distances; nothing is added to embeddings",
            "Su et al. 2021, arXiv:2104.09864; Llama, Qwen2",
        ),
        "alibi": Explanation(
            "scores of self-attention fall in step with distance, in each head at a rate of its own; nothing is added "
            "to embeddings",
            "Press et al. 2022, arXiv:2108.12409; BLOOM, MPT",
        ),
        "relative": Explanation(
            "a trained number for each of {c.num_attention_heads} heads and {c.relative_attention_num_buckets} buckets "
            "of distances is added to scores of self-attention, the same in all layers of a stack; nothing is added to "
            "embeddings",
            "T5, Raffel et al. 2020",
        ),
        "none": Explanation(
            "no positions: a decoder tells them by what its tokens do not see, an encoder sees a set",
            "Haviv et al. 2022, arXiv:2203.16634",
        ),
    },
    "sinusoidal_form": {
        "concatenated": Explanation(
            "all sines stand before all cosines in place of taking turns; the frequencies are the paper's",
            "Marian, Junczys-Dowmunt et al. 2018",
        ),
        "fairseq": Explanation(
            "all sines stand before all cosines, and frequency i of d / 2 is 10000^(-i / (d / 2 - 1)) in place of "
            "10000^(-2 i / d)",
            "tensor2tensor, fairseq",
        ),
    },
    "position_offset": {
        ANY: Explanation(
            "the first token has position {c.position_offset}: fairseq counts on from the id of the padding token",
            "fairseq, BART, RoBERTa",
        )
    },
    "rope_theta": {
        ANY: Explanation(
            "the pair i of a head's {c.head_dim} numbers turns by {c.rope_theta:,.10g}^(-2 i / {c.head_dim}) a position in "
            "place of 10000^(...); the slower, the longer the texts",
            "Xiong et al. 2023, arXiv:2309.16039; Llama 3 (500,000), Qwen2 (1,000,000)",
        )
    },
    "rotary_scaling": {
        ANY: Explanation(
            "rotary frequencies are scaled, so that texts longer than those of training turn heads by angles that were seen",
            "Chen et al. 2023, arXiv:2306.15595 (linear); Peng et al. 2023, arXiv:2309.00071 (yarn); Llama 3.1",
        )
    },
    "partial_rotary_factor": {
        ANY: Explanation(
            "only the first {c.rotary_dim} of a head's {c.head_dim} numbers turn with the position",
            "GPT-J, GPT-NeoX, Phi",
        )
    },
    "relative_attention_num_buckets": {
        ANY: Explanation("distances are told apart by so many numbers a head; T5 has 32", "T5, Raffel et al. 2020")
    },
    "relative_attention_max_distance": {
        ANY: Explanation("tokens further apart are all told the same; T5 has 128", "T5, Raffel et al. 2020")
    },
    "embedding_size": {
        ANY: Explanation(
            "embeddings are {c.embedding_size} wide and projected to {c.hidden_size}: {c.vocab_size:,} x "
            "{c.embedding_size} + {c.embedding_size} x {c.hidden_size} numbers in place of {c.vocab_size:,} x "
            "{c.hidden_size}",
            "ALBERT, Lan et al. 2020, arXiv:1909.11942; ELECTRA",
        )
    },
    "embedding_norm": {
        True: Explanation("a norm over the sum of embeddings, before dropout", "BERT, Devlin et al. 2019; BART")
    },
    "type_vocab_size": {
        1: Explanation("one more trained vector of {c.embedding_width} is added to all embeddings", "RoBERTa"),
        ANY: Explanation(
            "{c.type_vocab_size} trained vectors of {c.embedding_width}, of which one is added to each embedding: which "
            "text of a pair the token is of",
            "BERT, Devlin et al. 2019",
        ),
    },
    "scale_embedding": {
        False: Explanation(
            "embeddings enter as they are, not times sqrt({c.embedding_width})", "BERT, GPT-2, BART, T5, Llama"
        )
    },
    "tie_word_embeddings": {
        False: Explanation(
            "the output projection is a matrix of its own, {c.output_vocab_size:,} x {outputs}, and so are the embeddings "
            "of an encoder and a decoder unless they share theirs",
            "T5 1.1, Llama; fairseq by default",
        )
    },
    "share_encoder_decoder_embeddings": {
        True: Explanation("encoder and decoder embed by one matrix, the output has its own", "T5 1.1"),
        False: Explanation(
            "decoder and output share one matrix, the encoder has its own", "fairseq, share-decoder-input-output-embed"
        ),
    },
    "output_transform": {
        True: Explanation(
            "norm(act(W x + b)) from {c.hidden_size} to {c.embedding_width} numbers before the output projection",
            "BERT, Devlin et al. 2019",
        )
    },
    "output_bias": {
        "trained": Explanation("a trained number for each token is added to its logit", "BERT, OpenNMT-py"),
        "fixed": Explanation(
            "a number for each token is added to its logit; it is saved, zero at first and not trained", "Marian, BART"
        ),
    },
    "output_scale": {
        ANY: Explanation(
            "states are multiplied by it before the output projection; T5 has hidden_size^(-1/2), since its "
            "embeddings are not small",
            "T5, Raffel et al. 2020; mesh-tensorflow",
        )
    },
    "dropout": {
        0.0: Explanation("nothing is dropped, as the data are many", "ALBERT's second version, Llama"),
        0.3: Explanation(
            "this part of sublayers' outputs and embeddings is dropped", "section 6.2, the big model; fairseq"
        ),
        ANY: Explanation(
            "this part of sublayers' outputs and embeddings is dropped; small data want more", "section 5.4"
        ),
    },
    "attention_dropout": {
        ANY: Explanation(
            "this part of attention's probabilities is dropped, too", "tensor2tensor; BERT, GPT-2, BART, T5"
        )
    },
    "activation_dropout": {
        ANY: Explanation(
            "this part of the activations inside the feed-forward network is dropped, too",
            "tensor2tensor (relu_dropout); BART, T5",
        )
    },
    "attention_bias": {
        False: Explanation("attention's projections are W x in place of W x + b", "tensor2tensor, T5, Llama")
    },
    "attention_output_bias": {
        True: Explanation("attention's output projection alone has a bias", "timm's ViT with qkv_bias=False"),
        False: Explanation(
            "attention's output projection has no bias, unlike queries, keys and values", "Qwen2, arXiv:2407.10671"
        ),
    },
    "attention_scale": {
        ANY: Explanation(
            "scores are q . k times {c.attention_scale:g} in place of q . k / sqrt({c.head_dim}); with 1, as in T5, "
            "initial values see to it",
            "T5, Raffel et al. 2020; mesh-tensorflow",
        )
    },
    "qk_norm": {
        "rmsnorm": Explanation(
            "queries and keys of each head are divided by the root mean square of their {c.head_dim} numbers before they are "
            "multiplied, so that scores cannot grow without bound",
            "Henry et al. 2020, arXiv:2010.04245; Qwen3",
        ),
        "layernorm": Explanation(
            "queries and keys of each head go through a layer norm over their {c.head_dim} numbers before they are multiplied, "
            "so that scores cannot grow without bound",
            "Dehghani et al. 2023, arXiv:2302.05442",
        ),
    },
    "mlp_bias": {
        False: Explanation("the feed-forward network's projections are W x in place of W x + b", "T5, Llama, Qwen2")
    },
    "shared_layers": {
        True: Explanation(
            "the layers of a stack are one and the same, run {c.num_hidden_layers} times",
            "Dehghani et al. 2019, arXiv:1807.03819; ALBERT",
        )
    },
    "sliding_window": {
        ANY: Explanation(
            "a decoder's token sees {c.sliding_window} tokens, itself the last, an encoder's so many on either side: "
            "T x {c.sliding_window} scores a head in place of T x T",
            "Beltagy et al. 2020, arXiv:2004.05150; Mistral",
        )
    },
    "layer_types": {
        ANY: Explanation(
            "only some layers have the window, so that the others carry what is far away", "Gemma 2, ModernBERT, Qwen2"
        )
    },
    "label_smoothing": {
        ANY: Explanation(
            "in the model's own loss this part of the probability is to go to other tokens; section 5.4 trains with 0.1",
            "Szegedy et al. 2016, arXiv:1512.00567; section 5.4",
        )
    },
    "label_smoothing_form": {
        "others": Explanation(
            "each of the other V - 1 tokens gets label_smoothing / (V - 1), in place of label_smoothing / V for each of V",
            "tensor2tensor, fairseq",
        )
    },
    "init_scheme": {
        "fairseq": Explanation(
            "Xavier uniform with gain 1 / sqrt(2) for queries, keys and values, as if the three were one matrix",
            "fairseq",
        ),
        "normal": Explanation(
            "all weights start from N(0, {c.initializer_range:g}^2) in place of Xavier's uniform distribution",
            "BERT, GPT-2; transformers",
        ),
    },
    "initializer_range": {ANY: Explanation("deviation of initial weights; BERT and GPT-2 have 0.02", "transformers")},
    "use_cache": {
        False: Explanation(
            "decoders return no keys and values, so that generate() computes all of them again for each token",
            "transformers",
        )
    },
}

# What a field is where it is left out, so that the same said aloud is no deviation.
_FOLLOWS: dict[str, Callable[[Any], Any]] = {
    "decoder_layers": lambda c: c.num_hidden_layers,
    "num_key_value_heads": lambda c: c.num_attention_heads,
    "head_dim": lambda c: c.hidden_size / c.num_attention_heads,
    "value_head_dim": lambda c: c.head_dim,
    "final_norm": lambda c: c.norm_position == "pre",
    "embedding_size": lambda c: c.hidden_size,
    "share_encoder_decoder_embeddings": lambda c: c.tie_word_embeddings and c.target_vocab_size is None,
    "attention_output_bias": lambda c: c.attention_bias,
    "attention_scale": lambda c: c.head_dim**-0.5,
    "decoder_start_token_id": lambda c: c.bos_token_id,
}

# Fields that change nothing unless another has one value.
_NEEDS: dict[str, Callable[[Any], bool]] = {
    "norm_bias": lambda c: c.norm_type == "layernorm",
    "sinusoidal_form": lambda c: c.position_encoding == "sinusoidal",
    "rope_theta": lambda c: c.position_encoding == "rope",
    "relative_attention_num_buckets": lambda c: c.position_encoding == "relative",
    "relative_attention_max_distance": lambda c: c.position_encoding == "relative",
    "label_smoothing_form": lambda c: c.label_smoothing > 0,
    "initializer_range": lambda c: c.init_scheme == "normal",
    "decoder_start_token_id": lambda c: c.is_encoder_decoder,
    "share_encoder_decoder_embeddings": lambda c: c.is_encoder_decoder,
}


def own_fields(config: Any) -> dict[str, Any]:
    """The fields that describe a model, with their defaults: neither transformers' own nor what follows by itself."""
    others = {field.name for field in fields(PreTrainedConfig)} | {"is_decoder", "task_specific_params"}
    return {field.name: field.default for field in fields(config) if field.name not in others}


def deviations(config: Any) -> dict[str, Any]:
    """Fields with another value than the paper's base model has, or than follows from other fields."""
    values = {name: getattr(config, name) for name in own_fields(config)}
    return {
        name: values[name]
        for name, default in own_fields(config).items()
        if values[name] != default and not (name in _FOLLOWS and values[name] == _FOLLOWS[name](config))
    }


def explanation(config: Any) -> str:
    """Return a line for each deviation from the paper's base model: what it changes, and where it comes from.

    Sizes and the ids of special tokens stand together in a line each, values that follow from others in none.

    Example:
        >>> print(explanation(VanillaTransformerConfig(norm_bias=False, vocab_size=100, max_position_embeddings=50)))
        44,174,336 parameters. What differs from the base model of "Attention Is All You Need":
        norm_bias = False: norms scale and add nothing [nanoGPT (bias=False), MPT]
        sizes, the base model's in brackets: vocab_size = 100 (37000), max_position_embeddings = 50 (1024)
    """
    differing = deviations(config)
    if not differing:
        return (
            'The base model of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762, table 3), to the letter: '
            f"{config.num_parameters():,} parameters."
        )
    idle = [name for name in differing if name in _NEEDS and not _NEEDS[name](config)]
    lines = [
        f'{config.num_parameters():,} parameters. What differs from the base model of "Attention Is All You Need":'
    ]
    for name, value in differing.items():
        if name in EXPLANATIONS and name not in idle:
            of_field = EXPLANATIONS[name]
            told = (of_field.get(value) if isinstance(value, Hashable) else None) or of_field[ANY]
            change = told.change.format(
                c=config,
                inner=config.num_attention_heads * config.head_dim,
                rows=config.max_position_embeddings + config.position_offset,
                outputs=config.embedding_width if config.output_transform else config.hidden_size,
            )
            lines.append(f"{name} = {value!r}: {change} [{told.origin}]")
    defaults = own_fields(config)
    for title, names in (("sizes", SIZES), ("special tokens", SPECIAL_TOKENS), ("without effect here", idle)):
        told_briefly = [
            f"{name} = {value!r} ({defaults[name]!r})"
            for name, value in differing.items()
            if name in names and (name not in idle or names is idle)
        ]
        if told_briefly:
            lines.append(f"{title}, the base model's in brackets: {', '.join(told_briefly)}")
    return "\n".join(lines)
