"""Which network, which noise level and which setting a picture gets."""

import copy
import time
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recurconv import checkpoint, evaluation, loading
from recurconv.cell import as_dial, check_steps
from recurconv.cleaning import tiles, values
from recurconv.cleaning.coarse import CoarseColour
from recurconv.cleaning.noise import estimate_sigma, is_coarse, is_cut_off
from recurconv.denoisers import LARGEST_SIGMA
from recurconv.network import Network
from recurconv.networks import Denoiser

Pixels = NDArray[Any]
Sigma = float | Literal["auto"]

GRAY, COLOR = "denoise-gray", "denoise-color"  # the shipped networks that are taken by default
CLEAN = 1.0  # in 1/255: a picture in which less noise is found is left as it is
# From here on noise that is coarse in colour is taken from brightness and colour apart; weaker noise costs less than
# what colour loses at half the size (results/denoising-coarse-noise.json).
COARSE_FROM = 5.0
PROBE = 256  # height and width of what is timed for a budget, in pixels


@dataclass(frozen=True)
class Cleaned:
    """A picture made clean, and how.

    ``pixels`` have the shape and dtype that came in. ``sigma`` is the noise that was found or said, in 1/255;
    ``steps`` the setting, 0 where the picture was left as it is; ``coarse`` whether brightness and colour, at half the
    size, were made clean apart (see ``CoarseColour``).
    """

    pixels: Pixels
    sigma: float
    steps: int
    coarse: bool = False


class Cleaner:
    """Makes pictures clean, one after the other.

    Without a model the networks of this package are taken as a picture needs them: gray pictures in three channels as
    gray ones; colour pictures whose noise is coarse in colour by ``CoarseColour``; dark or overexposed ones, of which
    noise is cut off, channel by channel, since the gray network makes more of the noise that it is told. A model runs
    as it is given.

    Args:
        model: a denoiser, or what ``recurconv.load`` takes; by default "denoise-gray" or "denoise-color".
        sigma: of the noise, 0 to 55 in 1/255 of white; "auto" estimates it, picture by picture.
        steps: a setting on the dial; by default the largest.
        milliseconds: instead of it a budget: the largest setting at which the network takes no longer for a picture.
        tile: largest height and width of a tile, in pixels, without its surroundings.
        device: where a network that is loaded here runs.

    Raises:
        ValueError: ``steps`` and ``milliseconds``; an argument that is out of its range; a model that is no denoiser,
            or was trained for another noise.
        FileNotFoundError: there is no such model.
    """

    def __init__(
        self,
        model: str | Path | Network | None = None,
        *,
        sigma: Sigma = "auto",
        steps: int | None = None,
        milliseconds: float | None = None,
        tile: int = tiles.SIDE,
        device: torch.device | str = "cpu",
    ) -> None:
        if steps is not None and milliseconds is not None:
            raise ValueError(f"steps={steps} and milliseconds={milliseconds:g}; give one of them")
        if milliseconds is not None and not milliseconds > 0:
            raise ValueError(f"milliseconds={milliseconds:g} is no budget; give a number above 0")
        auto = isinstance(sigma, str) and sigma == "auto"
        if not auto and not (isinstance(sigma, Real) and 0 <= sigma <= LARGEST_SIGMA):
            raise ValueError(
                f"sigma={sigma!r}; give a number from 0 to {LARGEST_SIGMA:g}, in 1/255 of white, or 'auto'"
            )
        if tile < 1:
            raise ValueError(f"tile={tile}; give its height and width in pixels, at least 1")
        self._sigma, self._steps, self._milliseconds, self._tile = sigma, steps, milliseconds, tile
        self._device = device
        self._given = None if model is None else _denoiser(model, device)
        self._shipped: dict[str, Denoiser] = {}
        self._both: CoarseColour | None = None
        self._seconds: dict[tuple[object, ...], float] = {}
        if self._given is not None:
            self._given.setting(steps)
            _check_noise(self._given, model, sigma)
        elif steps is not None:  # now: which network is loaded only the pictures tell
            check_steps(steps, _shipped_dial())

    def network(self, channels: int) -> Denoiser:
        """The network for pictures of 1 or 3 channels.

        Raises:
            ValueError: the model takes colour and the picture is gray; or ``steps`` is off the dial.
        """
        if self._given is not None:
            if self._given.image_channels not in (1, channels):
                raise ValueError(
                    f"the model takes {self._given.image_channels} channels and the picture is gray; give a gray model "
                    f"such as {GRAY}"
                )
            return self._given
        name = GRAY if channels == 1 else COLOR
        if name not in self._shipped:
            network = _denoiser(name, self._device)
            network.setting(self._steps)
            self._shipped[name] = network
        return self._shipped[name]

    def clean(
        self, pixels: Pixels, visible: NDArray[np.bool_] | None = None, done: tiles.Done = lambda count, of: None
    ) -> Cleaned:
        """Make one picture clean.

        Args:
            pixels: [H, W] or [H, W, 3]: uint8, uint16, or float with black at 0 and white at 1.
            visible: bool [H, W]; where not, the noise is not estimated.
            done: told after each tile, how many are done and how many there are.

        Raises:
            ValueError: pixels of another shape or dtype, or far from their range; or no setting fits the budget.
            ImportError: the noise is to be estimated, and scikit-image is not installed.
        """
        values.check(pixels)
        if self._given is None and pixels.ndim == 3 and _is_gray(pixels):
            made = self.clean(pixels[..., 0], visible, done)
            return replace(made, pixels=np.repeat(made.pixels[..., None], 3, axis=2))
        chosen = self._given is None and pixels.ndim == 3  # here, from what the colour picture is like
        network: Denoiser | CoarseColour = self.network(1 if pixels.ndim == 2 else 3)
        sigma = estimate_sigma(pixels, visible) if self._sigma == "auto" else float(self._sigma)
        if sigma < CLEAN if self._sigma == "auto" else sigma == 0:
            return Cleaned(values.clipped(pixels), sigma, 0)
        if chosen and is_coarse(pixels, visible):
            own = estimate_sigma(pixels, visible, luma=True) if self._sigma == "auto" else sigma
            if own >= COARSE_FROM:
                network, sigma = self._coarse(), own
        elif chosen and is_cut_off(pixels, visible):
            network = self.network(1)
        steps = network.setting(self._steps) if self._milliseconds is None else self._fitting(network, pixels)
        told = sigma if sigma <= LARGEST_SIGMA else None  # beyond it no network was trained: they judge it better
        result = tiles.denoise_tiles(network, pixels, steps, told, side=self._tile, done=done)
        return Cleaned(result, sigma, steps, isinstance(network, CoarseColour))

    def _coarse(self) -> CoarseColour:
        if self._both is None:
            self._both = CoarseColour(self.network(1), self.network(3))
        return self._both

    def _fitting(self, network: Denoiser | CoarseColour, pixels: Pixels) -> int:
        """The largest setting whose time for the picture fits the budget."""
        assert self._milliseconds is not None
        height, width = pixels.shape[:2]
        planes = 1 if pixels.ndim == 2 or network.image_channels == 3 else 3
        needed: dict[int, float] = {}
        for steps in network.dial:
            cut = tiles.tiles(height, width, self._tile, network.reach(steps), network.alignment)
            seen = planes * sum(tile.seen for tile in cut)
            needed[steps] = 1e3 * seen * self._seconds_per_pixel(network, steps, min(PROBE, height), min(PROBE, width))
        fitting = [steps for steps, milliseconds in needed.items() if milliseconds <= self._milliseconds]
        if not fitting:
            least = network.dial[0]
            raise ValueError(
                f"milliseconds={self._milliseconds:g} fits no setting for {width} x {height} pixels; "
                f"steps={least} takes about {needed[least]:.0f}"
            )
        return max(fitting)

    def _seconds_per_pixel(self, network: Denoiser | CoarseColour, steps: int, height: int, width: int) -> float:
        """Measured once: the better of two calls."""
        key = (id(network), steps, height, width)
        if key not in self._seconds:
            probe = np.full(
                (height, width, network.image_channels)[: 2 + (network.image_channels > 1)], 0.5, np.float32
            )
            times = []
            for _ in range(3):  # the first call sets things up
                start = time.perf_counter()
                tiles.denoise_tiles(network, probe, steps, 25.0, side=PROBE)
                times.append(time.perf_counter() - start)
            self._seconds[key] = min(times[1:]) / (height * width)
        return self._seconds[key]


