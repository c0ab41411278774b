"""A run that starts from a trained network: what it takes over, what it does not, what is refused."""

import contextlib

import pytest
import torch

import recurconv as rc
import tiny
from recurconv.interruption import InterruptionError
from recurconv.runs import RunFolder


@pytest.fixture
def source(tmp_path):
    """A network of the tiny recipe with values of its own everywhere, saved."""
    of_data = {"class_names": tiny.CLASSES, "image_size": 8, "mean": (0.7, 0.6, 0.5), "std": (0.1, 0.3, 0.5)}
    network = rc.r2(3, width=0.0625, **of_data)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5 if tensor.is_floating_point() else tensor)
    network.save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def test_a_run_starts_with_all_of_a_network_of_the_same_classes(source):
    network = tiny.trainer(tiny.recipe(f"init={source}")).network
    assert tiny.same(dict(network.state_dict()), tiny.rc_load(source))
    assert network.config == rc.load(source).config


def test_of_other_classes_the_last_layer_alone_is_new(tmp_path, source):
    network = rc.load(source)
    network.class_names = ("a", "b", "c")
    network.save_pretrained(source)
    started, fresh = (tiny.trainer(tiny.recipe(*init)).network.state_dict() for init in ([f"init={source}"], []))
    trained = tiny.rc_load(source)
    for name, tensor in started.items():
        assert tensor.equal(fresh[name] if name.startswith("head.linear.") else trained[name]), name
    assert not started["head.linear.weight"].equal(trained["head.linear.weight"])


def test_of_another_number_of_classes_too():
    init = ["init=r2-cifar10", "width=0.5"]
    network = tiny.trainer(tiny.recipe(*init)).network
    assert network.head.linear.weight.shape == (3, 128)
    assert network.stem.weight.equal(rc.load("r2-cifar10").stem.weight)
    assert network.normalize.mean.flatten().tolist() == pytest.approx([0.4914, 0.4822, 0.4465])
    assert network.class_names == tiny.CLASSES


def test_it_resumes_from_its_own_weights(source, tmp_path):
    config = tiny.recipe(f"init={source}")
    with tiny.tiny_data():
        tiny.train(config, "tiny", tmp_path / "whole")
        with contextlib.suppress(InterruptionError):
            tiny.train(config, "tiny", tmp_path / "cut", seconds=0)
        assert RunFolder(tmp_path / "cut").load_state()["iteration"] == 1
        tiny.train(config, "tiny", tmp_path / "cut", resume=True)
    tiny.assert_same_run(tmp_path / "cut", tmp_path / "whole")
    assert not tiny.same(tiny.weights(tmp_path / "whole"), tiny.rc_load(source))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["width=0.125"], r"width is 0.0625 there and 0.125 here; make them alike by --set$"),
        (["width=0.125", "steps=2,3", "probabilities="], r"steps is \[2, 3, 4\] there and \[2, 3\] here, width is "),
        (["network=r4", "steps=1,2,3", "probabilities="], r"it is of r2, the recipe of r4$"),
    ],
)
def test_another_network_is_refused(settings, complaint, source, tmp_path):
    config = tiny.recipe(f"init={source}", *settings)
    with tiny.tiny_data(), pytest.raises(ValueError, match=f"init={source} is another network .*: {complaint}"):
        tiny.train(config, "tiny", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_denoiser_is_no_start_for_a_classifier(tmp_path):
    config = tiny.recipe("init=r3-gray25")
    with tiny.tiny_data(), pytest.raises(ValueError, match="it is of r3, the recipe of r2"):
        tiny.train(config, "tiny", tmp_path / "run")


def test_a_network_that_is_not_there_is_one_line(tmp_path):
    command = tiny.Command(
        *("train", "r2-cifar10", "--data", "tiny", "--out", tmp_path / "run", "--set", f"init={tmp_path / 'none'}")
    )
    status, said = command.wait()
    assert status == 2
    assert said.count("\n") == 1
    assert "none is neither a folder nor shipped weights" in said
    assert not (tmp_path / "run").exists()
