"""A user's own pictures: one folder per class, pictures of any size and kind.

Each picture is resized so that its shorter side is `size`, and its middle is cut out, for training and evaluation
alike; training varies the result as for CIFAR (`augment.py`). So the workers, which decode, need no random numbers,
and a run repeats with any number of them.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recurconv.data.augment import ImageSet, PerChannel
from recurconv.data.pictures import list_pictures, read_rgb

__all__ = ["SPLITS", "PictureFolder", "load_folder"]

SPLITS = ("train", "minival", "trainval", "test")
"""Training pictures without the held-out ones, the held-out ones, both, the test pictures."""

_SAMPLE = 2000  # pictures for mean and std
_PATIENCE = 2.0  # seconds without a progress bar

_Classes: TypeAlias = dict[str, list[Path]]
_Sums: TypeAlias = NDArray[np.int64]  # [2, 3]: of the values and of their squares, per channel


@dataclass(frozen=True, eq=False)
class PictureFolder(ImageSet):
    """Labelled pictures that stay on disk; a DataLoader's workers decode them.

    Args:
        name, class_names, condition: as for `ImageSet`.
        files: the pictures, in the order of the classes.
        labels: one per file, 0 to len(class_names) - 1.
        size: height and width of the images.
        workers: processes that decode; 0 = in this process.
        sample: the training pictures over which `mean` and `std` are taken, the same ones for every split.
        sums: what is known already about pictures, for `mean` and `std`.
    """

    name: str
    class_names: tuple[str, ...]
    condition: str
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    size: int
    workers: int
    sample: tuple[Path, ...]
    sums: dict[Path, _Sums] = field(repr=False)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(3, H, W)."""
        return 3, self.size, self.size

    @cached_property  # evaluation needs neither mean nor std, so it does not wait for them
    def mean(self) -> PerChannel:  # type: ignore[override]
        """Mean of each channel over at most 2,000 training pictures, in [0, 1]."""
        return self._statistics[0]

    @cached_property
    def std(self) -> PerChannel:  # type: ignore[override]
        """Standard deviation of each channel over the same pictures and all their pixels."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[PerChannel, PerChannel]:
        # Only a split without training pictures has to look at them here, and only if it is asked.
        known = self.sums | _examine_all([file for file in self.sample if file not in self.sums], self.size)
        total, squares = np.sum([known[file] for file in self.sample], axis=0) / (len(self.sample) * self.size**2)
        mean, mean_square = total / 255, squares / 255**2
        variance = np.maximum(mean_square - mean**2, 0)
        if not variance.all():
            raise ValueError(
                f"{self.name}: in a colour channel all pixels of all training pictures are alike, which tells nothing; "
                "give other pictures"
            )
        return _triple(mean), _triple(np.sqrt(variance))

    def __len__(self) -> int:
        return len(self.files)

    def _fetch(self, batches: Sequence[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Decoded(self.files, self.labels, self.size),
            batch_sampler=[batch.tolist() for batch in batches],
            num_workers=min(self.workers, len(batches)),
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # its own, since a DataLoader would draw from the global one
            worker_init_fn=_leave_interrupts,
        )
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class _Decoded(Dataset[tuple[Tensor, int]]):
    def __init__(self, files: Sequence[Path], labels: Sequence[int], size: int) -> None:
        self.files, self.labels, self.size = files, labels, size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return read_fitted(self.files[index], self.size), self.labels[index]


def load_folder(
    path: str | os.PathLike[str],
    split: str,
    *,
    size: int,
    minival_fraction: float = 0.1,
    workers: int = 2,
    class_names: Sequence[str] | None = None,
) -> PictureFolder:
    """Find and check the pictures of a split.

    The folder holds `train/CLASS/*` and, if there are any, `val/CLASS/*` (the held-out pictures) and `test/CLASS/*`;
    or it holds `CLASS/*`. Without `val/`, a part of each class is held out: that is decided by a hash of each
    picture's name, so that it stays nearly the same when pictures are added. Names that start with a dot and files
    that are not pictures by their ending are left out.

    Args:
        path: the folder.
        split: "train", "minival" (the held-out pictures), "trainval" (both) or "test".
        size: height and width of the images, in pixels.
        minival_fraction: part of each class that is held out, at least one picture of two or more; 0 = none.
        workers: processes that decode; 0 = in this process. Results do not depend on it.
        class_names: the classes in the order of a network's outputs, from its checkpoint; None = by name.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a number out of range; an unknown split, or one that this folder does not have; fewer than two
            classes; classes without pictures; classes that differ between train and test or from `class_names`;
            pictures that cannot be read, all of them listed.
    """
    _check_options(split, size, minival_fraction, workers)
    root = Path(path).expanduser()
    parts = {part: _classes(folder) for part, folder in _parts(root).items()}
    names = tuple(class_names or parts["train"])
    for part, found in parts.items():
        _check_classes(found, names, f"{root} ({part})", "the checkpoint" if class_names else "train")
    kept, held = _divide(root, parts, minival_fraction)
    chosen = _choose(root, split, kept, held, parts.get("test"))
    files = tuple(file for name in names for file in chosen[name])
    return PictureFolder(
        name=root.resolve().name,
        class_names=names,
        condition=_condition(root, split, files, len(names)),
        files=files,
        labels=tuple(label for label, name in enumerate(names) for _ in chosen[name]),
        size=size,
        workers=workers,
        sample=tuple(_by_hash(root, [file for found in kept.values() for file in found])[:_SAMPLE]),
        sums=_examine_all(files, size),
    )


def _check_options(split: str, size: int, minival_fraction: float, workers: int) -> None:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}")
    if size < 1:
        raise ValueError(f"size={size} is below 1; give the height and width of the images in pixels")
    if not 0 <= minival_fraction < 1:
        raise ValueError(f"minival_fraction={minival_fraction} is not in [0, 1); give the part to hold out, as 0.1")
    if workers < 0:
        raise ValueError(f"workers={workers} is negative; give a number of processes, or 0 to decode in this one")


def _parts(root: Path) -> dict[str, Path]:
    """Return the folders of the parts; "train" is always among them."""
    if not root.exists():
        raise FileNotFoundError(f"{root}: no such folder; give one that holds CLASS/ or train/CLASS/ folders")
    if not root.is_dir():
        raise ValueError(f"{root}: a file; give a folder that holds CLASS/ or train/CLASS/ folders")
    # A class may be called "train" as well: then it holds pictures and no folders.
    parts = {part: root / part for part in ("train", "val", "test") if _subfolders(root / part)}
    if not parts:
        return {"train": root}
    if "train" not in parts:
        raise ValueError(f"{root}: has {', '.join(parts)} but no train; put the training pictures in train/CLASS/")
    return parts


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _classes(folder: Path) -> _Classes:
    return {sub.name: _pictures(sub) for sub in _subfolders(folder)}


def _pictures(folder: Path) -> list[Path]:
    try:
        return list_pictures(folder)
    except ValueError:  # none in there; reported together with other empty classes
        return []


def _check_classes(found: _Classes, names: Sequence[str], where: str, expected_by: str) -> None:
    unexpected, missing = sorted(set(found) - set(names)), sorted(set(names) - set(found))
    if unexpected or missing:
        raise ValueError(
            f"{where}: classes differ from those of {expected_by}: missing {', '.join(missing) or 'none'}; "
            f"unexpected {', '.join(unexpected) or 'none'}"
        )
    if len(found) < 2:
        raise ValueError(
            f"{where}: has {len(found)} class folders ({', '.join(found) or 'none'}); "
            "put the pictures of each class, two or more, in a folder with its name"
        )
    empty = [name for name, files in found.items() if not files]
    if empty:
        raise ValueError(f"{where}: no pictures in {', '.join(empty)}; add some or remove the empty class")


def _by_hash(root: Path, files: Sequence[Path]) -> list[Path]:
    """Sort pseudo-randomly, by a hash of each name below `root`: a new file moves no others past each other."""
    return sorted(files, key=lambda file: hashlib.sha256(file.relative_to(root).as_posix().encode()).digest())


def _divide(root: Path, parts: dict[str, _Classes], fraction: float) -> tuple[_Classes, _Classes]:
    """Return the training pictures that stay, and the held-out ones."""
    if "val" in parts:
        return parts["train"], parts["val"]
    kept: _Classes = {}
    held: _Classes = {}
    for name, files in parts["train"].items():
        count = min(max(1, round(fraction * len(files))), len(files) - 1) if fraction else 0
        chosen = set(_by_hash(root, files)[:count])
        kept[name] = [file for file in files if file not in chosen]
        held[name] = [file for file in files if file in chosen]
    return kept, held


def _choose(root: Path, split: str, kept: _Classes, held: _Classes, test: _Classes | None) -> _Classes:
    if split == "test":
        if test is None:
            raise ValueError(f"{root}: has no test pictures; put some in test/CLASS/ or evaluate on the split minival")
        return test
    if split == "minival" and not any(held.values()):
        raise ValueError(f"{root}: no picture is held out; choose a minival_fraction above 0 or add val/CLASS/")
    if split == "trainval":
        return {name: sorted(kept[name] + held[name]) for name in kept}
    return held if split == "minival" else kept


def _condition(root: Path, split: str, files: Sequence[Path], classes: int) -> str:
    listing = "\n".join(f"{file.relative_to(root).as_posix()} {file.stat().st_size}" for file in files)
    digest = hashlib.sha1(listing.encode()).hexdigest()
    return f"{split}: {len(files):,} pictures in {classes} classes; their names and sizes have SHA-1 {digest[:12]}"


def _examine_all(files: Sequence[Path], size: int) -> dict[Path, _Sums]:
    """Decode every picture once; return its sums, or raise with the list of those that cannot be read."""
    sums: dict[Path, _Sums] = {}
    unreadable: list[str] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        results = pool.map(partial(_examine, size=size), files)
        for file, result in zip(files, _with_progress(results, len(files)), strict=True):
            if isinstance(result, str):
                unreadable.append(result)
            else:
                sums[file] = result
    if unreadable:
        listing = "\n  ".join(unreadable)
        raise ValueError(f"{len(unreadable)} of {len(files)} pictures cannot be read; remove them:\n  {listing}")
    return sums


def _examine(file: Path, size: int) -> _Sums | str:
    try:
        values = read_fitted(file, size).numpy().reshape(3, -1).astype(np.int64)
    except (ValueError, OSError) as error:
        return str(error)
    return np.stack([values.sum(1), (values**2).sum(1)])


def _with_progress(results: Iterator[_Sums | str], total: int) -> Iterator[_Sums | str]:
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True)
    task = progress.add_task("checking pictures", total=total)
    due = time.monotonic() + _PATIENCE
    try:
        for result in results:
            if console.is_terminal and time.monotonic() > due:
                progress.start()
            progress.advance(task)
            yield result
    finally:
        if console.is_terminal:
            progress.stop()


def read_fitted(file: Path, size: int) -> Tensor:
    """Read a picture as uint8 `[3, size, size]`: shorter side resized to `size`, then its middle."""
    from torchvision.transforms.v2 import functional as transforms  # here, since it takes seconds to import

    image = torch.from_numpy(read_rgb(file)).permute(2, 0, 1)
    _, height, width = image.shape
    # Of a very long picture only the middle is resized, which is all that stays of it: else memory might run out.
    longest = 4 * min(height, width)
    image = transforms.center_crop(image, [min(height, longest), min(width, longest)])
    image = transforms.resize(image, [size], antialias=True)
    middle: Tensor = transforms.center_crop(image, [size, size])
    return middle.contiguous()


def _triple(values: NDArray[np.float64]) -> PerChannel:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _leave_interrupts(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then ends its workers
