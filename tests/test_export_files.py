"""What an export writes, when it refuses to, and what it leaves behind; the command."""

import hashlib
import json
import sys

import numpy as np
import onnx
import pytest
import torch

import recurconv as rc
from exporting import Traced, metadata, pytorch, relative, run, session
from recurconv import export
from recurconv.denoisers import r3_half
from recurconv.export import parity, writing
from recurconv.export.description import describe
from small import make, small

IMAGES = np.random.default_rng(0).random((2, 1, 13, 9), np.float32)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return rc.r3(steps=(1, 2), channels=16).eval()


@pytest.fixture(scope="module")
def traces():
    return Traced()


@pytest.fixture(autouse=True)
def traced(monkeypatch, traces):
    """Each setting is traced once; a list of what was asked for in this test."""
    traces.calls.clear()
    monkeypatch.setattr(writing, "static_model", traces)
    return traces.calls


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- what is written


def test_a_small_network_is_one_file(net, tmp_path):
    made = export.export_onnx(net, tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx"]
    assert (made.path, made.data, made.bytes) == (tmp_path / "m.onnx", None, (tmp_path / "m.onnx").stat().st_size)
    assert list(made.differences) == [1, 2]
    assert all(0 <= difference < 1e-5 for difference in made.differences.values())
    told = metadata(made.path)
    assert (told["data"], told["data_sha256"], told["steps"]) == ("", "", "dial")
    for steps in net.dial:
        assert relative(run(session(made.path), IMAGES, steps), pytorch(net, IMAGES, steps)) < 1e-5


def test_the_weights_of_a_large_network_lie_beside_the_model(net, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "ONE_FILE", 1000)
    made = export.export_onnx(net, tmp_path / "m.onnx")
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    assert made.data == tmp_path / "m.onnx.data"
    content = made.data.read_bytes()
    assert made.bytes == made.path.stat().st_size + len(content)
    told = metadata(made.path)
    assert (told["data"], told["data_sha256"]) == ("m.onnx.data", hashlib.sha256(content).hexdigest())
    assert net.cell1.body.conv.weight.detach().numpy().tobytes() in content
    for steps in net.dial:
        assert relative(run(session(made.path), IMAGES, steps), pytorch(net, IMAGES, steps)) < 1e-5


@pytest.mark.parametrize("single_file", [True, False])
def test_one_file_or_two_can_be_asked_for(net, tmp_path, monkeypatch, single_file):
    monkeypatch.setattr(writing, "ONE_FILE", 1000 if single_file else 10**9)
    made = export.export_onnx(net, tmp_path / "m.onnx", single_file=single_file)
    assert (made.data is None) == single_file
    assert names(tmp_path) == (["m.onnx"] if single_file else ["m.onnx", "m.onnx.data"])


def test_one_setting_is_a_plain_model_without_steps(net, tmp_path, traced):
    made = export.export_onnx(net, tmp_path / "m.onnx", steps=2)
    assert traced == [2]
    assert list(made.differences) == [2]
    assert [value.name for value in session(made.path).get_inputs()] == ["image"]
    assert relative(run(session(made.path), IMAGES), pytorch(net, IMAGES, 2)) < 1e-5
    told = metadata(made.path)
    assert (told["steps"], told["dial"], json.loads(told["macs"]).keys()) == ("2", "[1, 2]", {"2"})
    assert not any(node.op_type == "If" for node in onnx.load(made.path).graph.node)


def test_metadata_of_a_denoiser(net):
    told = describe(net)
    assert {key.partition(".")[0] for key in told} == {"recurconv"}
    assert all(isinstance(value, str) for value in told.values())
    assert told["recurconv.kind"] == "denoiser"
    assert told["recurconv.class_names"] == "null"
    assert told["recurconv.macs_per"] == "pixel"
    ends = 2 * 9 * 16
    assert json.loads(told["recurconv.macs"]) == {"1": ends + 3 * 9 * 256, "2": ends + 6 * 9 * 256}
    assert (told["recurconv.version"], told["recurconv.precision"]) == (rc.__version__, "fp32")


def test_metadata_of_a_classifier():
    told = describe(small(num_classes=3, class_names=["é", "b", "c"]), precision="int8")
    assert told["recurconv.kind"] == "classifier"
    assert json.loads(told["recurconv.class_names"]) == ["é", "b", "c"]
    assert json.loads(told["recurconv.dial"]) == [1, 2]
    assert told["recurconv.macs_per"] == "image"
    assert told["recurconv.precision"] == "int8"
    assert int(told["recurconv.smallest_side"]) == rc.r2(width=1 / 16).smallest_side
    assert told["recurconv.image_size"] == "null"
    sized = describe(small(image_size=64))
    assert sized["recurconv.image_size"] == "64"
    assert sized["recurconv.macs"] == describe(small())["recurconv.macs"]  # of 32 pixels all the same


def test_another_opset_is_what_is_written(net, tmp_path):
    made = export.export_onnx(net, tmp_path / "m.onnx", steps=1, opset=18)
    assert [(entry.domain, entry.version) for entry in onnx.load(made.path).opset_import] == [("", 18)]


def test_a_program_of_torch_export(net, tmp_path):
    made = export.export_program(net, tmp_path / "m.pt2", steps=2)
    assert names(tmp_path) == ["m.pt2"]
    assert made.differences[2] < 1e-5
    loaded = torch.export.load(made.path).module()
    with torch.inference_mode():
        assert relative(loaded(torch.from_numpy(IMAGES)).numpy(), pytorch(net, IMAGES, 2)) < 1e-5
    with pytest.raises(ValueError, match=r"a .pt2 file holds one setting: choose it by steps .*\(1, 2\)"):
        export.export_program(net, tmp_path / "n.pt2", steps=None)


def test_a_program_of_a_denoiser_at_half_resolution_takes_even_sides(tmp_path):
    half = r3_half(steps=1, channels=4).eval()
    made = export.export_program(half, tmp_path / "m.pt2", steps=1)
    loaded = torch.export.load(made.path).module()
    images = torch.rand(3, 1, 10, 6)
    with torch.inference_mode():
        assert relative(loaded(images, torch.tensor(25.0)), half(images, 1, 25.0)) < 1e-5
        with pytest.raises(AssertionError, match="Guard failed"):
            loaded(images[..., :9, :], torch.tensor(25.0))


@pytest.mark.parametrize(("kind", "odd"), [("r2", 18), ("r4", 8)])
def test_a_program_of_a_classifier_takes_multiples_of_four_from_16_on(tmp_path, kind, odd):
    deep = make(kind).float().eval()
    made = export.export_program(deep, tmp_path / "m.pt2", steps=deep.dial[0])
    assert made.differences[deep.dial[0]] < 1e-5
    loaded = torch.export.load(made.path).module()
    for shape in ((1, 3, 16, 16), (2, 3, 20, 44), (3, 3, 24, 20), (1, 3, 32, 32), (1, 3, 33, 33), (2, 3, 40, 16)):
        images = np.random.default_rng(1).random(shape, np.float32)
        with torch.inference_mode():
            assert relative(loaded(torch.from_numpy(images)), pytorch(deep, images, deep.dial[0])) < 1e-5
    with pytest.raises(AssertionError, match="Guard failed"):
        loaded(torch.rand(1, 3, odd, odd))


# --- what is not written


def test_an_export_that_differs_is_not_written(net, tmp_path, monkeypatch, traces):
    def wrong(network, steps, *, opset=None):
        model = traces(network, steps)
        if steps == 2:
            (tail,) = (t for t in model.graph.initializer if t.name == "tail.bias")
            tail.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tail) + 1e-3, tail.name))
        return model

    monkeypatch.setattr(writing, "static_model", wrong)
    with pytest.raises(ValueError, match=r"differs from PyTorch by .* at steps=2, more than 1e-04; it was not written"):
        export.export_onnx(net, tmp_path / "m.onnx")
    assert names(tmp_path) == []


