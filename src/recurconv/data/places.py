"""Where in the folders that a user names the data sets of the paper lie."""

from collections.abc import Sequence
from pathlib import Path

from recurconv.data.cifar import LAYOUTS

_BSD = ("", "bsd", "BSR/BSDS500/data", "BSDS500/data")  # inside a folder
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "pictures": "BSD"}


def find_data(name: str, places: Sequence[Path]) -> Path | None:
    """The data set in the first place that has it; None if none has.

    Args:
        name: "cifar10", "cifar100" or "pictures".
        places: archives of CIFAR, unpacked folders, or folders that hold some of these.

    Raises:
        FileNotFoundError: a place is not there.
    """
    for place in places:
        if not place.exists():
            raise FileNotFoundError(f"{place}: no such file or folder; give folders with CIFAR or BSD by --data")
        found = _bsd(place) if name == "pictures" else _cifar(name, place)
        if found is not None:
            return found
    return None


def _cifar(name: str, place: Path) -> Path | None:
    layout = LAYOUTS[name]
    if place.name == layout.archive or (place / layout.archive).is_file():
        return place
    return next((f for f in (place, place / layout.folder) if (f / layout.meta_file).is_file()), None)


def _bsd(place: Path) -> Path | None:
    """Only BSD counts: its test pictures are the paper's."""
    for folder in (place / inside for inside in _BSD):
        parts = (folder / "images" / part for part in ("train", "val", "test"))
        if (folder / "splits.json").is_file() or all(part.is_dir() for part in parts):
            return folder
    return None
