"""Prediction: what a classifier says of any picture."""

from dataclasses import dataclass
from pathlib import Path

import torch

from recurconv.data.folder import read_fitted
from recurconv.network import Network


@dataclass(frozen=True)
class Prediction:
    """The most probable class of a picture, with its probability in [0, 1]."""

    picture: str
    label: str
    probability: float
    steps: int


def predict(network: Network, picture: Path, *, steps: int | None = None, size: int = 32) -> Prediction:
    """Classify one picture.

    Args:
        network: a classifier, in eval mode.
        picture: any picture; its shorter side is resized to ``size`` and the middle taken, as in training.
        steps: a setting on the dial, by default the largest.
        size: in pixels.

    Raises:
        FileNotFoundError: no such picture.
        ValueError: it cannot be read, ``steps`` is off the dial, or the network is no classifier.
    """
    setting = network.setting(steps)
    if network.image_channels != 3:
        raise ValueError(f"this network takes {network.image_channels} channel and gives no label; take a classifier")
    image = read_fitted(picture, size).float().div(255).unsqueeze(0)
    with torch.inference_mode():
        probabilities = network(image, setting).softmax(1)[0]
    best = int(probabilities.argmax())
    names = network.class_names
    return Prediction(str(picture), names[best] if names else f"class {best}", float(probabilities[best]), setting)
