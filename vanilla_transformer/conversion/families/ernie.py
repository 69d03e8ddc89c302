"""ERNIE 1 to 3 (Sun et al. 2019, 2020, 2021): BERT, where no embedding of tasks is added."""

from dataclasses import replace

from vanilla_transformer.conversion.architecture_adapter import Required
from vanilla_transformer.conversion.families import bert

ERNIE = replace(
    bert.BERT,
    name="ernie",
    heads={
        "ErnieForMaskedLM": "VanillaTransformerForMaskedLM",
        "ErnieForPreTraining": "VanillaTransformerForMaskedLM",
        "ErnieModel": "VanillaTransformerModel",
        "ErnieForTokenClassification": "VanillaTransformerForTokenClassification",
    },
    prefix="ernie.",
    weights=(
        *bert.encoder_mappings("ernie"),
        *bert.head_mappings("cls.predictions.transform", "cls.predictions.decoder"),
    ),
    required={
        **bert.REQUIRED,
        "use_task_id": Required(False, "no embedding of a task is added to those of tokens here"),
    },
    options={"ErnieModel": {"add_pooling_layer": False}},
    ignored={
        "ernie.pooler.": bert.POOLER,
        "cls.seq_relationship.": "whether one sentence follows another",
        "ernie.embeddings.position_ids": bert.POSITION_NUMBERS,
    },
)
