"""Running statistics taken anew after the last iteration: those of the final weights, over batches that follow."""

import itertools

import pytest
import torch

import tiny
from recurconv import recipes


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


def test_a_count_for_each_cell_has_none():
    with pytest.raises(ValueError, match="norm_batches needs one step count for all cells"):
        recipes.override(recipes.get("r2-cifar10"), ["sampling=per-cell", "norm_batches=2"])
