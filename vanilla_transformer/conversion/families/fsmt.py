"""FSMT: fairseq's translation models of WMT19 (Ng et al. 2019)."""

from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.configuration_vanilla_transformer import VanillaTransformerConfig
from vanilla_transformer.conversion.architecture_adapter import ArchitectureAdapter
from vanilla_transformer.conversion.families import bart
from vanilla_transformer.conversion.families.roberta import offset_of_positions
from vanilla_transformer.conversion.weight_mapping import WeightMapping


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    source, target = config.src_vocab_size, config.tgt_vocab_size
    return {
        **bart.check_stacks(config),
        "vocab_size": source,
        "target_vocab_size": None if target == source else target,
        "share_encoder_decoder_embeddings": config.tie_word_embeddings,
        "position_offset": offset_of_positions(config),
    }


def _extra_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    sizes = {"src_vocab_size": config.vocab_size, "tgt_vocab_size": config.output_vocab_size}
    return bart.decoder_settings(config) | sizes


FSMT = ArchitectureAdapter(
    name="fsmt",
    # FSMTModel is not here: what it calls states are logits
    heads={"FSMTForConditionalGeneration": "VanillaTransformerForConditionalGeneration"},
    prefix="model.",
    weights=(
        *bart.stack_mappings({"embed_tokens": "embed_tokens"}),
        WeightMapping("model.decoder.output_projection", "lm_head"),
    ),
    fixed=bart.FIXED | bart.SINUSOIDAL | {"sinusoidal_form": "fairseq"},
    same=bart.SAME,
    extra_fields=_extra_fields,
    extra_settings=_extra_settings,
    computed=bart.SINUSOIDS,
    training=bart.LAYER_DROP,
)
