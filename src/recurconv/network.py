"""What every network of this package has: the dial, input normalisation, a config, strict loading."""

import functools
import inspect
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, ParamSpec, TypedDict, TypeVar

import torch
from torch import nn
from typing_extensions import Self

from recurconv import checkpoint
from recurconv.cell import RecurrentCell, StandardCell, as_dial, check_steps, is_several

Cell = RecurrentCell | StandardCell


class Options(TypedDict, total=False):
    """What every builder takes beside its own arguments; see ``Network``."""

    image_channels: int
    mean: float | Sequence[float]
    std: float | Sequence[float]
    class_names: Sequence[str] | None
    image_size: int | None


IMAGE_SIZE = 32  # of images where nothing tells it


class Normalize(nn.Module):
    """(x - mean) / std per channel; buffers, so that they travel with the weights."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, channels: int, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        self.values: dict[str, list[float]] = {}
        for name, value in (("mean", mean), ("std", std)):
            given: Any = value
            try:
                values = [float(v) for v in given] if is_several(given) else [float(given)] * channels
            except (TypeError, ValueError):
                values = []
            if len(values) != channels or not all(math.isfinite(v) and (v > 0 or name == "mean") for v in values):
                raise ValueError(
                    f"{name}={value!r}: give one finite number, or one for each of {channels} channels, std above 0"
                )
            self.values[name] = values
            self.register_buffer(name, torch.tensor(values).reshape(-1, 1, 1))

    def reset_parameters(self) -> None:
        """Write the values again, for a network that was made without any, on the meta device."""
        for name, values in self.values.items():
            buffer = self.get_buffer(name)
            buffer.copy_(torch.tensor(values, dtype=buffer.dtype, device=buffer.device).reshape(-1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] in [0, 1] -> the same shape."""
        return (images - self.mean) / self.std


