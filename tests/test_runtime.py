"""``rc.Dial``: what it runs, what it refuses; on files made by hand, whose outputs NumPy knows."""

import os
import re
import shutil
import subprocess
import sys
import threading
import warnings

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import handmade
import recurconv as rc
from recurconv.runtime import exported

GAINS = {2: 1.0, 3: 10.0, 4: 100.0}


def images(batch=4, side=8, channels=3, seed=0):
    return np.random.default_rng(seed).random((batch, channels, side, side + 1), np.float32)


def logits(array, gain):
    return gain * array.astype(np.float64).mean((2, 3))


@pytest.fixture
def file(tmp_path):
    return handmade.classifier(tmp_path / "model.onnx", GAINS)


@pytest.fixture
def dial(file):
    return rc.Dial(file)


def says(error, words, call, *args, **kwargs):
    with pytest.raises(error, match=re.escape(words)) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)


# --- what it runs


def test_every_setting_gives_its_own_output(dial):
    array = images()
    for steps, gain in GAINS.items():
        result = dial.run(array, steps=steps)
        np.testing.assert_allclose(result.output, logits(array, gain), rtol=1e-5)
        assert (result.output.dtype, result.steps, result.steps_per_image.tolist()) == (np.float32, steps, [steps] * 4)
        assert result.milliseconds > 0


def test_without_a_budget_the_largest_setting_runs(dial):
    assert dial.run(images()).steps == 4


def test_it_tells_what_the_file_says(dial, tmp_path):
    assert (dial.dial, dial.kind, dial.class_names) == ((2, 3, 4), "classifier", handmade.CLASSES)
    assert dial.macs == {2: 2_000_000, 3: 3_000_000, 4: 4_000_000}
    other = rc.Dial(handmade.denoiser(tmp_path / "d.onnx", {1: 0.1, 3: 0.2}))
    assert (other.dial, other.kind, other.class_names, other.macs) == ((1, 3), "denoiser", None, {1: 10, 3: 30})


def test_a_static_file_is_a_dial_of_one_setting(tmp_path):
    dial = rc.Dial(handmade.classifier(tmp_path / "static.onnx", GAINS, static=3))
    assert (dial.dial, dial.macs) == ((3,), {3: 3_000_000})
    np.testing.assert_allclose(dial.run(images()).output, logits(images(), 10), rtol=1e-5)
    says(ValueError, "steps=2 is not on this file's dial (3,)", dial.run, images(), steps=2)


def test_a_single_file_needs_no_data_file(tmp_path):
    dial = rc.Dial(handmade.classifier(tmp_path / "one.onnx", GAINS, data=False))
    assert [path.name for path in tmp_path.iterdir()] == ["one.onnx"]
    np.testing.assert_allclose(dial.run(images(), steps=2).output, logits(images(), 1), rtol=1e-5)


def test_a_denoiser_takes_a_noise_level_where_its_file_does(tmp_path):
    array = images(2, channels=1)
    dial = rc.Dial(handmade.denoiser(tmp_path / "a.onnx", {1: 0.25, 2: 0.5}, takes_sigma=True))
    np.testing.assert_allclose(dial.run(array, steps=1, sigma=25).output, array + 25.25, rtol=1e-6)
    np.testing.assert_allclose(dial.run(array).output, array - 0.5, atol=1e-6)  # unknown is -1
    says(ValueError, "sigma=-3 is no noise level; give 0 to 255", dial.run, array, sigma=-3)
    for bad in (float("nan"), "25", [25.0], True):
        says(ValueError, f"sigma={bad!r} is no noise level", dial.run, array, sigma=bad)
    blind = rc.Dial(handmade.denoiser(tmp_path / "b.onnx", {1: 0.25, 2: 0.5}))
    np.testing.assert_allclose(blind.run(array).output, array + 0.5, rtol=1e-6)
    says(ValueError, "sigma=25 is for denoisers that take a noise level", blind.run, array, sigma=25)


def test_other_floats_and_strides_are_taken(dial):
    array = images(side=9)[:, :, ::-1, 1:]
    expected = dial.run(np.ascontiguousarray(array)).output
    for given in (array, array.astype(np.float64), array.tolist(), torch.from_numpy(array.copy())):
        np.testing.assert_allclose(dial.run(given).output, expected, rtol=1e-6)
    assert dial.run(array.astype(np.float16)).output.dtype == np.float32


# --- budgets in MACs


