"""What the tests of training share: data sets and recipes that train in a moment, runs in processes of their own."""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image

import recurconv as rc
from recurconv import cli, recipes, tasks, training
from recurconv.data import ImageArrays
from recurconv.distributed import make_fabric
from recurconv.runs import LOCK, RunFolder
from recurconv.training import Trainer

CLASSES = ("dark", "left", "right")
PROCESSES = multiprocessing.get_context("forkserver")  # imports PyTorch once, for all
PROCESSES.set_forkserver_preload(["recurconv.cli", "recurconv.training", "tiny"])


def images(count, seed=0, size=8, classes=3):
    """uint8 [N, 3, size, size] that a network can tell apart, labels int64 [N]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    pixels = torch.randint(0, 100, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    for label in range(1, classes):
        half = slice(0, size // 2) if label == 1 else slice(size // 2, None)
        pixels[labels == label, :, :, half] += 100
    return pixels, labels


def image_arrays(count, seed=0, condition="made up"):
    pixels, labels = images(count, seed)
    return ImageArrays(pixels, labels, "tiny", CLASSES, (0.3, 0.3, 0.3), (0.2, 0.2, 0.2), condition)


def load_tiny(path, dataset, split, *, minival, download=False, device="cpu"):
    """In place of ``load_cifar``: 24 training images, ``minival`` held out; "other" and "short" are other sets."""
    if Path(path).name == "missing":
        raise FileNotFoundError(f"{path}: no such file or folder")
    seed = sum(map(ord, Path(path).name + split))
    count = {"minival": minival, "test": 12}.get(split, 16 if Path(path).name == "short" else 24)
    return image_arrays(count, seed, condition=f"{Path(path).name}")


@contextmanager
def tiny_data():
    with mock.patch.object(tasks, "load_cifar", load_tiny):
        yield


def recipe(*settings, name="r2-cifar10"):
    """A recipe of 3 iterations an epoch on ``load_tiny``."""
    tiny = ["width=0.0625", "batch_size=8", "epochs=2", "minival=9", "crop=1", "rate=0.05", "compile=false"]
    return recipes.override(recipes.get(name), [*tiny, *settings])


def denoising(*settings):
    """A recipe of 3 iterations an epoch on a folder of pictures."""
    tiny = ["channels=4", "batch_size=4", "epochs=2", "minival=2", "patch=8", "patches_per_epoch=12"]
    return recipes.override(recipes.get("r3-gray25"), [*tiny, *settings])


def trainer(config, path="tiny", choices=True):
    """A trainer on the CPU; what it writes goes into a folder that is nowhere."""
    with tiny_data():
        fabric = make_fabric("cpu", config.precision)
        kind = tasks.TASKS[config.task]
        task = kind(config, Path(path), "train", fabric.device)
        held_out = kind(config, Path(path), "minival", fabric.device) if choices else None
    made = Trainer(config, RunFolder(Path("nowhere")), fabric, task, held_out)
    made.network.train()
    return made


def snapshot(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def picture_folder(root, count=12, size=10):
    """CLASS/*.png, ``count`` of each of three classes."""
    pixels, labels = images(3 * count, size=size)
    for number, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = root / CLASSES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{number:03}.png")
    return root


def gray_pictures(root, count=6, size=24):
    """Smooth gray pictures."""
    root.mkdir(parents=True, exist_ok=True)
    across, down = np.meshgrid(np.arange(size), np.arange(size))
    for number in range(count):
        values = 128 + 90 * np.sin(across / (3 + number)) * np.cos(down / (5 + number))
        Image.fromarray(values.astype(np.uint8)).save(root / f"{number}.png")
    return root


def rows(folder):
    """The lines of metrics.jsonl, without times."""
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def weights(folder):
    """What a run saved, by name."""
    state = torch.load(Path(folder) / "trainer_state.pt", weights_only=True)
    network = rc_load(folder)
    assert network.keys() == state["network"].keys()
    assert all(network[name].equal(state["network"][name]) for name in network)
    return network


def rc_load(folder):
    return dict(rc.load(Path(folder)).state_dict())


def same(a, b):
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


LEFT = {"recipe.json", "environment.json", "metrics.jsonl", "config.json", "model.safetensors", "trainer_state.pt"}


def assert_same_run(out, whole):
    """Weights, optimiser state and metrics of two runs are the same bit for bit, and nothing else lies there."""
    assert same(weights(out), weights(whole))
    (a, b) = (RunFolder(path).load_state()["optimizer"] for path in (out, whole))
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for key, state in b["state"].items():
        assert same(a["state"][key], state)
    assert rows(out) == rows(whole)
    assert {path.name for path in out.iterdir()} == LEFT


def assert_resumes_to(whole, out):
    train(recipe(), "tiny", out, resume=True)
    assert_same_run(out, whole)


def files(folder):
    """Content of every file but the lock of a run, to see that nothing changed."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and path.name != LOCK}


# Runs in processes of their own


def start(target, *args, env=None, **kwargs):
    process = PROCESSES.Process(target=_child, args=(target, args, kwargs, env or {}))
    process.start()
    return process


def _child(target, args, kwargs, env):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(env)
    torch.set_num_threads(1)
    target(*args, **kwargs)


class Command:
    """``recurconv ARGUMENTS`` in a process of its own, on the tiny data sets."""

    def __init__(self, *arguments, prepare=None, env=None):
        self.output = Path(tempfile.mkstemp()[1])
        self.process = start(_command, [str(a) for a in arguments], str(self.output), prepare, env=env)

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)

    def wait(self, seconds=60):
        """(exit status, what it said)."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "it hangs"
        said = self.output.read_text()
        self.output.unlink()
        return self.process.exitcode, said


def _command(arguments, output, prepare):
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["recurconv", *arguments]
    if prepare is not None:
        prepare()
    with tiny_data():
        cli.main()


def as_arguments(config):
    """The ``--set`` of everything in which a tiny recipe differs from the one of its name."""
    told = []
    for key, value in vars(config).items():
        if value != getattr(recipes.get(config.name), key) and key not in ("reaches", "takes"):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            told += ["--set", f"{key}={text}"]
    return told


def train(config, data, out, **options):
    with tiny_data():
        return training.train(config, Path(data), Path(out), device="cpu", quiet=True, **options)


def rc_untrained(config):
    """A network of a tiny recipe, made by its builder."""
    return rc.r2(num_classes=3, steps=config.steps, norm=config.norm, width=config.width)
