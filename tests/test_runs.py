"""Run folders: what a mistake, broken numbers or a full disk leave of them, and what is said."""

import errno
import json
import math
import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import tiny
from recurconv import checkpoint, runs, training
from recurconv.divergence import TrainingError
from recurconv.runs import RunFolder
from recurconv.training import Trainer

CONFIG = tiny.recipe()
COMMAND = ("train", "r2-cifar10", "--data", "tiny", "--device", "cpu", "--quiet", *tiny.as_arguments(CONFIG))
RESUME = ("train", "--data", "tiny", "--device", "cpu", "--quiet", "--resume")


# Resume of what is finished, or something else


def test_resuming_a_finished_run_says_so_and_changes_nothing(whole):
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in whole.iterdir()}
    status, said = tiny.Command(*RESUME, "--out", whole).wait()
    assert (status, said.strip()) == (0, f"{whole} is finished: all its 6 iterations are done")
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in whole.iterdir()} == before


def copy_of(whole, tmp_path):
    out = tmp_path / "copy"
    out.mkdir()
    for path, content in tiny.files(whole).items():
        (out / path.name).write_bytes(content)
    return out


@pytest.mark.parametrize("damage", ["model.safetensors", "config.json"])
def test_a_finished_run_whose_network_was_not_written_any_more_gets_it(damage, whole, tmp_path):
    out = copy_of(whole, tmp_path)
    (out / damage).unlink()
    tiny.assert_resumes_to(whole, out)


def one_line(command, status=2):
    got, said = command.wait()
    assert got == status, said
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("other", 'was started on other data, "tiny"; this is "other"; give the data that it was started with'),
        ("missing", "no such file or folder"),
    ],
)
def test_resuming_with_other_data_is_refused(data, complaint, whole):
    before = tiny.files(whole)
    assert complaint in one_line(tiny.Command(*(data if a == "tiny" else a for a in RESUME), "--out", whole))
    assert tiny.files(whole) == before


def test_resuming_with_data_of_another_size_is_refused_even_if_its_condition_is_not_known(whole, tmp_path):
    out = copy_of(whole, tmp_path)
    state = RunFolder(out).load_state()
    del state["condition"], state["recipe"], state["epoch_loss"]  # as runs of the first version have it
    torch.save(state, out / "trainer_state.pt")
    with pytest.raises(ValueError, match="was started for 6 iterations, with this data it would be 4; give the data"):
        tiny.train(CONFIG, "short", out, resume=True)
    tiny.assert_resumes_to(whole, out)


def test_a_run_that_lost_its_state_is_not_begun_anew(whole, tmp_path):
    out = copy_of(whole, tmp_path)
    (out / "trainer_state.pt").unlink()
    before = tiny.files(out)
    complaint = f"{out} has a network but no trainer_state.pt; start anew in another folder"
    assert complaint in one_line(tiny.Command(*RESUME, "--out", out))
    assert tiny.files(out) == before


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_resuming_a_finished_run_mends_its_network(damage, whole, tmp_path):
    out = copy_of(whole, tmp_path)
    file = out / "model.safetensors"
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes()[:100])
    tiny.assert_resumes_to(whole, out)


def test_a_run_of_a_version_with_fewer_fields_is_resumed(whole, tmp_path):
    out = copy_of(whole, tmp_path)
    state = RunFolder(out).load_state()
    del state["recipe"]["init"]
    torch.save(state, out / "trainer_state.pt")
    recipe = json.loads((out / "recipe.json").read_text())
    del recipe["init"]
    (out / "recipe.json").write_text(json.dumps(recipe))
    tiny.assert_resumes_to(whole, out)


def test_resuming_with_another_recipe_is_refused(whole, tmp_path):
    with pytest.raises(ValueError, match=r"was started with another recipe: epochs=2, rate=0.05; go on with that"):
        tiny.train(tiny.recipe("rate=0.1", "epochs=3"), "tiny", whole, resume=True)
    line = one_line(tiny.Command(*RESUME, "--out", whole, "--set", "rate=0.1"))
    assert "--set" in line
    out = copy_of(whole, tmp_path)
    recipe = json.loads((out / "recipe.json").read_text())
    (out / "recipe.json").write_text(json.dumps({**recipe, "optimizer": "adam"}))
    assert "was started with another recipe: optimizer='sgd'" in one_line(tiny.Command(*RESUME, "--out", out))


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("trainer_state.pt", b"PK", "trainer_state.pt cannot be read"),
        ("trainer_state.pt", b"", "trainer_state.pt cannot be read"),
        ("recipe.json", b"{", "recipe.json is not a recipe of this version"),
        ("recipe.json", b'{"name": "x"}', "recipe.json is not a recipe of this version"),
        ("recipe.json", b"[]", "recipe.json is not a recipe of this version"),
    ],
)
def test_resuming_a_damaged_run_is_one_line(file, content, complaint, whole, tmp_path):
    out = copy_of(whole, tmp_path)
    (out / file).write_bytes(content)
    before = tiny.files(out)
    with pytest.raises(ValueError, match=complaint) as error:
        tiny.train(RunFolder.open(out).recipe(), "tiny", out, resume=True)
    assert "\n" not in str(error.value)
    assert tiny.files(out) == before