def test_sizes_and_shapes_that_are_none(dial):
    says(ValueError, "height=0, width=8; each is at least 1", dial.macs_of, 2, 0, 8)
    says(ValueError, "batch=1.5, height=32, width=32; each is a whole number", dial.calibrate, 1.5, 32, 32)
    says(ValueError, "batch='a', height=1, width=1", dial.calibrate, "a", 1, 1)


@pytest.mark.parametrize(("macs", "steps"), [(2e6, 2), (2.9e6, 2), (3e6, 3), (1e9, 4)])
def test_macs_choose_the_largest_setting_that_fits(dial, macs, steps):
    assert dial.run(images()[:, :, :, :8].repeat(4, 2).repeat(4, 3), macs=macs).steps == steps  # 32 x 32 pixels
    assert dial.run(images()[:, :, :, :8].repeat(4, 2).repeat(8, 3), macs=2 * macs).steps == steps  # 32 x 64


def test_macs_of_a_size(dial, tmp_path):
    assert dial.macs_of(3, 32, 32) == 3e6
    assert dial.macs_of(3, 64, 16) == 3e6
    assert dial.macs_of(2, 8, 8) == 125_000
    says(ValueError, "steps=5 is not on this file's dial (2, 3, 4)", dial.macs_of, 5, 32, 32)
    larger = rc.Dial(handmade.classifier(tmp_path / "l.onnx", GAINS, smallest_side="64"))
    assert larger.macs_of(2, 128, 64) == 4e6


def test_a_denoisers_macs_are_those_of_the_whole_picture(tmp_path):
    dial = rc.Dial(handmade.denoiser(tmp_path / "d.onnx", {1: 0.1, 2: 0.2, 3: 0.3}))
    assert dial.macs_of(2, 8, 9) == 20 * 72
    assert dial.run(images(5, channels=1), macs=20 * 72).steps == 2  # 8 x 9 pixels; the batch does not count
    assert dial.run(images(5, 16, channels=1), macs=10 * 16 * 17).steps == 1


def test_a_budget_that_nothing_fits(dial):
    with pytest.warns(
        UserWarning, match=r"^macs=100 fits no setting; the smallest, steps=2, takes 1.406e\+05 MACs, and"
    ):
        assert dial.run(images(), macs=100).steps == 2
    says(ValueError, "macs=100 fits no setting; the smallest, steps=2,", dial.run, images(), macs=100, strict=True)


def test_the_warning_names_the_callers_line(dial):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dial.run(images(), macs=100)
        dial.run(images(), milliseconds=1e-9)
    assert [warning.filename for warning in caught] == [__file__] * 2


# --- what it refuses


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"steps": 5}, "steps=5 is not on this file's dial (2, 3, 4); choose one of these"),
        ({"steps": 2.0}, "steps=2.0 is not on"),
        ({"steps": True}, "steps=True is not on"),
        ({"steps": "2"}, "steps='2' is not on"),
        ({"steps": 2, "macs": 1e9}, "steps and macs are given; a call takes one of steps, milliseconds, macs, confid"),
        ({"milliseconds": 0}, "milliseconds=0 is no budget; give a number above 0"),
        ({"macs": float("nan")}, "macs=nan is no budget"),
        ({"macs": -1}, "macs=-1 is no budget"),
        ({"macs": True}, "macs=True is no budget; give a number above 0"),
        ({"macs": [3e6]}, "macs=[3000000.0] is no budget"),
        ({"milliseconds": "5"}, "milliseconds='5' is no budget; give a number above 0"),
        ({"confidence": 1.5}, "confidence=1.5 is no probability; give a number from 0 to 1"),
        ({"confidence": True}, "confidence=True is no probability"),
        ({"confidence": {}}, "confidence has no threshold"),
        ({"confidence": {5: 0.5}}, "confidence has a threshold for steps=5, not on this file's dial (2, 3, 4)"),
        ({"confidence": {"two": 0.5}}, "confidence has a threshold for steps=two"),
    ],
)
def test_budgets_that_are_refused(dial, given, words):
    says(ValueError, words, dial.run, images(), **given)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (
            (images() * 255).astype(np.uint8),
            "images are uint8; give float32 in [0, 1], e.g. images.astype('float32') / 2",
        ),
        (images() > 0.5, "images are bool; give float32"),
        (images() * 255, "images range from "),
        (np.full((1, 3, 8, 8), np.nan, np.float32), "images range from nan to nan; give finite values in [0, 1]"),
        (np.full((1, 3, 8, 8), -np.inf), "images range from -inf to -inf"),
        (images()[0], "images have the shape [3, 8, 9]; this network takes [N, 3, H, W], N at least 1"),
        (images(channels=1), "images have the shape [4, 1, 8, 9]; this network takes [N, 3, H, W]"),
        (images()[:0], "images have the shape [0, 3, 8, 9]"),
        (images(side=7), "images are 7 x 8 pixels; the smallest this network takes is 8 x 8"),
        ("photo.jpg", "images are <U9; give float32"),
    ],
)
def test_images_that_are_refused(dial, array, words):
    says(ValueError, words, dial.run, array)


