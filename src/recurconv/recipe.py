"""The config of a training run: a frozen, checked dataclass; how it is changed from the command line and read back."""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from recurconv.usage import NormUsage


@dataclass(frozen=True)
class Recipe:
    """A complete config of a training run. Rates, probabilities and fractions are plain numbers, sizes are pixels.

    Raises:
        ValueError: values of a wrong type or out of range, or that do not go together; all of them in one message.
    """

    name: str
    summary: str  # what it trains
    reaches: str  # what it reached where, with the file under results/; "not run yet" where it was not
    takes: str  # how long, on what

    task: Literal["classification", "denoising"]
    data: Literal["cifar10", "cifar100", "folder", "pictures"]
    network: Literal["r2", "s2", "r3", "s3", "r3_half", "r4", "s4", "deeply_supervised_s4"]
    steps: tuple[int, ...]  # the dial of an R; of an untied network its one step count
    epochs: int

    norm: NormUsage | None = None  # of an R; None: double for a dial, independent for one count
    width: float = 1.0  # factor on the channels of a classifier
    channels: int = 64  # of a denoiser
    image_channels: int = 3  # of a denoiser 1, pictures are read as gray, or 3
    init: str = ""  # a trained network to start from: shipped weights, a folder, "user/name" on the Hub; empty: none

    # The step count of an iteration (algorithm 2 and section 4.2 of the paper; see objectives.py).
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
    # The norms' running statistics, which evaluation takes: over how many batches they are taken anew for the final
    # weights (0: not), and in what fraction of the iterations, at the end, training takes them instead of the batch's.
    norm_batches: int = 0
    frozen_norms: float = 0.0

    # The data. The images held out are for choices; 0 trains on all of them.
    minival: int = 5000  # images or pictures held out; of a folder its val/, or a tenth, unless this is 0
    trained_on: Literal["trainval", "train400", "train432"] = "trainval"  # where nothing is held out; of BSD more
    crop: int = 4
    flip: bool = True
    cutout: int = 0
    size: int = 32  # of a folder's images after resize and crop
    workers: int = 2  # processes that read a folder's images
    sigma: float = 25.0  # of the noise, in 1/255
    sigmas: tuple[float, ...] = ()  # trained on a range of noise, (low, high); sigma is then for evaluation alone
    halves: bool = False  # patches of the pictures at half size, too, where detail is as sharp as in downscaled ones
    drawings: int = 0  # of text, lines, shapes and gratings, each as large as BSD's pictures, beside them
    clipped: float = 0.0  # the part of noisy patches that is clipped and rounded to 8 bits, as files are
    tinted: float = 0.0  # the part of colour patches shown in two random colours, whose edges are as sharp as can be
    patch: int = 40
    patches_per_epoch: int = 128_000

    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 where the hardware is fast at it
    compile: bool = False  # the bodies, by torch.compile
    cuda_graphs: bool = True  # on one CUDA device: a graph for each setting

    def __post_init__(self) -> None:
        problems = _problems(vars(self))
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that training visits: the dial; for the deeply supervised network its groups."""
        return _settings(self.network, self.steps)

    @property
    def draws(self) -> tuple[float, ...]:
        """The probability of each setting."""
        return self.probabilities or (1 / len(self.settings),) * len(self.settings)


_TYPES = get_type_hints(Recipe)
_WORDS = ("name", "summary", "reaches", "takes")  # what a recipe says of itself
_DENOISING = (
    "channels",
    "image_channels",
    "trained_on",
    "sigma",
    "sigmas",
    "halves",
    "drawings",
    "clipped",
    "tinted",
    "patch",
    "patches_per_epoch",
)
_CLASSIFICATION = ("width", "label_smoothing", "crop", "flip", "cutout", "size", "workers")
_ABOVE_ZERO = (
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
_FROM_ZERO = (
    "norm_batches",
    "frozen_norms",
    "momentum",
    "weight_decay",
    "clip",
    "minival",
    "crop",
    "cutout",
    "workers",
    "sigma",
    "drawings",
    "clipped",
    "tinted",
    "seed",
    "warmup",
)
_AT_MOST = {  # most of them what memory can hold
    "seed": 2**63 - 1,
    "frozen_norms": 1,
    "drawings": 10_000,
    "clipped": 1,
    "tinted": 1,
    "width": 64,
    "channels": 4096,
    "size": 4096,
    "patch": 4096,
}
_BELOW_ONE = ("warmup", "label_smoothing", "momentum")


def override(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """``recipe`` with ``key=value`` settings, e.g. ``["epochs=10", "steps=2,3,4", "norm=default"]``.

    Raises:
        ValueError: unknown keys, keys of the other task, and bad values, all of them in one message.
    """
    keys = [key for key in _TYPES if key not in (*_WORDS, "task")]
    other = dict.fromkeys(_CLASSIFICATION if recipe.task == "denoising" else _DENOISING)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            problems.append(f"{setting!r} is not key=value")
        elif key not in keys:
            near = difflib.get_close_matches(key, keys, 1)
            problems.append(f"unknown key {key!r}, " + (f"did you mean {near[0]}?" if near else _one_of(keys)))
        elif key in other:
            problems.append(f"{key} has no meaning for {recipe.task}")
        else:
            try:
                values[key] = _parse(text, _TYPES[key])
            except ValueError:
                problems.append(f"{key}={text!r} must be {_kind(_TYPES[key])}")
    problems += _problems({**vars(recipe), **values})
    if problems:
        raise ValueError("; ".join(problems))
    changed = {key: value for key, value in values.items() if value != getattr(recipe, key)}
    return dataclasses.replace(recipe, **changed, reaches="changed by --set", takes="") if changed else recipe


def read(file: Path) -> Recipe:
    """The recipe that a run wrote.

    Raises:
        ValueError: the file is broken, or of another version of this package.
        OSError: it cannot be read.
    """
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Recipe(**{key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()})  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a recipe of this version: {error}") from None


def _problems(values: dict[str, Any]) -> list[str]:
    """What is wrong with the fields' values, a sentence each."""
    wrong = [
        f"{key}={values[key]!r} must be {_kind(kind)}" for key, kind in _TYPES.items() if not _is(values[key], kind)
    ]
    return wrong or [*_out_of_range(values), *_contradictions(values)]


