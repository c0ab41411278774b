"""Does an export compute what the network computes? Checked at each export, before the file is put in place."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recurconv.export.needs import needing_onnx
from recurconv.export.tracing import OneSetting, frozen, takes_sigma
from recurconv.network import Network

TOLERANCE = 1e-4  # relative to the largest value of an output
LEAST = 1e-6  # what a difference is relative to at least, where outputs are all but zero

Run = Callable[[int, Mapping[str, torch.Tensor]], torch.Tensor]


def differences(network: Network, settings: tuple[int, ...], run: Run, *, multiple: int = 1) -> dict[int, float]:
    """The largest difference between ``network`` and its export at each setting, relative to the largest output.

    Args:
        network: the network in PyTorch.
        settings: the settings that the export has.
        run: ``run(steps, inputs)`` gives the output of the export.
        multiple: what the sides of the images that the export takes are multiples of.

    Raises:
        ValueError: the network's own output is not finite, or a difference is above 1e-4 or not a number.
    """
    network = frozen(network)
    found = {}
    for steps in settings:
        module = OneSetting(network, steps).eval()
        worst = 0.0
        for inputs in _cases(network, multiple):
            with torch.inference_mode():
                wanted = module(*inputs.values())
            if not wanted.isfinite().all():
                raise ValueError(f"the network's own output is not finite at steps={steps}; it did not train well")
            got = run(steps, inputs)
            if got.shape != wanted.shape:
                raise ValueError(f"the export gives {list(got.shape)} at steps={steps}, not {list(wanted.shape)}")
            difference = (got - wanted).abs().max() / wanted.abs().max().clamp_min(LEAST)
            worst = max(worst, float(difference.nan_to_num(torch.inf)))
        if not worst <= TOLERANCE:
            raise ValueError(
                f"the export differs from PyTorch by {worst:.1e} at steps={steps}, more than {TOLERANCE:.0e}; "
                "it was not written"
            )
        found[steps] = worst
    return found


def onnx_run(path: Path, *, static: bool) -> Run:
    """How to run a model file with onnxruntime on the CPU.

    Args:
        path: of the model; its data file lies beside it.
        static: whether it has one setting, and no input ``steps``.

    Raises:
        ValueError: onnxruntime cannot load it.
    """
    with needing_onnx():
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no public base
        raise ValueError(f"onnxruntime cannot load what was exported: {str(error).splitlines()[0]}") from None

    def run(steps: int, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        feeds = {name: tensor.numpy() for name, tensor in inputs.items()}
        if not static:
            feeds["steps"] = np.array(steps, np.int64)
        return torch.from_numpy(session.run(None, feeds)[0])

    return run


def _cases(network: Network, multiple: int) -> Iterator[dict[str, torch.Tensor]]:
    """Noise and structure, one image and several, odd sides and the smallest; for some each kind of noise level."""
    channels, least = network.image_channels, network.smallest_side

    def sides(height: int, width: int) -> tuple[int, int]:
        return -(-max(height, least) // multiple) * multiple, -(-max(width, least) // multiple) * multiple

    generator = torch.Generator().manual_seed(0)
    cases = [
        torch.rand(1, channels, *sides(32, 32), generator=generator),
        _structured(channels, *sides(21, 33)),
        # Programs of torch.export may take a side of 1, which a multiple can be halved to, as a constant.
        torch.rand(2, channels, *sides(2 * multiple - 1, 2 * multiple), generator=generator),
    ]
    levels = (-1.0, 0.0, 25.0) if takes_sigma(network) else (None,)
    for images, level in zip(cases, levels * len(cases), strict=False):
        yield {"image": images} if level is None else {"image": images, "sigma": torch.tensor(level)}


def _structured(channels: int, height: int, width: int) -> torch.Tensor:
    """Black, white, a ramp, a checkerboard: [4, channels, height, width]."""
    down, across = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ramp, board = (down + across) / (height + width), ((down + across) % 2).float()
    planes = torch.stack([torch.zeros(height, width), torch.ones(height, width), ramp, board])
    return planes[:, None].repeat(1, channels, 1, 1)
