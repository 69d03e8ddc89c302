"""Two graphs of a decoder, the first step and each further one, as one file with the weights once."""

from typing import Any

import onnx
from onnx import TensorProto, helper

__all__ = ["merge_steps"]

CONDITION = "use_cache_branch"
"""Input of the merged graph, a boolean: whether there are keys and values of earlier tokens."""


def merge_steps(first: Any, following: Any) -> Any:
    """Return one model with a branch for the first step of decoding and one for the others, as transformers.js reads it.

    Args:
        first: `ModelProto` from source states to logits and `present.*`.
        following: `ModelProto` from `past_key_values.*` to logits and `present.*` of the target; keys and values of the
            source are handed on.

    Returns:
        A `ModelProto` with the inputs of both and `use_cache_branch`, and the outputs of the first.
    """
    outputs = [output.name for output in first.graph.output]
    weights: dict[str, Any] = {}
    branches = {}
    for branch, model in (("first", first), ("following", following)):
        names = _hoist_weights(model.graph, weights, branch)
        branches[branch] = _branch(model.graph, branch, names, outputs)
    inputs = {value.name: value for model in (first, following) for value in model.graph.input}
    # a step reads one token, the first as many as there are
    inputs["input_ids"] = next(value for value in first.graph.input if value.name == "input_ids")
    condition = helper.make_tensor_value_info(CONDITION, TensorProto.BOOL, [1])
    choice = helper.make_node(
        "If", [CONDITION], outputs, then_branch=branches["following"], else_branch=branches["first"], name="step"
    )
    graph = helper.make_graph(
        [choice],
        "decoder",
        [*inputs.values(), condition],
        [_without_sizes(output) for output in first.graph.output],
        list(weights.values()),
    )
    merged = helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    merged.functions.extend({function.name: function for m in (first, following) for function in m.functions}.values())
    onnx.checker.check_model(merged)
    return merged


def _hoist_weights(graph: Any, weights: dict[str, Any], branch: str) -> dict[str, str]:
    """Move the weights of a graph to those of the merged one; equal ones are kept once. Return their new names."""
    by_content = {_content(tensor): name for name, tensor in weights.items()}
    names = {}
    for tensor in graph.initializer:
        content = _content(tensor)
        if content not in by_content:
            name = tensor.name if tensor.name not in weights else f"{branch}.{tensor.name}"
            kept = onnx.TensorProto()
            kept.CopyFrom(tensor)
            kept.name = name
            weights[name] = kept
            by_content[content] = name
        names[tensor.name] = by_content[content]
    return names


def _content(tensor: Any) -> tuple:
    return tensor.data_type, tuple(tensor.dims), tensor.raw_data or tensor.SerializeToString()


def _branch(graph: Any, branch: str, names: dict[str, str], outputs: list[str]) -> Any:
    """Return a graph without inputs and weights of its own, whose other names begin with that of the branch."""
    given = {value.name for value in graph.input}

    def renamed(name: str) -> str:
        if not name or name in given:
            return name
        return names.get(name, f"{branch}.{name}")

    nodes = []
    for node in graph.node:
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        moved.name = f"{branch}.{node.name}"
        del moved.input[:], moved.output[:]
        moved.input.extend(map(renamed, node.input))
        moved.output.extend(map(renamed, node.output))
        nodes.append(moved)
    made = {output.name for output in graph.output}
    values = []
    for name in outputs:
        if name not in made:  # keys and values of the source, which do not change
            nodes.append(
                helper.make_node("Identity", [name.replace("present", "past_key_values", 1)], [f"{branch}.{name}"])
            )
        values.append(helper.make_tensor_value_info(f"{branch}.{name}", TensorProto.FLOAT, None))
    return helper.make_graph(nodes, branch, [], values)


def _without_sizes(output: Any) -> Any:
    """Return an output of so many axes, whose names would differ between the branches."""
    value = onnx.ValueInfoProto()
    value.CopyFrom(output)
    for axis in value.type.tensor_type.shape.dim:
        if not axis.HasField("dim_value"):
            axis.Clear()
    return value