def test_resuming_what_is_no_run(tmp_path):
    assert "is no run folder: it has no recipe.json" in one_line(tiny.Command(*RESUME, "--out", tmp_path))


# What must not be overwritten, and what must not stay


def test_an_existing_run_is_refused_and_not_touched(whole, tmp_path):
    before = tiny.files(whole)
    line = one_line(tiny.Command(*COMMAND, "--out", whole))
    assert line == f"recurconv: {whole} holds a run; go on with it by --resume, or choose another folder"
    assert tiny.files(whole) == before
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(FileExistsError, match="is not an empty folder; choose another"):
        tiny.train(CONFIG, "tiny", tmp_path)
    with pytest.raises(FileExistsError, match="is not an empty folder; choose another"):
        tiny.train(CONFIG, "tiny", tmp_path / "thesis.tex")
    assert tiny.files(tmp_path) == {tmp_path / "thesis.tex": b"mine"}


def test_an_empty_folder_is_taken(tmp_path):
    tiny.train(tiny.recipe("epochs=1"), "tiny", tmp_path)
    tiny.weights(tmp_path)


@pytest.mark.parametrize(
    ("data", "settings", "device", "complaint"),
    [
        ("missing", [], "cpu", "no such file"),
        ("tiny", ["batch_size=25"], "cpu", "batch_size=25 does not fit tiny; choose 1 to 24"),
        ("tiny", ["crop=9"], "cpu", r"crop=9 is larger than the images \(8x8\)"),
        ("tiny", [], "tpu", "device='tpu' is not known; choose auto, cpu, cuda or cuda:N"),
        ("tiny", [], "cpu:1", "device='cpu:1' is not known"),
        ("tiny", [], "cuda:x", "device='cuda:x' is not known"),
    ],
)
def test_a_start_that_fails_leaves_no_folder(data, settings, device, complaint, tmp_path):
    with tiny.tiny_data(), pytest.raises((ValueError, OSError), match=complaint):
        training.train(tiny.recipe(*settings), Path(data), tmp_path / "a" / "run", device=device)
    assert list(tmp_path.iterdir()) == []


def test_images_that_are_too_small_for_the_network_leave_no_folder(tmp_path):
    photos = tiny.picture_folder(tmp_path / "photos", count=3)
    config = tiny.recipe("size=4", "batch_size=2", "workers=0", "minival=1", name="r2-folder")
    with pytest.raises(ValueError, match="images are 4 x 4 pixels; the smallest this network takes is 8 x 8"):
        tiny.train(config, photos, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"device='cuda': PyTorch sees 0 CUDA devices here.*; choose another, or cpu"):
        training.train(CONFIG, Path("tiny"), tmp_path / "run", device="cuda")


