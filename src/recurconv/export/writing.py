"""Exported files: the network as one, what is written for it, and how it is put in place."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from recurconv._version import __version__
from recurconv.export.description import describe
from recurconv.export.joining import Joined, join_settings
from recurconv.export.needs import needing_onnx
from recurconv.export.parity import Run, differences, onnx_run
from recurconv.export.tracing import check_opset, program, static_model
from recurconv.network import Network
from recurconv.networks import Denoiser

ONE_FILE = 4 * 2**20  # bytes: up to this size a model with the dial is one file unless asked otherwise
CLASSIFIER_SIDES = 8  # a classifier's program is checked at multiples of this, from 16 on: its poolings leave guards


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the model.
        data: the file beside it that holds its weights; None where the model does.
        bytes: the size of both together.
        differences: {steps: the largest difference from PyTorch, relative to the largest output}, for each setting.
    """

    path: Path
    data: Path | None
    bytes: int
    differences: dict[int, float]


def export_onnx(
    network: Network,
    path: str | Path,
    *,
    steps: int | None = None,
    opset: int | None = None,
    single_file: bool | None = None,
    overwrite: bool = False,
    say: Callable[[str], object] = lambda progress: None,
) -> Exported:
    """Write a network as an ONNX model whose input ``steps`` chooses the setting of a call.

    It is as fast at each setting as a model of that setting alone, and stores each weight once: see ``join_settings``.
    Its input, output and what it does off the dial: see docs/export.md. What was written is checked against PyTorch
    at every setting before it is put in place.

    Args:
        network: stays as it is; the export is of a float32 copy in eval mode.
        path: the file to write, *.onnx; the weights of a large network go to a second file, *.onnx.data.
        steps: export this setting alone, as a plain model without the input ``steps``, in one file.
        opset: of ONNX, 18 or more; by default what PyTorch's exporter prefers.
        single_file: whether the weights are in the model, too; by default where that has up to 4 MiB.
        overwrite: replace files that are there.
        say: told what is being done.

    Raises:
        ValueError: ``steps`` off the dial, ``opset`` that cannot be written, ``path`` of another kind, a network whose
            export differs from it by more than 1e-4 of the largest output.
        FileExistsError: the file is there, and ``overwrite`` is not set.
        OSError: it cannot be written.
        ImportError: the packages for ONNX are not installed.
    """
    path = _checked_path(path, ".onnx")
    settings = network.dial if steps is None else (network.setting(steps),)
    check_opset(opset)
    data_file = f"{path.name}.data"
    with placed(path, data_file, overwrite=overwrite) as folder:
        models = {}
        for number, setting in enumerate(settings, 1):
            say(f"tracing steps={setting} ({number} of {len(settings)})")
            models[setting] = static_model(network, setting, opset=opset)
        if steps is not None:
            joined = Joined(models[settings[0]], b"")
        else:
            joined = join_settings(models, data_file=None if single_file is not False else data_file)
            if single_file is None and joined.model.ByteSize() > ONE_FILE:
                joined = join_settings(models, data_file=data_file)
        say("checking it against PyTorch")
        sizes = write_model(joined, folder / path.name, network, steps=steps)
        found = differences(network, settings, onnx_run(folder / path.name, static=steps is not None))
    return Exported(path, path.with_name(data_file) if joined.data else None, sizes, found)


def write_model(
    joined: Joined, path: Path, network: Network, *, steps: int | None = None, precision: str = "fp32"
) -> int:
    """Write a model with its metadata, and its data file if it has one; return the size of both in bytes.

    Raises:
        ValueError: it is not valid ONNX.
        OSError: it cannot be written.
    """
    with needing_onnx():
        import onnx

    model, data_file = joined.model, path.with_name(f"{path.name}.data")
    named = {"data_file": data_file.name, "data_sha256": hashlib.sha256(joined.data).hexdigest()} if joined.data else {}
    onnx.helper.set_model_props(model, describe(network, steps=steps, precision=precision, **named))
    model.producer_name, model.producer_version = "recurconv", __version__
    if joined.data:
        data_file.write_bytes(joined.data)
    path.write_bytes(model.SerializeToString())
    try:
        onnx.checker.check_model(path)
    except onnx.checker.ValidationError as error:
        raise ValueError(f"what was exported is not valid ONNX: {str(error).splitlines()[0]}") from None
    return path.stat().st_size + len(joined.data)


