"""One setting's graph in int8: activation ranges of its own for each step, and kernels that stay shared.

A norm layer behind a convolution multiplies each output channel by a factor of its step. With one scale for each output
channel of the kernel the factor goes into the scale, so that the int8 kernel is the same in every step and setting and
a file holds it once. (ONNX Runtime's ``quantize_static`` would quantise the folded kernel of each step anew.) Ranges
belong to a step of a setting, as the norm bank's statistics do: the unrolled steps are separate tensors of the graph.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

Floats = npt.NDArray[np.float32]
Feed = Mapping[str, npt.NDArray[Any]]  # input name -> array
Ranges = Mapping[str, tuple[float, float]]  # tensor -> smallest and largest value

# Weights take 7 bits. On a CPU without VNNI, two products of an 8-bit activation (0 to 255) and a weight are added in
# 16 bits, which saturate silently; 2 x 255 x 64 fits. So one file is right on every CPU.
LARGEST_WEIGHT = 64
_SMALLEST_SCALE = 1e-30  # whose product with another scale is still a float32
_LARGEST_BIAS = 2**30  # in steps of its scale: an int32, with room for the sum that it starts


class Layer(NamedTuple):
    """A convolution that is quantised, with what follows it and goes into it."""

    convolution: "onnx.NodeProto"
    norm: "onnx.NodeProto | None"
    relu: "onnx.NodeProto | None"

    @property
    def kernel(self) -> str:
        """The name of its kernel."""
        return str(self.convolution.input[1])

    @property
    def source(self) -> str:
        """The tensor that it takes."""
        return str(self.convolution.input[0])

    @property
    def result(self) -> str:
        """The tensor that leaves it."""
        return str((self.relu or self.norm or self.convolution).output[0])


def layers(model: "onnx.ModelProto", ends: int) -> list[Layer]:
    """The convolutions of a static graph that are quantised.

    Args:
        model: the graph.
        ends: how many of the network's ends are convolutions and stay fp32: 1, the first one; 2, the last one too.
    """
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)

    def only_user(tensor: str, kind: str) -> "onnx.NodeProto | None":
        found = users.get(tensor, [])
        return found[0] if len(found) == 1 and found[0].op_type == kind else None

    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    found = []
    for convolution in convolutions[1 : len(convolutions) - ends + 1]:
        norm = only_user(convolution.output[0], "BatchNormalization")
        relu = only_user((norm or convolution).output[0], "Relu")
        found.append(Layer(convolution, norm, relu))
    return found


def measured(model: "onnx.ModelProto", feeds: Iterable[Feed]) -> Ranges:
    """The smallest and the largest value of each tensor around convolutions, norms and ReLUs, over all feeds."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self.left, None)

    with TemporaryDirectory() as folder:  # the calibrator reads and writes files
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        calibrator = create_calibrator(
            path,
            ["Conv", "BatchNormalization", "Relu"],
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(Reader())
        found = calibrator.compute_data().data
    return {name: (float(np.min(tensor.lowest)), float(np.max(tensor.highest))) for name, tensor in found.items()}


def quantised(model: "onnx.ModelProto", found: Sequence[Layer], ranges: Ranges) -> "onnx.ModelProto":
    """A copy of a static graph with these convolutions in int8, in the QDQ form that ONNX Runtime fuses.

    Args:
        model: the fp32 graph.
        found: what ``layers`` returned for it.
        ranges: of the tensors that these convolutions take and give.
    """
    import onnx

    writer = _Writer(model, ranges)
    by_sum = {layer.convolution.output[0]: layer for layer in found}
    taken_in = {node.output[0] for layer in found for node in (layer.norm, layer.relu) if node is not None}
    for node in model.graph.node:
        name = node.output[0]
        if name in by_sum:
            writer.add_layer(by_sum[name])
        elif name in taken_in:
            continue
        elif node.op_type == "BatchNormalization":
            writer.add_norm(node)
        else:
            writer.nodes.append(node)
    used = {name for node in writer.nodes for name in node.input}
    values = {**{tensor.name: tensor for tensor in model.graph.initializer}, **writer.values}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
    result.graph.node.extend(writer.nodes)
    result.graph.initializer.extend(tensor for name, tensor in values.items() if name in used)
    return result


def int8_kernel(kernel: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """A kernel in 7 bits, with the scale of each output channel.

    Args:
        kernel: [C_out, C_in, K, K].

    Returns:
        int8 of the same shape, -64 to 64; float32 [C_out].
    """
    largest = np.abs(kernel).max((1, 2, 3))
    scale = np.where(largest > 0, largest / LARGEST_WEIGHT, 1).astype(np.float32)
    return np.rint(kernel / scale[:, None, None, None]).astype(np.int8), scale


def uint8_scale(low: float, high: float) -> tuple[np.float32, np.uint8]:
    """Scale and zero point that spread a range, extended to hold 0, over 0 to 255."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255 or 1.0
    return np.float32(scale), np.uint8(round(-low / scale))


def channel_scales(scale: Floats, bias: Floats, step: np.float32) -> Floats:
    """The scale of each output channel, away from zero where its norm layer all but switches it off.

    The bias is stored as an int32 in units of scale times ``step``, and is to fit.

    Args:
        scale: [C_out], of any sign.
        bias: [C_out].
        step: scale of the tensor that the convolution takes.
    """
    smallest = np.maximum(np.abs(bias) / (step * _LARGEST_BIAS), _SMALLEST_SCALE)
    return np.where(np.abs(scale) < smallest, np.copysign(smallest, scale), scale).astype(np.float32)


def affine(norm: "onnx.NodeProto", values: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Factor and offset of each channel that a batch norm comes down to, [C] each."""
    gamma, beta, mean, variance = (values[name] for name in norm.input[1:5])
    epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), 1e-5)
    factor = (gamma / np.sqrt(variance + epsilon)).astype(np.float32)
    return factor, (beta - mean * factor).astype(np.float32)


