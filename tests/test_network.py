"""What every network does: sizes, inputs, arguments, names, copies."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import recurconv as rc
from recurconv.networks import ResidualBody
from small import DIAL, SMALL, images, make, on_meta


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("r2", [(8, 8), (8, 9), (9, 8), (11, 13), (15, 8), (17, 31)]),
        ("s2", [(8, 8), (9, 15)]),
        ("r3", [(1, 1), (1, 5), (2, 3), (7, 7)]),
        ("s3", [(1, 1), (3, 2)]),
        ("r3_half", [(1, 1), (1, 5), (6, 3)]),
        ("r4", [(1, 1), (1, 9), (3, 2), (5, 5), (17, 9)]),
        ("s4", [(1, 1), (7, 2)]),
        ("deeply_supervised_s4", [(1, 1), (3, 5)]),
    ],
)
def test_any_size_from_the_smallest_up(kind, sizes):
    net = getattr(rc, kind)(**SMALL[kind], **({} if "3" in kind else {"num_classes": 5})).eval()
    assert net.smallest_side == (8 if "2" in kind else 1)
    for height, width in sizes:
        x = torch.rand(2, net.image_channels, height, width)
        for steps in net.dial:
            result = net(x, steps)
            assert result.shape == (x.shape if "3" in kind else (2, 5))
            assert torch.isfinite(result).all()


@pytest.mark.parametrize("size", [(7, 8), (8, 7), (1, 1), (1, 100), (0, 8)])
def test_images_below_the_smallest_size_are_refused(size):
    message = rf"images are {size[0]} x {size[1]} pixels; the smallest this network takes is 8 x 8"
    with pytest.raises(ValueError, match=message):
        rc.r2(**SMALL["r2"])(torch.rand(1, 3, *size))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.rand(3, 8, 8), r"torch.float32 of shape \[3, 8, 8\]"),
        (torch.rand(1, 1, 8, 8), r"torch.float32 of shape \[1, 1, 8, 8\]"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"torch.uint8 of shape"),
    ],
)
def test_what_is_not_images_is_refused(bad, words):
    with pytest.raises(ValueError, match=words + r".*this network takes float in \[0, 1\] of shape \[B, 3, H, W\]"):
        rc.r2(**SMALL["r2"])(bad)


@pytest.mark.parametrize("kind", DIAL)
def test_an_image_s_result_does_not_depend_on_its_batch_in_eval(kind):
    net = make(kind).eval()
    x = images(kind)
    for steps in net.dial:
        alone = torch.cat([net(image[None], steps) for image in x])
        torch.testing.assert_close(net(x, steps), alone, rtol=0, atol=1e-12)
    together, single = net.float()(x.float()), net(x[:1].float())
    torch.testing.assert_close(together[:1], single, rtol=1e-5, atol=1e-5)


def test_normalisation_travels_as_buffers():
    net = make("r2", mean=(0.125, 0.25, 0.375), std=0.5).eval()
    plain = make("r2", mean=0.0, std=1.0).eval()
    x = images("r2")
    plain.load_state_dict({**net.state_dict(), **{k: v for k, v in plain.state_dict().items() if "normalize" in k}})
    ours = plain((x - torch.tensor([0.125, 0.25, 0.375]).reshape(3, 1, 1)) / 0.5)
    torch.testing.assert_close(net(x), ours, rtol=0, atol=1e-12)
    assert net.normalize.mean.shape == net.normalize.std.shape == (3, 1, 1)
    assert {name for name in net.state_dict() if "normalize" in name} == {"normalize.mean", "normalize.std"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mean": (0.1, 0.2)}, r"mean=\(0.1, 0.2\): give one finite number, or one for each of 3 channels"),
        ({"mean": float("nan")}, "mean=nan: give one finite number"),
        ({"std": float("inf")}, "std=inf: give one finite number"),
        ({"mean": None}, "mean=None: give one finite number"),
        ({"width": float("nan")}, "width=nan; give a finite factor above 0"),
        ({"width": "1"}, "width='1'; give a finite factor above 0"),
        ({"num_classes": 2.5}, "num_classes=2.5; give at least 1 class"),
        ({"num_classes": 3, "class_names": "cat"}, "class_names='cat'; give a list of names"),
        ({"image_size": (32, 32)}, r"image_size=\(32, 32\); give the height and width in pixels, one number"),
        ({"std": 0.0}, "std=0.0: .*std above 0"),
        ({"std": (1, 1, float("nan"))}, "std=.*std above 0"),
        ({"width": 0.001}, "width=0.001 leaves no channels; give a factor of at least 0.0156"),
        ({"steps": (2, 2)}, r"steps=\(2, 2\) is not a dial"),
        ({"norm": "double", "steps": 3}, 'norm="double" needs a dial'),
        ({"norm": "batch"}, "norm='batch'"),
        ({"num_classes": 0}, "num_classes=0; give at least 1 class"),
        ({"num_classes": 3, "class_names": ["cat", "dog"]}, "num_classes=3 and 2 class names"),
        ({"image_size": 0}, "image_size=0; give the height and width in pixels"),
    ],
)
def test_bad_arguments_of_a_classifier_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        rc.r2(**arguments)


def test_networks_without_channels_are_refused():
    for build in (rc.r3, rc.s3):
        with pytest.raises(ValueError, match="channels=0; give a whole number of at least 1"):
            build(channels=0)
    for build in (rc.r2, rc.r3, rc.s4):
        with pytest.raises(ValueError, match="image_channels=0; give 3 for colour, 1 for gray"):
            on_meta(build, image_channels=0)


@pytest.mark.parametrize("build", [rc.s2, rc.s3, rc.s4, rc.deeply_supervised_s4])
def test_an_untied_network_has_one_step_count(build):
    with pytest.raises(ValueError, match=r"steps=\(2, 3\): an untied network has one step count"):
        on_meta(build, steps=(2, 3))


def test_shared_parameters_are_the_bodies_of_the_cells():
    assert {id(p) for p in make("s2").shared_parameters()} == set()
    net = make("r4")
    names = {id(p): name for name, p in net.named_parameters()}
    assert sorted(names[id(p)] for p in net.shared_parameters()) == sorted(
        f"cell{i}.body.conv{j}.weight" for i in (1, 2, 3, 4) for j in (1, 2)
    )


def test_a_body_in_two_cells_is_shared_once():
    class Twice(rc.Network):
        def __init__(self):
            super().__init__((1, 2))
            body = ResidualBody(4)
            self.first, self.second = (rc.RecurrentCell(body, (1, 2)) for _ in range(2))

        def cells(self):
            return [self.first, self.second]

    net = Twice()
    assert [id(p) for p in net.shared_parameters()] == [id(p) for p in net.first.body.parameters()]


@pytest.mark.parametrize("dial", [(3, 2, 1), [1, 2, 3]])
def test_the_dial_of_ones_own_network_is_ascending(dial):
    net = rc.Network(dial)
    assert (net.dial, net.setting(None)) == ((1, 2, 3), 3)


@pytest.mark.parametrize("dial", [(), (1, 1), (1, -1), "abc", (1.5,)])
def test_what_is_no_dial_of_ones_own_network_is_refused(dial):
    with pytest.raises(ValueError, match=r"dial=.* is not a dial"):
        rc.Network(dial)


def test_a_network_made_without_values_takes_its_normalisation_again():
    net, usual = on_meta(rc.r2, mean=(0.1, 0.2, 0.3), std=0.5), rc.r2(mean=(0.1, 0.2, 0.3), std=0.5)
    net.to_empty(device="cpu").normalize.reset_parameters()
    assert torch.equal(net.normalize.mean, usual.normalize.mean)
    assert torch.equal(net.normalize.std, usual.normalize.std)


def test_images_that_are_no_tensor_are_refused():
    with pytest.raises(TypeError, match=r"images are a ndarray; give a tensor \[B, 3, H, W\]"):
        make("r2")(np.zeros((1, 3, 8, 8)))


def test_the_config_says_how_to_make_the_network_again():
    net = rc.r2(7, (2, 3), width=1 / 16, std=[0.1, 0.2, 0.3])
    assert net.config == {
        "network": "r2",
        "arguments": {
            "num_classes": 7, "steps": [2, 3], "norm": None, "width": 1 / 16, "unified": True, "std": [0.1, 0.2, 0.3],
        },
    }  # fmt: skip
    again = rc.r2(**net.config["arguments"])
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in net.state_dict().items()}
    from_arrays = rc.r3(steps=torch.tensor([1, 2]).numpy(), channels=4)
    assert from_arrays.config["arguments"]["steps"] == [1, 2]
    from_iterators = rc.r2(3, (n for n in (1, 2)), width=1 / 16, mean=iter([0.1, 0.2, 0.3]), class_names=iter("abc"))
    kept = {name: from_iterators.config["arguments"][name] for name in ("steps", "mean", "class_names")}
    assert kept == {"steps": [1, 2], "mean": [0.1, 0.2, 0.3], "class_names": ["a", "b", "c"]}
    assert rc.r2(**from_iterators.config["arguments"]).dial == from_iterators.dial == (1, 2)


def test_tensors_and_arrays_are_taken_as_numbers():
    net = make("r2", mean=torch.tensor(0.25), std=np.array(0.5))
    assert net.normalize.mean.flatten().tolist() == [0.25] * 3
    assert net.config["arguments"]["mean"] == 0.25
    largest = net.dial[-1]
    x = images("r2")
    assert net.counts(np.array([largest, largest])) == net.counts(np.int64(largest)) == (largest, largest)
    assert net.eval()(x, torch.tensor([largest, largest])).equal(net(x))


def norm_names(group):
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return {f"{group}.{layer}.{part}" for layer in (0, 1) for part in parts}


def test_the_state_dict_holds_each_tensor_once_under_names_that_read():
    state = rc.r2(steps=(1, 2), **SMALL["r2"]).state_dict()
    expected = {"normalize.mean", "normalize.std", "stem.weight", "head.linear.weight", "head.linear.bias"}
    for cell in ("cell1", "cell2"):
        expected |= {f"{cell}.body.conv1.weight", f"{cell}.body.conv2.weight"}
        for group in ("row1_step0", "row2_step0", "row2_step1"):
            expected |= norm_names(f"{cell}.bank.{group}")
    assert set(state) == expected
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)


@pytest.mark.parametrize("kind", ["r2", "r3", "r4", "s2", "s3", "s4", "deeply_supervised_s4"])
def test_no_tensor_stands_twice(kind):
    net = make(kind)
    state = net.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    assert len(state) == len(list(net.parameters())) + len(list(net.buffers()))


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "deepcopy of a compiled one": lambda net: copy.deepcopy(compiled(net)),
    "pickle of a compiled one": lambda net: pickle.loads(pickle.dumps(compiled(net))),
    "SyncBatchNorm": lambda net: nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(net)),
    "channels_last": lambda net: copy.deepcopy(net).to(memory_format=torch.channels_last),
}


def compiled(net):
    net.compile_bodies(backend="eager")
    net(images(net.config["network"]))
    return net


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", DIAL)
def test_copies_keep_the_results(kind, way):
    net = make(kind).eval()
    x = images(kind)
    if way == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    results = {steps: net(x, steps) for steps in net.dial}
    other = COPIES[way](net)
    assert list(other.state_dict()) == list(net.state_dict())
    assert not {t.data_ptr() for t in other.state_dict().values()} & {t.data_ptr() for t in net.state_dict().values()}
    assert other.config == net.config
    for steps, result in results.items():
        torch.testing.assert_close(other(x, steps), result, rtol=0, atol=1e-12)
    if way == "SyncBatchNorm":
        kinds = {type(m) for m in other.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        assert kinds == {nn.SyncBatchNorm}
        torch.testing.assert_close(other.train()(x), net.train()(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", DIAL)
def test_bfloat16_keeps_the_results_to_its_precision(kind):
    net = make(kind).eval()
    x = images(kind)
    half = copy.deepcopy(net).to(torch.bfloat16)
    for steps in net.dial:
        exact, rounded = net(x, steps), half(x.bfloat16(), steps)
        assert rounded.dtype == torch.bfloat16
        assert (rounded - exact).norm() < 0.05 * exact.norm()