def test_noise_may_leave_the_range(dial):
    dial.run(images() * 3 - 1)


def test_bad_arguments_of_the_dial(file):
    for threads in (0, 1.5, "2", True):
        says(ValueError, f"threads={threads!r}; give at least 1, or None", rc.Dial, file, threads=threads)
    assert rc.Dial(file, threads=np.int64(1)).run(images()).steps == 4
    assert rc.Dial(file, providers=[("CPUExecutionProvider", {})]).run(images()).steps == 4
    says(ValueError, "this onnxruntime has ", rc.Dial, file, providers=[("TPU", {"device_id": 1})])
    says(ValueError, "providers=['TPU']; this onnxruntime has ", rc.Dial, file, providers=["TPU"])
    says(ValueError, "providers=['TPU']; this onnxruntime has ", rc.Dial, file, providers="TPU")
    assert rc.Dial(file, providers="CPUExecutionProvider").run(images()).steps == 4
    says(ValueError, "providers=['']; this onnxruntime has ", rc.Dial, file, providers="")
    says(ValueError, "providers=[]; this onnxruntime has ", rc.Dial, file, providers=[])


def test_files_that_are_refused(file, tmp_path):
    says(
        FileNotFoundError, "none.onnx: no such file; `recurconv export MODEL -o none.onnx` writes", rc.Dial, "none.onnx"
    )
    says(ValueError, "is a folder; give the model.onnx", rc.Dial, tmp_path)
    (tmp_path / "empty.onnx").touch()
    says(ValueError, "empty.onnx is empty; `recurconv export MODEL -o empty.onnx", rc.Dial, tmp_path / "empty.onnx")
    (tmp_path / "photo.onnx").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    says(ValueError, "photo.onnx is not an ONNX model, or is cut short", rc.Dial, tmp_path / "photo.onnx")
    (tmp_path / "short.onnx").write_bytes(file.read_bytes()[:-200])
    says(ValueError, "short.onnx is not an ONNX model, or is cut short", rc.Dial, tmp_path / "short.onnx")
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    foreign = helper.make_model(helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [value], [value]))
    onnx.save(foreign, tmp_path / "foreign.onnx")
    says(ValueError, "foreign.onnx was not written by recurconv; ", rc.Dial, tmp_path / "foreign.onnx")


def test_metadata_that_is_refused(tmp_path):
    def refused(words, **entries):
        says(ValueError, words, rc.Dial, handmade.classifier(tmp_path / "m.onnx", GAINS, **entries))

    refused("has format 2, this recurconv reads 1; export it again, or install a newer recurconv", format="2")
    refused("its metadata is damaged (KeyError('recurconv.smallest_side')); export it again", smallest_side=None)
    refused("its metadata is damaged (KeyError('3'))", macs={2: 1, 4: 2})
    refused("its metadata is damaged", dial="[]")
    refused("its metadata is damaged", dial="2,3")
    refused("its metadata is damaged", kind="segmenter")


def test_data_files_that_are_refused(file, tmp_path):
    data = tmp_path / "model.onnx.data"
    whole = data.read_bytes()
    moved = shutil.copy(file, tmp_path / "sub.onnx")
    (tmp_path / "away").mkdir()
    shutil.move(moved, tmp_path / "away" / "model.onnx")
    missing = "model.onnx.data: the weights of model.onnx are missing; keep both files in one folder"
    says(FileNotFoundError, missing, rc.Dial, tmp_path / "away" / "model.onnx")
    for other in (whole[:-1], whole[:-1] + b"\1", b""):
        data.write_bytes(other)
        says(ValueError, "model.onnx.data does not belong to model.onnx, or is damaged", rc.Dial, file)


def test_what_onnxruntime_refuses_is_one_line(tmp_path):
    file = handmade.classifier(tmp_path / "m.onnx", GAINS, data=False)
    model = onnx.load(file)
    model.opset_import[0].version = 1000
    onnx.save(model, file)
    says(ValueError, "m.onnx cannot be loaded by onnxruntime ", rc.Dial, file)


