"""Small networks for the tests, whose tensors all differ, so that a wrong one shows."""

import re

import torch

import recurconv as rc

NARROW = {"width": 1 / 16}
SMALL = {
    "r2": NARROW,
    "s2": NARROW,
    "r3": {"channels": 4},
    "s3": {"channels": 4},
    "r3_half": {"channels": 4},
    "r4": NARROW,
    "s4": NARROW,
    "deeply_supervised_s4": NARROW,
}
SHAPE = {"r2": (3, 3, 16, 16), "r3": (3, 1, 6, 6), "r4": (3, 3, 16, 16)}
DIAL = {"r2": (2, 3, 4), "r3": (1, 2, 3, 4), "r4": (1, 2, 3)}


def images(kind, seed=0, dtype=torch.float64):
    return torch.rand(SHAPE[kind], generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make(kind, **arguments):
    """A small network in float64 whose norm layers all differ, in parameters and in statistics."""
    net = getattr(rc, kind)(**{**SMALL[kind], **arguments}).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if re.search(r"\b(bank|norms)\.", name) and tensor.is_floating_point():
                spread = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(spread + 0.5 if name.endswith(("weight", "var")) else spread * 0.4 - 0.2)
    return net


def on_meta(build, *args, **kwargs):
    with torch.device("meta"):
        return build(*args, **kwargs)


def small(**arguments):
    return rc.r2(**{"width": 1 / 16, "steps": (1, 2), **arguments})


def different(net):
    """Every tensor another value, statistics too."""
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape) * 0.5 + 0.5)
    return net


def same(a, b):
    return list(a) == list(b) and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)
