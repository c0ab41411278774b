"""The recurrent cell: a body applied several times, plus its norm bank. And its untied twin."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from recurconv.norms import NormBank, NormGroup, check_apart, check_norm, norm_layers
from recurconv.usage import NormUsage


def as_dial(steps: int | Sequence[int], name: str = "steps") -> tuple[int, ...]:
    """The dial that ``steps`` names: one count, or several, ascending. ``name`` is that of the argument, for messages.

    Raises:
        ValueError: no count, a count below 1, not a whole number, or the same one twice.
    """
    given: Any = steps
    counts = [_whole(count) for count in (given if is_several(given) else [given])]
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise ValueError(
            f"{name}={_short(steps)} is not a dial; give one count of at least 1, or several different ones"
        )
    return tuple(sorted(counts))


def default_norm(norm: NormUsage | None, dial: tuple[int, ...]) -> NormUsage:
    """``norm``, or where it is None "independent" for one count and "double" for a dial.

    Raises:
        ValueError: unknown usage, or "double" with one count, where it would be "independent" under other names.
    """
    if norm is None:
        return "independent" if len(dial) == 1 else "double"
    check_norm(norm)
    if norm == "double" and len(dial) == 1:
        raise ValueError(f'norm="double" needs a dial of two or more counts, got steps={dial[0]}; use "independent"')
    return norm


def check_steps(steps: Any, dial: tuple[int, ...]) -> int:
    """``steps`` as a plain int; ValueError unless it is on the dial."""
    count = _whole(steps)
    if count not in dial:
        raise ValueError(
            f"steps={_short(steps)} is not on this network's dial {dial}; choose one of these or build it with "
            f"{_short(steps)} on the dial"
        )
    return count


def is_several(value: Any) -> bool:
    """Whether there are several numbers; a tensor or array without dimensions is one."""
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) > 0


def _whole(value: Any) -> int:
    """A whole number, of NumPy or PyTorch, too, as an int; 0, which is no count, for anything else."""
    if type(value) is int:
        return value
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def _short(value: Any) -> str:
    """``repr``, of no more than a line."""
    return f"a {type(value).__name__}" if len(text := repr(value)) > 60 or "\n" in text else text


class RecurrentCell(nn.Module):
    """A body applied ``steps`` times: ``x <- body(x, b_t)``.

    Args:
        body: the module of one step, ``body(x, norms) -> x`` with the same shape in and out; ``norms[i]`` is its i-th
            norm layer. It says how many it needs, and for how many channels, in ``body.norm_channels``.
        steps: the dial: the step counts that may be asked for.
        norm: "none", "shared", "independent" or "double"; by default "double" for a dial, "independent" for one count.
            With "none" the norm layers are identities; give the body's convolutions a bias then.
        upstream: the dial of the recurrent cell before this one; None for the first cell, whose rows are its own
            step counts (the paper's B_s under a unified step count).
        norm_layer: makes a norm layer from a channel count, e.g. ``lambda c: nn.GroupNorm(8, c)``.
        halfway: applied once after step ceil(steps / 2), e.g. the pooling of R_2.
        unified: every cell of the network takes the same count, so that only groups with step < row are needed. False
            allocates the rectangle for per-cell counts.

    Raises:
        TypeError: the body does not say its ``norm_channels``, or ``norm_layer`` does not make layers.
        ValueError: bad ``steps``, ``norm`` or ``upstream``, the same norm layer twice, or a unified dial that is not
            the upstream's.

    Source: sections 3.1, 4.1 and algorithm 1 of the paper.
    """

    def __init__(
        self,
        body: nn.Module,
        steps: int | Sequence[int],
        norm: NormUsage | None = None,
        upstream: int | Sequence[int] | None = None,
        *,
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d,
        halfway: nn.Module | None = None,
        unified: bool = True,
    ) -> None:
        super().__init__()
        self.dial = as_dial(steps)
        rows = self.dial if upstream is None else as_dial(upstream, "upstream")
        if unified and rows != self.dial:
            raise ValueError(
                f"a unified dial is the same in every cell, got steps={self.dial} behind upstream={rows}; "
                "build with unified=False for counts per cell"
            )
        usage = default_norm(norm, tuple(sorted({*self.dial, *rows})))
        self.unified = unified
        self.own_rows = unified or upstream is None  # the row is the cell's own step count
        extents = {row: row if self.own_rows else self.dial[-1] for row in rows}
        self.body = body
        self.bank = NormBank(norm_layers(norm_channels(body), norm_layer, usage), usage, extents)
        self.halfway = halfway

    def forward(self, x: torch.Tensor, steps: int | None = None, row: int | None = None) -> torch.Tensor:
        """Unroll the body.

        Args:
            x: features, any shape that the body takes.
            steps: how many steps; by default the largest on the dial.
            row: the step count of the upstream cell; by default ``steps`` (the unified dial). A cell with counts of its
                own (``unified=False``) behind another must be told it, where norm groups differ by it.

        Returns:
            Features of the shape of ``x``, but for what ``halfway`` does.

        Raises:
            ValueError: ``steps`` is not on the dial, the bank has no such row, or the body changes the shape.
        """
        steps = check_steps(self.dial[-1] if steps is None else steps, self.dial)
        row = self._row(steps, row)
        for step in range(steps):
            x = _apply(self.body, x, self.bank[row, step])
            if self.halfway is not None and step + 1 == half(steps):
                x = self.halfway(x)
        return x

    def _row(self, steps: int, row: int | None) -> int:
        """The row of the bank, checked."""
        rows = tuple(self.bank.extents)
        if row is None and not self.own_rows:
            if self.bank.norm == "double" and len(rows) > 1:
                raise ValueError(
                    f"give row, the step count of the cell before this one; its norm groups are for {rows}"
                )
            row = rows[0]
        found = steps if row is None else _whole(row)
        if found not in rows or (self.own_rows and found != steps):
            hint = ", each for its own step count" if self.own_rows else ""
            hint += "; build with unified=False for counts per cell" if self.unified else ""
            raise ValueError(f"no norm groups for steps={steps} behind row={_short(row)}: the rows are {rows}{hint}")
        return found


def _apply(body: nn.Module, x: torch.Tensor, norms: nn.Module) -> torch.Tensor:
    """One step."""
    y: torch.Tensor = body(x, norms)
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and y.shape != x.shape:
        raise ValueError(
            f"{type(body).__name__} made {list(y.shape)} of {list(x.shape)}; a body keeps the shape, to be applied "
            "again: change it before or after the cell, or by halfway"
        )
    return y


class StandardCell(nn.Module):
    """The untied twin of a recurrent cell: a body and a norm group for each step, the same graph.

    Args:
        body: makes a body, each time anew.
        steps: the number of steps; an untied cell has one setting.
        norm: "none", or "independent": one norm group per step.
        norm_layer: makes a norm layer from a channel count.
        halfway: applied once after step ceil(steps / 2).

    Raises:
        TypeError: the body does not say its ``norm_channels``, or ``body`` does not make one.
        ValueError: bad ``norm``, not one step count, or the same body twice.

    Source: section 5, "S_2^n", of the paper.
    """

    def __init__(
        self,
        body: Callable[[], nn.Module],
        steps: int,
        norm: NormUsage = "independent",
        *,
        norm_layer: Callable[[int], nn.Module] = nn.BatchNorm2d,
        halfway: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_norm(norm)
        if norm not in ("none", "independent"):
            raise ValueError(
                f'norm="{norm}": an untied cell has a norm group for each step; take "independent" or "none"'
            )
        self.dial = as_dial(steps)
        if len(self.dial) > 1:
            raise ValueError(f"steps={steps!r}: an untied network has one step count; give one, or take its R twin")
        if isinstance(body, nn.Module):
            raise TypeError(f"body is a {type(body).__name__}; give what makes one, each time anew, e.g. its class")
        self.bodies = nn.ModuleList(body() for _ in range(self.dial[0]))
        if len(set(map(id, self.bodies))) < len(self.bodies):
            raise ValueError("body gave the same module twice; it must make one anew for each step")
        groups = [NormGroup(norm_layers(norm_channels(body), norm_layer, norm)()) for body in self.bodies]
        check_apart(groups)
        self.norms = nn.ModuleList(groups)
        self.halfway = halfway

    def forward(self, x: torch.Tensor, steps: int | None = None, row: int | None = None) -> torch.Tensor:
        """Apply each body once. ``steps`` must be the cell's count; ``row`` is taken for likeness and not used."""
        steps = check_steps(self.dial[-1] if steps is None else steps, self.dial)
        for step, (body, norms) in enumerate(zip(self.bodies, self.norms, strict=True)):
            x = _apply(body, x, norms)
            if self.halfway is not None and step + 1 == half(steps):
                x = self.halfway(x)
        return x


def half(steps: int) -> int:
    """The number of steps before the halfway module: ceil(steps / 2)."""
    return (steps + 1) // 2


def norm_channels(body: nn.Module) -> tuple[int, ...]:
    """What the body says of the norm layers that it needs: one channel count each; () for none.

    Raises:
        TypeError: it says nothing, or something else.
    """
    if not isinstance(body, nn.Module):
        raise TypeError(f"body is {_short(body)}; give a module, whose forward(x, norms) is one step")
    channels = getattr(body, "norm_channels", None)
    if not isinstance(channels, tuple | list) or not all(_whole(count) > 0 for count in channels):
        raise TypeError(
            f"{type(body).__name__}.norm_channels is {channels!r}; set it to the channel count of each norm layer that "
            "its forward(x, norms) uses, e.g. norm_channels = (64, 64)"
        )
    return tuple(map(int, channels))
