"""Small models of transformers' families with weights in general position, for the tests of conversion."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.utils import logging

from vanilla_transformer.tokenization import train_tokenizer

# wide enough that attention is far from uniform, which would hide mistakes in scores
SPREAD = 0.2

ENCODER_DECODER = {
    "init_std": SPREAD,
    "vocab_size": 60,
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 48,
}
BERT = {
    "initializer_range": SPREAD,
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
LLAMA = {
    "initializer_range": SPREAD,
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Case:
    """A class of transformers and settings.

    Attributes:
        depth: layers of the published model, of each stack.
        depths: names of the settings that say so.
        untied: a weight that gets values of its own, where the class would tie it.
    """

    class_name: str
    settings: dict[str, Any]
    depth: int = 12
    depths: tuple[str, ...] = ("num_hidden_layers",)
    untied: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def model(self, depth: int | tuple[int, ...] = 2, seed: int = 0, **changes: Any) -> transformers.PreTrainedModel:
        """From the family's own initialiser, with norms and biases moved off their ones and zeros."""
        depths = depth if isinstance(depth, tuple) else (depth,) * len(self.depths)
        settings = {**self.settings, **dict(zip(self.depths, depths, strict=True)), **changes}
        model_class = getattr(transformers, self.class_name)
        torch.manual_seed(seed)
        model = model_class(model_class.config_class(**settings), **self.options)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if tensor.dim() == 1 or "bias" in name:
                    tensor.add_(0.2 * torch.randn_like(tensor))
        if self.untied is not None:
            model = _untie(model, self.untied)
        return model.eval()


def _untie(model: transformers.PreTrainedModel, name: str) -> transformers.PreTrainedModel:
    """As from a checkpoint that holds both weights."""
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    weights[name] = torch.randn_like(weights[name]) * model.config.hidden_size**-0.5
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    untied = type(model).from_pretrained(None, config=model.config, state_dict=weights)
    logging.set_verbosity(verbosity)
    return untied


STACKS = ("encoder_layers", "decoder_layers")
MARIAN = {
    **ENCODER_DECODER,
    "pad_token_id": 59,
    "decoder_start_token_id": 59,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}
