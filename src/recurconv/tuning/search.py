"""The search for thresholds: from a model file and held-out images to a choice and its curves."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurconv.data import ImageSet, PictureFolder, load_cifar, load_folder
from recurconv.data.places import find_data
from recurconv.runs import environment
from recurconv.runtime import Dial
from recurconv.runtime.confidence import confidence
from recurconv.tuning.curves import Answers, Curve, choose, front

BATCH = 250
SIZE = 32  # of a folder's images where the file does not tell
FEW = 100  # held-out images: with fewer, one of them is more than 1 % of error
DATASETS = ("cifar10", "cifar100", "folder")


@dataclass(frozen=True)
class Tuning:
    """Thresholds, what was wanted of them, and the curves: first that of the split they were chosen on.

    ``thresholds`` are what ``Dial.run(images, confidence=...)`` takes; ``size`` is the height and width of the images
    in pixels, for which all MACs are; ``notes`` are sentences on what to know of the result.
    """

    thresholds: dict[int, float]
    wanted: str
    model: str
    model_sha256: str
    data: str
    size: int
    curves: tuple[Curve, ...]
    environment: dict[str, Any]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file; settings are strings there, as JSON wants its keys."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), allow_nan=False))
        return found


def tune(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    macs: float | None = None,
    error: float | None = None,
    split: str = "minival",
    report: str | None = None,
    dataset: str | None = None,
    held_out: int = 1000,
    size: int | None = None,
    threads: int | None = None,
    say: Callable[[str], object] = lambda progress: None,
) -> Tuning:
    """Find the thresholds of confidence for a classifier: the setting before the largest, and its threshold.

    Only pairs that end with the largest setting are tried: for R_2 on CIFAR-10 three settings in a row, or another
    second one, differed on a thousand held-out images by one or two of them, which is no reason to choose.

    Args:
        model: a file that ``recurconv export`` wrote.
        data: where the images are.
        macs: the lowest error is wanted at this many MACs for an image of the size that is used, in the mean.
        error: or the lowest MACs at this error, in %; without either, at the error of the largest setting.
        split: the images on which they are chosen: "minival", those held out of training; others are refused.
        report: another split on which the result is measured, such as "test".
        dataset: "cifar10", "cifar100" or "folder"; by default what lies there and has as many classes.
        held_out: of CIFAR's training images, how many at their end are "minival", as in the training recipe.
        size: height and width of a folder's images, in pixels; by default as in training, if the file tells it, or 32.
        threads: of onnxruntime; by default its choice.
        say: told what is being done.

    Raises:
        FileNotFoundError: no such model or data.
        ValueError: no classifier, data that does not fit it, a split that is refused, both wishes, or one that no
            thresholds fulfil.
    """
    if split == "test":
        raise ValueError(
            "split=test: an error on images that thresholds were chosen on says little; choose them on minival, and "
            "have them measured on the test set, too, by --report test"
        )
    if split in ("train", "trainval"):
        raise ValueError(f"split={split}: of images that it was trained on a network is too sure; choose on minival")
    if macs is not None and error is not None:
        raise ValueError(f"macs={macs:g} and error={error:g} are wanted; give one of them")
    if macs is not None and not macs > 0:
        raise ValueError(f"macs={macs:g} is no mean cost; give a number above 0")
    if error is not None and not math.isfinite(error):
        raise ValueError(f"error={error:g} is no error in %; give a number from 0 to 100")
    dial = Dial(model, threads=threads)
    if dial.kind != "classifier":
        raise ValueError(f"{model} is a {dial.kind}, and confidence is for classifiers; give a classifier's file")
    splits = (split,) if report is None else (split, report)
    sets = {part: _open(dial, Path(data), part, dataset, held_out, size) for part in splits}
    side = sets[split].image_shape[-1]
    costs = {steps: dial.macs_of(steps, side, side) for steps in dial.dial}
    if macs is not None and macs < costs[dial.dial[0]]:
        raise ValueError(
            f"macs={macs:.4g} is less than the smallest setting needs for {side} x {side} pixels, "
            f"{costs[dial.dial[0]]:.4g}; give more"
        )
    own, *others = [_answers(dial, part, images, costs, say) for part, images in sets.items()]
    fixed, best = own.fixed(), front(own.pairs())
    if macs is None and error is None:
        wanted, chosen = "the error of the largest setting", choose([*fixed, *best], error=fixed[-1].error)
    else:
        wanted = f"{macs:g} MACs" if macs is not None else f"an error of {error:g} %"
        chosen = choose([*fixed, *best], macs=macs, error=error)
    curves = [Curve(own.split, own.condition, own.images, tuple(fixed), tuple(best), chosen)]
    for other in others:
        measured = tuple(other.point(point.thresholds) for point in best)
        final = other.point(chosen.thresholds)
        curves.append(Curve(other.split, other.condition, other.images, tuple(other.fixed()), measured, final))
    return Tuning(
        thresholds=chosen.thresholds,
        wanted=wanted,
        model=Path(model).name,
        model_sha256=dial.sha256,
        data=sets[split].name.removesuffix(f" {split}"),
        size=side,
        curves=tuple(curves),
        environment=environment(),
        notes=_notes(own, side if isinstance(sets[split], PictureFolder) and not (size or dial.image_size) else None),
    )


def _open(dial: Dial, data: Path, split: str, dataset: str | None, held_out: int, size: int | None) -> ImageSet:
    names = dial.class_names
    if dataset is None:
        dataset = _guessed(data, names)
    if dataset not in DATASETS:
        raise ValueError(f"dataset={dataset!r} is not known; choose one of {', '.join(DATASETS)}")
    if dataset == "folder":
        return load_folder(data, split, size=size or dial.image_size or SIZE, workers=0, class_names=names)
    if size is not None:
        raise ValueError(f"size={size} is for a folder of images, not for {dataset}; leave it out")
    images = load_cifar(data, dataset, split, minival=held_out)
    if names is not None and tuple(images.class_names) != names:
        raise ValueError(
            f"{dataset} has the classes {', '.join(images.class_names[:3])}, ...; this file's are "
            f"{', '.join(names[:3])}, ...; give the data that its network was trained on, and --dataset"
        )
    return images


def _guessed(data: Path, names: tuple[str, ...] | None) -> str:
    """The CIFAR that lies there, if the classes are as many, otherwise a folder of pictures."""
    there = [
        name
        for name, classes in (("cifar10", 10), ("cifar100", 100))
        if data.exists() and (names is None or len(names) == classes) and find_data(name, [data])
    ]
    if len(there) > 1:
        raise ValueError(f"{data} holds {' and '.join(there)}, and the file names no classes; say which by --dataset")
    return there[0] if there else "folder"


def _notes(own: Answers, assumed: int | None) -> tuple[str, ...]:
    """What to know of a choice on ``own``; ``assumed`` is the size of a folder's images where none was given."""
    notes = []
    if assumed is not None:
        notes.append(
            f"the pictures were resized and cropped to {assumed} x {assumed} pixels; if the network was trained at "
            "another size, give it (--size)"
        )
    if own.images < FEW:
        notes.append(
            f"{own.images} images of {own.split} are few to choose thresholds on: one of them is "
            f"{100 / own.images:.2g} % of error"
        )
    return tuple(notes)


def _answers(
    dial: Dial, split: str, images: ImageSet, costs: dict[int, float], say: Callable[[str], object]
) -> Answers:
    """Run every setting on every image, batch by batch, so that nothing is read twice."""
    sure: dict[int, list[NDArray[np.float64]]] = {steps: [] for steps in dial.dial}
    right: dict[int, list[NDArray[np.bool_]]] = {steps: [] for steps in dial.dial}
    done = 0
    for batch, labels in images.evaluation_batches(BATCH, device="cpu"):
        say(f"{split}: image {done + 1} of {len(images)}")
        for steps in dial.dial:
            logits = dial.run(batch.numpy(), steps=steps).output
            if logits.shape[1] != len(images.class_names):
                raise ValueError(
                    f"the data has {len(images.class_names)} classes, this file {logits.shape[1]}; give the data that "
                    "its network was trained on, and --dataset"
                )
            sure[steps].append(confidence(logits))
            right[steps].append(logits.argmax(axis=1) == labels.numpy())
        done += len(batch)
    return Answers(
        split=split,
        condition=images.condition,
        sure={steps: np.concatenate(parts) for steps, parts in sure.items()},
        right={steps: np.concatenate(parts) for steps, parts in right.items()},
        macs=costs,
    )
