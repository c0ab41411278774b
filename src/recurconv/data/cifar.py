"""CIFAR-10 and CIFAR-100 from the official archive or its unpacked folder, kept on the training device as uint8.

The files are pickles, which can run any code when read carelessly; the reader here builds NumPy arrays, lists,
strings and numbers and refuses everything else.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recurconv.data.augment import Device, ImageSet, PerChannel

__all__ = ["LAYOUTS", "SPLITS", "CifarLayout", "ImageArrays", "load_cifar"]

SPLITS = ("train", "minival", "trainval", "test")
"""Training set without its held-out last part, that part, the whole training set, the test set."""
_Pixels: TypeAlias = NDArray[np.uint8]
_IMAGE_BYTES = 3 * 32 * 32
_LARGEST_FILE = 2**28  # bytes; the largest official file has 155 million
_NOT_EXACT_TEST = "cbea4389ae3e377c0090406f1f786efe5ded9c7e"


@dataclass(frozen=True)
class CifarLayout:
    """What the official archive of one data set holds.

    `label_keys` stand in the order of the binary archive, for which `sha1` is published (label bytes, then pixels, of
    each image); the last one is what is classified. `mean` and `std` are those of all training images.
    """

    title: str
    folder: str
    archive: str
    training_files: tuple[str, ...]
    test_file: str
    meta_file: str
    training_images: int  # in each training file
    test_images: int
    label_keys: tuple[str, ...]
    label_counts: tuple[int, ...]
    names_key: str
    mean: PerChannel
    std: PerChannel
    sha1: Mapping[str, str]


LAYOUTS: dict[str, CifarLayout] = {
    "cifar10": CifarLayout(
        title="CIFAR-10",
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        training_files=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test_file="test_batch",
        meta_file="batches.meta",
        training_images=10_000,
        test_images=10_000,
        label_keys=("labels",),
        label_counts=(10,),
        names_key="label_names",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        # As in Apache MXNet's loader, gluon.data.vision.CIFAR10.
        sha1={
            "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
        },
    ),
    "cifar100": CifarLayout(
        title="CIFAR-100",
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        training_files=("train",),
        test_file="test",
        meta_file="meta",
        training_images=50_000,
        test_images=10_000,
        label_keys=("coarse_labels", "fine_labels"),
        label_counts=(20, 100),
        names_key="fine_label_names",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        # gluon.data.vision.CIFAR100.
        sha1={
            "train": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
            "test": "8fb6623e830365ff53cf14adec797474f5478006",
        },
    ),
}


@dataclass(frozen=True, eq=False)
class ImageArrays(ImageSet):
    """Labelled images that lie on one device as uint8; batches are made there.

    Args:
        images: uint8 `[N, 3, H, W]`.
        labels: int64 `[N]` on the same device, 0 to len(class_names) - 1.
        name, class_names, mean, std, condition: as for `ImageSet`.
    """

    images: Tensor
    labels: Tensor
    name: str
    class_names: tuple[str, ...]
    mean: PerChannel
    std: PerChannel
    condition: str

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(3, H, W)."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def __len__(self) -> int:
        return len(self.images)

    def _fetch(self, batches: Sequence[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            index = batch.to(self.images.device, non_blocking=True)
            yield self.images[index].to(device), self.labels[index].to(device)


def load_cifar(
    path: str | os.PathLike[str],
    dataset: str,
    split: str,
    *,
    minival: int = 5000,
    download: bool = False,
    device: Device = "cpu",
) -> ImageArrays:
    """Read a split of CIFAR-10 or CIFAR-100.

    Args:
        path: the official `.tar.gz` (read in memory, never unpacked), the unpacked folder, or a folder with either.
        dataset: "cifar10" or "cifar100" (its 100 fine classes).
        split: "train" is the training set without its last `minival` images, "minival" those, "trainval" all of it.
        minival: images held out from the end of the training set.
        download: fetch the archive into `path` with torchvision if it is not there.
        device: where images and labels are kept.

    Returns:
        The images as uint8 `[N, 3, 32, 32]`, the labels as int64 `[N]`.

    Raises:
        FileNotFoundError: `path` or a file in it does not exist, or the download failed.
        ValueError: an unknown data set or split, a `minival` that leaves the split without images, or a file that is
            damaged, foreign, of a wrong count or shape, or that has a label out of range.
    """
    layout = LAYOUTS.get(dataset)
    if layout is None:
        raise ValueError(f"dataset={dataset!r} is unknown; choose one of {', '.join(LAYOUTS)}")
    part = _part(layout, split, minival)
    names = (layout.test_file,) if split == "test" else layout.training_files
    source = _find(Path(path).expanduser(), layout, download)
    pixels, labels, class_names, sums = _read(source, layout, names)
    return ImageArrays(
        images=torch.from_numpy(pixels[part].reshape(-1, 3, 32, 32)).to(device),
        labels=torch.from_numpy(labels[part].astype(np.int64)).to(device),
        name=dataset,
        class_names=class_names,
        mean=layout.mean,
        std=layout.std,
        condition=_condition(layout, split, sums),
    )


def _part(layout: CifarLayout, split: str, minival: int) -> slice:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
    total = layout.training_images * len(layout.training_files)
    if not 0 <= minival < total:
        raise ValueError(f"minival={minival} images cannot be held out of {total}; choose 0 to {total - 1}")
    if split == "minival" and minival == 0:
        raise ValueError("minival=0 holds nothing out, so the split minival is empty; hold out at least 1 image")
    if split == "train":
        return slice(total - minival)
    return slice(total - minival, None) if split == "minival" else slice(None)


def _find(path: Path, layout: CifarLayout, download: bool) -> Path:
    """Return the archive, or the folder with the files, that `path` means."""
    found = _present(path, layout)
    if found is None and download:
        return _download(path, layout)
    if found is not None:
        return found
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; give {layout.archive} or download it there")
    for other in LAYOUTS.values():
        if other is not layout and _present(path, other) is not None:
            raise ValueError(_is_other(path, layout, other))
    raise FileNotFoundError(
        f"{path}: neither {layout.archive} nor {layout.folder} is in this folder; give the {layout.title} archive, "
        "its unpacked folder, or download it there"
    )


def _present(path: Path, layout: CifarLayout) -> Path | None:
    if path.is_file():
        return path
    for folder in (path, path / layout.folder):
        if any((folder / name).is_file() for name in (*layout.training_files, layout.test_file)):
            return folder
    return path / layout.archive if (path / layout.archive).is_file() else None


def _is_other(path: Path, layout: CifarLayout, other: CifarLayout) -> str:
    return f"{path}: holds {other.title}, not {layout.title}; choose the other data set or give {layout.archive}"


def _download(path: Path, layout: CifarLayout) -> Path:
    from torchvision import datasets
    from torchvision.datasets.utils import download_url

    official = getattr(datasets, layout.title.replace("-", ""))
    archive = path if path.name.endswith(".gz") else path / layout.archive
    part = archive.name + ".part"  # an interrupted download must not pass for the archive
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        download_url(official.url, str(archive.parent), filename=part, md5=official.tgz_md5)
        return (archive.parent / part).replace(archive)
    except (OSError, RuntimeError) as error:
        reason = f"{archive}: the download of {layout.title} failed ({error!r})"
        raise FileNotFoundError(f"{reason}; fetch {official.url} by other means and give its path") from error


def _read(
    source: Path, layout: CifarLayout, names: Sequence[str]
) -> tuple[_Pixels, _Pixels, tuple[str, ...], dict[str, str]]:
    """Pixels `[N, 3072]`, labels `[N]`, class names, and the SHA-1 sum of each file's content."""
    pixels: dict[str, _Pixels] = {}
    labels: dict[str, _Pixels] = {}
    sums: dict[str, str] = {}
    class_names: tuple[str, ...] = ()
    for name, raw in _files(source, layout, (*names, layout.meta_file)):
        where = f"{source / name}"
        record = _unpickle(raw, where)
        if name == layout.meta_file:
            class_names = _check_names(record, layout, where)
            continue
        count = layout.test_images if name == layout.test_file else layout.training_images
        pixels[name] = _check_pixels(record, count, where)
        columns = _check_labels(record, layout, count, where)
        labels[name] = columns[:, -1]
        sums[name] = hashlib.sha1(np.concatenate([columns, pixels[name]], axis=1).tobytes()).hexdigest()
    return (
        np.concatenate([pixels[name] for name in names]),
        np.concatenate([labels[name] for name in names]),
        class_names,
        {name: sums[name] for name in names},
    )