BART = {**ENCODER_DECODER, "forced_bos_token_id": 0}
FSMT = {
    **{name: value for name, value in ENCODER_DECODER.items() if name != "vocab_size"},
    "src_vocab_size": 50,
    "tgt_vocab_size": 60,
    "langs": ["en", "de"],
}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_heads": 4, "decoder_start_token_id": 0}
T5_STACKS = ("num_layers", "num_decoder_layers")
GPT2 = {
    "initializer_range": SPREAD,
    "vocab_size": 60,
    "n_embd": 32,
    "n_head": 4,
    "n_positions": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GPT = {name: value for name, value in GPT2.items() if not name.endswith("token_id")}
DISTILBERT = {
    "initializer_range": SPREAD,
    "vocab_size": 60,
    "dim": 32,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": 48,
}

LANGUAGE_MODELS = {
    "marian": Case("MarianMTModel", {**MARIAN, "scale_embedding": True, "activation_function": "swish"}, 6, STACKS),
    "marian-separate": Case(
        "MarianMTModel",
        {**MARIAN, "decoder_vocab_size": 70, "share_encoder_decoder_embeddings": False, "vocab_size": 65},
        6,
        STACKS,
    ),
    "fsmt": Case("FSMTForConditionalGeneration", FSMT, 6, STACKS),
    "fsmt-tied": Case(
        "FSMTForConditionalGeneration", {**FSMT, "src_vocab_size": 60, "tie_word_embeddings": True}, 6, STACKS
    ),
    "pegasus": Case("PegasusForConditionalGeneration", {**MARIAN, "activation_function": "relu"}, 16, STACKS),
    "bart": Case("BartForConditionalGeneration", BART, 6, STACKS),
    "bart-scaled-untied": Case(
        "BartForConditionalGeneration", {**BART, "scale_embedding": True, "tie_word_embeddings": False}, 6, STACKS
    ),
    "t5": Case("T5ForConditionalGeneration", T5, 6, T5_STACKS),
    "t5-v1.1": Case(
        "T5ForConditionalGeneration",
        {
            **T5,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            # so few and so near that rows of 9 tokens reach the last
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 5,
        },
        8,
        T5_STACKS,
        untied="lm_head.weight",
    ),
    "bert": Case("BertForMaskedLM", BERT),
    "bert-untied": Case("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "roberta": Case("RobertaForMaskedLM", {**BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    "albert": Case("AlbertForMaskedLM", {**BERT, "embedding_size": 20, "hidden_act": "gelu_new"}),
    "electra": Case("ElectraForMaskedLM", {**BERT, "embedding_size": 20}),
    "electra-wide": Case("ElectraForMaskedLM", {**BERT, "embedding_size": 32}),
    "xlm-roberta": Case("XLMRobertaForMaskedLM", {**BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    "camembert": Case("CamembertForMaskedLM", {**BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    "ernie": Case("ErnieForMaskedLM", BERT),
    "distilbert": Case("DistilBertForMaskedLM", DISTILBERT, 6, ("n_layers",)),
    "mbart": Case(
        "MBartForConditionalGeneration", {**BART, "scale_embedding": True, "decoder_start_token_id": 5}, 12, STACKS
    ),
    "blenderbot": Case("BlenderbotForConditionalGeneration", BART, 2, STACKS),
    "m2m100": Case(
        "M2M100ForConditionalGeneration", {**BART, "scale_embedding": True, "forced_bos_token_id": 5}, 12, STACKS
    ),
    "openai-gpt": Case("OpenAIGPTLMHeadModel", GPT, 12, ("n_layer",)),
    "gpt2": Case("GPT2LMHeadModel", GPT2, 12, ("n_layer",)),
    "gpt2-unscaled": Case("GPT2LMHeadModel", {**GPT2, "scale_attn_weights": False, "n_inner": 40}, 12, ("n_layer",)),
    "llama": Case("LlamaForCausalLM", {**LLAMA, "head_dim": 10, "pad_token_id": 0}, 32),
    "llama-biases-tied": Case(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        },
        32,
    ),
    "qwen2": Case("Qwen2ForCausalLM", {**LLAMA, "tie_word_embeddings": True}, 24),
    "llama-3.1": Case(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            },
        },
        32,
    ),
    "llama-yarn": Case(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        32,
    ),
    "llama-dynamic": Case(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "max_position_embeddings": 12,  # shorter than what is written
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        },
        32,
    ),
    "llama-linear": Case(
        "LlamaForCausalLM",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        32,
    ),
    "qwen3": Case("Qwen3ForCausalLM", {**LLAMA, "head_dim": 10, "tie_word_embeddings": True}, 28),
    "mistral": Case("MistralForCausalLM", {**LLAMA, "sliding_window": 4}, 32),
    "ernie-4.5": Case("Ernie4_5ForCausalLM", {**LLAMA, "head_dim": 10, "pad_token_id": 0}, 18),
    "ernie-4.5-biases": Case("Ernie4_5ForCausalLM", {**LLAMA, "use_bias": True, "pad_token_id": 0}, 18),
    "qwen2-window-of-some-layers": Case(
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        24,
    ),
    "qwen2-window": Case(
        "Qwen2ForCausalLM",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        24,
    ),
}
OTHER_MODELS = {
    "marian-base": Case("MarianModel", MARIAN, 6, STACKS),
    "pegasus-base": Case("PegasusModel", {**MARIAN, "scale_embedding": True}, 16, STACKS),
    "bart-base": Case("BartModel", BART, 6, STACKS),
    "t5-base": Case("T5Model", T5, 6, T5_STACKS),
    "bert-base": Case("BertModel", BERT, options={"add_pooling_layer": False}),
    "roberta-base": Case(
        "RobertaModel", {**BERT, "pad_token_id": 1, "hidden_act": "relu"}, options={"add_pooling_layer": False}
    ),
    "albert-base": Case("AlbertModel", {**BERT, "embedding_size": 20}, options={"add_pooling_layer": False}),
    "electra-base": Case("ElectraModel", {**BERT, "embedding_size": 20}),
    "gpt2-base": Case("GPT2Model", GPT2, 12, ("n_layer",)),
    "llama-base": Case("LlamaModel", LLAMA, 32),
    "qwen2-base": Case("Qwen2Model", LLAMA, 24),
    "xlm-roberta-base": Case("XLMRobertaModel", {**BERT, "pad_token_id": 1}, options={"add_pooling_layer": False}),
    "camembert-base": Case("CamembertModel", {**BERT, "pad_token_id": 1}, options={"add_pooling_layer": False}),
    "ernie-base": Case("ErnieModel", BERT, options={"add_pooling_layer": False}),
    "distilbert-base": Case("DistilBertModel", DISTILBERT, 6, ("n_layers",)),
    "mbart-base": Case("MBartModel", {**BART, "decoder_start_token_id": 5}, 12, STACKS),
    "blenderbot-base": Case("BlenderbotModel", BART, 2, STACKS),
    "m2m100-base": Case("M2M100Model", BART, 12, STACKS),
    "openai-gpt-base": Case("OpenAIGPTModel", GPT, 12, ("n_layer",)),
    "qwen3-base": Case("Qwen3Model", LLAMA, 28),
    "mistral-base": Case("MistralModel", {**LLAMA, "sliding_window": None}, 32),
    "ernie-4.5-base": Case("Ernie4_5Model", LLAMA, 18),
    "bert-tokens": Case("BertForTokenClassification", {**BERT, "num_labels": 3}),
    "roberta-tokens": Case("RobertaForTokenClassification", {**BERT, "pad_token_id": 1, "num_labels": 3}),
    "albert-tokens": Case("AlbertForTokenClassification", {**BERT, "embedding_size": 20, "num_labels": 3}),
    "electra-tokens": Case("ElectraForTokenClassification", {**BERT, "embedding_size": 20, "num_labels": 3}),
}

ALL_MODELS = {**LANGUAGE_MODELS, **OTHER_MODELS}

# transformers sizes the cache of T5's decoder by the depth of the encoder, so the decoder must not be the deeper one
DEPTHS = {1: 2, 2: (3, 2)}


def build(name, **changes):
    """A model of a few layers."""
    case = ALL_MODELS[name]
    return case.model(DEPTHS[len(case.depths)], **changes)


def save_with_tokenizer(name, folder, **changes):
    """A model in a folder, with a tokenizer of as many entries as it knows; returns the model."""
    ids = {"decoder_start_token_id": 1, "pad_token_id": 0} if name == "marian" else {}
    theirs = build(name, vocab_size=280, **{**ids, **changes})
    theirs.save_pretrained(folder)
    train_tokenizer([f"{n} cats and {n * n} dogs" for n in range(100)], 280).save_pretrained(folder)
    return theirs
