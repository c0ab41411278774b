"""The laws of the networks: R against its untied twin S, against plain functions, and at any size."""

import copy
import itertools
import re
from collections import defaultdict
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import recurconv as rc
from recurconv.networks import (
    ConvolutionBody,
    Denoiser,
    FourCellClassifier,
    ResidualBody,
    Transition,
    TwoCellClassifier,
    _is_channels_last,
    _unshuffle_channels_last,
)
from small import DIAL, SMALL, images, make, on_meta

USAGES = ("none", "shared", "independent", "double")


def twin(kind, steps, norm):
    """The untied S, fresh: by its builder, or where there are no norms built here, as R's convolutions have biases."""
    if norm != "none":
        return getattr(rc, kind.replace("r", "s"))(steps=steps, **SMALL[kind]).double()

    def cell(body, halfway=None):
        return rc.StandardCell(body, steps, "none", halfway=halfway)

    if kind == "r3":
        return Denoiser([cell(partial(ConvolutionBody, 4, bias=True)) for _ in range(3)], 4, 1).double()
    if kind == "r2":
        bodies = [partial(ResidualBody, channels, bias=True) for channels in (4, 16)]
        return TwoCellClassifier([cell(body, nn.AvgPool2d(2)) for body in bodies], 4, 10).double()
    widths = (4, 8, 16, 32)
    blocks = [ResidualBody(4, bias=True), *(ResidualBody(c, 2 * c, stride=2, bias=True) for c in widths[:3])]
    cells = [cell(partial(ResidualBody, channels, bias=True)) for channels in widths]
    return FourCellClassifier([Transition(block, "none", (1, steps)) for block in blocks], cells, 100).double()


def origin(name, kind, steps, norm):
    """The tensor of R that a tensor of S was copied from: the address rule, once more."""
    group = {"double": f"row{steps}_step\\2", "independent": "step\\2", "shared": "shared"}.get(norm)
    name = re.sub(r"\bbodies\.\d+\.", "body.", name)
    if group:
        name = re.sub(r"\b(norms)\.(\d+)\.", f"bank.{group}.", name)
        first = "shared" if norm == "shared" else "step0"
        later = f"row{steps}_step0" if norm == "double" else first
        name = re.sub(r"(transition1\.bank)\.\w+\.", rf"\1.{first}.", name)
        name = re.sub(r"(transition[234]\.bank)\.\w+\.", rf"\1.{later}.", name)
    return name


def untied(net, kind, steps, norm):
    """S with R's weights copied, and for each of its tensors the name in R."""
    standard = twin(kind, steps, norm)
    names = {name: origin(name, kind, steps, norm) for name in standard.state_dict()}
    state = net.state_dict()
    standard.load_state_dict({name: state[source].clone() for name, source in names.items()})
    return standard, names


SETTINGS = [(kind, norm, steps) for kind in DIAL for norm in USAGES for steps in DIAL[kind]]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("kind", "norm", "steps"), SETTINGS)
def test_r_is_the_untied_s_with_the_same_weights(kind, norm, steps, training):
    net = make(kind, norm=norm)
    standard, names = untied(net, kind, steps, norm)
    before = copy.deepcopy(net.state_dict())
    x = images(kind)
    ours, theirs = net.train(training)(x, steps), standard.train(training)(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)

    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    sums, uses = defaultdict(lambda: 0), defaultdict(int)
    for name, parameter in standard.named_parameters():
        sums[names[name]] += parameter.grad
        uses[names[name]] += 1
    for name, parameter in net.named_parameters():
        if name in sums:
            torch.testing.assert_close(parameter.grad, sums[name], rtol=1e-10, atol=1e-10, msg=name)
        else:
            assert parameter.grad is None, name
    assert {uses[name] for name in uses if ".body.conv" in name and name.startswith("cell")} == {steps}

    statistics = defaultdict(list)
    for name, buffer in standard.named_buffers():
        statistics[names[name]].append(buffer)
    for name, buffer in net.named_buffers():
        expected = after(before[name], statistics.get(name, []), training)
        torch.testing.assert_close(buffer, expected, rtol=0, atol=1e-12, msg=name)


