"""The command line, as a user meets it: what it prints, what it says of bad input, how it ends."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from PIL import Image

import recurconv
from conftest import CIFAR10, answering, brightening, python
from recurconv import cli, costs, loading, recipes

COMMANDS = (
    "train",
    "recipes",
    "evaluate",
    "profile",
    "predict",
    "demo",
    "denoise",
    "export",
    "tune-confidence",
    "reproduce",
    "report",
)


def cells(out):
    """The rows of the table in an output."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line[:1] == "│"]


@pytest.fixture
def picture(tmp_path):
    Image.new("RGB", (20, 30), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


@pytest.fixture
def classifier(saved):
    return saved(answering({1: 0, 2: 1}, class_names=CIFAR10), "classifier")


@pytest.fixture
def denoiser(saved):
    return saved(brightening({1: 0.1, 2: 0.02}), "denoiser")


# --- help


def test_help_and_version_do_not_import_pytorch():
    code = (
        "import sys; from recurconv.cli import main\n"
        "for words in (['--help'], ['--version'], *([name, '--help'] for name in sys.argv[1:])):\n"
        "    sys.argv = ['recurconv', *words]\n"
        "    try: main()\n"
        "    except SystemExit as stop: print('STATUS', stop.code)\n"
        "print(*sorted({'torch', 'numpy', 'matplotlib', 'PIL'} & set(sys.modules)), 'END')"
    )
    done = python(code, *COMMANDS)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "END"
    assert done.stdout.count("STATUS 0") == 2 + len(COMMANDS)
    assert f"\nrecurconv {recurconv.__version__}\n" in done.stdout


def test_every_command_is_tested_here():
    assert {
        name or function.__name__ for name, function in ((c.name, c.callback) for c in cli.app.registered_commands)
    } == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_80_columns_and_has_an_example(command, name):
    done = command(name, "--help")
    assert done.status == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    (example,) = (line for line in lines if line.startswith(" Example: "))
    assert example.split()[1:3] == ["recurconv", name]
    assert lines[lines.index(example) + 1].strip() == ""  # it is not cut into two lines
    assert lines[1].strip().startswith(f"Usage: recurconv {name}")


def test_without_a_command_the_help_is_shown(command):
    done = command()
    assert done.status == 2
    assert all(re.search(rf"^│ {name} ", done.out, re.M) for name in COMMANDS)


def test_the_module_runs_as_the_script_does():
    done = subprocess.run(
        [sys.executable, "-m", "recurconv", "--version"], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == f"recurconv {recurconv.__version__}\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["evaluat"], "No such command 'evaluat'"),
        (["evaluate", "x", "--data", "y"], "Missing option '--split'"),
        (["evaluate", "x", "--split", "test"], "Missing option '--data'"),
        (["predict", "x"], "Missing argument 'IMAGE"),
        (["profile", "x", "--size", "0"], "Invalid value for '--size'"),
        (["evaluate", "x", "--data", "y", "--split", "test", "--steps", "two"], "Invalid value for '--steps'"),
    ],
)
def test_wrong_words_are_told_by_the_parser(command, words, reason):
    done = command(*words)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("recurconv: ")
    assert reason in done.err
    path = f"recurconv {words[0]}" if words[0] in COMMANDS else "recurconv"
    assert done.err.endswith(f"; see `{path} --help`\n")
    assert done.err.count("\n") == 1


# --- recipes


def test_every_recipe_is_listed_within_80_columns(command):
    done = command("recipes")
    assert done.status == 0
    assert [line for line in done.out.splitlines() if line[:1] != " "] == list(recipes.RECIPES)
    assert max(map(len, done.out.splitlines())) <= 80
    flat = " ".join(done.out.split())
    for make in recipes.RECIPES.values():
        assert f"{make().name} trains {make().summary} reaches {make().reaches} takes {make().takes}" in flat


