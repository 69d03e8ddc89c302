"""The families of transformers' models whose weights our models can run, a table each.

How a further one is added stands in [`vanilla_transformer.conversion.architecture_adapter`].
"""

from vanilla_transformer.conversion.families.albert import ALBERT
from vanilla_transformer.conversion.families.bart import BART
from vanilla_transformer.conversion.families.bert import BERT
from vanilla_transformer.conversion.families.distilbert import DISTILBERT
from vanilla_transformer.conversion.families.electra import ELECTRA
from vanilla_transformer.conversion.families.ernie import ERNIE
from vanilla_transformer.conversion.families.ernie4_5 import ERNIE4_5
from vanilla_transformer.conversion.families.fsmt import FSMT
from vanilla_transformer.conversion.families.gpt2 import GPT2
from vanilla_transformer.conversion.families.llama import LLAMA
from vanilla_transformer.conversion.families.m2m_100 import M2M_100
from vanilla_transformer.conversion.families.marian import MARIAN
from vanilla_transformer.conversion.families.mbart import BLENDERBOT, MBART
from vanilla_transformer.conversion.families.mistral import MISTRAL
from vanilla_transformer.conversion.families.openai_gpt import OPENAI_GPT
from vanilla_transformer.conversion.families.pegasus import PEGASUS
from vanilla_transformer.conversion.families.qwen2 import QWEN2, QWEN3
from vanilla_transformer.conversion.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from vanilla_transformer.conversion.families.t5 import T5

__all__ = ["FAMILIES"]

FAMILIES = {
    family.name: family
    for family in (
        *(MARIAN, PEGASUS, BART, MBART, BLENDERBOT, M2M_100, FSMT, T5),
        *(BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ERNIE, DISTILBERT, ALBERT, ELECTRA),
        *(GPT2, OPENAI_GPT, LLAMA, QWEN2, QWEN3, MISTRAL, ERNIE4_5),
    )
}
"""By `model_type`, in the order in which they are tried for a model of ours."""
