"""What the README says is run: its Python, its commands, its tables."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recurconv import cli, tasks
from recurconv.data import ImageArrays

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

# What makes a training run a matter of seconds.
TINY = {
    "r2-folder": ["epochs=1", "width=0.0625", "batch_size=4", "workers=0", "size=16"],
    "r2-cifar10": ["epochs=1", "width=0.0625", "batch_size=8", "compile=false"],
    "denoise-gray": [
        "epochs=1",
        "channels=4",
        "batch_size=4",
        "patches_per_epoch=8",
        "patch=16",
        "trained_on=trainval",
        "drawings=1",
    ],
}


def blocks(language, document=README):
    return re.findall(rf"```{language}\n(.*?)```", document, re.DOTALL)


def commands():
    lines = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the pictures that the README's commands name, and a small CIFAR-10 behind the loader."""
    values = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            picture = Image.fromarray(values.integers(0, 256, (24, 20, 3), dtype=np.uint8))
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    picture.save(tmp_path / "photo.jpg")
    (tmp_path / "results").symlink_to(ROOT / "results")
    for part in ("train", "test"):
        (tmp_path / "pictures" / part).mkdir(parents=True)
        for number in range(3):
            gray = Image.fromarray(values.integers(0, 256, (40, 36), dtype=np.uint8))
            gray.save(tmp_path / "pictures" / part / f"{number}.png")

    def small_cifar(path, dataset, split, **options):
        return ImageArrays(
            images=torch.from_numpy(values.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8)),
            labels=torch.arange(16) % 10,
            name=dataset,
            class_names=tuple(CIFAR10),
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            condition="made up",
        )

    monkeypatch.setattr(tasks, "load_cifar", small_cifar)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", words)
    try:
        cli.main()
    except SystemExit as leave:
        return leave.code or 0
    return 0


def test_the_first_commands_are_make_demo_and_make_test_and_exist():
    assert [command.split()[:2] for command in commands()[:2]] == [["make", "demo"], ["make", "test"]]
    for target in ("demo", "test"):
        subprocess.run(["make", "--dry-run", target], cwd=ROOT, check=True, capture_output=True)


def test_every_command_runs(folder, monkeypatch, capsys):
    mine = [shlex.split(command) for command in commands() if command.startswith("recurconv ")]
    assert {words[1] for words in mine} >= {"train", "evaluate", "predict", "profile", "denoise", "export"}
    for words in mine:
        words = ["pictures" if word.startswith("BSR") else word for word in words]
        if words[1:3] == ["train", "denoise-gray"]:
            words += ["--set", "trained_on=trainval"]  # of BSD there would be more
        if words[1] == "train":
            words += [part for setting in TINY[words[2]] for part in ("--set", setting)] + ["--device", "cpu"]
        if words[1] == "reproduce":
            words += ["--list"]
        status = run(monkeypatch, words)
        assert status == 0, (words, capsys.readouterr().err)
    resume = re.search(r"`(recurconv train --resume [^`]*)`", README)
    assert run(monkeypatch, shlex.split(resume[1])) == 0
    assert "cat" in (folder / "runs" / "photos" / "config.json").read_text()


def test_the_python_runs(folder, monkeypatch):
    export = next(command for command in commands() if command.startswith("recurconv export"))
    assert run(monkeypatch, shlex.split(export)) == 0  # the file that one of the blocks opens
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert (folder / "my-network" / "model.safetensors").is_file()
    (loop,) = blocks("python", (ROOT / "docs" / "networks.md").read_text(encoding="utf-8"))
    exec(compile(loop, "docs/networks.md", "exec"), {})


def test_the_tables_are_those_of_the_results():
    done = subprocess.run(
        [sys.executable, "scripts/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_file_it_links_to_exists():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", prose)
    assert targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing
