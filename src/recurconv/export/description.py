"""What an exported file says of itself: its metadata, all of them strings."""

import json

from recurconv._version import __version__
from recurconv.costs import cost
from recurconv.network import Network
from recurconv.networks import Denoiser

FORMAT = "1"  # of these entries; the runtime reads it first
SIDE = 32  # of the image whose MACs are told


def describe(
    network: Network, *, steps: int | None = None, precision: str = "fp32", data_file: str = "", data_sha256: str = ""
) -> dict[str, str]:
    """The metadata of a model file.

    MACs are of one 3 x 32 x 32 image (or of the smallest side that the network takes) for a classifier, and of one
    pixel for a denoiser.

    Args:
        network: what is exported.
        steps: the setting of a static model; None for one with the dial.
        precision: "fp32" or "int8".
        data_file: name of the file beside the model that holds its weights; "" where the model does.
        data_sha256: of that file.
    """
    denoises = isinstance(network, Denoiser)
    side = max(SIDE, network.smallest_side)
    pixels = side * side if denoises else 1
    spent = {row.steps: row.macs / pixels for row in cost(network, (network.image_channels, side, side))}
    settings = network.dial if steps is None else (steps,)
    entries = {
        "format": FORMAT,
        "version": __version__,
        "kind": "denoiser" if denoises else "classifier",
        "dial": json.dumps(network.dial),
        "macs": json.dumps({str(setting): spent[setting] for setting in settings}),
        "macs_per": "pixel" if denoises else "image",
        "image_channels": str(network.image_channels),
        "class_names": json.dumps(network.class_names),
        "image_size": json.dumps(network.image_size),
        "smallest_side": str(network.smallest_side),
        "steps": "dial" if steps is None else str(steps),
        "precision": precision,
        "data": data_file,
        "data_sha256": data_sha256,
    }
    return {f"recurconv.{name}": value for name, value in entries.items()}
