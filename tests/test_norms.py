"""Norm banks: which groups there are, and where an address leads."""

import pytest
import torch
from torch import nn

import recurconv as rc
from recurconv.norms import norm_layers

TRIANGLE = {1: 1, 2: 2, 4: 4}


def bank(norm, extents):
    return rc.NormBank(norm_layers((3, 5), nn.BatchNorm2d, norm), norm, extents)


@pytest.mark.parametrize(
    ("norm", "names"),
    [
        ("none", ["none"]),
        ("shared", ["shared"]),
        ("independent", ["step0", "step1", "step2", "step3"]),
        (
            "double",
            ["row1_step0", "row2_step0", "row2_step1", "row4_step0", "row4_step1", "row4_step2", "row4_step3"],
        ),
    ],
)
def test_only_the_addresses_in_use_have_a_group(norm, names):
    assert [name for name, _ in bank(norm, TRIANGLE).named_children()] == names


def test_the_rectangle_has_each_step_in_each_row():
    names = {name for name, _ in bank("double", {2: 3, 5: 3}).named_children()}
    assert names == {f"row{row}_step{step}" for row in (2, 5) for step in range(3)}


@pytest.mark.parametrize(("norm", "groups"), [("none", 1), ("shared", 1), ("independent", 4), ("double", 1 + 2 + 4)])
def test_an_address_leads_to_one_group_of_its_own_where_the_usage_says_so(norm, groups):
    made = bank(norm, TRIANGLE)
    found = {(row, step): made[row, step] for row, count in TRIANGLE.items() for step in range(count)}
    assert len({id(group) for group in found.values()}) == groups
    assert all(isinstance(group, rc.NormGroup) for group in found.values())
    if norm == "independent":  # the step alone decides
        assert found[2, 0] is found[4, 0]
        assert found[2, 1] is found[4, 1]
    if norm == "double":
        assert found[4, 2] is dict(made.named_children())["row4_step2"]


@pytest.mark.parametrize("norm", ["none", "shared", "independent", "double"])
@pytest.mark.parametrize("address", [(3, 0), (2, 2), (4, 4), (2, -1)])
def test_an_address_outside_is_refused(norm, address):
    row, step = address
    with pytest.raises(KeyError, match=rf"row={row}, step={step}.*\{{1: 1, 2: 2, 4: 4\}}"):
        bank(norm, TRIANGLE)[address]


def test_a_group_has_a_layer_for_each_channel_count_and_none_has_identities():
    widths = [layer.num_features for layer in bank("double", TRIANGLE)[4, 3]]
    assert widths == [3, 5]
    none = bank("none", TRIANGLE)
    x = torch.randn(2, 3, 4, 4)
    assert len(none[4, 3]) == 2
    assert all(torch.equal(layer(x), x) for layer in none[4, 3])
    assert not none.state_dict()


def test_groups_do_not_share_tensors():
    state = bank("double", TRIANGLE).state_dict()
    assert len(state) == 7 * 2 * 5  # groups x layers x (weight, bias, mean, variance, batches)
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)


def test_an_unknown_usage_is_refused():
    with pytest.raises(ValueError, match=r"norm='batch'.*none, shared, independent, double"):
        bank("batch", TRIANGLE)


def test_printing_tells_usage_and_rows():
    assert "norm='double', extents={1: 1, 2: 2, 4: 4}" in repr(bank("double", TRIANGLE))


def test_none_has_identities_whatever_the_group_makes():
    made = rc.NormBank(lambda: [nn.BatchNorm2d(4)], "none", TRIANGLE)
    assert not list(made.parameters())
    x = torch.rand(2, 4, 3, 3)
    assert made[2, 1][0](x) is x
