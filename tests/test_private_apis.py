"""What is not public of the libraries underneath and used all the same: what, where it is, and why; and nothing else is.

Names that begin with an underscore may change in any release, and what goes wrong then is seldom an error. Those of the Trainer
stand in `test_safety`, beside the tests of what they are for.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import vanilla_transformer
from test_safety import OVERRIDDEN, USED

PACKAGE = Path(vanilla_transformer.__file__).parent
LIBRARIES = ("accelerate", "datasets", "evaluate", "huggingface_hub", "peft", "sacrebleu", "safetensors", "tokenizers")
LIBRARIES += ("torch", "transformers", "typer", "yaml")
PRIVATE = re.compile(r"_[A-Za-z]\w*")

CALLED = {
    # transformers: configurations and models
    "_attn_implementation": ("transformers.PreTrainedConfig", "the backend in use, which has no public name to read"),
    "_commit_hash": ("transformers.PreTrainedConfig", "the revision that a model came from, for its other tokenizer"),
    "_get_default_generation_params": ("transformers.GenerationConfig", "which fields a recipe's generation may have"),
    "_from_model_config": ("transformers.GenerationConfig", "else settings of this package are dropped on saving"),
    "_pad_token_tensor": (
        "transformers.generation.utils",
        "special tokens as `generate()` prepares them for its loops",
    ),
    "_eos_token_tensor": ("transformers.generation.utils", "the same"),
    "_get_resized_embeddings": ("transformers.PreTrainedModel", "to resize both sides' embeddings by one rule"),
    "_is_hf_initialized": ("transformers.initialization", "weights that were loaded are not drawn again"),
    # transformers: registration
    "_model_mapping": ("transformers.models.auto.auto_factory", "tells an Auto class; its table is filled before use"),
    "_reverse_config_mapping": ("transformers.models.auto.auto_factory", "made before our configuration was there"),
    "_initializing": ("importlib._bootstrap", "a module that is half imported is registered after it"),
    # transformers: Trainer, beside those of test_safety
    "_get_num_items_in_batch": ("transformers.Trainer", "it counts labels that packing and shifting leave out"),
    "_determine_best_metric": ("transformers.Trainer._maybe_log_save_evaluate", "after an evaluation at the end"),
    "_evaluate": ("transformers.Trainer._maybe_log_save_evaluate", "the evaluation that logs and tells callbacks"),
    "_total_loss_scalar": ("transformers.Trainer", "the loss of all updates, where a run was resumed"),
    # torch
    "_forward_hooks": ("torch.nn.Module", "a module with hooks is called as a whole, not bypassed"),
    "_forward_pre_hooks": ("torch.nn.Module", "the same"),
    "_backward_hooks": ("torch.nn.Module", "the same"),
    "_backward_pre_hooks": ("torch.nn.Module", "the same"),
    "_global_forward_hooks": ("torch.nn.modules.module", "the same, for hooks of all modules"),
    "_global_forward_pre_hooks": ("torch.nn.modules.module", "the same"),
    "_compiled_call_impl": ("torch.nn.Module", "a compiled module is not bypassed"),
    "_parameters": ("torch.nn.Module", "what a module holds, without walks over it at every call of `generate()`"),
    "_buffers": ("torch.nn.Module", "the same"),
    "_modules": ("torch.nn.Module", "the same"),
    "_version": ("torch.Tensor", "prepared weights are made again where a weight was changed in place"),
    "_reorder_linear_weight": ("torch.ops.mkldnn", "weights as oneDNN multiplies them fastest"),
    "_linear_pointwise": ("torch.ops.mkldnn", "products with such weights"),
    "_is_mkldnn_bf16_supported": ("torch.ops.mkldnn", "whether the processor has products in bfloat16"),
    "_scaled_dot_product_flash_attention_for_cpu": ("torch.ops.aten", "its multiply-adds, which torch does not count"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("torch.ops.aten", "the same"),
    "_utils": ("torch.utils.data", "where the next is"),
    "_worker_info": ("torch.utils.data._utils.worker", "a stream is read outside of a worker's share"),
    # datasets, sacrebleu
    "_distributed": ("datasets.iterable_dataset", "a stream that is divided already is not divided again"),
    "_abbr": ("sacrebleu.metrics.base.Signature", "the signature of a metric of our own"),
    "_cache_references": ("sacrebleu.metrics.base.Metric", "references that are prepared once"),
}
"""Names that the package reads, calls or imports: where the library has them, and what they are used for."""

OURS = {
    # as transformers reads them of every model class
    "_auto_class": ("transformers.PreTrainedConfig", "the code is saved with the model"),
    "_can_compile_fullgraph": ("transformers.PreTrainedModel", "generation compiles the whole forward"),
    "_can_record_outputs": ("transformers.PreTrainedModel", "where hidden states and attentions are"),
    "_fsdp_plan": ("transformers.distributed.mixin", "which modules FSDP2 groups"),
    "_tp_plan": ("transformers.distributed.mixin", "how layers are divided in tensor parallelism"),
    "_init_weights": ("transformers.PreTrainedModel", "initial weights"),
    "_no_split_modules": ("transformers.PreTrainedModel", "what stays on one device"),
    "_supports_attention_backend": ("transformers.PreTrainedModel", "which backends of attention serve"),
    "_supports_flash_attn": ("transformers.PreTrainedModel", "the same"),
    "_supports_flex_attn": ("transformers.PreTrainedModel", "the same"),
    "_supports_sdpa": ("transformers.PreTrainedModel", "the same"),
    # generate()
    "_sample": ("transformers.generation.utils.GenerationMixin", "the loop of greedy search and sampling"),
    "_beam_search": ("transformers.generation.utils.GenerationMixin", "the loop of beam search"),
    "_prepare_decoder_input_ids_for_generation": ("transformers.generation.utils.GenerationMixin", "the start token"),
    "_prepare_text_encoder_decoder_kwargs_for_generation": (
        "transformers.generation.utils.GenerationMixin",
        "where the encoder is run",
    ),
    # pipelines, as their documentation has it
    "_sanitize_parameters": ("transformers.Pipeline", "hands options to the steps"),
    "_forward": ("transformers.Pipeline", "the step that computes"),
    "_load_tokenizer": ("transformers.Pipeline", "what a pipeline loads"),
    "_load_processor": ("transformers.Pipeline", "the same"),
    "_load_feature_extractor": ("transformers.Pipeline", "the same"),
    "_load_image_processor": ("transformers.Pipeline", "the same"),
    "_load_video_processor": ("transformers.Pipeline", "the same"),
    # evaluate and sacrebleu, as their own metrics are written
    "_info": ("evaluate.EvaluationModule", "what a metric takes"),
    "_compute": ("evaluate.EvaluationModule", "the metric"),
    "_SIGNATURE_TYPE": ("sacrebleu.metrics.base.Metric", "what a metric's signature says"),
    "_aggregate_and_compute": ("sacrebleu.metrics.base.Metric", "the metric"),
    "_compute_score_from_stats": ("sacrebleu.metrics.base.Metric", "the metric"),
    "_compute_segment_statistics": ("sacrebleu.metrics.base.Metric", "the metric"),
    "_extract_reference_info": ("sacrebleu.metrics.base.Metric", "the metric"),
    "_preprocess_segment": ("sacrebleu.metrics.base.Metric", "the metric"),
    # which torch itself gives every autograd function
    "_backward_cls": ("torch.autograd.function", "made by torch"),
}
"""Names of methods and attributes of a library's class that a class of the package has for itself."""