def after(start, untied_ones, training):
    """What a group's statistic becomes where the untied ones, each from the same start, became these."""
    if len(untied_ones) == 1:
        return untied_ones[0]
    if not untied_ones or not training:
        return start
    if not start.is_floating_point():
        return start + len(untied_ones)  # batches counted
    value = start  # a shared group takes the steps' batch statistics one after the other, each with momentum 0.1
    for moved in untied_ones:
        batch = (moved - 0.9 * start) / 0.1
        value = 0.9 * value + 0.1 * batch
    return value


def batch_norm(state, name, x):
    mean, var, weight, bias = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    mean, var, weight, bias = (tensor.reshape(-1, 1, 1) for tensor in (mean, var, weight, bias))
    return (x - mean) / torch.sqrt(var + 1e-5) * weight + bias


def block(state, body, norms, x, stride=1):
    """A pre-activation residual block, from its tensors by name."""
    h = batch_norm(state, f"{norms}.0", x).clamp(min=0)
    shortcut = f"{body}.shortcut.weight"
    x = F.conv2d(h, state[shortcut], stride=stride) if shortcut in state else x
    h = F.conv2d(h, state[f"{body}.conv1.weight"], stride=stride, padding=1)
    h = batch_norm(state, f"{norms}.1", h).clamp(min=0)
    return x + F.conv2d(h, state[f"{body}.conv2.weight"], padding=1)


def classify(state, x):
    return x.clamp(min=0).flatten(2).mean(2) @ state["head.linear.weight"].T + state["head.linear.bias"]