def test_a_reader_that_has_enough_ends_it_quietly():
    process = subprocess.Popen(
        [sys.executable, "-m", "recurconv", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()  # as head does, before anything is printed
    assert process.stderr.read() == ""
    assert process.wait(120) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "recurconv", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


# --- evaluate


def test_evaluate_prints_a_table_the_condition_and_notes(command, saved, cifar):
    folder = saved(answering({2: 0, 3: 1, 4: 1}, class_names=CIFAR10))
    done = command("evaluate", folder, "--data", cifar, "--split", "test", "--device", "cpu")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{folder} on cifar10, split test: 8 images"
    assert max(map(len, lines[1:7])) <= 80
    assert "steps ┃ error (%) ┃ standard error ┃ M MACs ┃ parameters" in lines[2]
    assert [row[:3] for row in cells(done.out)] == [
        ["2", "62.50", "18.30"],
        ["3", "75.00", "16.37"],
        ["4", "75.00", "16.37"],
    ]
    assert {row[4] for row in cells(done.out)} == {f"{r.parameters:,}" for r in costs.cost(recurconv.load(folder))}
    assert lines[-2].startswith("data: CIFAR-10 test: SHA-1 of test_batch")
    assert lines[-1].startswith("note: steps=3 and 4 give the same on all 8 images: the dial may be dead")


def test_evaluate_shows_a_denoisers_psnr(command, denoiser, pictures):
    done = command("evaluate", denoiser, "--data", pictures, "--split", "test", "--sigma", "0")
    assert done.out.startswith(f"{denoiser} on gray, split test: 3 images, sigma 0\n")
    assert "steps ┃ PSNR (dB) ┃ standard error ┃   SSIM ┃ k MACs/pixel ┃ parameters" in done.out
    assert max(map(len, done.out.splitlines()[1:7])) <= 80
    assert [row[:2] for row in cells(done.out)] == [["1", "20.00"], ["2", "33.98"]]
    assert [row[4] for row in cells(done.out)] == ["0.504", "0.936"]
    assert all(0 < float(row[3]) < 1 for row in cells(done.out))
    assert done.out.count("note: ") == 2  # the white picture, at both settings
    several = command("evaluate", denoiser, "--data", pictures, "--split", "test", "--sigma", "0", "12.5", "--steps", 2)
    assert [line for line in several.out.splitlines() if " on gray" in line] == [
        f"{denoiser} on gray, split test: 3 images, sigma {sigma}" for sigma in ("0", "12.5")
    ]
    assert cells(several.out)[0] == cells(done.out)[1]


def test_settings_in_one_go_and_repeated_are_the_same(command, saved, cifar):
    folder = saved(answering({1: 0, 2: 1, 3: 2}, class_names=CIFAR10))
    shared = ["evaluate", folder, "--data", cifar, "--split", "test", "--json"]

    def rows(*words):
        done = command(*words)
        assert (done.status, done.err) == (0, "")
        return json.loads(done.out)["rows"]

    one_go = rows(*shared, "--steps", 3, 1)
    assert [row["steps"] for row in one_go] == [3, 1]
    assert rows(*shared, "--steps", 3, "--steps", 1) == one_go
    assert rows("evaluate", "--steps", 3, 1, *shared[1:]) == one_go
    assert [row["steps"] for row in rows(*shared)] == [1, 2, 3]


def test_numbers_after_steps_and_sigma_are_spread_for_evaluate_alone():
    spread = cli._spread(["evaluate", "m", "--steps", "2", "3", "4", "--split", "5"])
    assert spread == ["evaluate", "m", "--steps", "2", "--steps", "3", "--steps", "4", "--split", "5"]
    assert cli._spread(["evaluate", "m", "--sigma", "15", "2.5", "--steps", "2"]) == [
        *("evaluate", "m", "--sigma", "15", "--sigma", "2.5", "--steps", "2")
    ]
    assert cli._spread(["evaluate", "7", "8"]) == ["evaluate", "7", "8"]
    files = ["predict", "m", "--steps", "2", "3", "4"]  # pictures called 3 and 4
    assert cli._spread(files) == files


def test_bad_input_of_evaluate(refused, classifier, denoiser, cifar, pictures, tmp_path):
    def says(reason, model, data, *more, split="test"):
        assert reason in refused("evaluate", model, "--data", data, "--split", split, *more)

    says(f"nothing is neither a folder nor shipped weights ({', '.join(loading.shipped())})", "nothing", cifar)
    says("is a file; give the folder", pictures / "flat.png", cifar)
    says("holds no config.json", pictures, cifar)
    says("no such file or folder", classifier, tmp_path / "nowhere")
    says("split='tset' is unknown", classifier, cifar, split="tset")
    says("split='val'", denoiser, pictures, split="val")
    says("steps=5 is not on this network's dial (1, 2)", classifier, cifar, "--steps", 1, 5)
    says("neither cifar-10-python.tar.gz nor cifar-10-batches-py", classifier, pictures)
    says("a classifier; choose cifar10", classifier, pictures, "--dataset", "pictures")
    says("no picture in this folder", denoiser, cifar)
    says("Set12 any folder that holds its 12 pictures", denoiser, "set12")
    says("device='tpu' is not known", classifier, cifar, "--device", "tpu")
    if not torch.cuda.is_available():
        says("PyTorch sees 0 CUDA devices", classifier, cifar, "--device", "cuda")


def test_damaged_networks(refused, classifier, cifar):
    words = ("evaluate", classifier, "--data", cifar, "--split", "test")
    weights, config = classifier / "model.safetensors", classifier / "config.json"
    whole = weights.read_bytes(), config.read_text()
    weights.write_bytes(whole[0][:-100])
    assert "truncated or not a safetensors file" in refused(*words)
    weights.write_bytes(b"\0" * 100)
    assert "truncated or not a safetensors file" in refused(*words)
    weights.unlink()
    assert "model.safetensors is not there" in refused(*words)
    weights.write_bytes(whole[0])
    config.write_text(whole[1][:40])
    assert "config.json is not JSON" in refused(*words)
    config.write_text(whole[1].replace('"r2"', '"r9"'))
    assert "network 'r9' is unknown" in refused(*words)
    config.write_text(whole[1])
    (classifier / "recipe.json").write_text('{"name": 3')
    assert "recipe.json is not a recipe" in refused(*words)


# --- profile


def test_profile_prints_counts_and_times(command, classifier):
    done = command("profile", classifier, "--seconds", "0.01", "--batch", "2", "--size", "16", "--threads", "1")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"{classifier}: 2 x [3, 16, 16] in a call, CPU threads: 1"
    rows = cells(done.out)
    expected = costs.cost(recurconv.load(classifier), (3, 16, 16))
    assert [row[0] for row in rows] == ["1", "2"]
    assert [float(row[1]) for row in rows] == pytest.approx([c.macs / 1e6 for c in expected], rel=5e-3)
    assert [row[2:4] for row in rows] == [[f"{c.parameters:,}", str(c.depth)] for c in expected]
    assert all(float(row[4]) > 0 and int(row[6]) > 0 for row in rows)
    assert max(map(len, done.out.splitlines()[1:])) <= 80


def test_profile_as_json(command, denoiser):
    done = command("profile", denoiser, "--seconds", "0.01", "--json")
    told = json.loads(done.out)
    assert (told["model"], told["image_shape"], told["device"]) == (str(denoiser), [1, 32, 32], "cpu")
    assert [row["steps"] for row in told["rows"]] == [1, 2]
    assert {"macs", "parameters", "depth", "milliseconds", "spread", "runs", "threads", "batch"} <= set(told["rows"][0])
    assert {"torch", "processor"} <= set(told["environment"])


def test_profile_takes_the_size_of_training(command, tmp_path):
    recurconv.r2(10, steps=(1, 2), width=1 / 16, image_size=40).save_pretrained(tmp_path / "net")
    told = json.loads(command("profile", tmp_path / "net", "--seconds", "0.01", "--json").out)
    assert told["image_shape"] == [3, 40, 40]


def test_bad_input_of_profile(refused, classifier):
    assert "the smallest this network takes is 8 x 8" in refused("profile", classifier, "--size", "4")
    assert "seconds=0.0" in refused("profile", classifier, "--seconds", "0")
    assert "neither a folder" in refused("profile", "nothing")
    assert "is not known" in refused("profile", classifier, "--device", "cud")


# --- predict


def test_predict_labels_every_picture(command, classifier, picture, tmp_path):
    odd = tmp_path / "[bold]x.png"  # what rich would take for markup
    picture.rename(odd)
    Image.new("L", (9, 9)).save(tmp_path / "b.png")
    done = command("predict", classifier, odd, tmp_path / "b.png", "--steps", "1")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"{classifier}, steps=1"
    flat = "".join(done.out.split())  # long paths are folded
    assert "[bold]x.png" in flat
    assert [row[1:] for row in cells(done.out) if row[1]] == [["airplane", "0.232"], ["airplane", "0.232"]]


def test_predict_takes_folders(command, classifier, picture, tmp_path):
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for name in ("b.png", "more/a.png"):
        Image.new("L", (9, 9)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    done = command("predict", classifier, folder, picture, "--json")
    assert [row["picture"] for row in json.loads(done.out)] == [
        *map(str, (folder / "b.png", folder / "more" / "a.png", picture))
    ]


def test_predict_as_json(command, classifier, picture):
    done = command("predict", classifier, picture, "--json")
    (row,) = json.loads(done.out)
    assert (row["picture"], row["steps"], row["label"]) == (str(picture), 2, "automobile")
    assert list(row["probabilities"]) == list(CIFAR10)
    assert sum(row["probabilities"].values()) == pytest.approx(1)
    assert row["probability"] == row["probabilities"]["automobile"]


def test_the_other_pictures_go_on(command, classifier, picture, tmp_path):
    (tmp_path / "broken.png").write_bytes(picture.read_bytes()[:40])
    done = command("predict", classifier, tmp_path / "broken.png", tmp_path / "none.png", picture, "--json")
    assert done.status == 1
    assert [row["picture"] for row in json.loads(done.out)] == [str(picture)]
    first, second = done.err.splitlines()
    assert first.startswith(f"recurconv: {tmp_path / 'broken.png'}: ")
    assert second.startswith(f"recurconv: {tmp_path / 'none.png'}: no such file")


def test_bad_input_of_predict(refused, classifier, denoiser, picture, tmp_path):
    assert "is a denoiser and gives no label" in refused("predict", denoiser, picture, picture)
    assert "steps=4 is not on this network's dial" in refused("predict", classifier, picture, "--steps", "4")
    assert "size=7" in refused("predict", classifier, picture, "--size", "7")
    assert "no such file" in refused("predict", classifier, tmp_path / "none.png")
    (tmp_path / "empty").mkdir()
    assert "no picture in this folder" in refused("predict", classifier, tmp_path / "empty")


def test_predict_reads_pictures_at_the_size_of_training(command, classifier, picture, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(loading, "load", lambda source, load=loading.load: spy(load(source), seen))
    command("predict", classifier, picture)
    recipe = recipes.override(recipes.get("r2-folder"), ["size=48"])
    (classifier / "recipe.json").write_text(json.dumps(vars(recipe)))
    command("predict", classifier, picture)
    command("predict", classifier, picture, "--size", "24")
    recurconv.r2(10, steps=(1, 2), width=1 / 16, image_size=40).save_pretrained(tmp_path / "alone")
    command("predict", tmp_path / "alone", picture)
    assert seen == [32, 48, 24, 40]


def spy(net, sizes):
    net.stem.register_forward_pre_hook(lambda module, inputs: sizes.append(inputs[0].shape[-1]))
    return net
