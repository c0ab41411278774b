"""A network in int8: the static graph of each setting, quantised by its own activation ranges, with shared kernels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recurconv.data.denoising import psnr
from recurconv.export.int8_graphs import layers, measured, quantised
from recurconv.export.int8_images import Array, Sample, samples
from recurconv.export.joining import Joined, join_settings
from recurconv.export.needs import needing_onnx
from recurconv.export.tracing import check_opset, static_model
from recurconv.export.writing import ONE_FILE, Exported, placed, write_model
from recurconv.network import Network
from recurconv.networks import Denoiser

if TYPE_CHECKING:
    from onnx import ModelProto

Say = Callable[[str], object]


@dataclass(frozen=True)
class ExportedInt8(Exported):
    """What an int8 export wrote, and how it compares with fp32 on the calibration images.

    Attributes:
        measure: "same label (%)" for a classifier, "PSNR change (dB)" for a denoiser: int8 minus fp32.
        agreement: {steps: what is measured}.
        images: how many.
    """

    measure: str
    agreement: dict[int, float]
    images: int


def export_int8(
    network: Network,
    path: str | Path,
    calibration: str | Path,
    *,
    steps: int | None = None,
    size: int = 32,
    sigmas: tuple[float, float] | None = None,
    opset: int | None = None,
    single_file: bool | None = None,
    overwrite: bool = False,
    say: Say = lambda progress: None,
) -> ExportedInt8:
    """Write a network as an ONNX model in int8, with the dial or of one setting.

    The convolutions of cells and transitions take uint8 activations and 7-bit weights, with a scale for each output
    channel; the first convolution, a denoiser's last one and the classifier stay float32, as do the sums of residual
    bodies. Each step of each setting has activation ranges of its own, measured on calibration images; each kernel is
    stored once. Inputs and output are those of ``export_onnx``.

    Args:
        network: stays as it is.
        path: the file to write, *.onnx; the weights of a large network go to a second file, *.onnx.data.
        calibration: CIFAR (its training images are taken) or a folder of pictures like those that the network is for.
        steps: export this setting alone.
        size: of a classifier's pictures, in pixels: resized and cropped.
        sigmas: the noise that a denoiser is for, from the first to the second, in 1/255; see ``samples``.
        opset, single_file, overwrite, say: as for ``export_onnx``.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no pictures in it, or what ``export_onnx`` refuses.
        OSError, ImportError: as for ``export_onnx``.
    """
    path = Path(path).expanduser()
    if path.suffix != ".onnx":
        raise ValueError(f"{path} does not end in .onnx; give the file a name that does")
    settings = network.dial if steps is None else (network.setting(steps),)
    check_opset(opset)
    data_file = f"{path.name}.data"
    with placed(path, data_file, overwrite=overwrite) as folder:
        say(f"reading {calibration}")
        shown = samples(network, Path(calibration).expanduser(), size=size, sigmas=sigmas)
        models, differences, agreement = {}, {}, {}
        for setting in settings:
            say(f"tracing steps={setting}")
            fp32 = static_model(network, setting, opset=opset)
            say(f"measuring activations at steps={setting} on {sum(map(len, shown))} images")
            models[setting] = int8_model(fp32, network, shown)
            before, after = (outputs(model, shown) for model in (fp32, models[setting]))
            differences[setting] = _difference(before, after)
            agreement[setting] = _agreement(before, after, shown)
        joined = _join(models, steps, data_file, single_file)
        written = write_model(joined, folder / path.name, network, steps=steps, precision="int8")
    data = path.with_name(data_file) if joined.data else None
    measure = "PSNR change (dB)" if isinstance(network, Denoiser) else "same label (%)"
    return ExportedInt8(path, data, written, differences, measure, agreement, sum(map(len, shown)))


def int8_model(fp32: "ModelProto", network: Network, shown: Sequence[Sample]) -> "ModelProto":
    """The int8 model of one setting.

    Args:
        fp32: its static model.
        network: what it is of.
        shown: the calibration images.
    """
    ranges = measured(fp32, (sample.inputs for sample in shown))
    return quantised(fp32, layers(fp32, kept_convolutions(network)), ranges)


def kept_convolutions(network: Network) -> int:
    """How many convolutions at the ends of a network stay float32: 1, the first; of a denoiser 2, the last too.

    They cost little, and what they take or give are pictures, where fine differences show.
    """
    return 2 if isinstance(network, Denoiser) else 1


def session(model: "ModelProto | Path", *, threads: int | None = None) -> Any:
    """An ``onnxruntime.InferenceSession`` of a static model, on the CPU."""
    with needing_onnx():
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    source = model if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def outputs(model: "ModelProto", shown: Sequence[Sample]) -> list[Array]:
    """What a static model gives for each sample."""
    running = session(model)
    return [running.run(None, sample.inputs)[0] for sample in shown]


def _join(models: dict[int, "ModelProto"], steps: int | None, data_file: str, single_file: bool | None) -> Joined:
    if steps is not None:
        return Joined(models[steps], b"")
    joined = join_settings(models, data_file=None if single_file is not False else data_file)
    if single_file is None and joined.model.ByteSize() > ONE_FILE:
        joined = join_settings(models, data_file=data_file)
    return joined


def _difference(before: Sequence[Array], after: Sequence[Array]) -> float:
    """The largest difference relative to the largest output."""
    largest = max(float(np.abs(output).max()) for output in before)
    return max(float(np.abs(a - b).max()) for a, b in zip(before, after, strict=True)) / (largest or 1.0)


def _agreement(before: Sequence[Array], after: Sequence[Array], shown: Sequence[Sample]) -> float:
    """See ``ExportedInt8``."""
    if shown[0].clean is None:
        same = [a.argmax(1) == b.argmax(1) for a, b in zip(before, after, strict=True)]
        return 100 * float(np.concatenate(same).mean())

    def mean_psnr(outputs: Sequence[Array]) -> float:
        pairs = zip(shown, outputs, strict=True)
        return float(torch.cat([psnr(torch.from_numpy(s.clean), torch.from_numpy(o)) for s, o in pairs]).mean())

    return mean_psnr(after) - mean_psnr(before)
