"""Checkpoints of fairseq and OpenNMT-py as our models, from the weights and settings in them alone.

Neither package is needed, and nothing in a checkpoint is run: it is read with `weights_only=True`, and of classes only
`argparse.Namespace`, which holds the settings, is let in.
"""

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.utils import logging

import vanilla_transformer as vt

from .convert import Report, build_ours, check_table
from .families.bart import stack_links
from .links import ConversionError, Link, rename_to_ours
from .vocabularies import OPENNMT_SPECIAL, fairseq_dictionary

__all__ = ["from_fairseq", "from_opennmt", "opennmt_vocabularies", "read_checkpoint"]

logger = logging.get_logger(__name__)
Weights = dict[str, torch.Tensor]


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a file of `torch.save` holds, without running anything that is in it.

    Raises:
        ConversionError: for a file with objects of other classes than tensors and settings, naming these classes; and for
            one that is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise ConversionError(f"there is no checkpoint {path}; name a file such as checkpoint_best.pt.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.findall(r"GLOBAL (\S+)|class(?:es)? (\S+)", str(error))
        classes = _unsafe_classes(path) or sorted({one or other for one, other in named})
        if not classes:
            raise ConversionError(f"{path} is no checkpoint of torch.save.") from error
        raise ConversionError(
            f"{path} holds objects of {', '.join(classes)} beside weights and settings, and reading such can run any code; "
            "where the program that wrote it is installed, save its weights and settings without them."
        ) from error
    except Exception as error:  # whatever its reader stumbles over first
        raise ConversionError(f"{path} is no checkpoint of torch.save, or is not whole.") from error
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), dict):
        raise ConversionError(f"{path} holds no weights under 'model', where fairseq and OpenNMT-py keep them.")
    for part in ("model", "generator"):
        weights = checkpoint.get(part)
        for name, tensor in weights.items() if isinstance(weights, dict) else ():
            if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
                raise ConversionError(f"{path}: {name!r}, under {part!r}, is no weight with a name.")
    return checkpoint


