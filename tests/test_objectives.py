"""Which settings an iteration visits, and its gradients, against formulas written out."""

import copy
import functools
import itertools
from collections import Counter

import pytest
import torch
import torch.nn.functional as F

import tiny
from recurconv import recipes
from recurconv.objectives import Term, accumulate_gradients, draw_plan

DRAWS = 3000


def chi_square(counts, probabilities):
    """Pearson's statistic of ``counts`` (by key) against the ``probabilities`` (by key)."""
    total = sum(counts.values())
    assert set(counts) == set(probabilities)
    return sum((counts[key] - total * p) ** 2 / (total * p) for key, p in probabilities.items())


@functools.cache
def plans(*settings, name="r2-cifar10", cells=2, draws=DRAWS):
    recipe = recipes.override(recipes.get(name), settings)
    return [draw_plan(recipe, iteration, cells) for iteration in range(draws)]


def test_unified_draws_one_setting_with_its_probability():
    drawn = plans()
    assert all(len(plan) == 1 and plan[0].weight == 1 and not plan[0].distilled for plan in drawn)
    counts = Counter(plan[0].steps for plan in drawn)
    assert chi_square(counts, {2: 0.2, 3: 0.3, 4: 0.5}) < 9.21  # exceeded once in a hundred seeds


def test_without_probabilities_all_settings_are_alike():
    counts = Counter(plan[0].steps for plan in plans(name="r3-gray25"))
    assert chi_square(counts, dict.fromkeys((1, 2, 3, 4), 0.25)) < 11.34


def test_draws_follow_each_other_without_memory():
    pairs = Counter(itertools.pairwise(plan[0].steps for plan in plans()))
    p = {2: 0.2, 3: 0.3, 4: 0.5}
    assert chi_square(pairs, {(a, b): p[a] * p[b] for a in p for b in p}) < 20.09


def test_per_cell_draws_are_independent_of_each_other():
    drawn = plans("sampling=per-cell")
    assert all(len(plan) == 1 and plan[0].weight == 1 for plan in drawn)
    p = {2: 0.2, 3: 0.3, 4: 0.5}
    joint = Counter(plan[0].steps for plan in drawn)
    assert chi_square(joint, {(a, b): p[a] * p[b] for a in p for b in p}) < 20.09
    assert len(plans("sampling=per-cell", cells=4, draws=1)[0][0].steps) == 4


def test_a_draw_is_a_function_of_seed_and_iteration_alone(monkeypatch):
    before = plans(draws=50)
    state = torch.get_rng_state()
    torch.manual_seed(123)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    recipe = recipes.get("r2-cifar10")
    assert [draw_plan(recipe, iteration, 2) for iteration in reversed(range(50))][::-1] == before
    assert plans("seed=1", draws=50) != before
    torch.set_rng_state(state)
    draw_plan(recipe, 0, 2)
    assert torch.equal(torch.get_rng_state(), state)  # the global stream is not touched


def test_weighted_has_every_setting_with_its_probability_as_its_weight():
    assert set(plans("sampling=weighted", draws=20)) == {(Term(2, 0.2), Term(3, 0.3), Term(4, 0.5))}


def test_sandwich_has_the_largest_first_then_the_smallest_then_one_between():
    drawn = plans("sampling=sandwich", "steps=1,2,3,4,6", "probabilities=")
    for plan in drawn:
        largest, smallest, between = plan
        assert largest == Term(6, 1 / 3)
        assert smallest == Term(1, 1 / 3, distilled=True)
        assert between.steps in (2, 3, 4)
        assert between[1:] == (1 / 3, True)
    assert chi_square(Counter(plan[2].steps for plan in drawn), dict.fromkeys((2, 3, 4), 1 / 3)) < 9.21


def test_sandwich_of_two_settings():
    assert set(plans("sampling=sandwich", "steps=1,3", "probabilities=", draws=5)) == {
        (Term(3, 0.5), Term(1, 0.5, distilled=True))
    }


# Gradients


def gradients(*settings, plan):
    """(gradients by name, loss, an untouched copy of the network, inputs, targets) of a plan."""
    trainer = tiny.trainer(tiny.recipe(*settings), choices=False)
    twin = copy.deepcopy(trainer.network)
    inputs, targets = next(trainer._batches())
    loss = accumulate_gradients(plan, trainer.task, trainer.network, inputs, targets)
    assert not loss.requires_grad
    found = {name: parameter.grad for name, parameter in trainer.network.named_parameters()}
    return found, loss, twin, inputs, targets


def check(found, loss, expected, twin):
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in twin.named_parameters():
        assert (found[name] is None) == (parameter.grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_weighted_is_the_gradient_of_the_weighted_sum():
    plan = (Term(2, 0.2), Term(3, 0.3), Term(4, 0.5))
    found, loss, net, x, y = gradients(plan=plan)
    assert all(gradient is not None for gradient in found.values())
    expected = 0.2 * F.cross_entropy(net(x, 2), y) + 0.3 * F.cross_entropy(net(x, 3), y)
    check(found, loss, expected + 0.5 * F.cross_entropy(net(x, 4), y), net)


def test_sandwich_learns_from_the_labels_at_the_largest_and_from_its_output_below():
    plan = (Term(4, 1 / 3), Term(2, 1 / 3, distilled=True), Term(3, 1 / 3, distilled=True))
    found, loss, net, x, y = gradients("label_smoothing=0.1", plan=plan)
    largest = net(x, 4)
    taught = torch.softmax(largest, 1).detach()

    def below(steps):
        return -(taught * torch.log_softmax(net(x, steps), 1)).sum(1).mean()

    smooth = 0.9 * F.one_hot(y, 3) + 0.1 / 3
    top = -(smooth * torch.log_softmax(largest, 1)).sum(1).mean()
    check(found, loss, (top + below(2) + below(3)) / 3, net)


def test_groups_that_no_term_uses_keep_no_gradient():
    found, *_ = gradients(plan=(Term(3, 1.0),))
    unused = {name for name, gradient in found.items() if gradient is None}
    assert unused == {name for name in found if "row2_" in name or "row4_" in name}
    assert len(unused) == 2 * 2 * (2 + 4) * 2  # cells, norms of a group, groups, weight and bias


def test_sandwich_of_a_denoiser_distils_the_picture(tmp_path):
    trainer = tiny.trainer(tiny.denoising("sampling=sandwich"), tiny.gray_pictures(tmp_path), choices=False)
    net = copy.deepcopy(trainer.network)
    noisy, clean = next(trainer._batches())
    plan = (Term(4, 0.5), Term(1, 0.5, distilled=True))
    loss = accumulate_gradients(plan, trainer.task, trainer.network, noisy, clean)
    top = net(noisy, 4)
    variance = (25 / 255) ** 2
    expected = ((top - clean).square().mean() + (net(noisy, 1) - top.detach()).square().mean()) / 2 / variance
    check({name: p.grad for name, p in trainer.network.named_parameters()}, loss, expected, net)


@pytest.mark.parametrize("sampling", ["unified", "per-cell", "weighted", "sandwich"])
def test_every_sampling_trains(sampling):
    trainer = tiny.trainer(tiny.recipe(f"sampling={sampling}", "epochs=4"), choices=False)
    losses = []
    for _ in range(3):
        for inputs, targets in trainer._batches():
            trainer.step(inputs, targets)
        losses.append(trainer.check())
    assert losses[-1] < 0.9 * losses[0]
