"""The half-resolution denoiser against plain functions; how far denoisers see against gradients."""

import pytest
import torch
import torch.nn.functional as F

import recurconv as rc
from small import different, make

DENOISERS = (rc.r3, rc.r3_half)


def noisy(height=7, width=9, channels=1, batch=3):
    return torch.rand(batch, channels, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def norm_relu(state, name, x):
    moments = (state[f"{name}.running_mean"], state[f"{name}.running_var"])
    return F.batch_norm(x, *moments, state[f"{name}.weight"], state[f"{name}.bias"]).clamp(min=0)


def two_by_two(x):
    """Space-to-depth, pixel by pixel."""
    return torch.stack(
        [x[:, c, row::2, column::2] for c in range(x.shape[1]) for row in (0, 1) for column in (0, 1)], 1
    )


def plain(state, x, level, steps):
    """The network written out, for images of even size."""
    h = torch.cat([two_by_two(x), level.reshape(-1, 1, 1, 1).expand(-1, 1, x.shape[2] // 2, x.shape[3] // 2)], 1)
    h = F.conv2d(h, state["head.weight"], state["head.bias"], padding=1)
    for cell in ("cell1", "cell2", "cell3"):
        for t in range(steps):
            bank = f"{cell}.bank.row{steps}_step{t}"
            g = F.conv2d(norm_relu(state, f"{bank}.0", h), state[f"{cell}.body.conv1.weight"], padding=1)
            h = h + F.conv2d(norm_relu(state, f"{bank}.1", g), state[f"{cell}.body.conv2.weight"], padding=1)
    h = F.conv2d(h, state["tail.weight"], state["tail.bias"], padding=1)
    out = x.clone()
    for index, (c, row, column) in enumerate(
        (c, row, column) for c in range(x.shape[1]) for row in (0, 1) for column in (0, 1)
    ):
        out[:, c, row::2, column::2] += h[:, index]
    return out


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_what_its_docstring_says_written_out_in_plain_functions(channels):
    net = make("r3_half", image_channels=channels).eval()
    x, sigmas = noisy(8, 6, channels), torch.tensor([0.0, 11.0, 55.0], dtype=torch.float64)
    for steps in net.dial:
        expected = plain(net.state_dict(), x, sigmas / 55, steps)
        torch.testing.assert_close(net(x, steps, sigma=sigmas), expected, rtol=0, atol=1e-12)
        unknown = plain(net.state_dict(), x, torch.full((3,), -1.0, dtype=torch.float64), steps)
        for call in (net(x, steps), net(x, steps, sigma=-3), net(x, steps, sigma=None)):
            torch.testing.assert_close(call, unknown, rtol=0, atol=1e-12)


def test_odd_sizes_are_extended_by_their_last_row_and_column():
    net = make("r3_half").eval()
    for height, width in ((1, 1), (1, 6), (7, 9), (8, 5)):
        x = noisy(height, width)
        extended = torch.cat([x, x[..., -1:]], -1) if width % 2 else x
        extended = torch.cat([extended, extended[..., -1:, :]], -2) if height % 2 else extended
        out = net(x, 2, sigma=25)
        assert out.shape == x.shape
        torch.testing.assert_close(out, net(extended, 2, sigma=25)[..., :height, :width], rtol=0, atol=1e-12)


def test_one_noise_level_is_that_level_for_each_image():
    net = make("r3_half").eval()
    assert torch.equal(net(noisy(), sigma=25), net(noisy(), sigma=torch.tensor([25.0] * 3)))
    assert not torch.equal(net(noisy(), sigma=25), net(noisy(), sigma=24))


@pytest.mark.parametrize("sigma", [torch.zeros(2), torch.zeros(3, 1)])
def test_noise_levels_of_another_shape_are_refused(sigma):
    with pytest.raises(ValueError, match=r"give one number, or one for each of 3"):
        rc.r3_half(channels=4)(noisy().float(), sigma=sigma)


@pytest.mark.parametrize("build", DENOISERS)
def test_reach_is_how_far_the_gradient_of_a_pixel_goes(build):
    net = different(build(channels=2, steps=(1, 2)).double()).eval()
    for steps in net.dial:
        seen = 0
        for place in (60, 61):  # both pixels of a 2x2
            x = (noisy(121, 121, batch=1) + 5).requires_grad_()  # bright: every ReLU lets it through
            net(x, steps)[0, 0, place, place].backward()
            rows = x.grad[0, 0].abs().sum(1).nonzero()
            seen = max(seen, place - int(rows.min()), int(rows.max()) - place)
        assert seen == net.reach(steps)
    assert net.reach() == net.reach(2)
    with pytest.raises(ValueError, match="steps=3 is not on this network's dial"):
        net.reach(3)


def test_it_costs_half_of_r3_at_the_same_setting():
    half, full = ({row.steps: row.macs for row in rc.cost(build(), (1, 64, 64))} for build in (rc.r3_half, rc.r3))
    for steps in (1, 2, 3, 4):
        assert half[steps] == 32 * 32 * 9 * 64 * (5 + 3 * 2 * steps * 64 + 4)
        assert 0.49 < half[steps] / full[steps] < 0.51


def test_no_channels_are_refused():
    with pytest.raises(ValueError, match="channels=0; give a whole number of at least 1"):
        rc.r3_half(channels=0)


def test_training_starts_near_the_identity():
    torch.manual_seed(0)
    net, x = rc.r3_half().train(), torch.rand(4, 1, 32, 32)
    for steps in net.dial:
        assert (net(x, steps, sigma=25) - x).abs().max() < 0.5
