"""Prediction: what a classifier says of any picture."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from recurconv.data.folder import read_fitted
from recurconv.network import IMAGE_SIZE, Network
from recurconv.networks import Denoiser


@dataclass(frozen=True)
class Prediction:
    """The most probable class of a picture at one setting.

    ``probability`` is that of ``label``, in [0, 1]; ``probabilities`` are those of all classes, in the order of the
    logits, and sum to 1.
    """

    picture: str
    steps: int
    label: str
    probability: float
    probabilities: dict[str, float]


def check_classifier(network: Network, size: int) -> None:
    """Complain of what no picture could mend.

    Args:
        network: any network.
        size: height and width of the images that it is to get, in pixels.

    Raises:
        ValueError: the network is no classifier of colour images, or ``size`` is too small for it.
    """
    if isinstance(network, Denoiser):
        raise ValueError("this network is a denoiser and gives no label; take a classifier, such as r2-cifar10")
    if network.image_channels != 3:
        raise ValueError(f"this network takes images of {network.image_channels} channels; pictures are read as colour")
    if size < network.smallest_side:
        raise ValueError(f"size={size}: the smallest images this network takes are {network.smallest_side} pixels wide")


def predict(network: Network, picture: Path, *, steps: int | None = None, size: int | None = None) -> Prediction:
    """Classify one picture.

    Args:
        network: a classifier, in eval mode, on the CPU.
        picture: any picture; its shorter side is resized to ``size`` and the middle taken, as in training.
        steps: a setting on the dial, by default the largest.
        size: in pixels; by default as in training (``network.image_size``), or 32.

    Raises:
        FileNotFoundError: no such picture.
        ValueError: it cannot be read, ``steps`` is off the dial, the output is not finite, or as in
            ``check_classifier``.
    """
    setting = network.setting(steps)
    size = size or network.image_size or IMAGE_SIZE
    check_classifier(network, size)
    image = read_fitted(picture, size).float().div(255).unsqueeze(0).to(network.normalize.mean.dtype)
    with torch.inference_mode():
        probabilities = network(image, setting)[0].double().softmax(0).tolist()
    if not all(map(math.isfinite, probabilities)):
        raise ValueError(f"{picture}: the network's output is not finite at steps={setting}; its weights are broken")
    names = network.class_names or [f"class {index}" for index in range(len(probabilities))]
    by_name = dict(zip(names, probabilities, strict=True))
    label = max(by_name, key=by_name.__getitem__)
    return Prediction(str(picture), setting, label, by_name[label], by_name)