def test_parity_is_asked_of_every_setting_and_kind_of_image(net):
    asked = []

    def perfect(steps, inputs):
        asked.append((steps, *inputs["image"].shape))
        with torch.inference_mode():
            return net(inputs["image"], steps)

    assert parity.differences(net, (1, 2), perfect) == {1: 0, 2: 0}
    assert {steps for steps, *_ in asked} == {1, 2}
    assert {1} < {count for _, count, *_ in asked}
    assert any(height % 2 for *_, height, _ in asked)
    for wrong in (lambda good: good * torch.nan, lambda good: good[:1, :, :1], lambda good: good + 2e-4):
        with pytest.raises(ValueError, match="export"):
            parity.differences(net, (1,), lambda steps, inputs, wrong=wrong: wrong(perfect(steps, inputs)))


def test_a_network_that_gives_nan_is_told_as_such(tmp_path):
    broken = rc.r3(steps=1, channels=4)
    with torch.no_grad():
        broken.tail.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="the network's own output is not finite at steps=1"):
        parity.differences(broken, (1,), lambda steps, inputs: inputs["image"])


def test_files_that_are_there_stay_unless_they_may_be_replaced(net, tmp_path, traced):
    for there in ("m.onnx", "m.onnx.data"):
        (tmp_path / there).write_text("mine")
        with pytest.raises(FileExistsError, match=rf"{there} is there already; .* overwrite it"):
            export.export_onnx(net, tmp_path / "m.onnx")
        assert (tmp_path / there).read_text() == "mine"
        (tmp_path / there).unlink()
    assert traced == []  # told before the work
    export.export_onnx(net, tmp_path / "m.onnx", single_file=False)
    export.export_onnx(net, tmp_path / "m.onnx", single_file=True, overwrite=True)
    assert names(tmp_path) == ["m.onnx"]  # no data file that belongs to nothing
    assert metadata(tmp_path / "m.onnx")["data"] == ""


