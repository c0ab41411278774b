"""What the tests of exports share: sessions of onnxruntime, and what lies in a model."""

import numpy as np
import onnx
import onnxruntime
import torch

from recurconv.export import static_model


def session(model):
    """Of a path, or of a model in memory."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    source = model if hasattr(model, "suffix") else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(opened, images, steps=None, sigma=None):
    feeds = {"image": np.asarray(images, np.float32)}
    if steps is not None:
        feeds["steps"] = np.array(steps, np.int64)
    if sigma is not None:
        feeds["sigma"] = np.array(sigma, np.float32)
    (output,) = opened.run(None, feeds)
    return output


def relative(got, wanted):
    assert tuple(got.shape) == tuple(wanted.shape)
    return np.abs(np.asarray(got) - np.asarray(wanted)).max() / np.abs(np.asarray(wanted)).max()


def pytorch(net, images, steps, **told):
    with torch.inference_mode():
        return net(torch.from_numpy(np.asarray(images, np.float32)), steps, **told).numpy()


def graphs(graph):
    """A graph and all those in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def metadata(path):
    model = onnx.load(path, load_external_data=False)
    return {entry.key.removeprefix("recurconv."): entry.value for entry in model.metadata_props}


class Traced:
    """``static_model``, which takes seconds, once for each setting and weights."""

    def __init__(self):
        self.models, self.calls = {}, []

    def __call__(self, network, steps, *, opset=None):
        self.calls.append(steps)
        if opset is not None:
            return static_model(network, steps, opset=opset)
        key = steps, *(tensor.numpy().tobytes() for tensor in network.state_dict().values())
        if key not in self.models:
            self.models[key] = static_model(network, steps)
        copy = onnx.ModelProto()
        copy.CopyFrom(self.models[key])
        return copy