def _files(source: Path, layout: CifarLayout, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the wanted files, in any order; complain about those that are missing."""
    missing = list(dict.fromkeys(names))
    for name, raw in _archived(source, layout, names) if source.is_file() else _unpacked(source, names):
        missing.remove(name)
        yield name, raw
        if not missing:  # what comes behind in an archive need not be read
            return
    raise FileNotFoundError(
        f"{source}: {', '.join(missing)} missing; {layout.title} needs {', '.join(names)} (unpack the archive again)"
    )


def _unpacked(source: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if (source / name).is_file():
            _check_size((source / name).stat().st_size, source / name)
            yield name, (source / name).read_bytes()


def _archived(source: Path, layout: CifarLayout, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    wanted = {PurePosixPath(layout.folder, name): name for name in names}
    others = {PurePosixPath(other.folder): other for other in LAYOUTS.values() if other is not layout}
    try:
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                inside = PurePosixPath(member.name)
                if inside.parent in others:
                    raise ValueError(_is_other(source, layout, others[inside.parent]))
                if inside in wanted and member.isreg():
                    _check_size(member.size, source / inside)
                    content = archive.extractfile(member)
                    # A name that stands twice is taken once.
                    yield wanted.pop(inside), content.read() if content else b""
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{source}: not a complete archive ({error!r}); fetch {layout.archive} again") from error


def _check_size(size: int, where: Path) -> None:
    if size > _LARGEST_FILE:
        raise ValueError(f"{where}: has {size:,} bytes, more than any CIFAR file; fetch the official archive")


class _NumberUnpickler(pickle.Unpickler):
    """Builds arrays, lists, dicts, strings and numbers; any other name in a pickle is an error, and nothing is run."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise pickle.UnpicklingError(f"asks for {module}.{name}, which no CIFAR file does")


def _empty_array(*_: object) -> NDArray[np.generic]:
    return np.empty(0, dtype=np.uint8)  # its shape, type and content follow in the pickle


def _latin1(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"asks for the encoding {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,  # how Python 3 writes bytes at protocol 2
}


def _unpickle(raw: bytes, where: str) -> dict[object, object]:
    try:
        record = _NumberUnpickler(io.BytesIO(raw), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{where}: not a CIFAR file, or damaged ({error!r}); unpack it again") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: holds a {type(record).__name__}, not the dict of a CIFAR file")
    return record


def _check_pixels(record: dict[object, object], count: int, where: str) -> _Pixels:
    data = record.get("data")
    if not isinstance(data, np.ndarray):
        raise ValueError(f"{where}: 'data' is a {type(data).__name__}; it must be a NumPy array")
    if data.dtype != np.uint8 or data.shape != (count, _IMAGE_BYTES):
        raise ValueError(
            f"{where}: 'data' is {data.dtype} {list(data.shape)}; it must be uint8 [{count}, {_IMAGE_BYTES}]"
        )
    return data


def _check_labels(record: dict[object, object], layout: CifarLayout, count: int, where: str) -> _Pixels:
    """Every kind of label, uint8 `[count, kinds]`."""
    columns = []
    for key, classes in zip(layout.label_keys, layout.label_counts, strict=True):
        labels = record.get(key)
        if not isinstance(labels, list) or len(labels) != count:
            got = f"a list of {len(labels)}" if isinstance(labels, list) else f"a {type(labels).__name__}"
            raise ValueError(f"{where}: {key!r} is {got}; it must be a list of {count} labels")
        for position, label in enumerate(labels):
            if type(label) is not int or not 0 <= label < classes:
                raise ValueError(f"{where}: label {label!r} of image {position} is not one of 0 to {classes - 1}")
        columns.append(np.array(labels, dtype=np.uint8))
    return np.stack(columns, axis=1)


def _check_names(record: dict[object, object], layout: CifarLayout, where: str) -> tuple[str, ...]:
    names = record.get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}: {layout.names_key!r} is not a list of names")
    if not len(names) == len(set(names)) == layout.label_counts[-1]:
        raise ValueError(f"{where}: has {len(set(names))} class names; {layout.title} has {layout.label_counts[-1]}")
    return tuple(names)


def _condition(layout: CifarLayout, split: str, sums: Mapping[str, str]) -> str:
    subject = f"{layout.title} {split}"
    if sums.get(layout.test_file) == _NOT_EXACT_TEST:
        return f"{subject}: 20 of 10,000 test images come from a JPEG copy and are not bit-exact"
    differing = [f"{name} ({got[:12]})" for name, got in sums.items() if got != layout.sha1[name]]
    if differing:
        return f"{subject}: SHA-1 of {', '.join(differing)} differs from the published one"
    return f"{subject}: matches the published SHA-1"
