"""Named recipes of the field: how the paper, tensor2tensor, fairseq and transformers train, with the source of each.

A preset sets what belongs to training itself. The sizes of the model are `model.preset`'s, and so is its architecture where
that is a published model beyond the paper's own; the size of batches and the length of training depend on data and machine,
and stay with the recipe: the sources say which they had.
"""

from dataclasses import dataclass, field
from typing import Any

from vanilla_transformer.tasks.settings import PAPER_GENERATION, PAPER_TRAINING

__all__ = ["PRESETS", "RecipePreset"]


@dataclass(frozen=True)
class RecipePreset:
    """Defaults of a recipe's sections, where the recipe itself says nothing.

    Attributes:
        source: where the values stand, and what of it a preset cannot say.
        architecture: of the model section, for models that are the paper's in all but this and their sizes.
        model, training, averaging: of the sections of these names.
        generation: of that section, for translation.
    """

    source: str
    architecture: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    averaging: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)


PAPER = RecipePreset(
    "Vaswani et al. 2017 (arXiv:1706.03762), sections 5.3, 5.4 and 6.1, base model: 100,000 updates of about 25,000 tokens "
    "a side; initial values, of which the paper says nothing, from tensor2tensor's transformer_base_v1",
    architecture={"norm_position": "post", "norm_eps": 1e-6},
    model={
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "label_smoothing": 0.1,
        "label_smoothing_form": "uniform",
        "init_scheme": "paper",
    },
    training=PAPER_TRAINING,
    averaging={"last": 5},
    generation=PAPER_GENERATION,
)

TENSOR2TENSOR = RecipePreset(
    "tensor2tensor, models/transformer.py, transformer_base (which is transformer_base_v3): 4,096 tokens a side on each of "
    "8 GPUs; averaging as bin/t2t_avg_all.py and decoding as utils/decoding.py have it by default",
    architecture={
        "norm_position": "pre",  # layer_preprocess_sequence "n", layer_postprocess_sequence "da"
        "norm_eps": 1e-6,
        "attention_bias": False,  # its attention computes with use_bias=False
        "sinusoidal_form": "fairseq",
    },
    model={
        **PAPER.model,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,  # relu_dropout
        "label_smoothing_form": "others",
    },
    training={
        **PAPER.training,
        "adam_beta2": 0.997,
        "learning_rate": "noam * 2.0",  # learning_rate_constant
        "warmup_steps": 8000,
    },
    averaging={"last": 8},
    generation={**PAPER.generation, "max_length_over_source": 100},
)

FAIRSEQ = RecipePreset(
    "fairseq, examples/scaling_nmt/README.md (Ott et al. 2018, arXiv:1806.00187), WMT'16 English to German with the big "
    "model: 3,584 tokens a side on each of 8 GPUs; its warm-up starts at a rate of 1e-7, here at the first step of a "
    "straight line from zero",
    architecture={"norm_position": "post", "norm_eps": 1e-5, "sinusoidal_form": "fairseq"},
    model={**PAPER.model, "dropout": 0.3, "label_smoothing_form": "others", "init_scheme": "fairseq"},
    training={**PAPER_TRAINING, "adam_epsilon": 1e-8, "learning_rate": 5e-4},
    averaging={"last": 10},
    generation={**PAPER_GENERATION, "length_penalty_form": "power"},
)

FAIRSEQ_IWSLT = RecipePreset(
    "fairseq, examples/translation/README.md, IWSLT'14 German to English: 4,096 tokens a side on one GPU, the best "
    "checkpoint; fairseq decays biases and norms as well, transformers the other weights only",
    architecture=FAIRSEQ.architecture,
    model=FAIRSEQ.model,
    training={**FAIRSEQ.training, "weight_decay": 1e-4},
    averaging={"last": 0},
    generation={"num_beams": 5, "length_penalty": 1.0, "length_penalty_form": "power", "max_length_over_source": 50},
)

TRANSFORMERS = RecipePreset(
    "transformers' TrainingArguments as they are without arguments, and initial values as in BERT, GPT-2, BART and Marian; "
    "the learning rate is one for fine-tuning",
    model={
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "label_smoothing": 0.0,
        "init_scheme": "normal",
        "initializer_range": 0.02,
    },
    training={
        **FAIRSEQ.training,
        "adam_beta2": 0.999,
        "learning_rate": 5e-5,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "max_grad_norm": 1.0,
    },
    averaging={"last": 0},
)

PRESETS = {
    "paper": PAPER,
    "t2t": TENSOR2TENSOR,
    "fairseq": FAIRSEQ,
    "fairseq-iwslt": FAIRSEQ_IWSLT,
    "transformers": TRANSFORMERS,
}