def from_fairseq(
    path: str | Path,
    *,
    source_dictionary: str | Path | None = None,
    target_dictionary: str | Path | None = None,
    report: Report = logger.warning,
) -> vt.VanillaTransformerForConditionalGeneration:
    """A translation model of fairseq (`--arch transformer` and its sizes).

    Args:
        path: such as `checkpoint_best.pt`.
        source_dictionary, target_dictionary: `dict.src.txt` and `dict.trg.txt`, whose sizes are compared with the model's;
            the first alone where both sides have one.
        report: gets a line for all that is left out on purpose.

    Raises:
        ConversionError: for a checkpoint with other objects than weights and settings, for settings and weights that have
            no place here, and for dictionaries of other sizes.
    """
    checkpoint = read_checkpoint(path)
    settings = _fairseq_settings(checkpoint, path)
    theirs = {_fairseq_name(name): tensor for name, tensor in checkpoint["model"].items()}
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name not in theirs:
            raise ConversionError(f"{path} has no {name}: only models with an encoder and a decoder can be converted.")
    if "decoder.output_projection.weight" not in theirs:
        theirs["decoder.output_projection.weight"] = theirs["decoder.embed_tokens.weight"]

    def both(setting: str, default: Any) -> Any:
        encoder, decoder = (_get(settings, f"{stack}_{setting}", default) for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise ConversionError(
                f"{path}: encoder_{setting}={encoder} and decoder_{setting}={decoder} cannot be converted, as both stacks "
                "have one of it here."
            )
        return encoder

    for name in ("no_cross_attention", "cross_self_attention", "adaptive_softmax_cutoff", "adaptive_input"):
        if _get(settings, name, None):
            raise ConversionError(f"{path}: {name}={_get(settings, name, None)!r} cannot be converted.")
    heads = both("attention_heads", None)
    if heads is None:
        raise ConversionError(f"{path}: its settings do not say how many encoder_attention_heads there are.")
    activations = {
        "relu": "relu",
        "gelu": "gelu",
        "gelu_accurate": "gelu_new",
        "gelu_fast": "gelu_new",
        "swish": "silu",
    }
    activation = _get(settings, "activation_fn", "relu")
    if activation not in activations:
        raise ConversionError(
            f"{path}: activation_fn={activation!r} cannot be converted; {', '.join(activations)} can."
        )

    kind = "none" if _get(settings, "no_token_positional_embeddings", False) else "sinusoidal"
    kind = "learned" if kind != "none" and both("learned_pos", False) else kind
    ours, unknown = rename_to_ours(FAIRSEQ, theirs)
    if unknown := [name for name in unknown if not re.fullmatch(FAIRSEQ_COMPUTED, name)]:
        raise ConversionError(f"{path}: there is no place for {', '.join(unknown[:20])}.")
    final = _present(ours, "model.{}.norm.weight", path, "a norm at the end")
    positions = ours.get("model.encoder.embed_positions.weight")
    dictionaries = []
    for side, dictionary in (("encoder", source_dictionary), ("decoder", target_dictionary or source_dictionary)):
        size = len(ours[f"model.{side}.embed_tokens.weight"])
        tokens = None if dictionary is None else fairseq_dictionary(dictionary)
        if tokens is not None and len(tokens) != size:
            raise ConversionError(
                f"{dictionary} has {len(tokens)} entries with the 4 special ones, and the {side} of {path} {size}; name the "
                "dictionary of this model."
            )
        dictionaries.append(tokens)
    drops = {name: _get(settings, name, 0.0) for name in ("dropout", "attention_dropout")}
    config = vt.VanillaTransformerConfig(
        **_sizes(ours, heads, path, separate=dictionaries[0] != dictionaries[1]),
        **drops,
        activation_dropout=_get(settings, "activation_dropout", 0.0) or _get(settings, "relu_dropout", 0.0),
        hidden_act=activations[activation],
        norm_position="pre" if both("normalize_before", False) else "post",
        final_norm=final,
        norm_eps=1e-5,
        embedding_norm=_present(ours, "model.{}.embed_norm.weight", path, "a norm of embeddings"),
        position_encoding=kind,
        sinusoidal_form="fairseq",
        position_offset=0 if kind == "none" else FAIRSEQ_PAD + 1,
        max_position_embeddings=(
            _get(settings, "max_source_positions", 1024) if positions is None else len(positions) - FAIRSEQ_PAD - 1
        ),
        scale_embedding=not _get(settings, "no_scale_embedding", False),
        label_smoothing=_get(settings, "label_smoothing", 0.0),
        label_smoothing_form="others",
        init_scheme="fairseq",
        bos_token_id=0,
        pad_token_id=FAIRSEQ_PAD,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if value := _get(settings, name, 0):
            report(f"{name}={value} is left out: it matters only in training.")
    return _finish(config, ours, path)


FAIRSEQ_PAD = 1
FAIRSEQ_COMPUTED = r"(encoder|decoder)\.(version|embed_positions\._float_tensor|embed_positions\.weights)"
"""Names of tensors that hold no weights: a version number, the device, a table of sinusoids."""

FAIRSEQ = (
    *(
        Link(f"model.{stack}.{ours}", f"{stack}.{theirs}")
        for stack in ("encoder", "decoder")
        for ours, theirs in {
            "embed_tokens": "embed_tokens",
            "embed_positions": "embed_positions",
            "embed_norm": "layernorm_embedding",
            "norm": "layer_norm",
        }.items()
    ),
    *stack_links({"encoder": "encoder", "decoder": "decoder"}),
    # before version 0.7: queries, keys and values as one matrix
    *(
        Link(
            tuple(f"model.{stack}.layers.{{n}}.{ours}.{p}_proj" for p in "qkv"),
            f"{stack}.layers.{{n}}.{theirs}.in_proj",
        )
        for stack, ours, theirs in (
            ("encoder", "self_attn", "self_attn"),
            ("decoder", "self_attn", "self_attn"),
            ("decoder", "cross_attn", "encoder_attn"),
        )
    ),
    Link("lm_head", "decoder.output_projection"),
)


def _fairseq_settings(checkpoint: dict[str, Any], path: str | Path) -> Any:
    """`args`, or since 0.10 `cfg.model`."""
    settings = checkpoint.get("args")
    if settings is None and isinstance(checkpoint.get("cfg"), Mapping):
        settings = checkpoint["cfg"].get("model")
    if settings is None:
        raise ConversionError(f"{path} holds no settings, neither as 'args' nor as 'cfg'.")
    return settings


def _fairseq_name(name: str) -> str:
    """Of older versions the name that later ones give."""
    name = re.sub(r"in_proj_(weight|bias)$", r"in_proj.\1", name)
    norms = {"encoder": ("self_attn", "final"), "decoder": ("self_attn", "encoder_attn", "final")}
    if found := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name):
        return f"{found[1]}.{norms[found[2]][int(found[3])]}_layer_norm.{found[4]}"
    return "decoder.output_projection.weight" if name == "decoder.embed_out" else name


def from_opennmt(
    path: str | Path, *, report: Report = logger.warning
) -> vt.VanillaTransformerForConditionalGeneration:
    """A translation model of OpenNMT-py (`encoder_type: transformer`, `decoder_type: transformer`).

    Args:
        path: such as `model_step_100000.pt`.
        report: gets a line for all that is left out on purpose.

    Raises:
        ConversionError: for a checkpoint with other objects than weights and settings, and for settings and weights that
            have no place here.
    """
    checkpoint = read_checkpoint(path)
    settings = checkpoint.get("opt")
    if settings is None or not isinstance(checkpoint.get("generator"), dict):
        raise ConversionError(f"{path} holds no 'opt' and 'generator', as checkpoints of OpenNMT-py do.")
    required: dict[str, tuple[Any, ...]] = {
        "encoder_type": ("transformer",),
        "decoder_type": ("transformer",),
        "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
        "max_relative_positions": (0,),
        "copy_attn": (False,),
        "parallel_residual": (False,),
        "num_experts": (0,),
        "pos_ffn_activation_fn": ("relu", "gelu", "silu", "gated-gelu"),
        "layer_norm": ("standard", "rms"),
        "sliding_window": (0,),
        "position_encoding_type": tuple(OPENNMT_SINUSOIDS),
    }
    for name, allowed in required.items():
        if (value := _get(settings, name, allowed[0])) not in allowed:
            can = " or ".join(repr(one) for one in allowed)
            raise ConversionError(f"{path}: {name}={value!r} cannot be converted; {can} can.")
    if (heads := _get(settings, "heads", None)) is None:
        raise ConversionError(f"{path}: its settings do not say how many heads there are.")
    theirs = {_opennmt_name(name): tensor for name, tensor in checkpoint["model"].items()}
    # a linear layer, or the first of a sequence
    theirs |= {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in checkpoint["generator"].items()}
    # the token embeddings are the first of the features
    for stack in ("encoder", "decoder"):
        if f"{stack}.embeddings.make_embedding.emb_luts.0.weight" not in theirs:
            raise ConversionError(f"{path} has no embeddings of its {stack} where a transformer has them.")
    gated = any(name.endswith(".w_3.weight") for name in theirs)
    ours, unknown = rename_to_ours(OPENNMT_GATED if gated else OPENNMT, theirs)
    if without_place := [name for name in unknown if not re.fullmatch(OPENNMT_COMPUTED, name)]:
        raise ConversionError(f"{path}: there is no place for {', '.join(without_place[:20])}.")
    positions = bool(_get(settings, "position_encoding", False))
    activation = _get(settings, "pos_ffn_activation_fn", "relu").removeprefix("gated-")
    source, target = opennmt_vocabularies(checkpoint, path)
    ids = {f"{name}_id": target.index(token) for name, token in OPENNMT_SPECIAL.items() if token in target}
    del ids["unk_token_id"]
    start = checkpoint["vocab"].get("decoder_start_token", OPENNMT_SPECIAL["bos_token"])
    config = vt.VanillaTransformerConfig(
        **_sizes(ours, heads, path, separate=source != target),
        **{"bos_token_id": None, **ids},
        decoder_start_token_id=target.index(start) if start in target else None,
        dropout=_first(_get(settings, "dropout", 0.1)),
        attention_dropout=_first(_get(settings, "attention_dropout", 0.1)),
        activation_dropout=_first(_get(settings, "dropout", 0.1)),
        hidden_act=activation,
        gated_feed_forward=gated,
        norm_position="pre",
        norm_type="rmsnorm" if _get(settings, "layer_norm", "standard") == "rms" else "layernorm",
        norm_eps=_get(settings, "norm_eps", 1e-6),
        attention_bias="model.encoder.layers.0.self_attn.q_proj.bias" in ours,
        attention_output_bias="model.encoder.layers.0.self_attn.o_proj.bias" in ours,
        mlp_bias="model.encoder.layers.0.feed_forward.up_proj.bias" in ours,
        position_encoding="sinusoidal" if positions else "none",
        sinusoidal_form=OPENNMT_SINUSOIDS[_get(settings, "position_encoding_type", "SinusoidalInterleaved")],
        scale_embedding=positions,
        output_bias="trained" if "lm_head.bias" in ours else "none",
        max_position_embeddings=5000,  # the rows of OpenNMT-py's own table of sinusoids
        label_smoothing=_get(settings, "label_smoothing", 0.0),
        label_smoothing_form="others",
    )
    for name in unknown:
        if positions and name.endswith(".pe.pe"):
            check_table(name, theirs[name].flatten(0, 1), config)
    return _finish(config, ours, path)


OPENNMT_SINUSOIDS = {"SinusoidalInterleaved": "interleaved", "SinusoidalConcat": "fairseq"}
"""Its names of two of the forms of `sinusoidal_form`."""

OPENNMT_COMPUTED = r"(encoder|decoder)\.(embeddings\.make_embedding\.pe\.pe|transformer_layers\.\d+\.mask)"
"""Names of tensors that hold no weights: the table of sinusoids, and the causal mask."""


def _opennmt_links(feed_forward: dict[str, str]) -> tuple[Link, ...]:
    links = [Link("lm_head", "generator")]
    stacks: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
        "encoder": ("transformer", {"self_attn": "self_attn"}, {"self_attn_norm": "layer_norm"}),
        "decoder": (
            "transformer_layers",
            {"self_attn": "self_attn", "cross_attn": "context_attn"},
            {"self_attn_norm": "layer_norm_1", "cross_attn_norm": "layer_norm_2"},
        ),
    }
    projections = {
        "q_proj": "linear_query",
        "k_proj": "linear_keys",
        "v_proj": "linear_values",
        "o_proj": "final_linear",
    }
    for stack, (layers, attentions, norms) in stacks.items():
        here, there = f"model.{stack}.layers.{{n}}", f"{stack}.{layers}.{{n}}"
        links += [
            Link(f"model.{stack}.embed_tokens", f"{stack}.embeddings.make_embedding.emb_luts.0"),
            Link(f"model.{stack}.norm", f"{stack}.layer_norm"),
            *(
                Link(f"{here}.{attention}.{projection}", f"{there}.{their_attention}.{theirs}")
                for attention, their_attention in attentions.items()
                for projection, theirs in projections.items()
            ),
            *(Link(f"{here}.{norm}", f"{there}.{theirs}") for norm, theirs in norms.items()),
            *(Link(f"{here}.feed_forward.{p}_proj", f"{there}.feed_forward.{w}") for p, w in feed_forward.items()),
            Link(f"{here}.feed_forward_norm", f"{there}.feed_forward.layer_norm"),
        ]
    return tuple(links)