class _Writer:
    """The nodes and values of the int8 graph, as they are added."""

    def __init__(self, model: "onnx.ModelProto", ranges: Ranges) -> None:
        from onnx import numpy_helper

        self.floats = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.ranges = ranges
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, onnx.TensorProto] = {}
        self.uint8: dict[str, str] = {}  # tensor -> the same, through uint8 and back

    def keep(self, name: str, value: npt.ArrayLike) -> str:
        from onnx import numpy_helper

        self.values[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def through_uint8(self, tensor: str, range_of: str, output: str) -> None:
        """Quantise ``tensor`` by the range of ``range_of`` and back again, as ``output``."""
        scale, zero = uint8_scale(*self.ranges[range_of])
        names = [self.keep(f"{range_of}/scale", scale), self.keep(f"{range_of}/zero", zero)]
        stored = self.add("QuantizeLinear", [tensor, *names], f"{range_of}/uint8")
        self.uint8[range_of] = self.add("DequantizeLinear", [stored, *names], output)

    def add_norm(self, norm: "onnx.NodeProto") -> None:
        """A norm layer that is behind no quantised convolution, as two operations that any layout can do."""
        result = norm.output[0]
        factor, offset = (value[:, None, None] for value in affine(norm, self.floats))
        scaled = self.add("Mul", [norm.input[0], self.keep(f"{result}/factor", factor)], f"{result}/scaled")
        self.add("Add", [scaled, self.keep(f"{result}/offset", offset)], result)

    def add_layer(self, layer: Layer) -> None:
        """A convolution between uint8 tensors, with the norm in its scales and the ReLU in its range."""
        if layer.source not in self.uint8:
            self.through_uint8(layer.source, layer.source, f"{layer.source}/back")
        step, _ = uint8_scale(*self.ranges[layer.source])
        kernel, scale = int8_kernel(self.floats[layer.kernel])
        old_bias = [self.floats[name] for name in layer.convolution.input[2:]]
        bias = old_bias[0] if old_bias else np.zeros_like(scale)
        if layer.norm is not None:
            factor, offset = affine(layer.norm, self.floats)
            scale, bias = scale * factor, bias * factor + offset
        scale = channel_scales(scale, bias, step)
        name, kernel_name = layer.result, layer.kernel
        weight = [
            self.keep(f"{kernel_name}/int8", kernel),
            self.keep(f"{name}/kernel_scale", scale),
            self.keep(f"{kernel_name}/zero", np.zeros(len(scale), np.int8)),
        ]
        inputs = [self.uint8[layer.source], self.add("DequantizeLinear", weight, f"{name}/kernel", axis=0)]
        if layer.norm is not None or old_bias:
            unit = step * scale
            stored = [
                self.keep(f"{name}/bias_int32", np.rint(bias / unit).astype(np.int32)),
                self.keep(f"{name}/bias_scale", unit),
            ]
            inputs.append(self.add("DequantizeLinear", stored, f"{name}/bias", axis=0))
        raw = self.add("Conv", inputs, f"{name}/sum")
        self.nodes[-1].attribute.extend(layer.convolution.attribute)
        self.through_uint8(raw, name, name)
