"""The families of transformers' models whose weights our models can run, a table each."""

from .albert import ALBERT
from .bart import BART
from .bert import BERT
from .electra import ELECTRA
from .fsmt import FSMT
from .gpt2 import GPT2
from .llama import LLAMA
from .marian import MARIAN
from .pegasus import PEGASUS
from .qwen2 import QWEN2
from .roberta import ROBERTA
from .t5 import T5

__all__ = ["FAMILIES"]

FAMILIES = {
    family.name: family
    for family in (MARIAN, PEGASUS, BART, FSMT, T5, BERT, ROBERTA, ALBERT, ELECTRA, GPT2, LLAMA, QWEN2)
}
"""By `model_type`, in the order in which they are tried for a model of ours."""