def _is_gray(pixels: Pixels) -> bool:
    """Whether three channels hold the same."""
    return all(np.array_equal(pixels[..., 0], pixels[..., channel]) for channel in (1, 2))


def _denoiser(model: str | Path | Network, device: torch.device | str) -> Denoiser:
    """A denoiser in eval mode; a network that was given stays as it is and where it is."""
    network = model if isinstance(model, Network) else loading.load(model).to(device)
    if not isinstance(network, Denoiser):
        name = type(model).__name__ if isinstance(model, Network) else model
        raise ValueError(f"{name} is no denoiser; give one such as {GRAY}")
    return copy.deepcopy(network).eval() if network.training else network


def _shipped_dial() -> tuple[int, ...]:
    """The settings that the networks taken by default have."""
    configs = [checkpoint.read_config(loading.find(name)) for name in (GRAY, COLOR)]
    return tuple(sorted({steps for config in configs for steps in as_dial(config["arguments"]["steps"])}))


def _check_noise(network: Denoiser, model: str | Path | Network | None, sigma: Sigma) -> None:
    """Whether a network that takes no noise level was trained for this one, as far as its recipe tells."""
    if network.takes_sigma or sigma in ("auto", 0) or isinstance(model, Network) or model is None:
        return
    recipe = evaluation.stored_recipe(model)
    if recipe is not None and not recipe.sigmas and sigma != recipe.sigma:
        raise ValueError(
            f"sigma={sigma:g}: {model} was trained for sigma {recipe.sigma:g} alone; leave sigma out or give a model "
            f"for every noise, such as {GRAY}"
        )
