"""Costs against formulas in plain Python, against counting hooks, and against the numbers that the paper prints."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from formulas import Thrice, r2_macs, r3_macs, r4_macs
from recurconv.cell import RecurrentCell
from recurconv.costs import Cost, cost, latency
from recurconv.networks import ResidualBody, deeply_supervised_s4, r2, r3, r4, s2, s3, s4


def unfilled(build: Callable[..., Any], **arguments: Any) -> Any:
    """A network without values: quick to build, and to count nothing else is needed."""
    with torch.device("meta"):
        return build(**arguments)


def column(rows: Sequence[Cost], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]


# --- the design's and the paper's numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "parameters", "macs"),
    [(1, 1_258_954, 152.8), (2, 1_260_234, 190.5), (3, 1_261_514, 341.5), (4, 1_262_794, 379.3)],
)
def test_r2_with_one_count(steps: int, parameters: int, macs: float) -> None:
    (row,) = cost(r2(steps=steps))
    assert row == Cost(steps, parameters, parameters, r2_macs(steps), 4 * steps + 2)
    assert round(row.macs / 1e6, 1) == macs


def test_r2_with_a_dial_costs_what_each_count_costs_alone() -> None:
    rows = cost(r2(steps=(1, 2, 3, 4)))
    alone = [cost(unfilled(r2, steps=steps))[0] for steps in (1, 2, 3, 4)]
    for name in ("steps", "parameters", "macs", "depth"):
        assert column(rows, name) == column(alone, name)
    assert set(column(rows, "parameters_total")) == {1_258_954 + (2 + 3 + 4) * 1280}


@pytest.mark.parametrize(
    ("steps", "width", "parameters"),
    [(2, 1.0, 2_513_610), (3, 1.0, 3_768_266), (4, 1.0, 5_022_922), (4, 0.5, 1_258_090)],
)
def test_s2(steps: int, width: float, parameters: int) -> None:
    expected = Cost(steps, parameters, parameters, r2_macs(steps, width=width), 4 * steps + 2)
    assert cost(unfilled(s2, steps=steps, width=width)) == [expected]


@pytest.mark.parametrize(("steps", "parameters"), [(1, 11_217_316), (2, 17_488_036), (3, 23_758_756)])
def test_s4(steps: int, parameters: int) -> None:
    assert cost(unfilled(s4, steps=steps)) == [Cost(steps, parameters, parameters, r4_macs(steps), 8 * steps + 10)]


def test_r4() -> None:
    rows = cost(unfilled(r4))
    assert column(rows, "macs") == [r4_macs(steps) for steps in (1, 2, 3)]
    assert column(rows, "depth") == [18, 26, 34]
    assert column(rows, "parameters_total") == [11_241_892] * 3


def test_deeply_supervised_s4_runs_and_needs_only_the_first_groups() -> None:
    net = unfilled(deeply_supervised_s4)
    rows = cost(net)
    assert column(rows, "steps") == [2, 3, 4]
    assert column(rows, "macs") == [r4_macs(3, groups=groups) for groups in (2, 3, 4)]
    assert column(rows, "depth") == [18, 26, 34]
    assert rows[-1].parameters == 23_758_756  # that of S_4^3: the other two classifiers are not in use
    assert rows[-1].parameters_total == 23_758_756 + (128 + 256) * 100 + 200


@pytest.mark.parametrize("build", [lambda: r3(steps=(4,)), lambda: s3(steps=4)])
def test_denoisers_cost_the_same_tied_or_not(build: Callable[[], nn.Module]) -> None:
    (row,) = cost(build(), (1, 48, 40))
    assert (row.steps, row.depth) == (4, 14)
    assert row.macs == r3_macs(4, side=1) * 48 * 40
    assert round(row.macs / (48 * 40) / 1e6, 2) == 0.44


@pytest.mark.parametrize("side", [8, 30, 33, 224])
def test_macs_at_other_sizes(side: int) -> None:
    assert column(cost(r2(), (3, side, side)), "macs") == [r2_macs(steps, side) for steps in (2, 3, 4)]
    assert cost(unfilled(r4), (3, side, side))[0].macs == r4_macs(1, side)


def test_sizes_that_would_not_fit_in_memory() -> None:
    assert cost(r2(), (3, 65536, 65536))[0].macs == r2_macs(2, 65536)


# --- what counts, and how often -------------------------------------------------------------------------------------


@contextmanager
def counting_hooks(net: nn.Module) -> Iterator[list[int]]:
    """Another way to count: each convolution and linear layer says at each call what it multiplied."""
    counts: list[int] = []

    def count(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        assert isinstance(module, nn.Conv2d | nn.Linear)
        counts.append(output.numel() * module.weight[0].numel())

    handles = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    yield counts
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("build", [r2, r4, s2, deeply_supervised_s4])
def test_macs_and_depth_against_counting_hooks(build: Callable[..., Any]) -> None:
    net = build(num_classes=7, width=0.125).eval()
    for row in cost(net, (3, 20, 28)):
        with counting_hooks(net) as counts, torch.inference_mode():
            net(torch.zeros(1, 3, 20, 28), steps=row.steps)
        assert row.macs == sum(counts)
        shortcuts = row.steps - 1 if build is deeply_supervised_s4 else 3 * (build is r4)
        assert row.depth == len(counts) - shortcuts


def test_a_module_that_runs_three_times() -> None:
    (row,) = cost(Thrice(), (4, 10, 12))
    once = 4 * 2 * 9  # groups: each output channel sees two inputs
    assert row == Cost(steps=None, parameters=once + 4, parameters_total=once + 4, macs=3 * once * 120, depth=3)


def test_parameters_in_use_are_all_but_the_groups_of_other_rows() -> None:
    net = r2(steps=(2, 3, 4), norm="double")
    for row in cost(net):
        unused = [p for name, p in net.named_parameters() if "row" in name and f"row{row.steps}_" not in name]
        assert row.parameters == row.parameters_total - sum(p.numel() for p in unused) < row.parameters_total


def test_parameters_in_use_are_those_that_backward_reaches() -> None:
    net = deeply_supervised_s4(width=0.125)
    for row in cost(net):
        net.zero_grad()
        net(torch.rand(2, 3, 32, 32), steps=row.steps).sum().backward()
        assert row.parameters == sum(p.numel() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize(("norm", "unused"), [("none", 0), ("shared", 0), ("independent", 2)])
def test_parameters_in_use_under_other_norms(norm: Any, unused: int) -> None:
    row = cost(r2(steps=(2, 4), norm=norm))[0]
    assert row.parameters_total - row.parameters == unused * 1280


def test_frozen_parameters_are_in_use_too() -> None:
    assert cost(r2().requires_grad_(False)) == cost(r2())


def test_tied_weights_count_once() -> None:
    net = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    net[1].weight = net[0].weight
    assert cost(net, (6,)) == [Cost(None, 36, 36, 72, 2)]


class Branches(nn.Module):
    """A user's network: its own dial, a shortcut, an input changed in place, a constant, several outputs."""

    dial = (1, 5)

    def __init__(self) -> None:
        super().__init__()
        self.long, self.short = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1)
        self.unused = nn.Linear(3, 3)

    def forward(self, images: torch.Tensor, steps: int) -> dict[str, Any]:
        x = images.mul_(2) + torch.ones(2, 1, 1)
        short = self.short(x)
        for _ in range(steps):
            x = self.long(x)
        return {"sum": x + short, "parts": [short, steps]}


