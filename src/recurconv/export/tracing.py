"""One setting of a network as a static ONNX graph, or as a program of ``torch.export``."""

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from recurconv.export.needs import needing_onnx
from recurconv.network import Network
from recurconv.networks import Denoiser

if TYPE_CHECKING:
    from onnx import ModelProto

LOWEST_OPSET = 18  # what PyTorch's exporter writes without a converter
TRACED = (2, 36, 44)  # images, height, width: none of them 0 or 1, which torch.export would take as constants
SIGMA = 25.0  # to trace with, in 1/255


def takes_sigma(network: Network) -> bool:
    """Whether a call takes the noise level."""
    return isinstance(network, Denoiser) and network.takes_sigma


def output_name(network: Network) -> str:
    """What the exported network gives: "clean" for a denoiser, "logits" for a classifier."""
    return "clean" if isinstance(network, Denoiser) else "logits"


def frozen(network: Network) -> Network:
    """A copy for inference: float32, on the CPU, in eval mode. ``network`` stays as it is."""
    return copy.deepcopy(network).float().cpu().eval()


class OneSetting(nn.Module):
    """A network at one setting: ``module(image)``, or ``module(image, sigma)``, of tensors."""

    def __init__(self, network: Network, steps: int) -> None:
        super().__init__()
        self.network, self.steps = network, steps

    def forward(self, image: torch.Tensor, sigma: torch.Tensor | None = None) -> torch.Tensor:
        """[N, C, H, W] in [0, 1], and a scalar in 1/255 -> logits or clean images."""
        told = {} if sigma is None else {"sigma": sigma}
        return self.network(image, steps=self.steps, **told)  # type: ignore[no-any-return]


class _Bare(nn.Module):
    """A module whose tensors are arguments of the call, so that an exporter cannot fold them into each other."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._call = lambda tensors, inputs: functional_call(module, tensors, inputs)  # hides it from PyTorch

    def forward(
        self, tensors: dict[str, torch.Tensor], image: torch.Tensor, sigma: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._call(tensors, (image, sigma))  # type: ignore[no-any-return,no-untyped-call]


def program(network: Network, steps: int) -> ExportedProgram:
    """One setting as a program of ``torch.export``: ``program.module()(image)``, or ``(image, sigma)``.

    Raises:
        ValueError: ``steps`` is not on the dial.
    """
    module = OneSetting(frozen(network), network.setting(steps)).eval()
    inputs, shapes = _inputs(network)
    return _traced(module, tuple(inputs.values()), shapes)


def static_model(network: Network, steps: int, *, opset: int | None = None) -> "ModelProto":
    """One setting as an ONNX model in memory.

    The graph is the unrolled network, and nothing in it is folded: every weight is an initializer under the name that
    it has in the network, once, however many steps use it. So a kernel that several settings use has the same bytes in
    the model of each.

    Args:
        network: any network of this package; stays as it is.
        steps: a setting on its dial.
        opset: of ONNX; by default the one that PyTorch's exporter prefers.

    Returns:
        A model with the input ``image`` [N, C, H, W], float32 in [0, 1], with N, H and W dynamic; for a network that
        takes a noise level also ``sigma``, a float32 scalar in 1/255, negative for unknown. The output is ``logits``
        [N, num_classes] or ``clean`` [N, C, H, W].

    Raises:
        ValueError: ``steps`` is not on the dial, or ``opset`` is none that can be written.
        ImportError: the packages for ONNX are not installed.
    """
    with needing_onnx():
        import onnxscript  # noqa: F401  (PyTorch's exporter needs it)
    setting = network.setting(steps)
    check_opset(opset)
    module = OneSetting(frozen(network), setting).eval()
    tensors = {
        name: tensor.detach()
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if tensor.is_floating_point()
    }
    inputs, shapes = _inputs(network)
    fixed: dict[str, Any] = {name: {} for name in tensors}
    exported = _traced(_Bare(module), (tensors, *inputs.values()), {"tensors": fixed, **shapes})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about PyTorch's own internals
        traced = torch.onnx.export(
            exported,
            dynamo=True,
            input_names=[*tensors, *inputs],
            output_names=[output_name(network)],
            opset_version=opset,
            verbose=False,
        )
    assert traced is not None
    model = _with_weights(traced.model_proto, tensors, network)
    written = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset not in (None, written):
        raise ValueError(f"opset={opset} cannot be written for this network: PyTorch's exporter gives {written}")
    return model


def check_opset(opset: int | None) -> None:
    """Raise ValueError unless it is None or an opset that can be written."""
    with needing_onnx():
        import onnx

    highest = onnx.defs.onnx_opset_version()
    if opset is not None and not LOWEST_OPSET <= opset <= highest:
        raise ValueError(f"opset={opset} cannot be written; choose one from {LOWEST_OPSET} to {highest}, or none")


def _inputs(network: Network) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Inputs to trace with, and which dimensions of each vary from call to call."""
    count, *sides = TRACED
    height, width = (max(side, network.smallest_side) for side in sides)
    inputs = {"image": torch.rand(count, network.image_channels, height, width)}
    shapes: dict[str, Any] = {"image": dict.fromkeys((0, 2, 3), Dim.DYNAMIC)}
    if takes_sigma(network):
        inputs["sigma"], shapes["sigma"] = torch.tensor(SIGMA), {}
    return inputs, shapes


def _traced(module: nn.Module, inputs: tuple[Any, ...], shapes: dict[str, Any]) -> ExportedProgram:
    """A program of ``torch.export``.

    A body that calls ``len(x)`` makes the number of images a constant; only strict tracing, which takes ten times as
    long, follows it.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are about PyTorch's own internals
        try:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        except RuntimeError:
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=True)


def _with_weights(model: "ModelProto", tensors: Mapping[str, torch.Tensor], network: Network) -> "ModelProto":
    """The traced model with its weights as initializers, and without what the exporter notes for itself."""
    from onnx import TensorProto, helper, numpy_helper

    used = {name for node in model.graph.node for name in node.input}
    graph = model.graph
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    weights = [
        numpy_helper.from_array(tensor.numpy(), name.removeprefix("network."))
        for name, tensor in tensors.items()
        if name in used
    ]
    for node in graph.node:
        node.input[:] = [name.removeprefix("network.") if name in tensors else name for name in node.input]
    image: list[str | int | None] = ["N", network.image_channels, "H", "W"]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, image)]
    if takes_sigma(network):
        inputs.append(helper.make_tensor_value_info("sigma", TensorProto.FLOAT, []))
    classes = graph.output[0].type.tensor_type.shape.dim[1].dim_value
    result = image if isinstance(network, Denoiser) else ["N", classes]
    return helper.make_model(
        helper.make_graph(
            graph.node,
            "network",
            inputs,
            [helper.make_tensor_value_info(output_name(network), TensorProto.FLOAT, result)],
            [*graph.initializer, *weights],
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