def test_a_failure_leaves_what_was_there(net, tmp_path, monkeypatch):
    before = export.export_onnx(net, tmp_path / "m.onnx", single_file=False)
    content = before.path.read_bytes(), before.data.read_bytes()
    for name in ("differences", "write_model", "static_model"):
        with monkeypatch.context() as patch:
            patch.setattr(writing, name, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(OSError, match="No space left"):
                export.export_onnx(net, tmp_path / "m.onnx", overwrite=True)
        assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
        assert (before.path.read_bytes(), before.data.read_bytes()) == content


def test_a_pair_that_was_only_half_replaced_is_refused_by_the_runtime(net, tmp_path, monkeypatch, traces):
    model, data = export.join_settings({k: traces(net, k) for k in net.dial}, data_file="m.onnx.data")
    writing.write_model(export.Joined(model, data + bytes(64)), tmp_path / "m.onnx", net)
    assert rc.Dial(tmp_path / "m.onnx").dial == net.dial
    replace = type(tmp_path).replace

    def stopped(self, target):
        if target.suffix == ".onnx":
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        export.export_onnx(net, tmp_path / "m.onnx", single_file=False, overwrite=True)
    assert names(tmp_path) == ["m.onnx", "m.onnx.data"]
    with pytest.raises(ValueError, match=r"m\.onnx\.data does not belong to m\.onnx"):
        rc.Dial(tmp_path / "m.onnx")


def test_the_runtime_reads_both_kinds(net, tmp_path):
    for single_file in (True, False):
        made = export.export_onnx(net, tmp_path / f"{single_file}.onnx", single_file=single_file)
        dial = rc.Dial(made.path)
        assert dial.dial == net.dial
        assert relative(dial.run(IMAGES, steps=2).output, pytorch(net, IMAGES, 2)) < 1e-5


# --- the command


def test_the_command_writes_and_says_what(command, saved, net, tmp_path):
    folder = saved(net)
    done = command("export", folder, "-o", tmp_path / "m.onnx", "--steps", 1)
    assert (done.status, done.err) == (0, "")
    path = tmp_path / "m.onnx"
    assert done.out.startswith(f"{path}: {path.stat().st_size:,} bytes\n")
    assert "difference from PyTorch" in done.out


def test_bad_input_of_the_command(refused, saved, net, tmp_path, traced):
    model, out = saved(net), tmp_path / "out"

    def says(reason, name, *more):
        assert reason in refused("export", model, "-o", out / name, *more)

    says("must end in .onnx or .pt2", "m.pb")
    says("must end in .onnx or .pt2", "model")
    says("a .pt2 file holds one setting: choose it by steps (--steps), one of (1, 2)", "m.pt2")
    says("steps=3 is not on this network's dial (1, 2)", "m.onnx", "--steps", 3)
    says("steps=0 is not on this network's dial (1, 2)", "m.pt2", "--steps", 0)
    says("opset=7 cannot be written; choose one from 18 to", "m.onnx", "--opset", 7)
    says("are for ONNX", "m.pt2", "--steps", 1, "--opset", 20)
    says("--int8 and --calibration DIR go together", "m.onnx", "--int8")
    says("--int8 and --calibration DIR go together", "m.onnx", "--calibration", tmp_path)
    says("one setting (--steps) is always one file", "m.onnx", "--steps", 1, "--data-file")
    assert "is neither a folder nor shipped weights" in refused("export", "nothing", "-o", out / "m.onnx")
    assert not out.exists()
    (out / "m.onnx").mkdir(parents=True)
    says("m.onnx is a folder; give the name of a file to write", "m.onnx", "--overwrite")
    (out / "file").write_text("")
    says("file is no folder; give a file in one", "file/m.onnx")
    assert traced == []
    assert names(out) == ["file", "m.onnx"]


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages_are_one_line(refused, saved, net, tmp_path, monkeypatch, missing):
    if missing == "onnxscript":
        monkeypatch.setattr(writing, "static_model", export.static_model)
    monkeypatch.setitem(sys.modules, missing, None)
    line = refused("export", saved(net), "-o", tmp_path / "m.onnx", "--steps", 1)
    assert line == f'recurconv: {missing} is not installed, and an export needs it; pip install "recurconv[onnx]"\n'
    assert names(tmp_path) == ["model"]
