"""Recipes: a function for each returns a complete, frozen config of a training run.

recurconv recipes                                  lists them
recurconv train r2-cifar10 --data D --out RUN      trains one
... --set epochs=100 --set batch_size=256          changes it
"""

import dataclasses
import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from recurconv.norms import NormUsage


@dataclass(frozen=True)
class Recipe:
    """A complete config of a training run. Rates, probabilities and fractions are plain numbers, sizes are pixels."""

    name: str
    summary: str  # what it trains
    reaches: str  # what it reached where, with the file under results/; "not run yet" where it was not
    takes: str  # how long, on what

    task: Literal["classification", "denoising"]
    data: Literal["cifar10", "cifar100", "folder", "pictures"]
    network: Literal["r2", "s2", "r3", "s3", "r4", "s4", "deeply_supervised_s4"]
    steps: tuple[int, ...]
    epochs: int

    norm: NormUsage | None = None  # None: double for a dial, independent for one count; S networks take none
    width: float = 1.0  # factor on the channels of a classifier
    channels: int = 64  # of a denoiser
    image_channels: int = 3

    # The step count of an iteration (algorithm 2 and section 4.2 of the paper).
    probabilities: tuple[float, ...] = ()  # one for each setting; empty: all alike
    sampling: Literal["unified", "per-cell", "weighted", "sandwich"] = "unified"

    # The update. The rate is that of ordinary parameters; shared kernels learn at shared_ratio times it (section 3.3).
    batch_size: int = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    rate: float = 0.1
    shared_ratio: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float = 1.0  # of the gradient's norm; 0 for none
    warmup: float = 0.2  # fraction of the iterations
    decay: Literal["linear", "cosine"] = "linear"
    label_smoothing: float = 0.0

    # The data. minival images of the training set are held out for choices; 0 trains on all of them.
    minival: int = 5000
    crop: int = 4
    flip: bool = True
    cutout: int = 0
    size: int = 32  # of a folder's images after resize and crop
    workers: int = 2  # processes that read a folder's images
    sigma: float = 25.0  # of the noise, in 1/255
    patch: int = 40
    patches_per_epoch: int = 128_000

    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 where the hardware is fast at it
    compile: bool = False  # the bodies, by torch.compile
    cuda_graphs: bool = True  # on one CUDA device: a graph for each setting

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def draws(self) -> tuple[float, ...]:
        """The probability of each setting."""
        return self.probabilities or (1 / len(self.settings),) * len(self.settings)

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that training visits: the dial; for the deeply supervised network its groups."""
        return (2, 3, 4) if self.network == "deeply_supervised_s4" else self.steps


def _problems(recipe: Recipe) -> Sequence[str]:
    """What is wrong with the values, a sentence each."""
    positive = (
        "epochs",
        "batch_size",
        "rate",
        "shared_ratio",
        "width",
        "channels",
        "patch",
        "patches_per_epoch",
        "size",
    )
    notes = [f"{key}={getattr(recipe, key)} must be above 0" for key in positive if getattr(recipe, key) <= 0]
    for key in ("momentum", "weight_decay", "clip", "minival", "crop", "cutout", "workers", "sigma", "seed"):
        if getattr(recipe, key) < 0:
            notes.append(f"{key}={getattr(recipe, key)} must not be below 0")
    for key in ("warmup", "label_smoothing", "momentum"):
        if getattr(recipe, key) >= 1:
            notes.append(f"{key}={getattr(recipe, key)} must be below 1")
    for name, field_type in get_type_hints(Recipe).items():
        if get_origin(field_type) is Literal and getattr(recipe, name) not in get_args(field_type):
            notes.append(f"{name}={getattr(recipe, name)!r} must be one of {', '.join(get_args(field_type))}")
    if not recipe.steps or min(recipe.steps) < 1 or list(recipe.steps) != sorted(set(recipe.steps)):
        notes.append(f"steps={recipe.steps} must be different counts of at least 1, ascending")
    elif recipe.probabilities and (
        len(recipe.probabilities) != len(recipe.settings)
        or min(recipe.probabilities) <= 0
        or abs(sum(recipe.probabilities) - 1) > 1e-6
    ):
        notes.append(
            f"probabilities={recipe.probabilities} must be {len(recipe.settings)} numbers above 0 that sum to 1, "
            f"one for each of {recipe.settings}"
        )
    if recipe.network.startswith("s") and len(recipe.steps) > 1:
        notes.append(f"steps={recipe.steps}: {recipe.network} is untied and has one step count")
    if recipe.sampling != "unified" and len(recipe.settings) == 1:
        notes.append(f"sampling={recipe.sampling} needs a dial of two or more settings")
    if recipe.sampling == "per-cell" and not recipe.network.startswith("r"):
        notes.append(f"sampling=per-cell needs recurrent cells, not {recipe.network}")
    if (recipe.task == "denoising") != (recipe.network in ("r3", "s3")):
        notes.append(f"network={recipe.network} is not for {recipe.task}")
    if (recipe.task == "denoising") != (recipe.data == "pictures"):
        notes.append(f"data={recipe.data} is not for {recipe.task}")
    return notes


def read(file: Path) -> Recipe:
    """The recipe that a run wrote.

    Raises:
        ValueError: the file is broken, or of another version of this package.
    """
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Recipe(**{key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()})  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a recipe of this version: {error}") from None


RECIPES: dict[str, Callable[[], Recipe]] = {}


def recipe(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Register a recipe under its name."""
    RECIPES[function().name] = function
    return function


def get(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(RECIPES)}"
        raise ValueError(f"there is no recipe {name!r}; {hint}")
    return RECIPES[name]()


