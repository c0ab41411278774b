"""Fixtures of the rooms that a user meets: the command line, networks whose every answer is known, data to fit them."""

import os

# Before PyTorch is imported, here and in the processes that tests start: runs are compared bit for bit, and sums depend
# on the number of threads. On two cores the small tests are not slower for it.
os.environ["OMP_NUM_THREADS"] = "1"
# The values that tests expect are a CPU's. `make test-gpu` runs those that are marked "gpu", and nothing else.
if os.environ.get("TEST_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pickle
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

import made_results
import recurconv as rc
import tiny
from recurconv import cli
from recurconv.data.cifar import LAYOUTS

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TEST_LABELS = (0, 0, 0, 1, 1, 2, 3, 9)

Done = namedtuple("Done", "status out err")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make test-gpu"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """An uninterrupted run of ``tiny.recipe()``."""
    return tiny.train(tiny.recipe(), "tiny", tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture
def command(monkeypatch, capsys):
    """``command("profile", MODEL)``: run the command line in this process; its exit status and what it printed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["recurconv", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "80")
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return Done(stop.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command):
    """Run what must be refused: one line that says why, exit status 2, nothing else. Returns the line."""

    def run(*words):
        done = command(*words)
        assert done.status == 2, done
        assert done.out == ""
        assert done.err.startswith("recurconv: ")
        assert done.err.count("\n") == 1, done.err
        return done.err

    return run


@pytest.fixture(scope="session")
def shown():
    """What the demo shows: the sample picture, denoised by the shipped weights at every setting."""
    from recurconv import demo

    return demo.denoise_sample(runs=1)


def python(code, *arguments, **options):
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        **options,
    )


def answering(answers, **options):
    """A classifier that gives class ``answers[k]`` for every image at ``steps=k``, by 1 in the logits.

    All its values are 0 but for the second cell's: there the norm group of row k and step 0 adds 1 to a channel, and
    the classifier passes that channel on.
    """
    dial = sorted(answers)
    net = rc.r2(steps=dial if len(dial) > 1 else dial[0], width=1 / 16, **{"num_classes": 10, **options})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        channels = torch.arange(16)
        net.cell2.body.conv2.weight[channels, channels, 1, 1] = 1
        known = torch.arange(net.head.linear.out_features)
        net.head.linear.weight[known, known] = 1
        for steps, answer in answers.items():
            net.cell2.bank[steps, 0][1].bias[answer] = 1
    return net.eval()


def brightening(offsets, **options):
    """A denoiser that adds ``offsets[k]`` to every pixel at ``steps=k``, and does nothing else."""
    net = rc.r3(steps=sorted(offsets), channels=4, **options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.tail.weight[:, 0, 1, 1] = 1
        for steps, offset in offsets.items():
            for step in range(steps):
                net.cell3.bank[steps, step][0].bias[0] = offset
    return net.eval()


@pytest.fixture
def saved(tmp_path):
    """``saved(net)``: the folder into which it was saved."""

    def save(net, name="model"):
        net.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def cifar(tmp_path, monkeypatch):
    """A folder with a CIFAR-10 of 20 training images and 8 test images with ``TEST_LABELS``."""
    layout = replace(LAYOUTS["cifar10"], training_images=4, test_images=len(TEST_LABELS))
    monkeypatch.setitem(LAYOUTS, "cifar10", layout)
    folder = tmp_path / "cifar" / layout.folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    labels = {layout.test_file: list(TEST_LABELS), **{name: [0, 1, 2, 3] for name in layout.training_files}}
    for name, own in labels.items():
        pixels = random.integers(0, 256, (len(own), 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": own}, protocol=2))
    (folder / layout.meta_file).write_bytes(pickle.dumps({"label_names": list(CIFAR10)}, protocol=2))
    return folder.parent


@pytest.fixture
def pictures(tmp_path):
    """A folder of three gray pictures; the last is wholly white."""
    folder = tmp_path / "gray"
    folder.mkdir()
    ramp = np.linspace(0, 180, 20 * 24).reshape(20, 24).astype(np.uint8)
    for name, values in (("flat", np.full((16, 12), 60, np.uint8)), ("ramp", ramp), ("white", np.full_like(ramp, 255))):
        Image.fromarray(values).save(folder / f"{name}.png")
    return folder


@pytest.fixture
def animals(tmp_path):
    """A folder of images by class: ant, bee and cow; 2, 1 and 3 of them to test on."""
    random = np.random.default_rng(0)
    for split, counts in (("train", (2, 2, 2)), ("test", (2, 1, 3))):
        for name, count in zip(("ant", "bee", "cow"), counts, strict=True):
            folder = tmp_path / "animals" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (9 + number, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "animals"


@pytest.fixture
def results_folder(tmp_path):
    """Where a test writes results of finished runs."""
    return tmp_path / "results"


@pytest.fixture
def little(results_folder):
    """Results that no figure shows, so that the report's page is made in a moment."""
    made_results.write(results_folder, "ablations/uniform/cifar10", {2: 9.0, 3: 9.0, 4: 9.0})
    return results_folder


def within_noise(change, sigma):
    """What tiles leave of a change [H, W] or [H, W, C], written in NumPy: no more than noise of sigma/255 can be.

    A value at most four sigmas; the variance around a pixel, the mean over 7x7 twice, at most 1.3 times the noise's.
    """
    if sigma is None:
        return change
    change = change.clip(-4 * sigma / 255, 4 * sigma / 255)
    variance = (change**2).mean(2) if change.ndim == 3 else change**2
    for _ in range(2):
        sums, counts = (ndimage.uniform_filter(x, 7, mode="constant") for x in (variance, np.ones_like(variance)))
        variance = sums / counts
    with np.errstate(divide="ignore"):
        share = np.minimum(1, 1.3 * (sigma / 255) ** 2 / variance)
    return change * share.reshape(share.shape + (1,) * (change.ndim - 2))
