"""``recurconv tune-confidence``: thresholds against sums done image by image, and against what a dial really does."""

import json
import math
import sys

import numpy as np
import pytest
from PIL import Image

import handmade
import recurconv as rc
from recurconv.tuning import Answers, curves, search
from recurconv.tuning.curves import choose, front
from recurconv.tuning.search import _guessed

MACS = {2: 10.0, 3: 15.0, 4: 20.0}


@pytest.fixture
def answers():
    """Random ones: a larger setting is surer and more often right, and who is sure is right more often."""
    random = np.random.default_rng(0)
    sure = {steps: random.uniform(0.2, 1, 200) ** (1 / steps) for steps in MACS}
    right = {steps: random.random(200) < sure[steps] * (0.7 + steps / 20) for steps in MACS}
    return Answers("minival", "made up", sure, right, MACS)


def by_hand(answers, thresholds):
    """(mean MACs, error, shares), image by image."""
    spent, wrong, shares = 0.0, 0, dict.fromkeys(MACS, 0)
    for image in range(answers.images):
        for steps in sorted({*thresholds, 4}):
            spent += MACS[steps]
            if steps == 4 or answers.sure[steps][image] >= thresholds[steps]:
                wrong += not answers.right[steps][image]
                shares[steps] += 1
                break
    count = answers.images
    return spent / count, 100 * wrong / count, {steps: n / count for steps, n in shares.items() if n}


@pytest.mark.parametrize(
    "thresholds",
    [{2: 0.8}, {3: 0.9}, {2: 0.0}, {3: 0.0}, {4: 0.0}, {2: 1.0}, {2: 0.8, 3: 0.95}, {2: 0.8, 3: 0.0}, {2: 0.7, 4: 0.0}],
)
def test_a_point_is_what_images_one_by_one_add_up_to(answers, thresholds):
    point = answers.point(thresholds)
    macs, error, shares = by_hand(answers, thresholds)
    assert (point.macs, point.error, point.shares) == (pytest.approx(macs), pytest.approx(error), pytest.approx(shares))
    part = point.error / 100
    assert point.standard_error == pytest.approx(100 * math.sqrt(part * (1 - part) / (answers.images - 1)))


def test_fixed_settings_cost_what_they_cost(answers):
    assert [(p.macs, p.error) for p in answers.fixed()] == [
        (macs, pytest.approx(100 * np.mean(~answers.right[steps]))) for steps, macs in MACS.items()
    ]


def test_pairs_span_from_nobody_to_everybody_going_on(answers):
    found = [point for point in answers.pairs() if 2 in point.thresholds]
    shares = [point.shares.get(4, 0.0) for point in found]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == pytest.approx((0, 1), abs=0.01)
    assert max(np.diff(shares)) <= 0.03
    assert {tuple(point.thresholds) for point in answers.pairs()} == {(2,), (3,)}


def test_the_front_holds_what_nothing_beats(answers):
    tried = [*answers.fixed(), *answers.pairs()]
    best = front(tried)
    assert [p.macs for p in best] == sorted(p.macs for p in best)
    for point in tried:
        beaten = any(p.macs <= point.macs and p.error <= point.error and p is not point for p in tried)
        assert beaten or point in best
    for point in best:
        assert not any(p.macs <= point.macs and p.error < point.error for p in tried)


@pytest.mark.parametrize("budget", [10.0, 12.0, 16.0, 100.0])
def test_the_lowest_error_within_a_cost(answers, budget):
    tried = [*answers.fixed(), *answers.pairs()]
    chosen = choose(tried, macs=budget)
    assert chosen.macs <= budget
    assert chosen.error == min(point.error for point in tried if point.macs <= budget)


def test_the_lowest_cost_within_an_error(answers):
    tried = [*answers.fixed(), *answers.pairs()]
    for wanted in (answers.fixed()[-1].error, 100.0, min(point.error for point in tried)):
        chosen = choose(tried, error=wanted)
        assert chosen.error <= wanted
        assert chosen.macs == min(point.macs for point in tried if point.error <= wanted)


def test_what_no_thresholds_fulfil(answers):
    tried = answers.fixed()
    with pytest.raises(ValueError, match=r"^macs=9 is less than the smallest setting needs, 10; give more$"):
        choose(tried, macs=9)
    with pytest.raises(ValueError, match=r"^error=0 is below the lowest on these images, .*; give more$"):
        choose(tried, error=0)


def test_one_image_has_no_standard_error():
    one = Answers("s", "c", {2: np.array([0.5])}, {2: np.array([True])}, {2: 1.0})
    assert curves.Point({2: 0.0}, 1.0, 0.0, None, {2: 1.0}) == one.point({2: 0.0})


# --- the command


