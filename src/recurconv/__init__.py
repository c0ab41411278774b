"""One convolutional network, many costs: recurrent convolutions whose number of steps is chosen per call.

    import recurconv as rc

    net = rc.load("r2-cifar10")          # or rc.r2(num_classes=10, steps=(2, 3, 4)), untrained
    logits = net(images, steps=2)        # images: float [B, 3, H, W] in [0, 1]

``import recurconv`` is light: PyTorch is imported with the first name that needs it (PEP 562).
"""

import importlib
from typing import TYPE_CHECKING, Any

from recurconv._version import __version__

if TYPE_CHECKING:
    from recurconv.cell import RecurrentCell, StandardCell
    from recurconv.cleaning import denoise
    from recurconv.costs import cost, steps_for
    from recurconv.denoisers import r3_half
    from recurconv.loading import load
    from recurconv.network import Network
    from recurconv.networks import deeply_supervised_s4, r2, r3, r4, s2, s3, s4
    from recurconv.norms import NormBank, NormGroup
    from recurconv.runtime import Dial
    from recurconv.settling import settle_norms

__all__ = [
    "Dial",
    "Network",
    "NormBank",
    "NormGroup",
    "RecurrentCell",
    "StandardCell",
    "__version__",
    "cost",
    "deeply_supervised_s4",
    "denoise",
    "load",
    "r2",
    "r3",
    "r3_half",
    "r4",
    "s2",
    "s3",
    "s4",
    "settle_norms",
    "steps_for",
]

_HOME = {
    "cell": ("RecurrentCell", "StandardCell"),
    "cleaning": ("denoise",),
    "costs": ("cost", "steps_for"),
    "denoisers": ("r3_half",),
    "loading": ("load",),
    "network": ("Network",),
    "networks": ("deeply_supervised_s4", "r2", "r3", "r4", "s2", "s3", "s4"),
    "norms": ("NormBank", "NormGroup"),
    "runtime": ("Dial",),
    "settling": ("settle_norms",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"recurconv.{module}"), name)
            return value
    raise AttributeError(f"module 'recurconv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
