"""Measured latency, and the setting that fits a budget."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from formulas import Thrice, r2_macs
from recurconv.costs import latency, steps_for
from recurconv.networks import r2, r3

# --- latency --------------------------------------------------------------------------------------------------------


class Recorder(nn.Module):
    """Sleeps ``unit * steps`` seconds and notes what it was called with."""

    dial = (1, 100)
    image_channels = 1

    def __init__(self, unit: float = 0.0) -> None:
        super().__init__()
        self.unit = unit
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, images: torch.Tensor, steps: int) -> torch.Tensor:
        how = (tuple(images.shape), images.dtype, torch.get_num_threads(), torch.is_inference_mode_enabled())
        self.calls.append((steps, self.training, *how))
        time.sleep(self.unit * steps)
        return images * self.weight


def test_latency_rows_say_how_they_were_measured() -> None:
    rows = latency(r2(width=0.125), (3, 16, 16), batch=3, threads=1, seconds=0.02)
    assert [row.steps for row in rows] == [2, 3, 4]
    for row in rows:
        assert (row.batch, row.threads) == (3, 1)
        assert row.milliseconds > 0 <= row.spread
        assert row.runs >= 3


def test_latency_calls_in_eval_and_inference_mode_on_the_threads_and_images_asked_for() -> None:
    net, threads = Recorder(), torch.get_num_threads()
    latency(net, (1, 5, 7), batch=2, threads=threads + 1, seconds=0.001)
    assert {call[1:] for call in net.calls} == {(False, (2, 1, 5, 7), torch.float64, threads + 1, True)}
    assert torch.get_num_threads() == threads


def test_latency_measures_the_settings_in_turn() -> None:
    net = Recorder(1e-5)
    latency(net, seconds=0.01)
    order = [call[0] for call in net.calls]
    changes = sum(before != after for before, after in pairwise(order))
    assert changes >= 2 * 3  # warm-up, then at least three rounds


def test_latency_of_a_network_that_sleeps() -> None:
    short, long = latency(Recorder(5e-4), seconds=0.01)
    assert long.milliseconds >= 50  # 100 x 0.5 ms: sleep never returns early
    assert short.milliseconds < long.milliseconds


def test_latency_of_a_network_without_a_dial() -> None:
    (row,) = latency(Thrice(), (4, 8, 8), seconds=0.001)
    assert row.steps is None
    assert row.threads == torch.get_num_threads()


def test_latency_of_compiled_bodies_measures_what_was_compiled() -> None:
    compiled = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal compiled
        compiled += 1
        return graph

    torch._dynamo.reset()
    net = r3(steps=(1, 2), channels=4)
    net.compile_bodies(backend=backend, dynamic=False)
    latency(net, (1, 8, 8), seconds=0.001)
    assert compiled > 0


@pytest.mark.parametrize(
    "options",
    [{"batch": 0}, {"threads": 0}, {"seconds": 0.0}, {"seconds": -1.0}, {"seconds": float("nan")}],
)
def test_latency_refuses_what_cannot_be_measured(options: dict[str, Any]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name}={value}"):
        latency(Recorder(), **options)


# --- steps_for ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_a_budget_of_just_what_a_setting_costs(steps: int) -> None:
    net, macs = r2(), r2_macs(steps)
    assert steps_for(net, macs=macs) == steps
    assert steps_for(net, macs=macs + 1) == steps
    if steps > 2:
        assert steps_for(net, macs=macs - 1) == steps - 1


def test_the_smallest_cost_is_named_when_nothing_fits() -> None:
    with pytest.raises(ValueError, match=rf"macs={r2_macs(2) - 1} fits no setting; .* {r2_macs(2)} macs, at steps=2"):
        steps_for(r2(), macs=r2_macs(2) - 1)
    with pytest.raises(ValueError, match=r"milliseconds=1e-09 fits no setting; .* milliseconds, at steps=1"):
        steps_for(Recorder(1e-4), milliseconds=1e-9, seconds=0.001)


def test_the_budget_is_for_the_image_shape() -> None:
    assert steps_for(r2(), macs=r2_macs(4), image_shape=(3, 16, 16)) == 4
    assert steps_for(r2(), macs=r2_macs(4, side=16), image_shape=(3, 16, 16)) == 4
    assert steps_for(r2(), macs=r2_macs(4, side=16) - 1, image_shape=(3, 16, 16)) == 3


def test_a_budget_of_milliseconds() -> None:
    net = Recorder(5e-4)  # at least 0.5 and 50 ms a call
    assert steps_for(net, milliseconds=49, seconds=0.001) == 1
    assert steps_for(net, milliseconds=60_000, seconds=0.001) == 100


def test_an_endless_budget_buys_the_largest_setting() -> None:
    assert steps_for(r2(width=0.125), macs=float("inf")) == 4


@pytest.mark.parametrize("budgets", [{}, {"macs": 1e9, "milliseconds": 5.0}])
def test_exactly_one_budget(budgets: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give exactly one budget, macs or milliseconds; got"):
        steps_for(r2(width=0.125), **budgets)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["macs", "milliseconds"])
@pytest.mark.parametrize("budget", [0, -3.5, float("nan"), float("-inf")])
def test_budgets_that_are_none(name: str, budget: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={budget} is no budget; give a number above 0"):
        steps_for(r2(width=0.125), **{name: budget})  # type: ignore[arg-type]


def test_a_network_without_a_dial_has_no_setting_to_choose() -> None:
    with pytest.raises(ValueError, match="Thrice has no dial"):
        steps_for(Thrice(), macs=1e9, image_shape=(4, 8, 8))
