"""Static models of several settings joined into one with an input ``steps``, each weight stored once."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from recurconv.export.needs import needing_onnx

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

SMALL = 1024  # bytes: smaller tensors stay in the graph of their setting, where onnxruntime infers shapes from them
ALIGNMENT = 64  # bytes: where a tensor may start in the data file, so that vector instructions can read it in place


class Joined(NamedTuple):
    """A model with the input ``steps``, and the content of its data file; empty where the model holds everything."""

    model: "ModelProto"
    data: bytes


def join_settings(models: Mapping[int, "ModelProto"], *, data_file: str | None = None) -> Joined:
    """One model that runs the static model of the setting that its input ``steps``, an int64 scalar, asks for.

    ``steps`` chooses by nested ``If`` between the graphs of the settings. A call with a setting that is not there
    fails: its branch asks for an impossible shape, in a node whose name says what is wrong.

    Each weight is stored once, tensors being one and the same when their bytes, type and shape are. Where they are
    stored matters for speed: onnxruntime arranges a kernel for its fastest convolutions only where it is a constant of
    the very graph that uses it, so that kernels shared as constants of the outer graph cost more than 10 %. So
    there are two ways:

    - with a data file, each branch has constants of its own, and those of the same content point at one place in it;
    - without one, a shared tensor lies flat in the outer graph, and each branch gives it its shape back.
      onnxruntime does that when it loads the model, which makes it a constant of the branch. It needs more memory:
      another copy for each setting.

    Args:
        models: the static model of each setting, with the same inputs and output.
        data_file: name of the data file, which is to lie beside the model; None to keep everything in the model.

    Raises:
        ValueError: no model, or models that differ in their inputs, output or opsets.
    """
    with needing_onnx():
        from onnx import TensorProto, helper, numpy_helper

    first = _check_alike(models)
    storage: _Storage = _InModel(models) if data_file is None else _InFile(data_file)
    graph = _refusal(tuple(models), first.graph.output[0])
    for steps in reversed(list(models)):
        branch = _branch(models[steps], steps, storage)
        wanted = numpy_helper.from_array(np.array(steps, np.int64), f"setting_{steps}")
        output = f"output_from_{steps}"
        nodes = [
            helper.make_node("Equal", ["steps", wanted.name], [f"is_{steps}"], f"is_{steps}"),
            helper.make_node("If", [f"is_{steps}"], [output], f"if_{steps}", then_branch=branch, else_branch=graph),
        ]
        graph = helper.make_graph(nodes, f"from_{steps}", [], [_renamed(first.graph.output[0], output)], [wanted])
    name = first.graph.output[0].name
    graph.node[-1].output[0] = name
    graph.output[0].name = name
    graph.name = "dial"
    graph.input.extend([*first.graph.input, helper.make_tensor_value_info("steps", TensorProto.INT64, [])])
    graph.initializer.extend(storage.outer)
    model = helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    return Joined(model, b"".join(storage.pieces))


def _check_alike(models: Mapping[int, "ModelProto"]) -> "ModelProto":
    """The first of them."""
    if not models:
        raise ValueError("there is no setting to join; give one static model for each")
    first = next(iter(models.values()))

    def face(model: "ModelProto") -> list[Any]:
        described = [v.SerializeToString(deterministic=True) for v in (*model.graph.input, *model.graph.output)]
        return [*described, sorted((opset.domain, opset.version) for opset in model.opset_import)]

    for steps, model in models.items():
        if face(model) != face(first) or len(model.graph.output) != 1:
            raise ValueError(f"the model of steps={steps} has other inputs, outputs or opsets than the first")
    return first


def _branch(model: "ModelProto", steps: int, storage: "_Storage") -> "GraphProto":
    """The graph of one setting as a branch: no inputs, its own names, its larger tensors in ``storage``."""
    from onnx import compose

    graph = compose.add_prefix_graph(model.graph, f"{steps}/", rename_inputs=False)
    graph.name = f"steps_{steps}"
    tensors, nodes = list(graph.initializer), list(graph.node)
    del graph.input[:], graph.value_info[:], graph.initializer[:], graph.node[:]
    for tensor in tensors:
        content = _content(tensor)
        if len(content) < SMALL:
            graph.initializer.append(tensor)
        else:
            storage.put(tensor, content, graph)
    graph.node.extend(nodes)
    return graph


def _content(tensor: "TensorProto") -> bytes:
    """The bytes of a tensor as ONNX stores them."""
    from onnx import numpy_helper

    if not tensor.HasField("raw_data"):
        tensor = numpy_helper.from_array(numpy_helper.to_array(tensor))
    return tensor.raw_data


def _identity(tensor: "TensorProto", content: bytes) -> tuple[Any, ...]:
    return tensor.data_type, tuple(tensor.dims), hashlib.sha256(content).digest()


class _Storage(Protocol):
    """Where the larger tensors of the branches lie."""

    outer: list["TensorProto"]  # in the outer graph
    pieces: list[bytes]  # in the data file, one behind the other

    def put(self, tensor: "TensorProto", content: bytes, branch: "GraphProto") -> None:
        """Store a tensor, once, and give it to ``branch`` under its name."""


class _InFile:
    """Each branch has the tensor as a constant of its own, whose bytes lie in the data file."""

    def __init__(self, data_file: str) -> None:
        self.data_file = data_file
        self.outer: list[TensorProto] = []
        self.pieces: list[bytes] = []
        self.offsets: dict[tuple[Any, ...], int] = {}
        self.end = 0

    def put(self, tensor: "TensorProto", content: bytes, branch: "GraphProto") -> None:
        from onnx import TensorProto

        key = _identity(tensor, content)
        if key not in self.offsets:
            gap = -self.end % ALIGNMENT
            self.offsets[key] = self.end + gap
            self.pieces += [bytes(gap), content]
            self.end += gap + len(content)
        place = branch.initializer.add(
            name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
        )
        facts = {"location": self.data_file, "offset": self.offsets[key], "length": len(content)}
        for name, value in facts.items():
            place.external_data.add(key=name, value=str(value))


class _InModel:
    """What several branches use lies flat in the outer graph, and each gives it its shape back; the rest in its own."""

    def __init__(self, models: Mapping[int, "ModelProto"]) -> None:
        self.outer: list[TensorProto] = []
        self.pieces: list[bytes] = []
        self.names: dict[tuple[Any, ...], str] = {}
        every = [{_identity(t, _content(t)) for t in model.graph.initializer} for model in models.values()]
        self.users = Counter(key for keys in every for key in keys)

    def put(self, tensor: "TensorProto", content: bytes, branch: "GraphProto") -> None:
        from onnx import TensorProto, helper, numpy_helper

        key = _identity(tensor, content)
        if self.users[key] == 1:
            branch.initializer.append(tensor)
            return
        if key not in self.names:
            self.names[key] = f"shared_{len(self.names)}"
            size = int(np.prod(tensor.dims))
            self.outer.append(
                TensorProto(name=self.names[key], data_type=tensor.data_type, dims=[size], raw_data=content)
            )
        shape = numpy_helper.from_array(np.array(tensor.dims, np.int64), f"{tensor.name}/shape")
        branch.initializer.append(shape)
        branch.node.append(
            helper.make_node("Reshape", [self.names[key], shape.name], [tensor.name], f"{tensor.name}/reshape")
        )


def _renamed(value: "ValueInfoProto", name: str) -> "ValueInfoProto":
    copy = type(value)()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _refusal(dial: tuple[int, ...], output: "ValueInfoProto") -> "GraphProto":
    """The branch for a setting that is not there: it fails, and the name of the node that fails says why.

    It shapes two numbers like [steps, steps, 1, ...], which no ``steps`` allows. No optimiser can find that out before
    a call, since all that is known of ``steps`` then is its type.
    """
    from onnx import TensorProto, helper, numpy_helper

    rest = len(output.type.tensor_type.shape.dim) - 2
    settings = ", ".join(map(str, dial))
    constants = [
        numpy_helper.from_array(np.full(2, np.nan, np.float32), "two_numbers"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    nodes = [
        helper.make_node("Reshape", ["steps", "one"], ["steps_1d"], "steps_1d"),
        helper.make_node("Concat", ["steps_1d", "steps_1d", *["one"] * rest], ["impossible"], "impossible", axis=0),
        helper.make_node("Reshape", ["two_numbers", "impossible"], ["none"], f"steps must be one of {settings}"),
    ]
    result = helper.make_tensor_value_info("none", TensorProto.FLOAT, [None] * (2 + rest))
    return helper.make_graph(nodes, "off_the_dial", [], [result], constants)
