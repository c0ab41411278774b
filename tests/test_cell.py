"""Recurrent cells around bodies and norm layers that a user writes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import recurconv as rc
from recurconv.cell import as_dial


class ConvBody(nn.Module):
    """Two convolutions, two norm layers of different width."""

    norm_channels = (8, 12)

    def __init__(self, bias=False):
        super().__init__()
        self.wide = nn.Conv2d(8, 12, 3, padding=1, bias=bias)
        self.narrow = nn.Conv2d(12, 8, 1, bias=bias)

    def forward(self, x, norms):
        return x + self.narrow(F.relu(norms[1](self.wide(norms[0](x)))))


class TokenBody(nn.Module):
    """A linear body on [B, N, C]."""

    norm_channels = (8,)

    def __init__(self, bias=False):
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=bias)

    def forward(self, x, norms):
        return x + F.gelu(self.linear(norms[0](x)))


class ChannelLayerNorm(nn.Module):
    """LayerNorm over the channels of [B, C, H, W], as a user would write it."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return F.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias).movedim(-1, 1)


class NoNormBody(nn.Module):
    norm_channels = ()

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, norms):
        assert len(norms) == 0
        return x * self.scale + 1


LAYERS = {
    "batch": (ConvBody, nn.BatchNorm2d, (3, 8, 5, 4)),
    "group": (ConvBody, lambda c: nn.GroupNorm(4, c), (3, 8, 5, 4)),
    "channel layer": (ConvBody, ChannelLayerNorm, (3, 8, 5, 4)),
    "instance": (ConvBody, lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True), (3, 8, 5, 4)),
    "layer": (TokenBody, nn.LayerNorm, (3, 7, 8)),
    "batch of tokens": (TokenBody, lambda c: TokenBatchNorm(c), (3, 7, 8)),
}


class TokenBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def randomise(module):
    """Every parameter and statistic another number, so that a wrong group shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1)
    return module


def address(norm, row, step):
    return {"double": f"row{row}_step{step}", "independent": f"step{step}"}.get(norm, norm)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("norm", ["none", "shared", "independent", "double"])
@pytest.mark.parametrize("layer", LAYERS)
def test_any_body_with_any_norm_layer_unrolls_as_written_out(layer, norm, training):
    body, norm_layer, shape = LAYERS[layer]
    cell = rc.RecurrentCell(body(bias=norm == "none"), steps=(1, 3), norm=norm, norm_layer=norm_layer)
    randomise(cell.double()).train(training)
    x = torch.randn(shape, dtype=torch.float64)
    for steps in cell.dial:
        expected = x
        for step in range(steps):
            group = dict(cell.bank.named_children())[address(norm, steps, step)]
            expected = cell.body(expected, list(group))
        # In training, running averages move between the two passes, but nothing reads them.
        torch.testing.assert_close(cell(x, steps), expected, rtol=0, atol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_each_group_is_made_by_the_norm_layer_with_the_body_s_channels(layer):
    body, norm_layer, _ = LAYERS[layer]
    cell = rc.RecurrentCell(body(), steps=(2, 3), norm="double", norm_layer=norm_layer)
    groups = list(cell.bank.children())
    assert len(groups) == 2 + 3
    for group in groups:
        assert [type(made) for made in group] == [type(norm_layer(count)) for count in body.norm_channels]
        assert [made.weight.numel() for made in group] == list(body.norm_channels)


def test_under_none_no_norm_layer_is_made():
    def refuse(channels):
        raise AssertionError(channels)

    cell = rc.RecurrentCell(ConvBody(bias=True), steps=(1, 2), norm="none", norm_layer=refuse)
    assert {name for name, _ in cell.named_parameters()} == {
        "body.wide.weight", "body.wide.bias", "body.narrow.weight", "body.narrow.bias",
    }  # fmt: skip


@pytest.mark.parametrize("norm", ["none", "shared", "independent", "double"])
def test_a_body_without_norm_layers(norm):
    cell = rc.RecurrentCell(NoNormBody(), steps=(1, 2, 3), norm=norm)
    assert [cell(torch.zeros(()), steps).item() for steps in (1, 2, 3)] == [1, 1.5, 1.75]
    assert list(cell.state_dict()) == ["body.scale"]


def test_a_standard_cell_takes_other_norm_layers_too():
    cell = rc.StandardCell(ConvBody, 3, norm_layer=ChannelLayerNorm)
    assert [[layer.weight.numel() for layer in group] for group in cell.norms] == [[8, 12]] * 3
    assert len({id(body) for body in cell.bodies}) == 3
    plain = rc.StandardCell(lambda: ConvBody(bias=True), 3, "none")
    assert not any("norms" in name for name in plain.state_dict())
    x = torch.randn(2, 8, 4, 4)
    expected = x
    for body in plain.bodies:
        expected = expected + body.narrow(F.relu(body.wide(expected)))
    torch.testing.assert_close(plain(x), expected)


class Affine(nn.Module):
    """x -> 2 x + 1, so that the order of steps and ``halfway`` shows in the number."""

    norm_channels = ()

    def forward(self, x, norms):
        return 2 * x + 1


class Hundred(nn.Module):
    def forward(self, x):
        return x + 100


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        (1, 1 + 100),
        (2, 2 * (1 + 100) + 1),
        (3, 2 * (3 + 100) + 1),
        (4, 4 * (3 + 100) + 3),
        (5, 4 * (7 + 100) + 3),
    ],
)
def test_halfway_comes_once_after_half_of_the_steps_rounded_up(steps, result):
    assert rc.RecurrentCell(Affine(), steps, halfway=Hundred())(torch.zeros(())).item() == result
    assert rc.StandardCell(Affine, steps, halfway=Hundred())(torch.zeros(())).item() == result


def test_the_default_is_the_largest_setting():
    cell = rc.RecurrentCell(Affine(), steps=(3, 1))
    assert cell.dial == (1, 3)
    assert cell(torch.zeros(())).item() == 7
    assert cell(torch.zeros(()), 1).item() == 1


def test_default_norm_is_double_for_a_dial_and_independent_for_one_count():
    assert rc.RecurrentCell(Affine(), (1, 2)).bank.norm == "double"
    assert rc.RecurrentCell(Affine(), 2).bank.norm == "independent"


def test_behind_an_upstream_cell_the_row_is_its_step_count():
    cell = rc.RecurrentCell(ConvBody(), steps=(1, 2), norm="double", upstream=(3, 5), unified=False)
    assert [name for name, _ in cell.bank.named_children()] == [
        "row3_step0", "row3_step1", "row5_step0", "row5_step1",
    ]  # fmt: skip
    randomise(cell).eval()
    x = torch.randn(2, 8, 4, 4)
    first, second = cell.bank.row5_step0, cell.bank.row5_step1
    torch.testing.assert_close(cell(x, 2, row=5), cell.body(cell.body(x, first), second), rtol=0, atol=0)
    assert not torch.equal(cell(x, 2, row=5), cell(x, 2, row=3))


def test_a_unified_dial_allocates_the_triangle_and_per_cell_counts_the_rectangle():
    def names(**options):
        cell = rc.RecurrentCell(ConvBody(), steps=(1, 2), norm="double", **options)
        return [name for name, _ in cell.bank.named_children()]

    triangle = ["row1_step0", "row2_step0", "row2_step1"]
    assert names() == names(upstream=(1, 2)) == names(unified=False) == triangle
    assert names(upstream=(1, 2), unified=False) == ["row1_step0", "row1_step1", "row2_step0", "row2_step1"]


def test_bodies_without_norm_channels_are_refused():
    class Silent(nn.Module):
        def forward(self, x, norms):
            return x

    class Wrong(Silent):
        norm_channels = 64

    with pytest.raises(TypeError, match=r"Silent\.norm_channels is None.*e\.g\. norm_channels = \(64, 64\)"):
        rc.RecurrentCell(Silent(), 2)
    with pytest.raises(TypeError, match=r"Wrong\.norm_channels is 64"):
        rc.RecurrentCell(Wrong(), 2)
    with pytest.raises(TypeError, match=r"Silent\.norm_channels is None"):
        rc.StandardCell(Silent, 2)
    Silent.norm_channels = (np.int64(8),)
    assert rc.RecurrentCell(Silent(), 2).bank[2, 0][0].num_features == 8


@pytest.mark.parametrize("steps", [0, -1, (), (0, 1), (2, 2), 2.5, (1, 2.0), True, (True, 2), "23", None, ("2",)])
def test_what_is_not_a_dial_is_refused(steps):
    with pytest.raises(ValueError, match="is not a dial; give one count of at least 1"):
        rc.RecurrentCell(Affine(), steps)
    with pytest.raises(ValueError, match="is not a dial"):
        rc.StandardCell(Affine, steps)


def test_a_dial_is_sorted_plain_integers():
    dial = as_dial(torch.tensor([4, 2]).numpy())
    assert dial == (2, 4)
    assert [type(count) for count in dial] == [int, int]
    assert as_dial(range(1, 4)) == (1, 2, 3)
    assert as_dial(3) == (3,)


def test_bad_norms_are_refused():
    with pytest.raises(ValueError, match=r"norm='batch'.*choose one of none, shared, independent, double"):
        rc.RecurrentCell(Affine(), (1, 2), norm="batch")
    with pytest.raises(ValueError, match="norm='batch'"):
        rc.StandardCell(Affine, 2, norm="batch")
    with pytest.raises(ValueError, match='norm="double" needs a dial of two or more counts, got steps=3'):
        rc.RecurrentCell(Affine(), 3, norm="double")


def test_settings_off_the_dial_are_refused():
    cell = rc.RecurrentCell(Affine(), (2, 3, 4))
    message = r"steps=5 is not on this network's dial \(2, 3, 4\); choose one of these or build it with 5 on the dial"
    with pytest.raises(ValueError, match=message):
        cell(torch.zeros(()), 5)
    with pytest.raises(ValueError, match=r"steps=2 is not on this network's dial \(3,\)"):
        rc.StandardCell(Affine, 3)(torch.zeros(()), 2)


def test_rows_that_do_not_exist_are_refused():
    unified = rc.RecurrentCell(Affine(), (2, 3), upstream=(2, 3))
    with pytest.raises(ValueError, match=r"steps=3 behind row=2: the rows are \(2, 3\), each for its own step count"):
        unified(torch.zeros(()), 3, row=2)
    free = rc.RecurrentCell(Affine(), (2, 3), upstream=(1, 4), unified=False)
    with pytest.raises(ValueError, match=r"steps=3 behind row=3: the rows are \(1, 4\)$"):
        free(torch.zeros(()), 3, row=3)
    first = rc.RecurrentCell(Affine(), (1, 3), unified=False)
    with pytest.raises(ValueError, match=r"steps=3 behind row=1: the rows are \(1, 3\), each for its own step count$"):
        first(torch.zeros(()), 3, row=1)
    with pytest.raises(ValueError, match=r"got steps=\(2, 3\) behind upstream=\(1, 3\); build with unified=False"):
        rc.RecurrentCell(Affine(), (2, 3), upstream=(1, 3))


def test_a_cell_with_counts_of_its_own_does_not_guess_the_row():
    free = rc.RecurrentCell(Affine(), (2, 3), upstream=(2, 3), unified=False)
    with pytest.raises(ValueError, match=r"give row, the step count of the cell before this one; .* \(2, 3\)"):
        free(torch.zeros(()), 3)
    for norm in ("none", "shared", "independent"):  # groups do not differ by it
        rc.RecurrentCell(Affine(), (3,), norm, upstream=(1, 2), unified=False)(torch.zeros(()), 3)


@pytest.mark.parametrize("steps", [True, 2.0, "2", torch.tensor(2.0)])
def test_steps_and_rows_that_are_no_whole_numbers_are_refused(steps):
    cell = rc.RecurrentCell(Affine(), (1, 2, 3))
    with pytest.raises(ValueError, match=r"steps=.* is not on this network's dial \(1, 2, 3\)"):
        cell(torch.zeros(()), steps)
    with pytest.raises(ValueError, match="behind row="):
        cell(torch.zeros(()), 2, row=steps)


def test_whole_numbers_of_numpy_and_pytorch_are_steps():
    cell = rc.RecurrentCell(Affine(), (1, 2, 3))
    x = torch.ones(())
    for two in (np.int64(2), torch.tensor(2)):
        assert torch.equal(cell(x, two, row=two), cell(x, 2))
    with pytest.raises(ValueError, match="upstream=a RecurrentCell is not a dial"):
        rc.RecurrentCell(ConvBody(), (1, 2), upstream=rc.RecurrentCell(ConvBody(), (1, 2)))


class Halving(nn.Module):
    norm_channels = (8,)

    def forward(self, x, norms):
        return norms[0](x)[..., ::2, ::2]


@pytest.mark.parametrize("cell", [rc.RecurrentCell(Halving(), (1, 2)), rc.StandardCell(Halving, 1)])
def test_a_body_that_changes_the_shape_is_refused(cell):
    with pytest.raises(ValueError, match=r"Halving made \[1, 8, 2, 2\] of \[1, 8, 4, 4\]; a body keeps the shape"):
        cell(torch.zeros(1, 8, 4, 4), 1)


def test_one_module_in_two_places_is_refused():
    layer, body = nn.BatchNorm2d(8), ConvBody()
    with pytest.raises(ValueError, match="norm_layer gave the same layer twice"):
        rc.RecurrentCell(Halving(), (1, 2), norm_layer=lambda channels: layer)
    with pytest.raises(ValueError, match="norm_layer gave the same layer twice"):
        rc.StandardCell(Halving, 2, norm_layer=lambda channels: layer)
    with pytest.raises(ValueError, match="body gave the same module twice"):
        rc.StandardCell(lambda: body, 2)
    for norm in ("shared", "double"):
        with pytest.raises(ValueError, match=f'norm="{norm}": an untied cell has a norm group for each step'):
            rc.StandardCell(ConvBody, 2, norm)


def test_what_makes_no_bodies_or_layers_is_refused():
    with pytest.raises(TypeError, match=r"body is <class .*; give a module"):
        rc.RecurrentCell(Halving, (1, 2))
    with pytest.raises(TypeError, match="body is a ConvBody; give what makes one"):
        rc.StandardCell(ConvBody(), 2)
    for layer in (nn.BatchNorm2d(8), "batch"):
        with pytest.raises(TypeError, match=r"norm_layer=.*: give what makes a layer from a channel count"):
            rc.RecurrentCell(Halving(), (1, 2), norm_layer=layer)


def test_an_untied_cell_has_one_step_count():
    assert rc.StandardCell(Affine, [3]).dial == (3,)
    with pytest.raises(ValueError, match=r"steps=\(2, 3\): an untied network has one step count"):
        rc.StandardCell(Affine, (2, 3))