def _out_of_range(values: dict[str, Any]) -> Iterator[str]:
    yield from (f"{key}={values[key]} must be above 0" for key in _ABOVE_ZERO if values[key] <= 0)
    yield from (f"{key}={values[key]} must be 0 or more" for key in _FROM_ZERO if values[key] < 0)
    yield from (f"{key}={values[key]} must be below 1" for key in _BELOW_ONE if values[key] >= 1)
    yield from (f"{key}={values[key]} must be at most {most}" for key, most in _AT_MOST.items() if values[key] > most)
    if values["label_smoothing"] < 0:
        yield f"label_smoothing={values['label_smoothing']} must be 0 or more"


def _contradictions(values: dict[str, Any]) -> Iterator[str]:
    network, steps, task = values["network"], values["steps"], values["task"]
    probabilities, sampling, norm = values["probabilities"], values["sampling"], values["norm"]
    if not steps or min(steps) < 1 or list(steps) != sorted(set(steps)):
        yield f"steps={steps} must be different counts of at least 1, ascending"
        return
    settings, tied = _settings(network, steps), network.startswith("r")
    if not tied and len(steps) > 1:
        yield f"steps={steps}: {network} is untied and has one step count"
    if not tied and norm is not None:
        yield f"norm={norm}: {network} is untied, its norm is always a group for each step; take norm=default"
    if tied and norm == "double" and len(steps) == 1:
        yield f"norm=double needs a dial of two or more counts, not steps={steps}; take norm=independent"
    if probabilities and (
        len(probabilities) != len(settings) or min(probabilities) <= 0 or abs(sum(probabilities) - 1) > 1e-6
    ):
        yield (
            f"probabilities={probabilities} must be {len(settings)} numbers above 0 that sum to 1, one for each of "
            f"{settings}; or nothing, for all alike"
        )
    if sampling != "unified" and len(settings) == 1:
        yield f"sampling={sampling} needs a dial of two or more settings"
    if sampling == "per-cell" and values["norm_batches"] > 0:
        yield "norm_batches needs one step count for all cells, not sampling=per-cell"
    if sampling == "per-cell" and not tied:
        yield f"sampling=per-cell needs recurrent cells, not {network}"
    if (task == "denoising") != (network in ("r3", "s3", "r3_half")):
        yield f"network={network} is not for {task}"
    if (task == "denoising") != (values["data"] == "pictures"):
        yield f"data={values['data']} is not for {task}"
    if values["image_channels"] not in (allowed := (1, 3) if task == "denoising" else (3,)):
        yield f"image_channels={values['image_channels']} must be {' or '.join(map(str, allowed))} for {task}"
    if values["tinted"] > 0 and values["image_channels"] == 1:
        yield f"tinted={values['tinted']} needs colour pictures; take tinted=0 with image_channels=1"
    if values["trained_on"] != "trainval" and values["minival"] > 0:
        yield f"trained_on={values['trained_on']} holds the pictures of minival; take minival=0 with it"
    if (sigmas := values["sigmas"]) and not (len(sigmas) == 2 and 0 <= sigmas[0] <= sigmas[1]):
        yield f"sigmas={sigmas} must be a range like 0,55, or nothing for sigma alone"


def _settings(network: str, steps: tuple[int, ...]) -> tuple[int, ...]:
    return (2, 3, 4) if network == "deeply_supervised_s4" else steps


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; numbers must be finite."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind in (bool, int, str):
        return type(value) is kind
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(item, get_args(kind)[0]) for item in value)
    return value in _choices(kind).values()


def _parse(text: str, kind: Any) -> Any:
    """A value of a field's type from the command line; ValueError where it is none."""
    if kind in (int, float, str):
        return kind(text)
    if get_origin(kind) is tuple:
        return tuple(_parse(part, get_args(kind)[0]) for part in text.split(",")) if text else ()
    choices = _choices(kind)
    if text.lower() not in choices:
        raise ValueError(text)
    return choices[text.lower()]


def _kind(kind: Any) -> str:
    """What a field takes, in words."""
    if kind in (int, float, str):
        return {int: "a whole number", float: "a finite number", str: "text"}[kind]
    if get_origin(kind) is tuple:
        return "whole numbers like 2,3,4" if get_args(kind)[0] is int else "finite numbers like 0.2,0.3,0.5"
    return _one_of(_choices(kind))


def _choices(kind: Any) -> dict[str, Any]:
    """The words that a field takes, and their values; an optional one takes "default" for None."""
    if kind is bool:
        return {"true": True, "false": False}
    if get_origin(kind) is Literal:
        return {word: word for word in get_args(kind)}
    words = {word: word for option in get_args(kind) for word in get_args(option)}
    return {"default": None, **words}


def _one_of(words: Iterable[str]) -> str:
    return "one of " + ", ".join(words)
