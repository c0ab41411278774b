"""Running statistics taken anew after the last iteration: those of the final weights, over batches that follow."""

import contextlib
import copy
import dataclasses
import itertools

import pytest
import torch

import recurconv as rc
import tiny
from recurconv import recipes
from recurconv.interruption import InterruptionError
from recurconv.objectives import draw_plan
from recurconv.runs import RunFolder


@pytest.mark.parametrize("norm", ["double", "shared"])
def test_they_are_the_means_over_the_batches_of_the_next_epoch(norm):
    config = tiny.recipe(f"norm={norm}", "norm_batches=2", "precision=fp32")
    trainer = tiny.trainer(config)
    seen = {}
    for name, module in trainer.network.named_modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            seen[name] = []
            module.register_forward_pre_hook(lambda _, x, own=seen[name]: own.append(x[0].detach().double()))
    weights = {name: value.clone() for name, value in trainer.network.named_parameters()}
    trainer.settle_norms()
    assert all(weights[name].equal(value) for name, value in trainer.network.named_parameters())
    calls = {name: inputs for name, inputs in seen.items() if inputs}
    assert calls
    for name, inputs in calls.items():
        module = trainer.network.get_submodule(name)
        means = torch.stack([x.mean((0, 2, 3)) for x in inputs]).mean(0)
        variances = torch.stack([x.var((0, 2, 3), correction=1) for x in inputs]).mean(0)
        torch.testing.assert_close(module.running_mean.double(), means, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(module.running_var.double(), variances, rtol=1e-5, atol=1e-6)
        assert module.momentum == 0.1
    expected = itertools.islice(trainer.task.training_batches(config.epochs, 0, 0, 1), 2)
    first = [x for x, _ in expected for _ in trainer.network.dial]
    stem = [trainer.network.stem(trainer.network.normalize(x)) for x in first]
    found = seen["cell1.bank.row2_step0.0"] if norm == "double" else seen["cell1.bank.shared.0"]
    assert any(torch.allclose(stem[0].double(), x, atol=1e-5) for x in found)


def averaged(net, batches):
    """As one writes it by hand: the mean and the unbiased variance of what enters each norm, over all calls."""
    seen = {}
    hooks = [
        module.register_forward_pre_hook(lambda module, x: seen.setdefault(module, []).append(x[0].detach()))
        for module in net.modules()
        if isinstance(module, torch.nn.BatchNorm2d)
    ]
    mode = {module: module.training for module in net.modules()}
    with torch.no_grad():
        for images, steps in itertools.product(batches, net.dial):
            net.train()(images, steps)
    for module, training in mode.items():
        module.training = training
    for hook in hooks:
        hook.remove()
    dims = (0, 2, 3)
    return {
        m: [torch.stack(x).mean(0) for x in ([v.mean(dims) for v in values], [v.var(dims) for v in values])]
        for m, values in seen.items()
    }


@pytest.mark.parametrize("labelled", [False, True])
def test_a_users_network_has_them_at_every_setting_after_its_weights_were_averaged(labelled):
    net = torch.optim.swa_utils.AveragedModel(rc.r2(width=1 / 16, steps=(1, 2, 3))).module.eval()
    batches = [torch.rand(4, 3, 8, 8) for _ in range(3)]
    expected = averaged(net, batches)
    rc.settle_norms(net, [(images, None) for images in batches] if labelled else iter(batches))
    assert len(expected) == 2 * 2 * (1 + 2 + 3)
    for norm, (mean, variance) in expected.items():
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, variance)
    assert not any(module.training for module in net.modules())


def test_without_batches_or_a_dial_statistics_stay():
    net = rc.r2(width=1 / 16)
    net.cell1.bank.row2_step0[0].running_mean.fill_(3)
    with pytest.raises(ValueError, match="there are no batches"):
        rc.settle_norms(net, [])
    with pytest.raises(ValueError, match="Sequential has no dial"):
        rc.settle_norms(torch.nn.Sequential(net), [torch.rand(1, 3, 8, 8)])
    assert (net.cell1.bank.row2_step0[0].running_mean == 3).all()


