"""Published models as configurations: the fields in which each differs from the paper's base model, and its source.

Every field that the published configuration determines is set; what it says nothing of is the default's, such as label
smoothing. Of initial values only the common scheme is a choice here, so weights that training starts from differ in two
places from the originals': GPT-2 draws the last matrix of each sublayer with a deviation of 0.02 / sqrt(2 x layers), and T5
draws each matrix with one of its own. T5 also has dropout behind the last norm of each stack.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A published model.

    Attributes:
        source: where the architecture was published, and the configuration that was released.
        fields: of `VanillaTransformerConfig`, where they differ from its defaults.
    """

    source: str
    fields: dict[str, Any]


_BART: dict[str, Any] = {
    "vocab_size": 50265,
    "hidden_act": "gelu",
    "norm_eps": 1e-5,
    "position_encoding": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "scale_embedding": False,
    "output_bias": "fixed",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "init_scheme": "normal",
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

_T5: dict[str, Any] = {
    "vocab_size": 32128,
    "head_dim": 64,
    "norm_type": "rmsnorm",
    "norm_position": "pre",
    "position_encoding": "relative",
    "max_position_embeddings": 512,
    "scale_embedding": False,
    "attention_scale": 1.0,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "init_scheme": "normal",
    "bos_token_id": None,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}

_BERT: dict[str, Any] = {
    "architecture": "encoder-only",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "norm_eps": 1e-12,
    "position_encoding": "learned",
    "max_position_embeddings": 512,
    "embedding_norm": True,
    "type_vocab_size": 2,
    "scale_embedding": False,
    "output_transform": True,
    "output_bias": "trained",
    "attention_dropout": 0.1,
    "init_scheme": "normal",
    "bos_token_id": None,
    "eos_token_id": None,
}

_GPT2: dict[str, Any] = {
    "architecture": "decoder-only",
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu_new",
    "norm_position": "pre",
    "norm_eps": 1e-5,
    "position_encoding": "learned",
    "scale_embedding": False,
    "attention_dropout": 0.1,
    "init_scheme": "normal",
    "pad_token_id": None,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}

_LLAMA: dict[str, Any] = {
    "architecture": "decoder-only",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "hidden_act": "silu",
    "gated_feed_forward": True,
    "norm_type": "rmsnorm",
    "norm_position": "pre",
    "norm_eps": 1e-5,
    "position_encoding": "rope",
    "max_position_embeddings": 4096,
    "scale_embedding": False,
    "tie_word_embeddings": False,
    "dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
    "init_scheme": "normal",
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_GPT2_SOURCE = "Radford et al. 2019, 'Language Models are Unsupervised Multitask Learners'"

PRESETS = {
    "transformer-tiny": Preset(
        "Wu et al. 2021, arXiv:2105.14462, Transformer-Tiny for Multi30k: sizes and dropout; all else as the paper",
        {
            "vocab_size": 10000,
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "dropout": 0.3,
        },
    ),
    "transformer-base": Preset("Vaswani et al. 2017, arXiv:1706.03762, table 3, row base", {}),
    "transformer-big": Preset(
        "Vaswani et al. 2017, arXiv:1706.03762, table 3, row big",
        {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "dropout": 0.3},
    ),
    "t2t-v3": Preset(
        "Vaswani et al. 2018, arXiv:1803.07416; tensor2tensor's transformer_base_v3, which names no vocabulary size",
        {
            "norm_position": "pre",
            "sinusoidal_form": "fairseq",
            "attention_bias": False,
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
            "bos_token_id": None,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        },
    ),
    "fairseq-wmt": Preset(
        "Ott et al. 2018, arXiv:1806.00187; fairseq's transformer_wmt_en_de with --share-all-embeddings and the joined "
        "dictionary of 32,768 entries of examples/scaling_nmt",
        {
            "vocab_size": 32768,
            "norm_eps": 1e-5,
            "sinusoidal_form": "fairseq",
            "position_offset": 2,
            "init_scheme": "fairseq",
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
    ),
    "opus-mt": Preset(
        "Junczys-Dowmunt et al. 2018, arXiv:1804.00344 (Marian), Tiedemann and Thottingal 2020 (OPUS-MT); "
        "Helsinki-NLP/opus-mt-en-de",
        {
            "vocab_size": 58101,
            "hidden_act": "swish",
            "norm_eps": 1e-5,
            "sinusoidal_form": "concatenated",
            "max_position_embeddings": 512,
            "output_bias": "fixed",
            "init_scheme": "normal",
            "pad_token_id": 58100,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "decoder_start_token_id": 58100,
        },
    ),
    "bart-base": Preset(
        "Lewis et al. 2020, arXiv:1910.13461; facebook/bart-base",
        {**_BART, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    ),
    "bart-large": Preset(
        "Lewis et al. 2020, arXiv:1910.13461; facebook/bart-large",
        {
            **_BART,
            "hidden_size": 1024,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "t5-small": Preset(
        "Raffel et al. 2020, arXiv:1910.10683; google-t5/t5-small",
        {**_T5, "output_scale": 512**-0.5},
    ),
    "t5-v1.1-small": Preset(
        "Shazeer 2020, arXiv:2002.05202 (gates), Raffel et al. 2020; google/t5-v1_1-small",
        {
            **_T5,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "intermediate_size": 1024,
            "hidden_act": "gelu_new",
            "gated_feed_forward": True,
            "tie_word_embeddings": False,
            "share_encoder_decoder_embeddings": True,
        },
    ),
    "bert-base": Preset("Devlin et al. 2019, arXiv:1810.04805; google-bert/bert-base-uncased", _BERT),
    "bert-large": Preset(
        "Devlin et al. 2019, arXiv:1810.04805; google-bert/bert-large-uncased",
        {
            **_BERT,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "roberta-base": Preset(
        "Liu et al. 2019, arXiv:1907.11692; FacebookAI/roberta-base",
        {
            **_BERT,
            "vocab_size": 50265,
            "norm_eps": 1e-5,
            "position_offset": 2,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    ),
    "albert-base": Preset(
        "Lan et al. 2020, arXiv:1909.11942; albert/albert-base-v2",
        {
            **_BERT,
            "vocab_size": 30000,
            "hidden_act": "gelu_new",
            "embedding_size": 128,
            "shared_layers": True,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
    ),
    "electra-small": Preset(
        "Clark et al. 2020, arXiv:2003.10555; google/electra-small-generator, which has the sizes of the discriminator",
        {**_BERT, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128},
    ),
    "gpt2": Preset(f"{_GPT2_SOURCE}; openai-community/gpt2", _GPT2),
    "gpt2-medium": Preset(
        f"{_GPT2_SOURCE}; openai-community/gpt2-medium",
        {
            **_GPT2,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2-large": Preset(
        f"{_GPT2_SOURCE}; openai-community/gpt2-large",
        {
            **_GPT2,
            "hidden_size": 1280,
            "num_hidden_layers": 36,
            "num_attention_heads": 20,
            "intermediate_size": 5120,
        },
    ),
    "gpt2-xl": Preset(
        f"{_GPT2_SOURCE}; openai-community/gpt2-xl",
        {
            **_GPT2,
            "hidden_size": 1600,
            "num_hidden_layers": 48,
            "num_attention_heads": 25,
            "intermediate_size": 6400,
        },
    ),
    "llama-2-7b": Preset("Touvron et al. 2023, arXiv:2307.09288; meta-llama/Llama-2-7b-hf", _LLAMA),
    "llama-3-8b": Preset(
        "Grattafiori et al. 2024, arXiv:2407.21783; meta-llama/Meta-Llama-3-8B",
        {
            **_LLAMA,
            "vocab_size": 128256,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "rope_theta": 500000.0,
            "max_position_embeddings": 8192,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
    ),
    "qwen2-0.5b": Preset(
        "Yang et al. 2024, arXiv:2407.10671; Qwen/Qwen2-0.5B",
        {
            **_LLAMA,
            "vocab_size": 151936,
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "attention_output_bias": False,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
        },
    ),
}