def test_metadata_are_those_that_onnx_reads(file):
    told = {entry.key: entry.value for entry in onnx.load(file, load_external_data=False).metadata_props}
    assert exported._metadata(file) == told


# --- confidence


@pytest.fixture
def seen(dial, monkeypatch):
    """(steps, images) of every call of the network."""
    calls = []
    forward = dial._forward

    def spy(array, sigma, steps):
        calls.append((steps, len(array)))
        return forward(array, sigma, steps)

    monkeypatch.setattr(dial, "_forward", spy)
    return calls


def surer(array, gain, threshold):
    """Which images have a probability of at least ``threshold``, by NumPy's own sums."""
    odds = np.exp(logits(array, gain))
    return odds.max(1) / odds.sum(1) >= threshold


def test_only_images_that_are_not_sure_go_on(dial, seen):
    array = images(16)
    array[::3, 1] += 2
    sure = surer(array, 1, 0.5)
    assert 0 < sure.sum() < 16
    result = dial.run(array, confidence=0.5)
    assert result.steps_per_image.tolist() == np.where(sure, 2, 4).tolist()
    expected = np.where(sure[:, None], logits(array, 1), logits(array, 100))
    np.testing.assert_allclose(result.output, expected, rtol=1e-5)
    assert seen == [(2, 16), (4, 16 - sure.sum())]
    assert result.steps == 4


def test_all_sure_and_none_sure(dial, seen):
    assert dial.run(images(), confidence=0.0).steps == 2
    assert seen == [(2, 4)]
    result = dial.run(images(), confidence=1.0)
    np.testing.assert_array_equal(result.output, dial.run(images()).output)
    assert result.steps_per_image.tolist() == [4] * 4


def test_a_threshold_for_each_setting_that_is_to_run(dial, seen):
    array = images(32)
    array[::4, 0] += 3
    two, three = surer(array, 1, 0.8), surer(array, 10, 0.5)
    result = dial.run(array, confidence={"2": 0.8, "3": 0.5})
    assert result.steps_per_image.tolist() == np.where(two, 2, np.where(three, 3, 4)).tolist()
    assert set(result.steps_per_image) == {2, 3, 4}
    seen.clear()
    dial.run(array, confidence={3: 0.0, 2: 0.8})  # 4 never runs
    assert seen == [(2, 32), (3, 32 - two.sum())]
    seen.clear()
    dial.run(array, confidence={4: 0.5})
    assert seen == [(4, 32)]


def test_an_image_without_a_finite_answer_goes_on(tmp_path):
    dial = rc.Dial(handmade.classifier(tmp_path / "m.onnx", {2: float("nan"), 4: 1.0}))
    result = dial.run(images(), confidence=0.0)
    assert result.steps_per_image.tolist() == [4] * 4
    assert np.isfinite(result.output).all()


def test_confidence_is_for_classifiers(tmp_path):
    dial = rc.Dial(handmade.denoiser(tmp_path / "d.onnx", {1: 0.1, 2: 0.2}))
    says(ValueError, "confidence is for classifiers", dial.run, images(channels=1), confidence=0.9)


# --- threads, imports


def test_several_threads_at_several_settings(dial):
    array = images(8)
    wrong = []

    def work(steps):
        for _ in range(30):
            budget = {"steps": steps} if steps != 3 else {"confidence": {2: 0.34, 3: 0.0}}
            result = dial.run(array, **budget)
            gains = np.array([GAINS[int(own)] for own in result.steps_per_image])[:, None]
            if not np.allclose(result.output, logits(array, gains), rtol=1e-4):
                wrong.append(steps)

    threads = [threading.Thread(target=work, args=(steps,)) for steps in (2, 3, 4, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_needs_neither_pytorch_nor_onnx(file):
    code = (
        "import sys, numpy as np, recurconv as rc; dial = rc.Dial(sys.argv[1])\n"
        "x = np.full((2, 3, 8, 8), 0.5, 'float32')\n"
        "for budget in ({}, {'milliseconds': 50}, {'macs': 3e6}, {'confidence': 0.5}): dial.run(x, **budget)\n"
        "print(*sorted({'torch', 'onnx', 'matplotlib', 'PIL', 'rich', 'typer'} & set(sys.modules)), 'end')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, file],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=dict(os.environ),
    )
    assert (done.stdout, done.stderr, done.returncode) == ("end\n", "", 0)


def test_without_onnxruntime_it_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    says(ImportError, 'onnxruntime is not installed; pip install "recurconv[onnx]"', rc.Dial, file)
