"""What an exported file says of itself, read and checked before onnxruntime sees the file."""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

FORMAT = "1"
KINDS = ("classifier", "denoiser")

# Protocol Buffers: kinds of field on the wire, and numbers of the fields of ONNX's ModelProto that are read here.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED = {FIXED64: 8, FIXED32: 4}
METADATA, KEY, VALUE = 14, 1, 2
BLOCK = 1 << 20
SIDE = 32  # of the image whose MACs the file of a classifier tells, where the network takes so small a one


@dataclass(frozen=True)
class Exported:
    """A file that ``recurconv export`` wrote.

    Attributes:
        path: the model file.
        sha256: of the model file; it covers the weights, whose own sum stands in its metadata.
        kind: "classifier" or "denoiser".
        dial: the settings it holds, ascending; a single one for a file made with ``--steps``.
        macs: multiply-accumulates at each setting, of one image of 32 x 32 pixels or of one pixel.
        macs_per: "image" or "pixel".
        class_names: what the logits stand for, or None.
        image_size: height and width in pixels of the images that it was trained on, or None where that is not known.
        image_channels, smallest_side: what images it takes.
    """

    path: Path
    sha256: str
    kind: str
    dial: tuple[int, ...]
    macs: dict[int, float]
    macs_per: str
    class_names: tuple[str, ...] | None
    image_size: int | None
    image_channels: int
    smallest_side: int

    def macs_of(self, steps: int, height: int, width: int) -> float:
        """For one image of this size; convolutions cost what the pixels are."""
        counted = 1 if self.macs_per == "pixel" else max(SIDE, self.smallest_side) ** 2
        return self.macs[steps] * height * width / counted


def read(path: str | os.PathLike[str]) -> Exported:
    """Read a file's metadata; check that its data file is there and the one it was written with.

    The sum of the data is checked at every opening: only it tells a pair of files that do not belong together, and it
    takes less time than onnxruntime needs to load the model.

    Raises:
        FileNotFoundError: no such file, or its data file is missing.
        ValueError: no ONNX model, one that ``recurconv export`` did not write or that a newer version wrote, or a data
            file that is not the one it was written with.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the model.onnx that `recurconv export` wrote")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; `recurconv export MODEL -o {path.name}` writes one")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty; `recurconv export MODEL -o {path.name} --overwrite` writes it")
    metadata = _metadata(path)
    written = metadata.get("recurconv.format")
    if written is None:
        raise ValueError(
            f"{path} was not written by recurconv; `recurconv export MODEL -o {path.name}` makes its files"
        )
    if written != FORMAT:
        raise ValueError(
            f"{path} has format {written}, this recurconv reads {FORMAT}; export it again, or install a newer recurconv"
        )
    try:
        exported = _described(path, metadata)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its metadata is damaged ({error!r}); export it again") from None
    _check_data(path, metadata)
    return exported


def _described(path: Path, metadata: dict[str, str]) -> Exported:
    def told(name: str) -> str:
        return metadata[f"recurconv.{name}"]

    names = json.loads(told("class_names"))
    size = json.loads(metadata.get("recurconv.image_size", "null"))  # files of earlier versions do not tell it
    static = told("steps")
    settings = json.loads(told("dial")) if static == "dial" else [int(static)]
    dial = tuple(sorted(int(steps) for steps in settings))
    macs: dict[str, Any] = json.loads(told("macs"))
    if told("kind") not in KINDS or told("macs_per") not in ("image", "pixel") or not dial:
        raise ValueError(f"kind={told('kind')}, macs_per={told('macs_per')}, dial={dial}")
    return Exported(
        path=path,
        sha256=_sum(path),
        kind=told("kind"),
        dial=dial,
        macs={steps: float(macs[str(steps)]) for steps in dial},
        macs_per=told("macs_per"),
        class_names=None if names is None else tuple(names),
        image_size=None if size is None else int(size),
        image_channels=int(told("image_channels")),
        smallest_side=int(told("smallest_side")),
    )


def _check_data(path: Path, metadata: dict[str, str]) -> None:
    name = metadata.get("recurconv.data", "")
    if not name:
        return
    data = path.with_name(Path(name).name)
    if not data.is_file():
        raise FileNotFoundError(f"{data}: the weights of {path.name} are missing; keep both files in one folder")
    if _sum(data) != metadata.get("recurconv.data_sha256"):
        raise ValueError(
            f"{data} does not belong to {path.name}, or is damaged; copy both files again, or export the network again"
        )


def _sum(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def _metadata(path: Path) -> dict[str, str]:
    """The metadata of an ONNX model, read without its graph.

    onnxruntime tells it only of a model that it could load, and why one cannot be loaded is to be told before. The
    package onnx could read it, but is not needed to run a model.
    """
    try:
        with path.open("rb") as file:
            entries = [
                dict(_fields(io.BytesIO(entry), len(entry), (KEY, VALUE)))
                for _, entry in _fields(file, path.stat().st_size, (METADATA,))
            ]
        return {entry[KEY].decode(): entry.get(VALUE, b"").decode() for entry in entries}
    except (ValueError, KeyError):
        raise ValueError(f"{path} is not an ONNX model, or is cut short; export it again") from None


def _fields(file: IO[bytes], end: int, wanted: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the wanted fields of a Protocol Buffers message that ends at ``end``; others are skipped."""
    while file.tell() < end:
        number, kind = divmod(_varint(file), 8)
        if kind == VARINT:
            _varint(file)
            continue
        length = _varint(file) if kind == BYTES else FIXED.get(kind)
        if length is None or file.tell() + length > end:
            raise ValueError(f"no message: a field of kind {kind}, length {length}")
        if number in wanted:
            yield number, file.read(length)
        else:
            file.seek(length, io.SEEK_CUR)


def _varint(file: IO[bytes]) -> int:
    """A whole number of Protocol Buffers: seven bits a byte, the lowest first, the eighth bit for more to come."""
    value = 0
    for shift in range(0, 70, 7):
        (byte,) = file.read(1) or (None,)
        if byte is None:
            break
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("no whole number")