@recipe
def r2_cifar10() -> Recipe:
    """Table 4 of the paper, CIFAR-10: R_2 with the dial (2, 3, 4) drawn with probabilities (0.2, 0.3, 0.5)."""
    return Recipe(
        name="r2-cifar10",
        summary="R_2, dial (2, 3, 4), double, CIFAR-10",
        reaches="not run yet",
        takes="about 1.5 minutes on an H100 by a prototype's 0.8 s an epoch; days on two CPU cores",
        task="classification",
        data="cifar10",
        network="r2",
        steps=(2, 3, 4),
        probabilities=(0.2, 0.3, 0.5),
        epochs=100,
        batch_size=512,
        rate=0.4,
        minival=0,
        compile=True,
    )


@recipe
def r2_cifar10_short() -> Recipe:
    """The same at half width and for two CPU cores: the shipped classifier."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar10-short",
        summary="R_2 x0.5, dial (2, 3, 4), double, CIFAR-10, sized for two CPU cores",
        reaches="not run yet",
        takes="about two hours on one CPU core with AVX2",
        width=0.5,
        epochs=12,
        batch_size=128,
        rate=0.1,
        minival=1000,
        compile=False,
    )


@recipe
def r2_cifar10_sandwich() -> Recipe:
    """Past the paper: the largest setting learns from the labels, smaller ones from its soft output."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar10-sandwich",
        summary="r2-cifar10 with sandwich sampling: distillation inside the dial",
        reaches="not run yet",
        takes="about 2.2 times r2-cifar10",
        sampling="sandwich",
    )


@recipe
def r2_cifar100() -> Recipe:
    """Table 4 of the paper, CIFAR-100."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar100",
        summary="R_2, dial (2, 3, 4), double, CIFAR-100",
        data="cifar100",
    )


@recipe
def r4_cifar100() -> Recipe:
    """Table 5 of the paper: cost-adjustable R_4."""
    return dataclasses.replace(
        r2_cifar100(),
        name="r4-cifar100",
        summary="R_4, dial (1, 2, 3), double, CIFAR-100",
        takes="not run yet",
        network="r4",
        steps=(1, 2, 3),
    )


@recipe
def r2_folder() -> Recipe:
    """A user's own images: FOLDER/train/CLASS/*, or FOLDER/CLASS/*."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-folder",
        summary="R_2 x0.5, dial (2, 3, 4), double, on a folder of your own images (--set size=64 for larger ones)",
        reaches="depends on the images",
        takes="depends on their number",
        data="folder",
        width=0.5,
        epochs=30,
        batch_size=64,
        rate=0.05,
        minival=1,
        compile=False,
    )


@recipe
def r3_gray25() -> Recipe:
    """Section 5 of the paper with a dial: R_3, gray, sigma 25, about 12 million patches as DnCNN saw."""
    return Recipe(
        name="r3-gray25",
        summary="R_3, dial (1, 2, 3, 4), double, gray pictures, sigma 25",
        reaches="not run yet",
        takes="not run yet",
        task="denoising",
        data="pictures",
        network="r3",
        steps=(1, 2, 3, 4),
        epochs=90,
        image_channels=1,
        optimizer="adam",
        rate=1e-3,
        weight_decay=0.0,
        warmup=0.02,
        decay="cosine",
        minival=0,
        sigma=25.0,
    )


@recipe
def r3_gray25_short() -> Recipe:
    """The same for two CPU cores: the shipped denoiser."""
    return dataclasses.replace(
        r3_gray25(),
        name="r3-gray25-short",
        summary="R_3 of 32 channels, dial (1, 2, 3, 4), double, gray pictures, sigma 25, sized for two CPU cores",
        takes="about an hour on one CPU core with AVX2",
        channels=32,
        epochs=20,
        batch_size=16,
        rate=2e-3,
        patches_per_epoch=8_000,
        minival=8,
    )


def override(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """``recipe`` with ``key=value`` settings, e.g. ``["epochs=10", "steps=2,3,4"]``.

    Raises:
        ValueError: unknown keys and bad values, all of them in one message.
    """
    hints = get_type_hints(Recipe)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            problems.append(f"{setting!r} is not key=value")
        elif key not in hints or key in ("name", "summary", "reaches", "takes", "task"):
            near = difflib.get_close_matches(key, hints, 1)
            problems.append(f"unknown key {key!r}" + (f", did you mean {near[0]}?" if near else ""))
        else:
            try:
                values[key] = _parse(text, hints[key])
            except ValueError:
                problems.append(f"{key}={text!r} is not {_words(hints[key])}")
    problems += _problems_of(recipe, values)
    if problems:
        raise ValueError("; ".join(problems))
    changed = {key: value for key, value in values.items() if value != getattr(recipe, key)}
    return dataclasses.replace(recipe, **changed, reaches="changed by --set", takes="") if changed else recipe


def _problems_of(recipe: Recipe, values: Mapping[str, Any]) -> Sequence[str]:
    trial = object.__new__(Recipe)  # without __post_init__, to gather these problems beside the others
    trial.__dict__.update({**vars(recipe), **values})
    return _problems(trial)


def _parse(text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if kind in (int, float, str):
        return kind(text)
    if get_origin(kind) is tuple:
        return tuple(_parse(part, get_args(kind)[0]) for part in text.split(",") if part)
    if text not in _choices(kind):
        raise ValueError
    return None if text == "default" else text


def _choices(kind: Any) -> list[str]:
    """The words that a Literal takes; an optional one takes "default" for None."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return ["default", *(word for option in get_args(kind) for word in get_args(option))]


def _words(kind: Any) -> str:
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return "a whole number" if kind is int else "a number"
    if get_origin(kind) is tuple:
        return f"a list like 2,3,4 (of {get_args(kind)[0].__name__})"
    return "one of " + ", ".join(_choices(kind))
