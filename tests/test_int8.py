"""int8 exports: shared kernels, ranges of each step, scales that take the norm in, what is refused."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import recurconv as rc
from exporting import graphs, metadata, pytorch, run, session
from recurconv.export import int8, join_settings, static_model
from recurconv.export.int8_graphs import channel_scales, int8_kernel, layers, measured, quantised, uint8_scale
from recurconv.export.int8_images import samples
from small import make

DIAL = (1, 2)


def images(count, channels, side):
    return np.random.default_rng(0).random((count, channels, side, side), np.float32)


@pytest.fixture(scope="module")
def net():
    """A classifier whose norm layers all differ, some of their factors being negative, zero and all but zero."""
    net = make("r2", steps=DIAL).float().eval()
    with torch.no_grad():
        for group in net.cell1.bank.children():
            group[1].weight[:3] = torch.tensor([-0.5, 0.0, 1e-20])
    return net


@pytest.fixture(scope="module")
def models(net):
    """{steps: (fp32, int8)}."""
    feeds = [{"image": images(16, 3, 16)}]
    found = {}
    for steps in DIAL:
        fp32 = static_model(net, steps)
        found[steps] = fp32, quantised(fp32, layers(fp32, 1), measured(fp32, feeds))
    return found


def values(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_an_int8_setting_computes_nearly_what_pytorch_does(net, models):
    shown = images(16, 3, 16)
    for steps, (_, model) in models.items():
        onnx.checker.check_model(model, full_check=True)
        wanted, got = pytorch(net, shown, steps), run(session(model), shown)
        assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()
        assert np.abs(got - wanted).max() > 0


def test_onnxruntime_fuses_it_to_what_the_operators_mean(models):
    shown = images(2, 3, 16)
    for _, model in models.values():
        (meant,) = ReferenceEvaluator(model).run(None, {"image": shown})
        # A value on the edge between two steps of a scale may fall on either side.
        assert np.abs(run(session(model), shown) - meant).max() < 0.01 * np.abs(meant).max()


def test_kernels_are_int8_but_for_the_ends_and_the_same_in_every_setting(net, models):
    kernels = [
        {name: v for name, v in values(model).items() if v.dtype == np.int8 and v.ndim == 4}
        for _, model in models.values()
    ]
    assert kernels[0].keys() == kernels[1].keys()
    assert len(kernels[0]) == 4  # two bodies of two convolutions, whatever the number of steps
    for name, kernel in kernels[0].items():
        assert np.array_equal(kernel, kernels[1][name])
        weight = dict(net.named_parameters())[name.removesuffix("/int8")].detach().numpy()
        largest = np.abs(weight).max((1, 2, 3), keepdims=True)
        assert np.abs(kernel / 64 * largest - weight).max() <= largest.max() / 128 * 1.001
    for _, model in models.values():
        floats = {name for name, v in values(model).items() if v.dtype == np.float32 and v.ndim in (2, 4)}
        assert floats == {"stem.weight", "head.linear.weight"}


def test_a_dial_holds_each_int8_kernel_once_and_computes_what_its_settings_do(models, tmp_path):
    shown = images(3, 3, 16)
    kernel = values(models[1][1])["cell2.body.conv1.weight/int8"].tobytes()
    for data_file in (None, "dial.onnx.data"):
        joined = join_settings({steps: model for steps, (_, model) in models.items()}, data_file=data_file)
        assert (joined.model.SerializeToString() + joined.data).count(kernel) == 1
        path = tmp_path / "dial.onnx"
        path.write_bytes(joined.model.SerializeToString())
        (tmp_path / "dial.onnx.data").write_bytes(joined.data)
        opened = session(path)
        for steps, (_, model) in models.items():
            assert np.array_equal(run(opened, shown, steps), run(session(model), shown))


def test_each_step_has_the_range_of_its_own_activations(models):
    fp32, model = models[2]
    stored = values(model)
    found = layers(fp32, 1)
    names = [layer.result for layer in found]
    probe = onnx.ModelProto()
    probe.CopyFrom(fp32)
    probe.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    seen = dict(zip(names, session(probe).run(names, {"image": images(16, 3, 16)}), strict=True))
    for name, tensor in seen.items():
        low, high = min(tensor.min(), 0), max(tensor.max(), 0)
        assert stored[f"{name}/scale"] == pytest.approx((high - low) / 255, rel=1e-5)
        assert stored[f"{name}/zero"] == round(-low / ((high - low) / 255))
    scales = [float(stored[f"{layer.result}/scale"]) for layer in found if layer.kernel == "cell1.body.conv2.weight"]
    assert len(scales) == len(set(scales)) == 2  # one for each step


def test_scales():
    assert uint8_scale(0.0, 255.0) == (1.0, 0)
    assert uint8_scale(-1.0, 1.0)[1] == 128
    assert uint8_scale(3.0, 5.0) == (np.float32(5 / 255), 0)  # holds zero
    assert uint8_scale(0.0, 0.0) == (1.0, 0)
    kernel, scale = int8_kernel(np.array([1.0, -2.0, 0.0], np.float32).reshape(3, 1, 1, 1))
    assert kernel.ravel().tolist() == [64, -64, 0]
    assert scale.tolist() == [1 / 64, 2 / 64, 1]
    kept = channel_scales(np.array([0.5, -0.5], np.float32), np.array([1.0, 1.0], np.float32), np.float32(1))
    assert kept.tolist() == [0.5, -0.5]
    raised = channel_scales(np.array([0.0, -1e-20], np.float32), np.array([1.0, 8.0], np.float32), np.float32(1))
    assert raised == pytest.approx([2**-30, -8 * 2**-30])


def test_a_denoiser_with_a_noise_level_and_odd_sides():
    net = make("r3_half", steps=DIAL).float().eval()
    feeds = [{"image": images(2, 1, 16), "sigma": np.array(level, np.float32)} for level in (-1, 30)]
    fp32 = static_model(net, 2)
    model = quantised(fp32, layers(fp32, 2), measured(fp32, feeds))
    shown = images(1, 1, 15)
    wanted = pytorch(net, shown, 2, sigma=30.0)
    assert np.abs(run(session(model), shown, sigma=30.0) - wanted).max() < 0.05 * np.abs(wanted).max()
    kernels = [name for name, v in values(model).items() if v.dtype == np.int8 and v.ndim == 4]
    assert len(kernels) == 6
    assert {"head.weight", "tail.weight"} <= values(model).keys()


# --- the calibration images, the export


def test_calibration_images(animals, pictures, cifar):
    shown = samples(rc.r2(width=1 / 16), animals, size=16)
    assert sum(map(len, shown)) == 12
    assert {sample.inputs["image"].shape[1:] for sample in shown} == {(3, 16, 16)}
    assert all(sample.inputs["image"].min() >= 0 and sample.inputs["image"].max() <= 1 for sample in shown)
    net = rc.r2(width=1 / 16)
    del net.config  # as of a network that no builder made
    (batch,) = samples(net, cifar)
    assert batch.inputs["image"].shape == (20, 3, 32, 32)  # its training images
    noisy = samples(rc.r3(channels=4), pictures)
    assert all(sample.inputs["image"].shape == sample.clean.shape == (2, 1, 12, 12) for sample in noisy)
    noise = np.concatenate([sample.inputs["image"] - sample.clean for sample in noisy])
    assert noise.std() == pytest.approx(25 / 255, rel=0.1)
    told = samples(rc.denoisers.r3_half(channels=4), pictures, sigmas=(0, 30))
    assert {float(sample.inputs["sigma"]) for sample in told} == {
        -1.0,
        *(np.float32(2.0 * level) for level in range(1, 16, 2)),
    }


@pytest.mark.parametrize(
    ("kind", "says"),
    [("r2", "no picture in this folder"), ("r3", "no picture in this folder")],
)
def test_an_empty_folder_is_refused_and_leaves_nothing(kind, says, tmp_path):
    (tmp_path / "empty").mkdir()
    net = make(kind, steps=DIAL).float().eval()
    with pytest.raises(ValueError, match=says):
        int8.export_int8(net, tmp_path / "new" / "folders" / "model.onnx", tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        int8.export_int8(net, tmp_path / "model.onnx", tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_the_command_writes_what_the_runtime_reads(command, saved, animals, tmp_path):
    from recurconv.runtime.dial import Dial

    net = make("r2", steps=DIAL, num_classes=3).float().eval()
    model, out = saved(net), tmp_path / "model.onnx"
    done = command("export", model, "-o", out, "--int8", "--calibration", animals)
    assert done.status == 0, done.err
    assert "same label (%)" in done.out
    assert "12 calibration images" in done.out
    assert metadata(out)["precision"] == "int8"
    shown = images(2, 3, 16)
    for steps in DIAL:
        wanted = pytorch(net, shown, steps)
        assert np.abs(Dial(out, threads=1).run(shown, steps=steps).output - wanted).max() < 0.1 * np.abs(wanted).max()
    assert any(node.op_type == "QuantizeLinear" for graph in graphs(onnx.load(out).graph) for node in graph.node)