OPENNMT = _opennmt_links({"up": "w_1", "down": "w_2"})
OPENNMT_GATED = _opennmt_links({"gate": "w_1", "up": "w_3", "down": "w_2"})


def _opennmt_name(name: str) -> str:
    """Of versions before 0.3 the name that later ones give."""
    name = re.sub(r"(layer_norm(?:_\d)?)\.a_2$", r"\1.weight", name)
    return re.sub(r"(layer_norm(?:_\d)?)\.b_2$", r"\1.bias", name)


def opennmt_vocabularies(checkpoint: dict[str, Any], path: str | Path) -> tuple[list[str], list[str]]:
    """The tokens of source and target, whose places are their ids."""
    vocab = checkpoint.get("vocab")
    found = [vocab.get(side) if isinstance(vocab, Mapping) else None for side in ("src", "tgt")]
    source, target = found
    if not isinstance(source, list) or not isinstance(target, list):
        raise ConversionError(
            f"{path} holds no vocabulary as lists of tokens under 'vocab', as version 3 writes them."
        )
    for name in ("pad_token", "eos_token"):
        if OPENNMT_SPECIAL[name] not in target:
            raise ConversionError(f"{path}: its target vocabulary has no {OPENNMT_SPECIAL[name]}.")
    return source, target


def _sizes(ours: Weights, heads: int, path: str | Path, *, separate: bool) -> dict[str, Any]:
    """The fields that shapes of weights tell.

    Args:
        separate: whether source and target are known to have a vocabulary each, be they of one size.
    """
    source, target = (ours[f"model.{stack}.embed_tokens.weight"] for stack in ("encoder", "decoder"))
    for stack in ("encoder", "decoder"):
        if f"model.{stack}.layers.0.self_attn.k_proj.weight" not in ours:
            raise ConversionError(f"{path}: there is no layer 0 of the {stack}.")
    depth = {
        stack: 1 + max(int(name.split(".")[3]) for name in ours if name.startswith(f"model.{stack}.layers."))
        for stack in ("encoder", "decoder")
    }
    width = source.shape[1]
    shared = source.shape == target.shape and torch.equal(source, target)
    tied = torch.equal(ours["lm_head.weight"], target)
    if width % heads:
        raise ConversionError(f"{path}: states of width {width} cannot be split among {heads} heads.")
    return {
        "vocab_size": len(source),
        "target_vocab_size": len(target) if separate or len(source) != len(target) else None,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "hidden_size": width,
        "num_hidden_layers": depth["encoder"],
        "decoder_layers": depth["decoder"],
        "num_attention_heads": heads,
        "num_key_value_heads": len(ours["model.encoder.layers.0.self_attn.k_proj.weight"]) * heads // width,
        "intermediate_size": len(ours["model.encoder.layers.0.feed_forward.up_proj.weight"]),
    }