def test_a_users_network() -> None:
    assert cost(Branches(), (2, 3, 5)) == [Cost(1, 12, 24, 2 * 60, 1), Cost(5, 12, 24, 6 * 60, 5)]


def test_attention_has_macs_but_its_products_of_features_are_no_layers() -> None:
    dim, tokens = 16, 9
    (row,) = cost(nn.TransformerEncoderLayer(dim, 2, 32, batch_first=True), (tokens, dim))
    weights = 4 * dim * dim + 2 * dim * 32
    assert row.macs == tokens * weights + 2 * tokens * tokens * dim
    assert row.depth == 4


class OwnCell(nn.Module):
    """A user's network around a cell with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        group_norm: Callable[[int], nn.Module] = lambda c: nn.GroupNorm(2, c)  # noqa: E731
        self.cell = RecurrentCell(ResidualBody(4), steps=(1, 3), norm="double", norm_layer=group_norm)
        self.dial = self.cell.dial

    def forward(self, images: torch.Tensor, steps: int) -> torch.Tensor:
        return F.relu(self.cell(images, steps))


def test_a_users_cell() -> None:
    kernel, group = 4 * 4 * 9, 4 * 4
    assert cost(OwnCell(), (4, 5, 5)) == [
        Cost(1, 2 * kernel + group, 2 * kernel + 4 * group, 2 * kernel * 25, 2),
        Cost(3, 2 * kernel + 3 * group, 2 * kernel + 4 * group, 6 * kernel * 25, 6),
    ]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrap", [torch.optim.swa_utils.AveragedModel, nn.DataParallel, torch.compile])
def test_what_wraps_a_network_costs_what_it_does(wrap: Callable[[nn.Module], nn.Module]) -> None:
    net = r2(width=0.25)
    assert cost(wrap(net)) == cost(net)
    assert [row.steps for row in latency(wrap(net), (3, 8, 8), seconds=0.001)] == [2, 3, 4]


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor


class Answering(nn.Module):
    def __init__(self, answer: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.answer = answer

    def forward(self, images: torch.Tensor) -> object:
        return self.answer(self.conv(images))


def test_outputs_that_are_dataclasses_are_followed_and_what_cannot_be_followed_is_refused() -> None:
    (row,) = cost(Answering(Answer), (3, 8, 8))
    assert row == Cost(None, 112, 112, 64 * 27 * 4, 1)
    for answer in (lambda x: x.detach(), lambda x: set()):
        with pytest.raises(ValueError, match="cannot be followed back to its parameters"):
            cost(Answering(answer), (3, 8, 8))


def test_compiled_networks_and_bodies_are_counted_without_compiling() -> None:
    net = r2(width=0.125)
    expected = cost(net)
    torch._dynamo.reset()
    net.compile_bodies(backend=refuse_to_compile)
    assert cost(net) == expected
    assert cost(torch.compile(net, backend=refuse_to_compile)) == expected  # type: ignore[arg-type]


def refuse_to_compile(*_: Any) -> Any:
    raise AssertionError("compiled")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode: Callable[[], Any]) -> None:
    with mode():
        assert cost(r2(width=0.125)) == cost(r2(width=0.125))
        rows = cost(r2(width=0.125))
    assert rows == cost(r2(width=0.125))


def test_half_precision_and_memory_format_cost_the_same() -> None:
    assert cost(r2().to(torch.bfloat16)) == cost(r2().to(memory_format=torch.channels_last)) == cost(r2())


# --- the network stays as it was ------------------------------------------------------------------------------------


def portrait(net: nn.Module) -> list[Any]:
    """All that a measurement might change."""
    parameters = {n: (id(p), p.device, p.requires_grad, p.grad) for n, p in net.named_parameters()}
    modes = {name: module.training for name, module in net.named_modules()}
    return [parameters, modes, torch.get_rng_state().tolist(), torch.get_num_threads()]


@pytest.mark.parametrize(
    "measure",
    [
        cost,
        lambda net: latency(net, (3, 8, 8), threads=1, seconds=0.001),
        lambda net: latency(net, seconds=0.001, device="meta"),  # a device that every machine has
    ],
)
def test_the_network_is_unchanged(measure: Callable[[nn.Module], Any]) -> None:
    net = r2(width=0.125).train()
    net(torch.rand(2, 3, 32, 32)).sum().backward()
    net.cell1.eval()
    net.stem.weight.requires_grad_(False)
    state, before = copy.deepcopy(net.state_dict()), portrait(net)
    measure(net)
    after = portrait(net)
    assert after == before
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


def test_modes_come_back_when_the_network_fails() -> None:
    net = r2(width=0.125).train()
    with pytest.raises(ValueError, match="this network takes"):
        latency(net, (1, 32, 32))
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("function", [cost, latency])
@pytest.mark.parametrize("shape", [(), (3, 0, 32), (3, -1, 32), (3.0, 32, 32)])
def test_image_shapes_that_are_none(function: Callable[..., Any], shape: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="is not the shape of one image"):
        function(r2(width=0.125), shape)


@pytest.mark.parametrize("function", [cost, latency])
def test_a_network_that_does_not_say_its_channels_needs_a_shape(function: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"Thrice has no image_channels; give image_shape, e\.g\. \(3, 32, 32\)"):
        function(Thrice())


def test_the_default_shape_is_the_networks_own() -> None:
    assert cost(r3(image_channels=3)) == cost(r3(image_channels=3), (3, 32, 32))
    assert cost(r2(image_size=48)) == cost(r2(), (3, 48, 48))