def space_to_depth(x):
    """Each channel becomes four: its pixels at even and odd rows and columns."""
    corners = [x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return torch.stack(corners, 2).flatten(1, 2)


def plain_r2(state, x, steps):
    x = F.conv2d((x - 0.5) / 0.25, state["stem.weight"], padding=1)
    for cell in ("cell1", "cell2"):
        x = space_to_depth(x) if cell == "cell2" else x
        for t in range(1, steps + 1):
            x = block(state, f"{cell}.body", f"{cell}.bank.row{steps}_step{t - 1}", x)
            if t == -(-steps // 2):
                x = F.avg_pool2d(x, 2)
    return classify(state, x)


def plain_r3(state, noisy, steps):
    x = F.conv2d(noisy, state["head.weight"], state["head.bias"], padding=1).clamp(min=0)
    for cell in ("cell1", "cell2", "cell3"):
        for t in range(steps):
            x = F.conv2d(x, state[f"{cell}.body.conv.weight"], padding=1)
            x = batch_norm(state, f"{cell}.bank.row{steps}_step{t}.0", x).clamp(min=0)
    return noisy + F.conv2d(x, state["tail.weight"], state["tail.bias"], padding=1)


def plain_r4(state, x, steps):
    x = F.conv2d((x - 0.5) / 0.25, state["stem.weight"], padding=1)
    for i in (1, 2, 3, 4):
        group = "step0" if i == 1 else f"row{steps}_step0"
        x = block(state, f"transition{i}.body", f"transition{i}.bank.{group}", x, stride=1 if i == 1 else 2)
        for t in range(steps):
            x = block(state, f"cell{i}.body", f"cell{i}.bank.row{steps}_step{t}", x)
    return classify(state, x)


@pytest.mark.parametrize(("kind", "plain"), [("r2", plain_r2), ("r3", plain_r3), ("r4", plain_r4)])
def test_each_network_is_what_the_paper_says_written_out_in_plain_functions(kind, plain):
    net = make(kind).eval()
    x = images(kind)
    for steps in DIAL[kind]:
        torch.testing.assert_close(net(x, steps), plain(net.state_dict(), x, steps), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("network", "arguments", "count"),
    [
        ("r2", {"steps": 1}, 1_258_954),
        ("r2", {"steps": 2}, 1_260_234),
        ("r2", {"steps": 3}, 1_261_514),
        ("r2", {"steps": 4}, 1_262_794),
        ("s2", {"steps": 2}, 2_513_610),
        ("s2", {"steps": 3}, 3_768_266),
        ("s2", {"steps": 4}, 5_022_922),
        ("s2", {"steps": 4, "width": 0.5}, 1_258_090),
        ("s4", {"steps": 1}, 11_217_316),
        ("s4", {"steps": 2}, 17_488_036),
        ("s4", {"steps": 3}, 23_758_756),
        ("r4", {}, 11_241_892),
    ],
)
def test_parameter_counts_are_the_paper_s(network, arguments, count):
    net = on_meta(getattr(rc, network), **arguments)
    assert sum(parameter.numel() for parameter in net.parameters()) == count


def sgd_iteration(net, optimizer, steps, seed):
    x = images(net.config["network"], seed)
    net(x, steps).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def groups_in_use(kind, norm, steps):
    """The banks' groups that a setting uses, by the names of the paper's B_s."""
    row = {
        "double": [f"row{steps}_step{t}" for t in range(steps)],
        "independent": [f"step{t}" for t in range(steps)],
        "shared": ["shared"],
    }[norm]
    used = {f"cell{i}.bank.{group}" for i in range(1, int(kind[1]) + 1) for group in row}
    if kind == "r4":
        used |= {f"transition{i}.bank.{row[0]}" for i in (2, 3, 4)}
        used |= {"transition1.bank." + ("shared" if norm == "shared" else "step0")}
    return used


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("norm", ["shared", "independent", "double"])
@pytest.mark.parametrize("kind", DIAL)
def test_an_iteration_changes_the_groups_of_its_row_and_no_others(kind, norm, steps):
    net = make(kind, norm=norm).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    for seed, visited in enumerate(net.dial):  # every group has a momentum then, and would drift
        sgd_iteration(net, optimizer, visited, seed)
    before = copy.deepcopy(net.state_dict())
    momenta = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in net.named_parameters()}
    sgd_iteration(net, optimizer, steps, 99)

    after_it = net.state_dict()
    changed, same = set(), set()
    for name in after_it:
        (same if torch.equal(after_it[name], before[name]) else changed).add(name)
    of_banks = {name.rpartition(".")[0].rpartition(".")[0] for name in after_it if ".bank." in name}
    used = groups_in_use(kind, norm, steps)
    assert used <= of_banks
    for name in after_it:
        group = name.rpartition(".")[0].rpartition(".")[0]
        if group in of_banks:
            assert (name in changed) == (group in used), name
        else:
            assert (name in changed) == ("normalize" not in name), name
    idle = [name for name in momenta if name in same]
    parameters = dict(net.named_parameters())
    assert all(torch.equal(optimizer.state[parameters[name]]["momentum_buffer"], momenta[name]) for name in idle)
    assert norm == "shared" or idle or steps == max(net.dial)


@pytest.mark.parametrize("norm", ["independent", "double"])
@pytest.mark.parametrize("kind", DIAL)
def test_shared_is_a_bank_whose_groups_are_equal_in_eval(kind, norm):
    shared, many = make(kind, norm="shared").eval(), make(kind, norm=norm).eval()
    state = shared.state_dict()
    for name, tensor in many.state_dict().items():
        tensor.copy_(state[re.sub(r"\bbank\.\w+\.", "bank.shared.", name)])
    x = images(kind)
    for steps in DIAL[kind]:
        assert torch.equal(many(x, steps), shared(x, steps))


@pytest.mark.parametrize("kind", DIAL)
def test_none_has_no_norm_parameters_and_a_bias_in_each_convolution_of_a_body(kind):
    none, shared = make(kind, norm="none"), make(kind, norm="shared")
    names = dict(none.named_parameters())
    assert not [name for name in none.state_dict() if ".bank." in name]
    kernels = {name for name in names if re.search(r"body\.conv\d?\.weight", name)}
    assert {name.replace("weight", "bias") for name in kernels} == {
        name for name in names if ".body." in name and name.endswith("bias")
    }
    assert set(names) - {name.replace("weight", "bias") for name in kernels} == {
        name for name, _ in shared.named_parameters() if ".bank." not in name
    }


@pytest.mark.parametrize("kind", DIAL)
def test_the_dial_changes_the_result_and_defaults_to_its_largest_setting(kind):
    net = make(kind).eval()
    x = images(kind)
    results = [net(x, steps) for steps in net.dial]
    assert net.dial == DIAL[kind]
    assert torch.equal(net(x), results[-1])
    assert all(not torch.allclose(a, b) for a, b in itertools.pairwise(results))


@pytest.mark.parametrize("kind", DIAL)
def test_a_count_per_cell_uses_the_row_of_the_cell_before(kind):
    net = make(kind, steps=(2, 3), unified=False).train()
    cells = int(kind[1])
    counts = (3, 2, 2, 3)[:cells]
    net(images(kind), counts).sum().backward()
    used = {name.rpartition(".")[0].rpartition(".")[0] for name, p in net.named_parameters() if p.grad is not None}
    expected = {f"cell1.bank.row3_step{t}" for t in range(3)}
    for i in range(1, cells):
        expected |= {f"cell{i + 1}.bank.row{counts[i - 1]}_step{t}" for t in range(counts[i])}
        expected |= {f"transition{i + 1}.bank.row{counts[i - 1]}_step0"} if kind == "r4" else set()
    expected |= {"transition1.bank.step0"} if kind == "r4" else set()
    assert {name for name in used if ".bank." in name} == expected
    x = images(kind)
    assert torch.equal(net.eval()(x, (3,) * cells), net(x, 3))


def test_counts_per_cell_that_do_not_exist_are_refused():
    net = make("r2")
    with pytest.raises(
        ValueError, match=r"steps=\(3, 2\): this network has one step count for all cells.*unified=False"
    ):
        net(images("r2"), (3, 2))
    free = make("r2", unified=False)
    with pytest.raises(ValueError, match=r"steps=\(3, 2, 2\) has 3 counts; give one, or one for each of 2 cells"):
        free(images("r2"), (3, 2, 2))
    with pytest.raises(ValueError, match=r"steps=7 is not on this network's dial \(2, 3, 4\)"):
        free(images("r2"), (3, 7))


def test_deep_supervision_stops_after_a_group_and_classifies_there():
    net = make("deeply_supervised_s4", num_classes=7, steps=2).eval()
    plain = make("s4", num_classes=7, steps=2).eval()
    assert net.dial == (2, 3, 4)
    state = net.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    x = images("r4")
    assert torch.equal(net(x), plain(x))
    features = {}
    for i in (2, 3):
        getattr(plain, f"cell{i}").register_forward_hook(lambda _, args, out, i=i: features.update({i: out}))
    plain(x)
    for i in (2, 3):
        head = {f"head.linear.{part}": state[f"head{i}.linear.{part}"] for part in ("weight", "bias")}
        torch.testing.assert_close(net(x, i), classify(head, features[i]), rtol=0, atol=1e-12)
    net(x, 2).sum().backward()
    with_gradient = {name.partition(".")[0] for name, p in net.named_parameters() if p.grad is not None}
    assert with_gradient == {"stem", "transition1", "cell1", "transition2", "cell2", "head2"}
    with pytest.raises(
        ValueError, match=r"steps=\(2, 2, 2, 2\): this network takes one number, of groups, on \(2, 3, 4\)"
    ):
        net(x, (2, 2, 2, 2))


@pytest.mark.parametrize("size", [(2, 2), (6, 4), (5, 7)])
def test_the_unshuffle_of_a_gpu_is_pytorchs_and_stays_in_channels_last(size):
    x = torch.randn(3, 5, *size, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    even = [side // 2 * 2 for side in size]
    cropped = b[..., : even[0], : even[1]]
    assert _is_channels_last(cropped)
    assert not _is_channels_last(cropped.contiguous())
    expected, found = F.pixel_unshuffle(a[..., : even[0], : even[1]], 2), _unshuffle_channels_last(cropped)
    assert found.equal(expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    slope = torch.randn_like(expected)
    expected.backward(slope)
    found.backward(slope)
    assert b.grad.equal(a.grad)