def test_nothing_is_compiled_for_them():
    trainer = tiny.trainer(tiny.recipe("norm_batches=2", "compile=true"))
    torch._dynamo.utils.counters.clear()
    trainer.settle_norms()
    assert not torch._dynamo.utils.counters["frames"]


def test_a_run_ends_with_them(tmp_path):
    config = tiny.recipe("norm_batches=3")
    tiny.train(config, "tiny", tmp_path / "run")
    tiny.train(tiny.recipe(), "tiny", tmp_path / "plain")
    settled, plain = tiny.weights(tmp_path / "run"), tiny.weights(tmp_path / "plain")
    for name, tensor in settled.items():
        if name.endswith("num_batches_tracked"):
            assert tensor == 3
        elif "running" not in name:
            assert tensor.equal(plain[name]), name
    assert not tiny.same(settled, plain)


@pytest.mark.parametrize("batches", [0, 2])
def test_frozen_norms_train_as_evaluation_runs(batches):
    trainer = tiny.trainer(tiny.recipe(f"norm_batches={batches}", "frozen_norms=1", "precision=fp32", "rate=0.1"))
    before = running(trainer.network)
    trainer.freeze_norms()
    statistics = running(trainer.network)
    assert tiny.same(statistics, before) == (batches == 0)
    twin = copy.deepcopy(trainer.network).eval()
    inputs, targets = next(trainer._batches())
    plan = draw_plan(trainer.recipe, 0, 2)
    torch.nn.functional.cross_entropy(twin(inputs, plan[0].steps), targets).backward()
    trainer.recipe = dataclasses.replace(trainer.recipe, clip=0)
    trainer.step(inputs, targets)
    for (name, own), (_, theirs) in zip(trainer.network.named_parameters(), twin.named_parameters(), strict=True):
        assert (own.grad is None) == (theirs.grad is None), name
        if own.grad is not None:
            torch.testing.assert_close(own.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert tiny.same(running(trainer.network), statistics)
    assert trainer.network.training
    assert not any(norm.training for norm in trainer.norms)


def running(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items() if ".running_" in name}


def test_norms_are_frozen_from_their_fraction_on_and_a_resumed_run_freezes_likewise(tmp_path):
    config = tiny.recipe("norm_batches=2", "frozen_norms=0.5", "minival=4")  # of 2 epochs of 3 iterations
    whole = tiny.train(config, "tiny", tmp_path / "whole")
    assert not tiny.same(tiny.weights(tmp_path / "whole"), plain_weights(tmp_path))
    count = whole.load_state()["iterations"]
    for stop in range(1, count):
        out = tmp_path / f"cut{stop}"
        for _ in range(stop):
            with contextlib.suppress(InterruptionError):
                tiny.train(config, "tiny", out, resume=out.exists(), seconds=0)
        frozen = RunFolder(out).load_state()["iteration"] > count - round(0.5 * count)
        tracked = [value for name, value in tiny.weights(out).items() if name.endswith("num_batches_tracked")]
        assert ({int(value) for value in tracked} == {2}) == frozen  # the count of those taken anew
        tiny.train(config, "tiny", out, resume=True)
        tiny.assert_same_run(out, tmp_path / "whole")


def plain_weights(tmp_path):
    tiny.train(tiny.recipe("norm_batches=2", "minival=4"), "tiny", tmp_path / "plain")
    return tiny.weights(tmp_path / "plain")


def test_a_fraction_is_at_most_one():
    with pytest.raises(ValueError, match=r"frozen_norms=1.5 must be at most 1"):
        tiny.recipe("frozen_norms=1.5")


def test_a_count_for_each_cell_has_none():
    with pytest.raises(ValueError, match="norm_batches needs one step count for all cells"):
        recipes.override(recipes.get("r2-cifar10"), ["sampling=per-cell", "norm_batches=2"])