OWN_ATTRIBUTES = {"_loads_safely"}
"""Set on an object of a library, by this package alone."""


@cache
def trees():
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]


def defined_here():
    """Names of the package's own functions, classes, variables and attributes of `self`."""
    names = set()
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return names


def mentioned():
    """Names with an underscore of attributes, imports, and of `getattr` and its like."""
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
                yield from [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
                yield from (each.value for each in node.args[1:2] if isinstance(each, ast.Constant))


def test_nothing_else_that_is_not_public_is_called():
    found = {name for name in mentioned() if PRIVATE.fullmatch(name)} - defined_here() - OWN_ATTRIBUTES
    assert found - {*CALLED, *USED, *OVERRIDDEN} == set(), "say in the table where it is, and why"
    assert CALLED.keys() - found == set(), "it is used no longer"


def test_nothing_else_that_is_not_public_is_overridden():
    found = set()
    for module in pkgutil.walk_packages([str(PACKAGE)], "vanilla_transformer."):
        if module.name.endswith("__main__"):
            continue
        for cls in vars(importlib.import_module(module.name)).values():
            if not inspect.isclass(cls) or cls.__module__ != module.name:
                continue
            bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in LIBRARIES]
            found |= {name for base in bases for name in vars(base).keys() & vars(cls).keys()}
    found = {name for name in found if PRIVATE.fullmatch(name) and not name.startswith("_abc_")}
    assert found - {*OURS, *OVERRIDDEN} == set(), "say in the table where it is, and why"
    assert OURS.keys() - found == set(), "it is overridden no longer"


@pytest.mark.parametrize(("name", "place", "why"), [(n, *rest) for n, rest in {**CALLED, **OURS}.items()])
def test_what_is_not_public_is_where_it_was(name, place, why):
    """Without it something would be done in another way or not at all, and no error might say so."""
    if place.startswith("torch.ops."):
        assert hasattr(getattr(torch.ops, place.rpartition(".")[2]), name), why
        return
    holder = resolve(place)
    assert hasattr(holder, name) or re.search(rf"\b{name}\b", inspect.getsource(holder)), why


def resolve(place):
    """Return what a dotted name names: a module, or what is in one."""
    for end in range(place.count(".") + 1, 0, -1):
        parts = place.split(".")
        try:
            holder = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            holder = getattr(holder, part)
        return holder
    raise AssertionError(place)