def _present(ours: Weights, name: str, path: str | Path, what: str) -> bool:
    encoder, decoder = (name.format(stack) in ours for stack in ("encoder", "decoder"))
    if encoder != decoder:
        raise ConversionError(f"{path}: one stack has {what} and one has not, which cannot be converted.")
    return encoder


def _finish(
    config: vt.VanillaTransformerConfig, ours: Weights, path: str | Path
) -> vt.VanillaTransformerForConditionalGeneration:
    model = build_ours(
        vt.VanillaTransformerForConditionalGeneration, config, ours, next(iter(ours.values())).dtype, str(path)
    )
    # both packages never choose padding
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        bad_words_ids=[[config.pad_token_id]],
    )
    return model  # type: ignore[return-value]


def _get(settings: Any, name: str, default: Any) -> Any:
    """A setting of a namespace or a dictionary; older versions lack some."""
    value = settings.get(name) if isinstance(settings, Mapping) else getattr(settings, name, None)
    return default if value is None else value


def _first(value: Any) -> float:
    """OpenNMT-py has a list of dropouts, one for each phase of training."""
    return float(value[0] if isinstance(value, list) else value)


def _unsafe_classes(path: Path) -> list[str]:
    try:
        return sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - {"argparse.Namespace"})
    except (ValueError, RuntimeError, pickle.UnpicklingError):
        return []  # of a file in the format before torch 1.6
