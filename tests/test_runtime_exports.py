"""What ``recurconv export`` writes, run by ``rc.Dial``: PyTorch's outputs at every setting."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import recurconv as rc
from recurconv.export import export_onnx
from small import different


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    net = different(rc.r2(num_classes=3, width=1 / 16, steps=(1, 2), class_names=("a", "b", "c"))).eval()
    export_onnx(net, tmp_path_factory.mktemp("c") / "c.onnx", single_file=False)
    return net, tmp_path_factory.getbasetemp() / "c0" / "c.onnx"


@pytest.fixture(scope="module")
def denoiser(tmp_path_factory):
    net = different(rc.r3_half(channels=4, steps=1)).eval()  # one step: tracing takes many seconds
    path = tmp_path_factory.mktemp("d") / "d.onnx"
    export_onnx(net, path)
    return net, path


def close(output, expected):
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-4 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (5, 3, 17, 21)])
@torch.inference_mode()
def test_a_classifier(classifier, shape):
    net, path = classifier
    dial, images = rc.Dial(path, threads=1), torch.rand(shape)
    assert (dial.dial, dial.kind, dial.class_names) == (net.dial, "classifier", net.class_names)
    assert dial.macs == {row.steps: row.macs for row in rc.cost(net)}
    for steps in net.dial:
        close(dial.run(images.numpy(), steps=steps).output, net(images, steps))
    result = dial.run(images.numpy(), confidence=0.5)
    expected = torch.stack(
        [net(image[None], int(k))[0] for image, k in zip(images, result.steps_per_image, strict=True)]
    )
    close(result.output, expected)


@torch.inference_mode()
def test_a_denoiser_that_takes_a_noise_level(denoiser):
    net, path = denoiser
    dial, images = rc.Dial(path, threads=1), torch.rand(2, 1, 15, 22)
    assert (dial.dial, dial.kind, dial.class_names) == (net.dial, "denoiser", None)
    for steps in net.dial:
        for sigma in (None, 25.0):
            close(dial.run(images.numpy(), steps=steps, sigma=sigma).output, net(images, steps, sigma=sigma))
    with pytest.warns(UserWarning, match="fits no setting"):
        dial.run(images.numpy(), macs=dial.macs[1] * 15 * 22 * 0.99)
    dial.run(images.numpy(), macs=dial.macs[1] * 15 * 22 * 1.01, strict=True)


def test_macs_of_a_larger_image_are_what_is_counted(classifier):
    net, path = classifier
    counted = {row.steps: row.macs for row in rc.cost(net, (3, 64, 64))}
    dial = rc.Dial(path, threads=1)
    for steps in net.dial:
        assert dial._file.macs_of(steps, 64, 64) == pytest.approx(counted[steps], rel=1e-3)


def test_pytorch_stays_out(classifier):
    code = (
        "import sys, numpy as np, recurconv as rc\n"
        "print(rc.Dial(sys.argv[1]).run(np.full((2, 3, 16, 16), 0.5, 'float32'), milliseconds=1e3).steps)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, classifier[1]], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False"]