@contextlib.contextmanager
def placed(path: Path, data_file: str | None = None, *, overwrite: bool) -> Iterator[Path]:
    """A folder to write ``path``'s name and ``data_file`` into; if all goes well they are put beside ``path``.

    Each file is put in place whole. A model knows the sum of its data file, so that a pair whose second file did not
    come, as when the machine stops between the two, is refused by the runtime.

    Raises:
        FileExistsError: one of them is there, and ``overwrite`` is not set.
        OSError: they cannot be written.
    """
    targets = [path.with_name(name) for name in (data_file, path.name) if name is not None]
    for target in targets:
        if target.is_dir():
            raise IsADirectoryError(f"{target} is a folder; give the name of a file to write")
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} is there already; give another name, or overwrite it (--overwrite)")
    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is no folder; give a file in one")
    with _made(path.parent), tempfile.TemporaryDirectory(prefix=f".{path.name[:40]}.", dir=path.parent) as temporary:
        yield Path(temporary)
        for target in targets:  # the model last: what is there of an older one never fits to half of a new one
            made = Path(temporary) / target.name
            if not made.exists():
                target.unlink(missing_ok=True)  # the data file of what is replaced
                continue
            with made.open("rb+") as file:
                os.fsync(file.fileno())
            made.replace(target)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder and those around it; those that were not there are taken away again if something fails."""
    new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # somebody else's file lies there
            for parent in new:
                parent.rmdir()
        raise


def export_program(
    network: Network,
    path: str | Path,
    *,
    steps: int | None,
    overwrite: bool = False,
    say: Callable[[str], object] = lambda progress: None,
) -> Exported:
    """Write one setting as a program of ``torch.export``, for ``torch.export.load(path).module()(image)``.

    For a network that takes a noise level the call is ``(image, sigma)``, sigma a float32 scalar in 1/255, negative for
    unknown. A denoiser that works on 2x2 pixels at a time (its ``alignment``) takes even sides from 4 on there, a
    classifier sides from 16 on that are multiples of 4: the program refuses others, or some of them. What was written
    is checked against PyTorch before it is put in place.

    Args:
        network: stays as it is; the export is of a float32 copy in eval mode.
        path: the file to write, *.pt2.
        steps: the setting.
        overwrite: replace a file that is there.
        say: told what is being done.

    Raises:
        ValueError: no ``steps``, or ``steps`` off the dial; ``path`` of another kind; an export that differs.
        OSError: the file is there, and ``overwrite`` is not set; or it cannot be written.
    """
    path = _checked_path(path, ".pt2")
    if steps is None:
        raise ValueError(f"a .pt2 file holds one setting: choose it by steps (--steps), one of {network.dial}")
    setting = network.setting(steps)
    with placed(path, overwrite=overwrite) as folder:
        say(f"tracing steps={setting}")
        made = folder / path.name
        torch.export.save(program(network, setting), made)
        say("checking it against PyTorch")
        multiple = network.alignment if isinstance(network, Denoiser) else CLASSIFIER_SIDES
        found = differences(network, (setting,), _program_run(made), multiple=multiple)
        size = made.stat().st_size
    return Exported(path, None, size, found)


def _program_run(path: Path) -> Run:
    module = torch.export.load(path).module()

    def run(steps: int, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        try:
            with torch.inference_mode():
                return module(*inputs.values())  # type: ignore[no-any-return]
        except (AssertionError, RuntimeError) as error:  # it holds for some shapes only
            shape, reason = list(inputs["image"].shape), str(error).splitlines()[0]
            raise ValueError(f"the program of torch.export does not run images {shape}: {reason}") from None

    return run


def _checked_path(path: str | Path, suffix: str) -> Path:
    path = Path(path).expanduser()
    if path.suffix != suffix:
        raise ValueError(f"{path} does not end in {suffix}; give the file a name that does")
    return path
