"""The splits of BSD (Martin et al., 2001) and of any other folder of pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from recurconv.data.denoising import PATCHES_PER_EPOCH, PicturePatches
from recurconv.data.pictures import PathLike, list_pictures, read_gray, read_rgb

__all__ = ["BSD68", "SPLITS", "load_pictures"]

KINDS = {1: "gray", 3: "colour"}
SPLITS = ("train", "minival", "trainval", "test", "train400", "train432")

_BSD68 = """
    101085 101087 102061 103070 105025 106024 108005 108070 108082 109053 119082 12084 123074 126007 130026 134035
    14037 143090 145086 147091 148026 148089 157055 159008 160068 16077 163085 167062 167083 170057 175032 175043
    182053 189080 19021 196073 197017 208001 210088 21077 216081 219090 220075 223061 227092 229036 236037 24077
    241004 241048 253027 253055 260058 271035 285079 291000 295087 296007 296059 299086 300091 302008 304034 304074
    306005 3096 33039 351093
"""
BSD68 = tuple(_BSD68.split())
"""The 68 test pictures (Roth and Black, 2009) by their BSD numbers, as test001 to test068 in that order."""


def load_pictures(
    path: PathLike,
    split: str,
    *,
    minival: int = 8,
    patches_per_epoch: int = PATCHES_PER_EPOCH,
    channels: int = 1,
) -> PicturePatches:
    """Read one split of a folder of pictures, as gray or colour.

    =========== ============================================ ==================== ==========================
    split       BSD                                          `train/` and `test/` any other folder
    =========== ============================================ ==================== ==========================
    "train"     the paper's 232 without the last `minival`   `train/` likewise    all but the last `minival`
    "minival"   the last `minival` of the 232                of `train/`          the last `minival`
    "trainval"  the 232: BSDS300 without BSD68               `train/`             all
    "test"      BSD68, in its usual order                    `test/`              all, as for Set12
    "train400"  DnCNN's 400: BSDS500's train and test        --                   --
    "train432"  all of BSDS500 but BSD68                     --                   --
    =========== ============================================ ==================== ==========================

    BSD is recognised by `images/` with `splits.json` beside it, or by the official archive's `images/train`,
    `images/val` and `images/test` (give `BSR/BSDS500/data`). Elsewhere pictures are taken in the order of their
    names. "train400" and "train432" hold pictures of "minival", so they are for final runs, not for choices. In
    any other folder "test" is for a folder kept for evaluation alone: it holds the folder's "train" too.

    Args:
        path: a folder.
        split: one of the above.
        minival: how many training pictures are held out for choices, 0 or more.
        patches_per_epoch: see `PicturePatches`.
        channels: 1 for gray, 3 for colour.

    Returns:
        The pictures, by `read_gray` or `read_rgb` of `recurconv.data.pictures`, named by their paths inside the folder.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: an unknown split, one that the folder does not have or with too few pictures, pictures that cannot
            be read (all of them are named), or BSD folders that are incomplete or train on BSD68.
    """
    root = Path(path)
    if split not in SPLITS:
        raise ValueError(f"split={split!r}; choose one of {', '.join(SPLITS)}")
    if channels not in KINDS:
        raise ValueError(f"channels={channels}; give 1 for gray or 3 for colour")
    if minival < 0:
        raise ValueError(f"minival={minival}; it must be 0 or more")
    images = root / "images"
    if (root / "splits.json").is_file():
        layout, files = "bsd", _bsd_files(images, split, _read_splits(root / "splits.json"))
    elif all((images / part).is_dir() for part in ("train", "val", "test")):
        layout, files = "bsd", _bsd_files(images, split, _official_splits(images))
    else:
        layout, files = root.resolve().name, _folder_files(root, split)
    if split in ("train", "minival"):
        files = _hold_out(files, split, minival, root)
    return PicturePatches(
        _read_all(files, channels),
        name=f"{layout} {split}",
        condition=f"{len(files)} {KINDS[channels]} pictures of {layout}, split {split}, minival {minival}",
        names=[file.relative_to(root).as_posix() for file in files],
        patches_per_epoch=patches_per_epoch,
    )


def _read_splits(file: Path) -> dict[str, list[str]]:
    """Read the splits of BSD by their names here from `splits.json`."""
    keys = {"trainval": ["paper_train232"], "test": ["bsd68_in_order"], "train400": ["bsds500_train", "bsds500_test"]}
    keys["train432"] = [*keys["train400"], "bsds500_val"]
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        splits = {split: [str(number) for key in parts for number in stored[key]] for split, parts in keys.items()}
        return {**splits, "train432": [number for number in splits["train432"] if number not in BSD68]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: not the splits of BSD ({type(error).__name__}: {error})") from error


def _official_splits(images: Path) -> dict[str, list[str]]:
    """Make the splits of BSD from the folders of the official archive; BSD68 lies in its `val`."""
    train, val, test = (sorted(file.stem for file in list_pictures(images / part)) for part in ("train", "val", "test"))
    rest = [number for number in val if number not in BSD68]
    return {
        "trainval": sorted(train + rest),
        "test": list(BSD68),
        "train400": train + test,
        "train432": train + test + rest,
    }


def _bsd_files(images: Path, split: str, splits: Mapping[str, list[str]]) -> list[Path]:
    numbers = splits[split if split in splits else "trainval"]
    forbidden = sorted(set(numbers) & set(BSD68))
    if split != "test" and forbidden:
        raise ValueError(f"{images}: split {split} holds pictures of the test set BSD68: {', '.join(forbidden)}")
    expected = {"test": 68, "train400": 400, "train432": 432}.get(split, 232)
    if len(set(numbers)) != expected:
        raise ValueError(f"{images}: split {split} of BSD has {len(set(numbers))} pictures where {expected} are usual")
    files = {file.stem: file for file in list_pictures(images)}
    missing = [number for number in numbers if number not in files]
    if missing:
        raise ValueError(f"{images}: {len(missing)} pictures of split {split} are missing: {', '.join(missing)}")
    return [files[number] for number in numbers]


def _folder_files(root: Path, split: str) -> list[Path]:
    divided = (root / "train").is_dir() or (root / "test").is_dir()
    files = list_pictures(root / ("test" if split == "test" else "train") if divided else root)
    if split in ("train400", "train432"):
        raise ValueError(
            f"{root}: split {split} exists for BSD only; train on all of a folder by --set trained_on=trainval, or "
            "hold some out by --set trained_on=trainval --set minival=8; evaluate on minival, trainval or test"
        )
    return files


def _hold_out(files: list[Path], split: str, minival: int, root: Path) -> list[Path]:
    kept = len(files) - minival
    if kept < 1 or (split == "minival" and minival == 0):
        counts = f"{len(files)} training pictures with minival={minival}"
        raise ValueError(f"{root}: {counts} leave split {split} empty; change minival or choose split trainval")
    return files[:kept] if split == "train" else files[kept:]


def _read_all(files: list[Path], channels: int) -> list[Tensor]:
    pictures, failures = [], []
    for file in files:
        try:
            pixels = torch.from_numpy(read_gray(file) if channels == 1 else read_rgb(file))
            pictures.append(pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1))
        except ValueError as error:
            failures.append(str(error))
    if failures:
        raise ValueError(f"{len(failures)} of {len(files)} pictures cannot be read: {'; '.join(failures)}")
    return pictures
