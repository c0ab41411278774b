"""--resume after kill -9 or Ctrl-C, at any moment: the same bits as a run that nobody disturbed."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny
from recurconv import training
from recurconv.runs import RunFolder
from recurconv.training import Trainer

CONFIG = tiny.recipe()
COMMAND = ("train", "r2-cifar10", "--data", "tiny", "--device", "cpu", "--quiet", *tiny.as_arguments(CONFIG))


# kill -9


class KillAt:
    """Kills its own process before an operation on a file of the run: the nth time that it opens it, say.

    Files are written under another name first, beginning with a dot. What is half written then is cut in half, as a
    disk may have it.
    """

    def __init__(self, folder, operation, file, nth):
        self.folder, self.operation, self.file, self.left = folder, operation, file, nth

    def __call__(self, event, arguments):
        if event.removeprefix("os.") == self.operation and str(arguments[0]).startswith(str(self.folder)):
            self.left -= Path(arguments[0]).name.removeprefix(".").startswith(self.file)
            if self.left == 0:
                for file in self.folder.glob(".*"):
                    os.truncate(file, file.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(out, *moment):
    training.SAVE_SECONDS = -1
    sys.addaudithook(KillAt(out, *moment))
    tiny.train(CONFIG, "tiny", out)


@pytest.mark.parametrize(
    "moment",
    [
        ("rename", "environment.json", 1),
        ("chmod", "trainer_state.pt", 1),  # the first is half written
        ("chmod", "model.safetensors", 1),  # a state, half a network
        ("rename", "config.json", 1),  # a state, weights, half a config
        ("rename", "trainer_state.pt", 2),
        ("open", "model.safetensors", 2),  # a new state, an old network
        ("open", "metrics.jsonl", 1),  # trained to the epoch's end, the state is older
        ("chmod", "trainer_state.pt", 3),  # the epoch's line is written, its state not
        ("rename", "model.safetensors", 4),
        ("open", "metrics.jsonl", 2),
        ("rename", "model.safetensors", 6),  # the state says finished, the network is older
    ],
    ids=lambda moment: " ".join(map(str, moment)),
)
def test_after_kill_9_in_the_midst_of_writing_a_run_resumes_to_the_same_bits(moment, whole, tmp_path):
    """A run that saves after every iteration, six times."""
    process = tiny.start(train_until_killed, tmp_path / "run", *moment)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    tiny.assert_resumes_to(whole, tmp_path / "run")


def test_after_kill_9_before_there_is_a_recipe_a_run_starts_anew(whole, tmp_path):
    process = tiny.start(train_until_killed, tmp_path / "run", "rename", "recipe.json", 1)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert len(tiny.files(tmp_path / "run")) == 1
    tiny.train(CONFIG, "tiny", tmp_path / "run")
    tiny.assert_resumes_to(whole, tmp_path / "run")


def train_and_kill_at(out, iteration, save_at):
    """Save mid-epoch at one iteration, and die at a later one, between two updates."""
    step, save = Trainer.step, Trainer.save

    def stepping(self, inputs, targets):
        if self.iteration == iteration:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, inputs, targets)
        training.SAVE_SECONDS = -1 if self.iteration == save_at else 120

    Trainer.step, Trainer.save = stepping, save
    tiny.train(CONFIG, "tiny", out)


@pytest.mark.parametrize(
    ("iteration", "save_at", "saved"), [(1, None, None), (2, 1, 1), (3, 2, 3), (5, 4, 4), (5, None, 3)]
)
def test_after_kill_9_between_updates_a_run_resumes_to_the_same_bits(iteration, save_at, saved, whole, tmp_path):
    process = tiny.start(train_and_kill_at, tmp_path / "run", iteration, save_at)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    state = RunFolder(tmp_path / "run").load_state()
    assert (state and state["iteration"]) == saved
    tiny.assert_resumes_to(whole, tmp_path / "run")


def test_a_run_killed_twice_resumes_to_the_same_bits(whole, tmp_path):
    out = tmp_path / "run"
    for iteration in (2, 4):
        process = tiny.start(resume_and_kill_at, out, iteration)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    tiny.assert_resumes_to(whole, out)
    starts = json.loads((out / "environment.json").read_text())
    assert [entry["iteration"] for entry in starts] == [0, 2, 4]


def resume_and_kill_at(out, iteration):
    training.SAVE_SECONDS = -1
    step = Trainer.step

    def stepping(self, inputs, targets):
        if self.iteration == iteration:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, inputs, targets)

    Trainer.step = stepping
    tiny.train(CONFIG, "tiny", out, resume=out.exists())


def test_other_denoising_and_adam_runs_resume_as_well(tmp_path):
    pictures = tiny.gray_pictures(tmp_path / "pictures")
    config = tiny.denoising("sampling=sandwich", "decay=cosine")
    whole = tiny.train(config, pictures, tmp_path / "whole").path
    process = tiny.start(adam_killed, config, pictures, tmp_path / "run")
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    tiny.train(config, pictures, tmp_path / "run", resume=True)
    assert tiny.same(tiny.weights(tmp_path / "run"), tiny.weights(whole))
    assert tiny.rows(tmp_path / "run") == tiny.rows(whole)


def adam_killed(config, pictures, out):
    training.SAVE_SECONDS = -1
    save = Trainer.save

    def saving(self):
        save(self)
        if self.iteration == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer.save = saving
    tiny.train(config, pictures, out)


# Ctrl-C


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def test_ctrl_c_saves_and_exits_with_130(tmp_path):
    """Through ``python -m recurconv`` itself."""
    photos, out = tiny.picture_folder(tmp_path / "photos"), tmp_path / "run"
    config = tiny.recipe("size=10", "workers=0", "epochs=500", "minival=1", name="r2-folder")
    command = ["train", config.name, "--data", photos, "--out", out, *tiny.as_arguments(config), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "recurconv", *map(str, command)], stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: (out / "metrics.jsonl").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    done = RunFolder(out).load_state()["iteration"]
    assert said.splitlines()[-1] == (
        f"recurconv: stopped at iteration {done} of {500 * 4}; {out} is saved, go on with it by --resume"
    )
    tiny.weights(out)


@pytest.mark.parametrize("after", [1, 3])
def test_after_ctrl_c_a_run_resumes_to_the_same_bits(after, whole, tmp_path):
    """In the midst of an epoch and at its end, whose line in metrics.jsonl must not get lost."""
    command = tiny.Command(*COMMAND, "--out", tmp_path / "run", prepare=functools.partial(interrupt_after, after))
    status, said = command.wait()
    assert status == 130, said
    assert f"stopped at iteration {after} of 6" in said
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == after
    tiny.assert_resumes_to(whole, tmp_path / "run")


def interrupt_after(iteration):
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs, targets)
        if self.iteration == iteration:
            os.kill(os.getpid(), signal.SIGINT)

    Trainer.step = stepping


def interrupt_twice():
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs, targets)
        if self.iteration == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)

    Trainer.step = stepping


def test_a_second_ctrl_c_stops_at_once_without_saving(whole, tmp_path):
    command = tiny.Command(*COMMAND, "--out", tmp_path / "run", prepare=interrupt_twice)
    status, said = command.wait(25)
    assert status == 130, said
    assert "Traceback" not in said
    assert RunFolder(tmp_path / "run").load_state()["iteration"] == 3
    tiny.assert_resumes_to(whole, tmp_path / "run")


def test_ctrl_c_in_the_last_iteration_ends_a_run_as_ever(whole, tmp_path):
    command = tiny.Command(*COMMAND, "--out", tmp_path / "run", prepare=functools.partial(interrupt_after, 6))
    assert command.wait()[0] == 0
    assert tiny.same(tiny.weights(tmp_path / "run"), tiny.weights(whole))
