"""``recurconv train`` as a user meets it: what it hands over and what it refuses."""

import json
from pathlib import Path

import torch

from recurconv import recipes, training


def test_train_hands_over_what_was_asked_for(command, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(training, "train", lambda *args, **options: calls.append((args, options)))
    words = ["train", "r2-cifar10", "--data", "d", "--out", tmp_path / "run", "--set", "epochs=3", "--set", "steps=2,4"]
    done = command(*words, "--set", "probabilities=0.5,0.5", "--device", "cpu", "--quiet")
    assert (done.status, done.err) == (0, "")
    ((recipe, data, out), options) = calls[0]
    assert (recipe.epochs, recipe.steps, recipe.probabilities) == (3, (2, 4), (0.5, 0.5))
    assert (data, out) == (Path("d"), tmp_path / "run")
    assert options == {"resume": False, "device": "cpu", "download": False, "quiet": True, "tensorboard": False}


def test_bad_input_of_train(refused, tmp_path):
    where = ["--data", tmp_path / "d", "--out", tmp_path / "run"]
    assert "did you mean r2-cifar10?" in refused("train", "r2-cifar1O", *where)
    assert "`recurconv recipes` lists them" in refused("train", *where)
    told = refused("train", "r2-cifar10", *where, "--set", "epoch=3", "--set", "rate=fast", "--set", "widht=2")
    assert all(
        word in told for word in ("'epoch', did you mean epochs?", "rate='fast'", "'widht', did you mean width?")
    )
    assert "is no run folder" in refused("train", *where, "--resume")
    assert "no such file or folder" in refused("train", "r2-cifar10", *where, "--device", "cpu")
    if not torch.cuda.is_available():
        assert "PyTorch sees 0 CUDA devices" in refused("train", "r2-cifar10", *where, "--device", "cuda")
    assert not (tmp_path / "run").exists()


def test_resume_takes_no_other_recipe(refused, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps(vars(recipes.get("r2-cifar10"))))
    where = ["--data", tmp_path, "--out", tmp_path, "--resume"]
    assert "own recipe, r2-cifar10" in refused("train", "r2-cifar100", *where)
    assert "leave other names and --set out" in refused("train", *where, "--set", "epochs=3")
