"""Norm groups and norm banks: which norm layers an application of a body uses.

A recurrent cell shares its convolutions over unrolling steps; its norm layers need not be shared. Section 3.1 of the
paper compares no norm, one shared group and one independent group per step; section 4.1 adds "double independent"
groups, addressed by the step and by the step count of the upstream cell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from torch import nn

from recurconv.usage import NormUsage


class NormGroup(nn.ModuleList):
    """The norm layers that one application of a body uses (the paper's b_t): ``norms[0](x)``, ``norms[1](x)``, ..."""


class NormBank(nn.Module):
    """All the norm groups of a cell, addressed by (row, step).

    A row is the step count of the upstream recurrent cell; the first cell has no upstream, its rows are its own step
    counts. Steps count from 0. Groups are ordinary submodules: ``row3_step0``, ``row3_step1``, ... under "double",
    ``step0``, ``step1``, ... under "independent", one group ``shared`` or ``none`` otherwise.

    Args:
        group: makes the norm layers of one group, each time anew.
        norm: "none", "shared", "independent" or "double".
        extents: for each row, the largest number of steps that is ever taken in it. Groups are allocated for these
            addresses and no others; under "independent" for the steps below the largest extent.

    Raises:
        ValueError: ``norm`` is not one of the four, or ``group`` gives the same layer twice.

    Source: sections 3.1 and 4.1, equation (6), of Zhang & Jung.
    """

    def __init__(self, group: Callable[[], Iterable[nn.Module]], norm: NormUsage, extents: Mapping[int, int]) -> None:
        super().__init__()
        check_norm(norm)
        self.norm = norm
        self.extents = dict(extents)
        names = [self._name(row, step) for row, count in self.extents.items() for step in range(count)]
        # Under "shared" and "independent" several addresses have one name.
        groups = {name: NormGroup(group()) for name in dict.fromkeys(names)}
        check_apart(groups.values())
        for name, layers in groups.items():
            self.add_module(name, NormGroup(nn.Identity() for _ in layers) if norm == "none" else layers)

    def _name(self, row: int, step: int) -> str:
        """The address rule: the name of the group for this row and step."""
        if self.norm == "double":
            return f"row{row}_step{step}"
        if self.norm == "independent":
            return f"step{step}"
        return self.norm

    def __getitem__(self, address: tuple[int, int]) -> nn.Module:
        """The norm group for (row, step).

        Raises:
            KeyError: there is no group at this address.
        """
        row, step = address
        if not 0 <= step < self.extents.get(row, 0):
            raise KeyError(
                f"no norm group for row={row}, step={step}; this bank has steps below {self.extents} (row: count)"
            )
        return self._modules[self._name(row, step)]  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """What ``print(network)`` shows of the bank."""
        return f"norm={self.norm!r}, extents={self.extents}"


def check_norm(norm: str) -> None:
    """Raise ValueError unless ``norm`` is one of the four usages."""
    if norm not in get_args(NormUsage):
        raise ValueError(f"norm={norm!r} is not a norm usage; choose one of {', '.join(get_args(NormUsage))}")


def check_apart(groups: Iterable[NormGroup]) -> None:
    """Raise ValueError where one norm layer stands in two places: what it learns would be shared unasked."""
    layers = [layer for group in groups for layer in group]
    if len(set(map(id, layers))) < len(layers):
        raise ValueError("norm_layer gave the same layer twice; it must make one anew each time, e.g. nn.BatchNorm2d")


def norm_layers(
    channels: Sequence[int], layer: Callable[[int], nn.Module], norm: NormUsage
) -> Callable[[], list[nn.Module]]:
    """A maker of groups: one ``layer(c)`` for each channel count, or identities where ``norm`` is "none".

    Raises:
        TypeError: ``layer`` does not make layers.
    """
    if norm == "none":
        return lambda: [nn.Identity() for _ in channels]
    if isinstance(layer, nn.Module) or not callable(layer):
        raise TypeError(f"norm_layer={layer!r}: give what makes a layer from a channel count, e.g. nn.BatchNorm2d")
    return lambda: [layer(c) for c in channels]