class Network(nn.Module):
    """A network with a dial: ``net(images, steps=3)``.

    Args:
        dial: the settings that may be asked for, ascending.
        image_channels: 3 for colour, 1 for gray.
        mean, std: of the training images in [0, 1]; a number, or one per channel.
        class_names: what the logits stand for; kept in the checkpoint.
        image_size: height and width in pixels of the images that it is trained on, kept in the checkpoint; any other
            size may be given in a call. None: not known, and 32 is taken where one is needed.

    ``steps`` in a call is one count on the dial for all cells (the unified step count), by default the largest; or one
    count per cell, in a network that was built with ``unified=False``. There is no hidden state: two threads may run
    one network at two settings at once.
    """

    smallest_side = 1
    config: dict[str, Any]  # {"network": builder's name, "arguments": {...}}, set by the builder

    def __init__(
        self,
        dial: tuple[int, ...],
        *,
        image_channels: int = 3,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.25,
        class_names: Sequence[str] | None = None,
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        self.dial = as_dial(dial, "dial")
        check_count("image_channels", image_channels, "3 for colour, 1 for gray")
        if image_size is not None:
            check_count("image_size", image_size, "the height and width in pixels, one number, or None")
        if isinstance(class_names, str):
            raise ValueError(f"class_names={class_names!r}; give a list of names, one for each class")
        self.image_channels = image_channels
        self.class_names = None if class_names is None else tuple(class_names)
        self.image_size = image_size
        self.normalize = Normalize(image_channels, mean, std)

    def cells(self) -> list[Cell]:
        """The cells in the order of the data."""
        raise NotImplementedError

    def unroll(self, x: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """From the normalised images to the result, with one step count for each cell."""
        raise NotImplementedError

    def forward(self, images: torch.Tensor, steps: int | Sequence[int] | None = None) -> torch.Tensor:
        """Run the network at one setting.

        Args:
            images: float [B, C, H, W] in [0, 1].
            steps: a count on the dial, by default the largest; or one count per cell.

        Returns:
            Logits [B, num_classes], or for a denoiser the clean images [B, C, H, W], not clipped.

        Raises:
            ValueError: ``steps`` off the dial, images of another rank or channel count, or too small.
            TypeError: ``images`` is no tensor.
        """
        counts = self.counts(steps)
        self._check(images)
        return self.unroll(self.normalize(images), counts)

    def setting(self, steps: int | None) -> int:
        """``steps`` as a plain int on the dial; the largest for None.

        Raises:
            ValueError: it is not on the dial.
        """
        return check_steps(self.dial[-1] if steps is None else steps, self.dial)

    def counts(self, steps: int | Sequence[int] | None) -> tuple[int, ...]:
        """The step count of each cell.

        Raises:
            ValueError: a count off the dial, a wrong number of counts, or different ones in a unified network.
        """
        cells = self.cells()
        given: Any = steps
        if not is_several(given):
            return (self.setting(given),) * len(cells)
        counts = tuple(self.setting(count) for count in given)
        if len(counts) != len(cells):
            raise ValueError(
                f"steps={counts} has {len(counts)} counts; give one, or one for each of {len(cells)} cells"
            )
        if len(set(counts)) > 1 and any(getattr(cell, "unified", True) for cell in cells):
            raise ValueError(
                f"steps={counts}: this network has one step count for all cells; build it with unified=False for more"
            )
        return counts

    def _check(self, images: torch.Tensor) -> None:
        if not isinstance(images, torch.Tensor):
            raise TypeError(f"images are a {type(images).__name__}; give a tensor [B, {self.image_channels}, H, W]")
        if images.ndim != 4 or images.shape[1] != self.image_channels or not images.is_floating_point():
            raise ValueError(
                f"images are {images.dtype} of shape {list(images.shape)}; this network takes float in [0, 1] of shape "
                f"[B, {self.image_channels}, H, W]"
            )
        if images.shape[2] < self.smallest_side or images.shape[3] < self.smallest_side:
            raise ValueError(
                f"images are {images.shape[2]} x {images.shape[3]} pixels; the smallest this network takes is "
                f"{self.smallest_side} x {self.smallest_side}"
            )

    def compile_bodies(self, **options: Any) -> None:
        """Compile each cell's body in place, once per input shape; it then serves every step and row.

        Names of tensors stay; copies and pickles are not compiled.

        Args:
            **options: passed to ``torch.compile``; ``dynamic=True`` suits images of many sizes.
        """
        # PyTorch counts compilations per class, not per body: with its own limit, 8, R_2 would run uncompiled after
        # two shapes in each of two cells, for training and evaluation, and then a last, smaller batch.
        if "recompile_limit" in inspect.signature(torch.compile).parameters:
            options = {"recompile_limit": 64, **options}
        else:  # an older PyTorch has one limit for all
            from torch._dynamo import config

            config.recompile_limit = max(64, config.recompile_limit)
        options = {"dynamic": False, **options}
        for cell in self.cells():
            for body in [cell.body] if isinstance(cell, RecurrentCell) else cell.bodies:
                body.compile(**options)

    def shared_parameters(self) -> list[nn.Parameter]:
        """The parameters that are used more than once in a call: the bodies of the recurrent cells."""
        bodies = [cell.body for cell in self.cells() if isinstance(cell, RecurrentCell)]
        return list(dict.fromkeys(p for body in bodies for p in body.parameters()))  # two cells may share a body

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, each atomically.

        Raises:
            ValueError: the network was not made by a builder of this package, or was changed since, so that it could
                not be rebuilt; nothing is written.

        ``hf upload USER/NAME FOLDER`` shares it; ``recurconv.load("USER/NAME")`` takes it from there.
        """
        config = getattr(self, "config", None)
        if config is None:
            raise ValueError(
                f"{type(self).__name__} was not made by a builder such as recurconv.r2; save its state_dict"
            )
        checkpoint.write(Path(folder), self._config_now(config), self.state_dict())

    def _config_now(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config with the class names and image size of now; ValueError unless it makes this network."""
        told = {"class_names": self.class_names and list(self.class_names), "image_size": self.image_size}
        arguments = config["arguments"] | {
            k: now for k, now in told.items() if now is not None or k in config["arguments"]
        }
        with torch.device("meta"):
            twin = BUILDERS[config["network"]](**arguments)
        twins = dict(twin.named_modules())
        changed = [
            f"eps of {name} is {module.eps}"
            for name, module in self.named_modules()
            if hasattr(module, "eps") and module.eps != getattr(twins.get(name), "eps", module.eps)
        ]
        try:
            checkpoint.check_fit(self.state_dict(), twin.state_dict(), self.dial)
        except ValueError as error:
            changed.append(str(error))
        if changed:
            raise ValueError(
                f"this network is no longer what {config['network']} makes, and load could not rebuild it: "
                f"{'; '.join(changed)}; save its state_dict"
            )
        return {**config, "arguments": arguments}

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """What ``recurconv.load`` does, for a network of this class.

        Raises:
            TypeError: it is a network of another class.
        """
        from recurconv.loading import load  # the one import upwards: the habit wants this name on the class

        network = load(source)
        if not isinstance(network, cls):
            raise TypeError(f"{source} holds a {type(network).__name__}, not a {cls.__name__}; use recurconv.load")
        return network

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True, assign: bool = False) -> Any:
        """Load every tensor or none. Prefixes that DDP and torch.compile put before names are taken off.

        Raises:
            ValueError: tensors are missing, unexpected or of another shape (all are named, with both dials), or
                ``strict=False``, which would hide that.
        """
        if not strict:
            raise ValueError("strict=False would hide missing tensors; load a state dict that fits")
        expected = self.state_dict()
        tensors = checkpoint.fit_names(state_dict, expected)
        checkpoint.check_fit(tensors, expected, self.dial)
        if (versions := getattr(state_dict, "_metadata", None)) is not None:  # of modules that read older files
            tensors = OrderedDict(tensors)
            names = [name for name, _ in self.named_modules()]
            tensors._metadata = checkpoint.fit_versions(versions, names)  # type: ignore[attr-defined]
        return super().load_state_dict(tensors, strict=True, assign=assign)


Parameters = ParamSpec("Parameters")
N = TypeVar("N", bound=Network)
BUILDERS: dict[str, Callable[..., Network]] = {}


def builder(build: Callable[Parameters, N]) -> Callable[Parameters, N]:
    """Register ``build`` by its name, and note in each network it makes how to make it again."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> N:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _kept(value)
        network = build(*bound.args, **bound.kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        arguments.update(arguments.pop("options", {}))
        plain = json.loads(json.dumps(arguments, default=_plain))  # as it comes back from config.json
        network.config = {"network": build.__name__, "arguments": plain}
        return network

    BUILDERS[build.__name__] = wrapped
    return wrapped


def check_count(name: str, value: Any, give: str) -> None:
    """Raise ValueError unless an argument is a whole number of at least 1; ``give`` says what to give."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value!r}; give {give}")


def _kept(value: Any) -> Any:
    """What can be read only once, as a tuple; in a dict, too."""
    if isinstance(value, dict):
        return {key: _kept(own) for key, own in value.items()}
    return tuple(value) if isinstance(value, Iterator) else value


def _plain(value: Any) -> Any:
    """NumPy's and PyTorch's numbers, arrays and other sequences, for JSON."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


def arguments_of(build: Callable[..., Network]) -> list[str]:
    """The names of the arguments that a builder takes."""
    names = list(inspect.signature(build).parameters)
    return [*(name for name in names if name != "options"), *(Options.__annotations__ if "options" in names else ())]
