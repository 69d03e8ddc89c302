"""M2M-100 (Fan et al. 2020) and NLLB (Costa-jussà et al. 2022): norms before layers, fairseq's sinusoids."""

from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from vanilla_transformer.conversion.families import bart
from vanilla_transformer.conversion.families.roberta import offset_of_positions
from vanilla_transformer.conversion.weight_mapping import WeightMapping


def _extra_fields(config: PreTrainedConfig) -> dict[str, Any]:
    return {**bart.check_stacks(config), "position_offset": offset_of_positions(config)}


M2M_100 = replace(
    bart.BART,
    name="m2m_100",
    heads={
        "M2M100ForConditionalGeneration": "VanillaTransformerForConditionalGeneration",
        "M2M100Model": "VanillaTransformerModel",
    },
    weights=(
        *bart.stack_mappings({"embed_tokens": "embed_tokens", "layer_norm": "norm"}),
        WeightMapping("lm_head", "lm_head"),
    ),
    fixed={
        **bart.FIXED,
        "norm_position": "pre",
        "position_encoding": "sinusoidal",
        "sinusoidal_form": "fairseq",
        "output_bias": "none",
    },
    extra_fields=_extra_fields,
    counts_padding=False,
)
