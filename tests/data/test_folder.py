"""Folders of pictures against torchvision's transforms on the same files, and NumPy."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from recurconv.data import folder as folder_module
from recurconv.data.augment import Augment, augment, iteration_generator
from recurconv.data.folder import load_folder

PLAIN = Augment(crop=0, flip=False)


def picture(seed, height=14, width=17):
    """Smooth noise, so that resizing it in two ways does not differ by chance."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def save(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def write_classes(parent, counts, seed=0):
    """Write PNG pictures of various sizes: {class: how many}."""
    for label, (name, count) in enumerate(counts.items()):
        (parent / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image = picture((seed, label, i), height=12 + i % 5, width=20 - i % 7)
            save(image, parent / name / f"{i:03d}.png")
    return parent


@pytest.fixture
def flat(tmp_path):
    return write_classes(tmp_path / "pets", {"cat": 12, "dog": 9, "eel": 4})


@pytest.fixture
def parted(tmp_path):
    for seed, part in enumerate(("train", "val", "test")):
        write_classes(tmp_path / "pets" / part, {"cat": 5 - seed, "dog": 4 - seed}, seed)
    return tmp_path / "pets"


def load(path, split="trainval", **options):
    return load_folder(path, split, **{"size": 8, "workers": 0} | options)


def refused(path, split="trainval", error=ValueError, **options):
    with pytest.raises(error) as caught:
        load(path, split, **options)
    return str(caught.value)


def everything(data, batch_size=64):
    images, labels = zip(*data.evaluation_batches(batch_size, device="cpu"), strict=True)
    return torch.cat(images), torch.cat(labels)


def names(data, root):
    return [file.relative_to(root).as_posix() for file in data.files]


def test_classes_and_labels_come_from_the_folders(flat):
    data = load(flat)
    assert data.name == "pets"
    assert data.class_names == ("cat", "dog", "eel")
    assert data.image_shape == (3, 8, 8)
    assert len(data) == 25
    assert names(data, flat) == sorted(path.relative_to(flat).as_posix() for path in flat.rglob("*.png"))
    assert everything(data)[1].tolist() == [0] * 12 + [1] * 9 + [2] * 4
    assert data.condition.startswith("trainval: 25 pictures in 3 classes; ")


def test_images_are_torchvisions_resize_and_centre_crop(flat):
    data = load(flat, size=7)
    reference = v2.Compose([v2.PILToTensor(), v2.Resize(7, antialias=True), v2.CenterCrop(7)])
    expected = torch.stack([reference(Image.open(file).convert("RGB")) for file in data.files])
    images, _ = everything(data)
    assert images.dtype == torch.float32
    assert torch.equal(images, expected / 255)


@pytest.mark.parametrize("split", ["train", "minival", "trainval", "test"])
def test_parts_in_folders_of_their_own_are_used_as_they_are(parted, split):
    parts = {"train": ["train"], "minival": ["val"], "trainval": ["train", "val"], "test": ["test"]}[split]
    expected = sorted(file for part in parts for file in (parted / part).rglob("*.png"))
    data = load(parted, split)
    assert sorted(data.files) == expected
    assert [file.parent.name for file in data.files] == [data.class_names[label] for label in data.labels]


def test_without_val_a_part_of_each_class_is_held_out(flat):
    whole, kept, held = (load(flat, split, minival_fraction=0.25) for split in ("trainval", "train", "minival"))
    assert set(kept.files).isdisjoint(held.files)
    assert set(kept.files) | set(held.files) == set(whole.files)
    assert np.bincount(held.labels).tolist() == [3, 2, 1]
    assert names(load(flat, "minival", minival_fraction=0.25), flat) == names(held, flat)
    assert names(held, flat) != [f"{c}/{i:03d}.png" for c, n in (("cat", 3), ("dog", 2), ("eel", 1)) for i in range(n)]


def test_a_small_fraction_holds_out_one_of_each_class_and_zero_none(flat):
    assert np.bincount(load(flat, "minival", minival_fraction=0.01).labels).tolist() == [1, 1, 1]
    assert np.bincount(load(flat, "minival", minival_fraction=0.99).labels).tolist() == [11, 8, 3]
    assert load(flat, "train", minival_fraction=0).files == load(flat).files


def test_the_held_out_part_stays_when_pictures_are_added_or_the_folder_moves(tmp_path):
    root = write_classes(tmp_path / "a", {"cat": 40, "dog": 40})
    before = set(names(load(root, "minival", minival_fraction=0.25), root))
    moved = root.rename(tmp_path / "b")
    for i in range(3):
        save(picture(i), moved / "cat" / f"new {i}.png")
    after = set(names(load(moved, "minival", minival_fraction=0.25), moved))
    assert len(before - after) <= 3
    assert {name for name in after if name.startswith("dog")} == {name for name in before if name.startswith("dog")}


def test_hidden_files_and_files_of_other_kinds_are_left_out(flat):
    before = load(flat).files
    (flat / "cat" / "notes.txt").write_text("no picture")
    (flat / "cat" / "._001.png").write_bytes(b"metadata of another system")
    (flat / "README.md").write_text("not a class")
    (flat / ".cache").mkdir()
    save(picture(0), flat / "dog" / ".thumbnails" / "a.png")
    assert load(flat).files == before
    nested = save(picture(0), flat / "dog" / "puppies" / "A.PNG")
    assert set(load(flat).files) - set(before) == {nested}


def test_a_class_may_be_called_train(tmp_path):
    write_classes(tmp_path, {"bus": 2, "train": 2})
    assert load(tmp_path).class_names == ("bus", "train")


def test_any_mode_becomes_rgb_of_the_size(tmp_path):
    image = picture(1, 20, 30)
    gray16 = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    variants = {"rgb.png": image, "gray.png": image.convert("L"), "palette.gif": image.quantize(), "16.png": gray16}
    variants |= {"rgba.png": image.convert("RGBA"), "cmyk.jpg": image.convert("CMYK"), "1.png": image.convert("1")}
    for name, variant in variants.items():
        save(variant, tmp_path / "a" / name)
        save(variant, tmp_path / "b" / name)
    images, _ = everything(load(tmp_path))
    assert images.shape == (14, 3, 8, 8)
    images = dict(zip(sorted(variants), images, strict=False))
    assert torch.equal(images["rgba.png"], images["rgb.png"])
    assert torch.equal(images["16.png"], images["gray.png"])
    assert (images["palette.gif"] - images["rgb.png"]).abs().mean() < 0.05


def test_a_picture_is_turned_as_its_exif_orientation_says(tmp_path):
    upright = Image.fromarray(np.repeat(np.linspace(0, 255, 24, dtype=np.uint8)[:, None], 24, axis=1))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = upright.rotate(90)
    save(upright, tmp_path / "a" / "upright.png")
    (tmp_path / "b").mkdir()
    turned.save(tmp_path / "b" / "turned.png", exif=exif)
    images, _ = everything(load(tmp_path))
    assert torch.equal(images[0], images[1])
    assert images[0, 0, 0].max() < images[0, 0, -1].min()


@pytest.mark.parametrize("shape", [(3, 4000), (4000, 3), (1, 700)])
def test_of_a_very_long_picture_the_middle_stays(tmp_path, shape):
    image = picture(0, *shape)
    write_classes(tmp_path, {"a": 1, "b": 1})
    save(image, tmp_path / "a" / "long.png")
    images, _ = everything(load(tmp_path, size=16))
    pixels = v2.functional.pil_to_tensor(image)
    expected = v2.functional.center_crop(v2.functional.resize(pixels, [16], antialias=True), [16, 16])
    assert (images[1] - expected / 255).abs().max() < 0.03


def test_training_is_the_evaluation_image_augmented(flat):
    data, how = load(flat), Augment(crop=2, flip=True)
    images, labels = everything(data)
    seen = []
    for i, (batch, batch_labels) in enumerate(data.training_batches(6, epoch=3, seed=1, how=how, device="cpu")):
        order = torch.randperm(25, generator=iteration_generator(1, 3))[6 * i : 6 * i + 6]
        stored = (images[order] * 255).round().to(torch.uint8)
        assert torch.equal(batch, augment(stored, how, iteration_generator(1, 3, i)) / 255)
        assert torch.equal(batch_labels, labels[order])
        assert batch_labels.dtype == torch.int64
        seen += order.tolist()
    assert len(set(seen)) == len(seen) == 24


def test_a_run_repeats_with_any_number_of_workers_and_resumes(flat):
    options = {"epoch": 1, "seed": 4, "how": Augment(), "device": "cpu"}
    state = torch.get_rng_state()
    expected = list(load(flat).training_batches(8, **options))
    for workers, start in ((1, 0), (3, 2)):
        got = list(load(flat, workers=workers).training_batches(8, **options, start=start))
        assert len(got) == 3 - start
        for (images, labels), (wanted, wanted_labels) in zip(got, expected[start:], strict=True):
            assert torch.equal(images, wanted)
            assert torch.equal(labels, wanted_labels)
    assert torch.equal(torch.get_rng_state(), state)


def test_two_ranks_together_see_what_one_sees(flat):
    data, options = load(flat), {"epoch": 0, "seed": 0, "how": Augment(), "device": "cpu"}
    shares = [data.training_batches(6, **options, rank=rank, ranks=2) for rank in range(2)]
    for first, second, whole in zip(*shares, data.training_batches(6, **options), strict=True):
        assert torch.equal(torch.cat([first[0], second[0]]), whole[0])
        assert torch.equal(torch.cat([first[1], second[1]]), whole[1])


def test_mean_and_std_are_those_of_the_training_images_for_every_split(flat):
    images = everything(load(flat, "train"))[0].double().numpy()
    for split in ("train", "minival", "trainval"):
        data = load(flat, split)
        assert data.mean == pytest.approx(images.mean((0, 2, 3)), abs=1e-7)
        assert data.std == pytest.approx(images.std((0, 2, 3)), abs=1e-7)


def test_mean_and_std_need_a_fixed_sample_only(parted, monkeypatch):
    monkeypatch.setattr(folder_module, "_SAMPLE", 3)
    data, test = load(parted, "train"), load(parted, "test")
    assert len(data.sample) == 3
    chosen = [data.files.index(file) for file in data.sample]
    images = everything(data)[0][chosen].double().numpy()
    assert data.mean == test.mean == pytest.approx(images.mean((0, 2, 3)), abs=1e-7)
    assert data.std == test.std == pytest.approx(images.std((0, 2, 3)), abs=1e-7)


def test_unreadable_pictures_are_listed_all_at_once(flat):
    whole = (flat / "cat" / "000.png").read_bytes()
    broken = {"cat/cut.png": whole[: len(whole) // 2], "dog/empty.jpg": b"", "eel/text.png": b"no picture"}
    for name, content in broken.items():
        (flat / name).write_bytes(content)
    message = refused(flat)
    assert message.startswith("3 of 28 pictures cannot be read")
    assert all(str(flat / name) in message for name in broken)
    assert "000.png" not in message


def test_a_split_is_not_refused_for_what_another_one_holds(parted):
    (parted / "train" / "cat" / "empty.png").write_bytes(b"")
    assert len(load(parted, "test")) == 5
    assert "1 of 10 pictures" in refused(parted, "train")


def test_classes_follow_the_checkpoint(flat):
    data = load(flat, class_names=["eel", "dog", "cat"])
    assert data.class_names == ("eel", "dog", "cat")
    assert [file.parent.name for file in data.files] == [data.class_names[label] for label in data.labels]
    assert data.labels[0] == 0
    message = refused(flat, class_names=["cat", "cow", "dog"])
    assert "classes differ from those of the checkpoint: missing cow; unexpected eel" in message


@pytest.mark.parametrize("split", ["train", "test"])
def test_training_and_test_classes_must_agree(parted, split):
    write_classes(parted / "test", {"cow": 1})
    assert "(test): classes differ from those of train: missing none; unexpected cow" in refused(parted, split)


def test_empty_classes_are_named(flat):
    (flat / "ant").mkdir()
    (flat / "bee").mkdir()
    (flat / "bee" / "notes.txt").write_text("no picture")
    assert "no pictures in ant, bee" in refused(flat)


def test_pictures_that_are_all_alike_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (9, 9), (9, 8, 7)).save(tmp_path / name / f"{number}.png")
    with pytest.raises(ValueError, match="all pixels of all training pictures are alike"):
        load_folder(tmp_path, "train", size=8).std  # noqa: B018


def test_folders_without_two_classes_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    save(picture(0), tmp_path / "none" / "a.png")
    assert "has 0 class folders" in refused(tmp_path / "none")
    write_classes(tmp_path / "one", {"cat": 3})
    assert "has 1 class folders (cat)" in refused(tmp_path / "one")


def test_splits_that_a_folder_lacks_say_what_to_do(flat, tmp_path):
    assert "put some in test/CLASS/" in refused(flat, "test")
    assert "choose a minival_fraction above 0" in refused(flat, "minival", minival_fraction=0)
    write_classes(tmp_path / "only" / "test", {"a": 1, "b": 1})
    assert "has test but no train" in refused(tmp_path / "only", "test")
    singles = write_classes(tmp_path / "singles", {"a": 1, "b": 1})
    assert "no picture is held out" in refused(singles, "minival")
    assert len(load(singles, "train")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "val"}, "split='val' is unknown; choose one of train, minival, trainval, test"),
        ({"size": 0}, "size=0 is below 1"),
        ({"minival_fraction": 1.0}, "minival_fraction=1.0 is not in [0, 1)"),
        ({"minival_fraction": -0.1}, "minival_fraction=-0.1"),
        ({"minival_fraction": float("nan")}, "minival_fraction=nan"),
        ({"workers": -1}, "workers=-1 is negative"),
    ],
)
def test_bad_options_are_named(flat, options, message):
    assert message in refused(flat, **options)


def test_paths_that_are_no_folder_are_refused(flat):
    assert "no such folder" in refused(flat / "no", error=FileNotFoundError)
    assert "a file; give a folder" in refused(flat / "cat" / "000.png")


def test_a_relative_path_has_a_name_and_the_same_pictures(flat, monkeypatch):
    expected = [file.name for file in load(flat, "minival").files]
    monkeypatch.chdir(flat)
    data = load(Path(os.curdir), "minival")
    assert data.name == "pets"
    assert [file.name for file in data.files] == expected


def test_batches_larger_than_the_set_are_refused(flat):
    with pytest.raises(ValueError, match="batch_size=26 does not fit pets; choose 1 to 25"):
        load(flat).training_batches(26, epoch=0, seed=0, how=PLAIN, device="cpu")