@pytest.fixture
def photos(tmp_path):
    """photos/{train,val,test}/CLASS/*.png: coloured noise; a third of the pictures has a hint of its colour only."""
    random = np.random.default_rng(0)
    for part, count in (("train", 1), ("val", 30), ("test", 12)):
        for channel, name in enumerate(handmade.CLASSES):
            folder = tmp_path / "photos" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 156, (8, 8, 3))
                pixels[..., channel] += 2 if number % 3 == 0 else 100
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def file(tmp_path):
    """Sharper at 4; both make the same mistakes."""
    return handmade.classifier(tmp_path / "m.onnx", {2: 5.0, 4: 50.0})


@pytest.fixture
def words(file, photos, tmp_path):
    return ["tune-confidence", file, "--data", photos, "--size", 8, "-o", tmp_path / "t.json"]


def read(folder):
    """Pictures as float32 [N, 3, 8, 8], class by class."""
    files = [file for name in handmade.CLASSES for file in sorted((folder / name).iterdir())]
    return np.stack([np.asarray(Image.open(file), np.float32).transpose(2, 0, 1) / 255 for file in files])


def test_the_dial_does_what_was_tuned(command, words, file, photos, tmp_path):
    done = command(*words, "--macs", 187_500, "--report", "test", "--threads", 1)
    assert (done.status, done.err) == (0, "")
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["model_sha256"] == rc.Dial(file).sha256
    assert [curve["split"] for curve in found["curves"]] == ["minival", "test"]
    for curve, folder in zip(found["curves"], ("val", "test"), strict=True):
        array = read(photos / folder)
        result = rc.Dial(file).run(array, confidence=found["thresholds"])
        labels = np.repeat(np.arange(3), len(array) // 3)
        chosen = curve["chosen"]
        assert curve["images"] == len(array)
        assert chosen["error"] == pytest.approx(100 * np.mean(result.output.argmax(1) != labels))
        ran = {str(steps): np.mean(result.steps_per_image == steps) for steps in (2, 4)}
        assert chosen["shares"] == pytest.approx({steps: share for steps, share in ran.items() if share})
        assert chosen["macs"] == pytest.approx((2e6 + 4e6 * ran["4"]) / 16)  # 8 x 8 pixels; the file's are of 32 x 32
    assert found["size"] == 8
    assert found["curves"][0]["chosen"]["macs"] <= 187_500
    assert [point["macs"] for point in found["curves"][1]["fixed"]] == [125_000, 250_000]
    array = read(photos / "test")[:1]
    for point in found["curves"][1]["fixed"]:  # what is told here is what a budget of the runtime is compared with
        assert rc.Dial(file).run(array, macs=point["macs"], strict=True).steps == int(*point["thresholds"])
    assert done.out.count("steps=4") == 2
    assert done.out.splitlines()[0] == "m.onnx on photos, split minival: 90 images of 8 x 8"
    assert "note: 90 images of minival are few to choose thresholds on: one of them is 1.1 % of error" in done.out
    assert f"wanted: 187500 MACs; the thresholds are in {tmp_path / 't.json'}" in done.out
    assert max(map(len, done.out.splitlines()[1:8])) <= 80


def test_a_size_that_was_not_given_is_told(command, words, tmp_path):
    without = [word for word in words if word not in ("--size", 8)]
    done = command(*without)
    assert done.status == 0
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["size"] == 32
    assert [point["macs"] for point in found["curves"][0]["fixed"]] == [2e6, 4e6]
    note = "the pictures were resized and cropped to 32 x 32 pixels; if the network was trained at another size, give"
    assert note in found["notes"][0]
    assert f"note: {note}" in done.out
    told = command(*without, "--size", 64, "--overwrite")
    assert "resized and cropped" not in told.out
    handmade.classifier(tmp_path / "m.onnx", {2: 5.0, 4: 50.0}, image_size="48")
    told = command(*without, "--overwrite")
    assert "resized and cropped" not in told.out
    assert json.loads((tmp_path / "t.json").read_text())["size"] == 48
    command(*without, "--size", 64, "--overwrite")
    found = json.loads((tmp_path / "t.json").read_text())
    assert (found["size"], [p["macs"] for p in found["curves"][0]["fixed"]]) == (64, [8e6, 16e6])


def test_a_hundred_images_are_not_few(answers):
    assert search._notes(answers, None) == ()


def test_json_is_printed_as_it_is_written(command, words, tmp_path):
    done = command(*words, "--error", 50, "--json")
    assert done.status == 0
    assert done.out == (tmp_path / "t.json").read_text()
    assert json.loads(done.out)["wanted"] == "an error of 50 %"
    assert str(tmp_path) not in done.out


def test_the_figure_is_a_picture(command, words, tmp_path):
    figure = tmp_path / "t.png"
    assert command(*words, "--report", "test", "--figure", figure).status == 0
    with Image.open(figure) as picture:
        assert picture.width > 2 * picture.height  # two panels
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50


def test_cifar_is_known_by_its_classes(command, file, cifar, tmp_path, refused):
    ten = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    other = handmade.classifier(tmp_path / "ten.onnx", {2: 1.0, 4: 2.0}, class_names=json.dumps(ten))
    shared = ["--data", cifar, "-o", tmp_path / "t.json", "--held-out", 5]
    assert "the data has 10 classes, this file 3;" in refused("tune-confidence", other, *shared)
    sized = refused("tune-confidence", other, *shared, "--size", 64)
    assert "size=64 is for a folder of images, not for cifar10; leave it out" in sized
    told = refused("tune-confidence", file, *shared, "--dataset", "cifar10")
    assert "cifar10 has the classes airplane, automobile, bird, ...; this file's are red, green, blue, ..." in told
    unnamed = handmade.classifier(tmp_path / "u.onnx", {2: 1.0, 4: 2.0}, class_names="null")
    assert "the data has 10 classes, this file 3" in refused(
        "tune-confidence", unnamed, *shared, "--dataset", "cifar10"
    )


def test_what_lies_there_tells_which_data_it_is(photos, cifar, tmp_path):
    ten = tuple("abcdefghij")
    assert _guessed(photos, ten) == _guessed(photos, None) == _guessed(cifar, handmade.CLASSES) == "folder"
    assert _guessed(cifar, ten) == _guessed(cifar, None) == "cifar10"
    (tmp_path / "both").mkdir()
    for name in ("cifar-10-batches-py/batches.meta", "cifar-100-python/meta"):
        (tmp_path / "both" / name).parent.mkdir()
        (tmp_path / "both" / name).touch()
    assert _guessed(tmp_path / "both", ten) == "cifar10"
    with pytest.raises(
        ValueError, match="holds cifar10 and cifar100, and the file names no classes; say which by --da"
    ):
        _guessed(tmp_path / "both", None)


def test_bad_input(refused, words, photos, tmp_path, monkeypatch):
    def says(reason, *more, changed=words):
        assert reason in refused(*changed, *more)
        assert not (tmp_path / "t.json").exists()

    says("split=test: an error on images that thresholds were chosen on", "--split", "test")
    for split in ("train", "trainval"):
        says(f"split={split}: of images that it was trained on a network is too sure", "--split", split)
    both = tmp_path / "t.png"
    says(f"--figure and --out are both {both}", "--figure", both, changed=[*words[:-1], both])
    assert not both.exists()
    says("macs=2e+06 and error=5 are wanted; give one of them", "--macs", "2e6", "--error", "5")
    says("and have them measured on the test set, too, by --report test", "--split", "test")
    says("macs=1e+05 is less than the smallest setting needs for 8 x 8 pixels, 1.25e+05; give more", "--macs", "1e5")
    says("needs for 64 x 64 pixels, 8e+06; give more", "--macs", "7.9e6", "--size", "64")
    for number in ("nan", "0", "-1"):
        says(f"macs={number} is no mean cost; give a number above 0", "--macs", number)
    says("error=nan is no error in %; give a number from 0 to 100", "--error", "nan")
    says("error=-1 is below the lowest on these images", "--error", "-1")
    says("dataset='imagenet' is not known; choose one of cifar10, cifar100, folder", "--dataset", "imagenet")
    says("split='val' is unknown", "--split", "val")
    says("give it a name that ends in .png, .svg, .pdf", "--figure", tmp_path / "t.jpeg")
    (tmp_path / "file").touch()
    says("x.json cannot be written: ", changed=[*words[:-1], tmp_path / "file" / "x.json"])
    says("no such file", changed=["tune-confidence", "none.onnx", *words[2:]])
    says("images are 7 x 7 pixels", "--size", "7")
    denoiser = handmade.denoiser(tmp_path / "d.onnx", {1: 0.1, 2: 0.2})
    says("is a denoiser, and confidence is for classifiers", changed=["tune-confidence", denoiser, *words[2:]])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    says('pip install "recurconv[onnx]"')


def test_nothing_is_overwritten_silently(refused, command, words, tmp_path):
    (tmp_path / "t.json").write_text("mine")
    assert "t.json is there already; give another name or --overwrite" in refused(*words)
    assert (tmp_path / "t.json").read_text() == "mine"
    (tmp_path / "t.png").touch()
    assert "t.png is there already" in refused(*words[:-1], tmp_path / "new.json", "--figure", tmp_path / "t.png")
    assert command(*words, "--overwrite").status == 0
    assert "thresholds" in (tmp_path / "t.json").read_text()
    (tmp_path / "folder").mkdir()
    assert "folder is there already; give another name" in refused(*words[:-1], tmp_path / "folder", "--overwrite")
