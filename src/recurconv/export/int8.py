"""A network in int8: the static graph of each setting, quantised by its own activation ranges, with shared kernels."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from recurconv.export.int8_graphs import Ranges, layers, measured, quantised
from recurconv.export.int8_images import Array, Sample
from recurconv.export.needs import needing_onnx
from recurconv.export.tracing import static_model
from recurconv.network import Network
from recurconv.networks import Denoiser

if TYPE_CHECKING:
    import onnx


def ends(network: Network) -> int:
    """How many of a network's convolutions stay fp32 with its classifier: the first, and of a denoiser the last.

    They cost little, and what they take or give are pictures, whose fine differences count.
    """
    return 2 if isinstance(network, Denoiser) else 1


def int8_model(fp32: "onnx.ModelProto", kept: int, ranges: Ranges) -> "onnx.ModelProto":
    """The int8 model of a static one.

    Args:
        fp32: what ``static_model`` returned.
        kept: what ``ends`` says.
        ranges: smallest and largest value of the tensors around its convolutions.
    """
    return quantised(fp32, layers(fp32, kept), ranges)


def int8_settings(
    network: Network,
    calibration: Sequence[Sample],
    steps: Sequence[int],
    *,
    opset: int | None = None,
    say: Callable[[str], object] = lambda progress: None,
) -> dict[int, tuple["onnx.ModelProto", "onnx.ModelProto"]]:
    """For each setting its static fp32 model and its int8 model."""
    found = {}
    for setting in steps:
        say(f"int8, steps={setting}: tracing")
        fp32 = static_model(network, setting, opset=opset)
        say(f"int8, steps={setting}: measuring activations")
        found[setting] = (
            fp32,
            int8_model(fp32, ends(network), measured(fp32, [sample.inputs for sample in calibration])),
        )
    return found
