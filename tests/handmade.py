"""Files as ``recurconv export`` writes them, made by hand: graphs whose every output is known."""

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from recurconv import __version__

CLASSES = ("red", "green", "blue")


def classifier(path, gains, *, macs=None, static=None, data=True, **metadata):
    """A classifier of 3-channel images: logits = gains[steps] x the mean of each channel.

    Args:
        path: the model file; its weights go beside it.
        gains: {steps: gain}.
        macs: {steps: MACs}; by default a million for each step.
        static: a setting to write alone, without the input ``steps``.
        data: whether the gains lie in a data file of their own.
        metadata: entries to change, by their names without ``recurconv.``; None leaves one out.
    """
    branches = {steps: _mean_times(steps, data, number, path) for number, steps in enumerate(gains)}
    extra = {"class_names": json.dumps(CLASSES), "image_channels": "3", "smallest_side": "8", "macs_per": "image"}
    entries = {"kind": "classifier", "macs": json.dumps(macs or {k: k * 1_000_000 for k in gains}), **extra, **metadata}
    return _write(path, branches, gains, "logits", ["N", 3], static, data, entries)


def denoiser(path, offsets, *, takes_sigma=False, static=None, **metadata):
    """A denoiser of gray images: image + offsets[steps], + sigma where it takes one."""
    branches = {steps: _plus(steps, takes_sigma) for steps in offsets}
    extra = {"class_names": "null", "image_channels": "1", "smallest_side": "1", "macs_per": "pixel"}
    entries = {"kind": "denoiser", "macs": json.dumps({k: k * 10 for k in offsets}), **extra, **metadata}
    shape = ["N", 1, "H", "W"]
    return _write(path, branches, offsets, "clean", shape, static, False, entries, takes_sigma)


def _mean_times(steps, data, number, path):
    gain = helper.make_tensor(f"gain{steps}", TensorProto.FLOAT, [1], [0.0])
    if data:
        gain = TensorProto(name=gain.name, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", _data_file(path).name), ("offset", str(4 * number)), ("length", "4")):
            gain.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("ReduceMean", ["image", f"axes{steps}"], [f"mean{steps}"], keepdims=0),
        helper.make_node("Mul", [f"mean{steps}", gain.name], [f"out{steps}"]),
    ]
    return nodes, [gain, numpy_helper.from_array(np.array([2, 3], np.int64), f"axes{steps}")]


def _plus(steps, takes_sigma):
    nodes = [helper.make_node("Add", ["image", f"gain{steps}"], [f"{'part' if takes_sigma else 'out'}{steps}"])]
    if takes_sigma:
        nodes.append(helper.make_node("Add", [f"part{steps}", "sigma"], [f"out{steps}"]))
    return nodes, [helper.make_tensor(f"gain{steps}", TensorProto.FLOAT, [1], [0.0])]


def _write(path, branches, values, output, shape, static, data, entries, takes_sigma=False):
    path, dial = Path(path), sorted(values)
    for (_, initializers), steps in zip(branches.values(), values, strict=True):
        if not data:
            initializers[0].CopyFrom(numpy_helper.from_array(np.array([values[steps]], np.float32), f"gain{steps}"))
    if data:
        _data_file(path).write_bytes(np.array(list(values.values()), "<f4").tobytes())
    chosen = dial if static is None else [static]
    nodes, initializers = _nested(branches, chosen, shape)
    channels = 3 if output == "logits" else 1
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", channels, "H", "W"])
    inputs = [image, *([] if static else [helper.make_tensor_value_info("steps", TensorProto.INT64, [])])]
    inputs += [helper.make_tensor_value_info("sigma", TensorProto.FLOAT, [])] if takes_sigma else []
    nodes.append(helper.make_node("Identity", [f"out{chosen[0]}"], [output]))
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "dial", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    sums = {"data": "", "data_sha256": ""}
    if data:
        sums = {"data": _data_file(path).name, "data_sha256": hashlib.sha256(_data_file(path).read_bytes()).hexdigest()}
    told = {"format": "1", "version": __version__, "dial": json.dumps(dial), "precision": "fp32", **sums}
    told |= {"steps": "dial" if static is None else str(static), **entries}
    helper.set_model_props(model, {f"recurconv.{key}": value for key, value in told.items() if value is not None})
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path))
    return path


def _nested(branches, dial, shape):
    """If steps == dial[0]: its branch; else the same of the others. The result is called as the first branch's."""
    first, *others = dial
    nodes, initializers = branches[first]
    if not others:
        return list(nodes), list(initializers)
    further = _nested(branches, others, shape)
    condition = [
        helper.make_node("Equal", ["steps", f"setting{first}"], [f"is{first}"]),
        helper.make_node(
            "If",
            [f"is{first}"],
            [f"out{first}"],
            then_branch=_branch(f"then{first}", nodes, initializers, f"out{first}", f"then{first}", shape),
            else_branch=_branch(f"else{first}", *further, f"out{others[0]}", f"else{first}", shape),
        ),
    ]
    return condition, [numpy_helper.from_array(np.array(first, np.int64), f"setting{first}")]


def _branch(name, nodes, initializers, result, output, shape):
    last = helper.make_node("Identity", [result], [output])
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
    return helper.make_graph([*nodes, last], name, [], [value], initializers)


def _data_file(path):
    return Path(f"{path}.data")