def test_a_gpu_number_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=r"device='cuda:2': PyTorch sees 2 CUDA devices here"):
        training.train(CONFIG, Path("tiny"), tmp_path / "run", device="cuda:2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="there are 2 processes here; give cuda"):
        training.train(CONFIG, Path("tiny"), tmp_path / "run", device="cuda:1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"sees 2 CUDA devices here for 3 processes"):
        training.train(CONFIG, Path("tiny"), tmp_path / "run", device="cuda")


# NaN and Inf


def test_an_absurd_rate_stops_the_run_and_saves_nothing_broken(tmp_path):
    config = tiny.recipe("rate=1e30", "clip=0", "warmup=0", "epochs=20")
    arguments = ("train", "r2-cifar10", "--data", "tiny", "--device", "cpu", "--quiet", *tiny.as_arguments(config))
    line = one_line(tiny.Command(*arguments, "--out", tmp_path / "run"), status=1)
    assert "at iteration" in line or "after iteration" in line
    assert "lower rate (it was 1e+30)" in line
    assert "clip (it was 0.0; 0 is off)" in line
    assert "more warmup (it was 0.0)" in line
    if (tmp_path / "run" / "model.safetensors").exists():
        assert all(tensor.isfinite().all() for tensor in tiny.weights(tmp_path / "run").values())


@pytest.mark.parametrize(
    ("what", "at", "complaint"),
    [
        ("loss", 5, r"the loss is nan at iteration 5, steps=\d; "),
        ("gradient", 5, r"the gradient's norm is inf at iteration 5, steps=\d; "),
        ("weights", 5, r"head.linear.bias is no longer finite after iteration 5; "),  # in the midst of an epoch
        ("weights", 6, r"head.linear.bias is no longer finite after iteration 6; "),  # at its end
        ("statistics", 6, r"cell1.bank.row2_step0.0.running_var is no longer finite after iteration 6; "),
    ],
)
def test_the_last_good_checkpoint_stays_when_numbers_break(what, at, complaint, tmp_path, monkeypatch):
    step, kept = Trainer.step, {}

    def breaking(self, inputs, targets):
        broken = self.iteration + 1 == at
        if broken:
            kept.update(tiny.files(tmp_path / "run"))
        if broken and what == "loss":
            inputs = inputs * math.nan
        if broken and what == "gradient":
            self.network.head.linear.bias.register_hook(lambda gradient: gradient * math.inf)
        step(self, inputs, targets)
        if broken and what == "weights":
            with torch.no_grad():
                self.network.head.linear.bias[1] = math.inf
        if broken and what == "statistics":
            self.network.cell1.bank[2, 0][0].running_var[0] = math.nan

    monkeypatch.setattr(Trainer, "step", breaking)
    monkeypatch.setattr(training, "SAVE_SECONDS", -1)  # after every iteration
    with pytest.raises(TrainingError, match=complaint) as error:
        tiny.train(CONFIG, "tiny", tmp_path / "run")
    assert error.value.exit_status == 1
    assert tiny.files(tmp_path / "run") == kept
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == at - 1
    assert all(tensor.isfinite().all() for tensor in tiny.weights(tmp_path / "run").values())


# A full disk


def write_half(path, content):
    """What ``write_bytes`` does on a disk that gets full."""
    with path.open("wb") as file:
        file.write(bytes(content)[: len(content) // 2])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def save_half(tensors, path, metadata):
    """What safetensors does then."""
    Path(path).write_bytes(b"half")
    raise SafetensorError("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("file", ["trainer_state.pt", "model.safetensors"])
def test_when_the_disk_is_full_the_last_good_checkpoint_stays(file, whole, tmp_path, monkeypatch):
    out, save = tmp_path / "run", RunFolder.save
    good = {}

    def saving(self, state, network):
        if state["iteration"] == 6:
            good.update(tiny.weights(out))
            if file == "trainer_state.pt":
                monkeypatch.setattr(Path, "write_bytes", write_half)
            else:
                monkeypatch.setattr(checkpoint, "save_file", save_half)
        save(self, state, network)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", saving)
        with pytest.raises(OSError, match="No space left on device") as error:
            tiny.train(CONFIG, "tiny", out)
        monkeypatch.undo()
    assert str(error.value).startswith(f"{out} cannot be saved (")
    assert str(error.value).endswith("; what was saved before is kept")
    assert "\n" not in str(error.value)
    assert {path.name for path in out.iterdir()} == tiny.LEFT
    assert tiny.same(tiny.rc_load(out), good)
    tiny.assert_resumes_to(whole, out)


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))


def test_a_disk_that_takes_no_more_is_one_line(tmp_path):
    command = tiny.Command(*COMMAND, "--out", tmp_path / "run", prepare=limit_files)
    status, said = command.wait()
    assert status == 2
    assert "Traceback" not in said
    assert "cannot be saved ([Errno 27] File too large" in said.splitlines()[-1]
    assert {path.name for path in (tmp_path / "run").iterdir()} == tiny.LEFT - {
        *("trainer_state.pt", "model.safetensors", "config.json")
    }


# Small parts


def test_a_last_line_that_a_crash_cut_off_is_left_out(whole, tmp_path):
    out = copy_of(whole, tmp_path)
    state = RunFolder(out).load_state()
    network = tiny.trainer(CONFIG).network
    network.load_state_dict(state["network"])
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 9, "epo')
    run = RunFolder(out)
    assert [row["iteration"] for row in run.metrics()] == [3, 6]
    run.rewind(6, network)
    assert tiny.files(out)[out / "metrics.jsonl"] == tiny.files(whole)[whole / "metrics.jsonl"]
    run.rewind(3, network)
    assert [row["iteration"] for row in run.metrics()] == [3]


def test_the_commit_is_that_of_this_package_alone(tmp_path, monkeypatch):
    """Not that of a repository around an environment into which it was installed."""

    def git(*arguments):
        settings = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *settings, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "own.py").write_text("")
    git("add", "own.py")
    git("commit", "-m", "one")
    installed = tmp_path / ".venv" / "recurconv"
    installed.mkdir(parents=True)
    (installed / "runs.py").write_text("")
    monkeypatch.setattr(runs, "__file__", str(installed / "runs.py"))
    assert runs.environment()["commit"] is None
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "own.py"))
    clean = runs.environment()["commit"]
    assert len(clean) == 12
    (tmp_path / "own.py").write_text("changed")
    assert runs.environment()["commit"] == f"{clean}-dirty"


# Two at once


def test_a_run_that_another_process_trains_is_left_alone(whole, tmp_path):
    out = copy_of(whole, tmp_path)
    for file in ("trainer_state.pt", "model.safetensors"):  # it has just begun
        (out / file).unlink()
    before = tiny.files(out)
    with RunFolder(out).held():
        complaint = one_line(tiny.Command(*RESUME, "--out", out))
    assert complaint == f"recurconv: {out} is being trained by another process; wait for it to end"
    assert tiny.files(out) == before
    tiny.assert_resumes_to(whole, out)
