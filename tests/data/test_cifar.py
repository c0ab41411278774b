"""CIFAR files against the arrays they were made of, torchvision's reader and the official data where it is at hand."""

import hashlib
import io
import pickle
import struct
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
import torchvision

from recurconv.data import cifar
from recurconv.data.cifar import LAYOUTS, load_cifar

TRAIN, TEST = 6, 4  # images of each tiny file
REAL = Path(__file__).resolve().parents[2] / "../shared/data"
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}


def python2_pickle(value):
    """What Python 2 wrote at protocol 2, whose strings Python 3 cannot write: opcode by opcode."""
    return b"\x80\x02" + python2_item(value) + b"."


def python2_item(value):
    if isinstance(value, str):
        return b"T" + struct.pack("<i", len(value)) + value.encode("latin1")
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2_item, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(python2_item(key) + python2_item(value[key]) for key in value) + b"u"
    shape = b"(" + b"".join(map(python2_item, value.shape)) + b"t"
    dtype = b"cnumpy\ndtype\n" + python2_item(value.dtype.str[1:]) + python2_item(0) + python2_item(1) + b"\x87R"
    dtype += b"(" + python2_item(3) + python2_item(value.dtype.str[0]) + b"NNN" + python2_item(-1) * 2
    dtype += python2_item(0) + b"tb"
    head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + python2_item(0) + b"\x85U\x01b\x87R"
    content = b"T" + struct.pack("<i", value.nbytes) + value.tobytes()
    return head + b"(" + python2_item(1) + shape + dtype + b"\x89" + content + b"tb"


PICKLES = {"python2": python2_pickle, "python3": lambda value: pickle.dumps(value, protocol=2)}


def made_up(dataset="cifar10"):
    """Random records of each file of a data set, as they stand in the pickles."""
    rng = np.random.default_rng(0)
    ten = dataset == "cifar10"
    kinds = {"labels": 10} if ten else {"coarse_labels": 20, "fine_labels": 100}
    counts = {f"data_batch_{i}": TRAIN for i in range(1, 6)} if ten else {"train": 5 * TRAIN}
    counts["test_batch" if ten else "test"] = TEST
    records = {name: {"data": rng.integers(0, 256, (count, 3072), np.uint8)} for name, count in counts.items()}
    for name, count in counts.items():
        records[name] |= {kind: rng.integers(0, classes, count).tolist() for kind, classes in kinds.items()}
    names = [f"class {i}" for i in range(10 if ten else 100)]
    meta = {"label_names": names, "num_vis": 3072} if ten else {"fine_label_names": names}
    return records | {"batches.meta" if ten else "meta": meta}


def write_folder(parent, dataset="cifar10", records=None, style="python2"):
    records = records or made_up(dataset)
    folder = parent / FOLDERS[dataset]
    folder.mkdir(parents=True)
    for name, record in records.items():
        (folder / name).write_bytes(PICKLES[style](record))
    return folder


def write_archive(folder, path):
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def refused(path, *arguments, error=ValueError, **options):
    """The one line with which `load_cifar` refuses a file."""
    with pytest.raises(error) as caught:
        load_cifar(path, *(arguments or ("cifar10", "trainval")), **{"minival": 2} | options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(autouse=True)
def tiny_layouts(monkeypatch, request):
    """Files of a few images; nothing else of the layouts changes."""
    if "real" in request.fixturenames:
        return
    small = {"cifar10": TRAIN, "cifar100": 5 * TRAIN}
    for dataset, count in small.items():
        layout = replace(LAYOUTS[dataset], training_images=count, test_images=TEST)
        monkeypatch.setitem(LAYOUTS, dataset, layout)


@pytest.mark.parametrize("style", PICKLES)
def test_every_split_is_the_part_it_says(tmp_path, style):
    records = made_up()
    write_folder(tmp_path, records=records, style=style)
    *training, test = (record for record in records.values() if "data" in record)
    pixels = np.concatenate([record["data"] for record in training]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([record["labels"] for record in training])
    expected = {
        "train": (pixels[:-7], labels[:-7]),
        "minival": (pixels[-7:], labels[-7:]),
        "trainval": (pixels, labels),
        "test": (test["data"].reshape(-1, 3, 32, 32), np.asarray(test["labels"])),
    }
    for split, (images, classes) in expected.items():
        data = load_cifar(tmp_path, "cifar10", split, minival=7)
        assert data.images.dtype == torch.uint8
        assert data.labels.dtype == torch.int64
        assert np.array_equal(data.images.numpy(), images)
        assert np.array_equal(data.labels.numpy(), classes)
        assert len(data) == len(classes)
        assert (data.name, data.image_shape) == ("cifar10", (3, 32, 32))
        assert data.class_names == tuple(f"class {i}" for i in range(10))


@pytest.mark.parametrize(("dataset", "reader"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_torchvision_reads_the_same(tmp_path, monkeypatch, dataset, reader):
    write_folder(tmp_path, dataset)
    reader = getattr(torchvision.datasets, reader)
    monkeypatch.setattr(reader, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    for split in ("trainval", "test"):
        theirs = reader(str(tmp_path), train=split == "trainval")
        ours = load_cifar(tmp_path, dataset, split, minival=0)
        assert np.array_equal(ours.images.permute(0, 2, 3, 1).numpy(), theirs.data)
        assert ours.labels.tolist() == theirs.targets
        assert list(ours.class_names) == theirs.classes


@pytest.mark.parametrize("dataset", FOLDERS)
def test_archive_folder_and_the_folder_around_them_are_the_same(tmp_path, dataset):
    folder = write_folder(tmp_path / "a", dataset)
    archive = write_archive(folder, tmp_path / LAYOUTS[dataset].archive)
    first, *others = (
        load_cifar(path, dataset, "train", minival=5) for path in (folder, tmp_path / "a", archive, str(tmp_path))
    )
    for other in others:
        assert torch.equal(first.images, other.images)
        assert torch.equal(first.labels, other.labels)
        assert first.condition == other.condition


def test_an_archive_is_read_in_memory_and_its_paths_are_not_followed(tmp_path):
    folder = write_folder(tmp_path / "a")
    path = tmp_path / "b" / "any-name.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../escaped", str(tmp_path / "escaped"), "cifar-10-batches-py/../../escaped"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, str(folder / "data_batch_1")
        archive.addfile(link)
        for file in sorted(folder.iterdir(), reverse=True):
            archive.add(file, f"./cifar-10-batches-py/{file.name}")
    load_cifar(path, "cifar10", "trainval", minival=0)
    left = sorted(file.name for file in tmp_path.rglob("*") if file.parent != folder)
    assert left == ["a", "any-name.tar.gz", "b", "cifar-10-batches-py"]


def test_the_condition_compares_labels_and_pixels_with_the_published_sums(tmp_path, monkeypatch):
    records = made_up()
    write_folder(tmp_path, records=records)
    del records["batches.meta"]
    sums = {name: hashlib.sha1() for name in records}
    for name, record in records.items():
        for label, row in zip(record["labels"], record["data"], strict=True):
            sums[name].update(bytes([label]) + row.tobytes())
    sums = {name: digest.hexdigest() for name, digest in sums.items()}
    differing = load_cifar(tmp_path, "cifar10", "test", minival=2).condition
    assert differing == f"CIFAR-10 test: SHA-1 of test_batch ({sums['test_batch'][:12]}) differs from the published one"
    wrong_third = sums | {"data_batch_3": "0" * 40}
    monkeypatch.setitem(LAYOUTS, "cifar10", replace(LAYOUTS["cifar10"], sha1=wrong_third))
    assert load_cifar(tmp_path, "cifar10", "test", minival=2).condition == "CIFAR-10 test: matches the published SHA-1"
    train = load_cifar(tmp_path, "cifar10", "train", minival=2).condition
    assert train.startswith(f"CIFAR-10 train: SHA-1 of data_batch_3 ({sums['data_batch_3'][:12]}) differs")


@pytest.mark.parametrize("place", ["data_batch_2", "batches.meta"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attack", ["os\nsystem\nVtouch {}", "builtins\neval\nVopen('{}', 'w').close()"])
def test_a_pickle_that_calls_anything_is_refused_and_nothing_runs(tmp_path, place, packed, attack):
    folder, trace = write_folder(tmp_path), tmp_path / "trace"
    content = f"c{attack.format(trace)}\n\x85R.".encode("latin1")
    pickle.loads(content)
    trace.unlink()  # it was there: the attack works
    (folder / place).write_bytes(content)
    message = refused(write_archive(folder, tmp_path / "x.tar.gz") if packed else folder)
    assert f"{place}: not a CIFAR file" in message
    assert f"asks for {attack.split('V')[0].strip().replace(chr(10), '.')}" in message
    assert not trace.exists()


def test_a_file_cut_anywhere_is_refused(tmp_path):
    folder = write_folder(tmp_path)
    whole = (folder / "test_batch").read_bytes()
    cuts = [*range(0, 400), *range(400, len(whole) - 100, 997), *range(len(whole) - 100, len(whole))]
    for cut in cuts:
        (folder / "test_batch").write_bytes(whole[:cut])
        assert "test_batch: not a CIFAR file, or damaged" in refused(folder, "cifar10", "test")


def test_an_archive_cut_anywhere_is_refused(tmp_path):
    archive = write_archive(write_folder(tmp_path), tmp_path / "c.tar.gz")
    whole = archive.read_bytes()
    for cut in range(0, len(whole) * 4 // 5, len(whole) // 60):
        archive.write_bytes(whole[:cut])
        with pytest.raises((ValueError, FileNotFoundError), match=r"not a complete archive|missing"):
            load_cifar(archive, "cifar10", "trainval", minival=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a CIFAR file"),
        (b"<html>not found</html>", "not a CIFAR file"),
        (b"PK\x03\x04 a zip file", "not a CIFAR file"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x03\0\0\0zip\x86R.", "encoding 'zip'"),
        (pickle.dumps([1, 2]), "holds a list, not the dict"),
        (pickle.dumps({"images": 1}), "'data' is a NoneType; it must be a NumPy array"),
    ],
)
def test_foreign_files_are_refused(tmp_path, content, message):
    folder = write_folder(tmp_path)
    (folder / "data_batch_1").write_bytes(content)
    got = refused(folder)
    assert message in got
    assert "data_batch_1" in got


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    assert "fetch cifar-10-python.tar.gz again" in refused(write_folder(tmp_path) / "data_batch_1")


def test_a_file_too_large_for_memory_is_refused(tmp_path, monkeypatch):
    folder = write_folder(tmp_path)
    archive = write_archive(folder, tmp_path / "c.tar.gz")
    monkeypatch.setattr(cifar, "_LARGEST_FILE", 10_000)
    assert "more than any CIFAR file" in refused(folder)
    assert "more than any CIFAR file" in refused(archive)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((5, 3072), np.uint8)}, "uint8 [5, 3072]; it must be uint8 [6, 3072]"),
        ({"data": np.zeros((6, 3, 32, 32), np.uint8)}, "uint8 [6, 3, 32, 32]"),
        ({"data": np.zeros((6, 3072), np.float32)}, "float32 [6, 3072]"),
        ({"data": [[0] * 3072] * 6}, "'data' is a list"),
        ({"labels": [1] * 7}, "'labels' is a list of 7; it must be a list of 6 labels"),
        ({"labels": "123456"}, "'labels' is a str"),
        ({"labels": [0, 1, 10, 3, 4, 5]}, "label 10 of image 2 is not one of 0 to 9"),
        ({"labels": [0, 1, 2, 3, 4, -1]}, "label -1 of image 5"),
        ({"labels": [0, "1", 2, 3, 4, 5]}, "label '1' of image 1"),
        ({"labels": [True, 1, 2, 3, 4, 5]}, "label True of image 0"),
        ({"labels": [1.0, 1, 2, 3, 4, 5]}, "label 1.0 of image 0"),
    ],
)
def test_wrong_content_is_named(tmp_path, change, message):
    records = made_up()
    records["data_batch_4"] |= change
    folder = write_folder(tmp_path, records=records, style="python3")
    got = refused(folder)
    assert message in got
    assert str(folder / "data_batch_4") in got


def test_coarse_labels_are_checked_as_well(tmp_path):
    records = made_up("cifar100")
    records["test"]["coarse_labels"][1] = 20
    folder = write_folder(tmp_path, "cifar100", records)
    assert "label 20 of image 1 is not one of 0 to 19" in refused(folder, "cifar100", "test")


@pytest.mark.parametrize("names", [["a"] * 10, ["a", "b"], "abcdefghij", list(range(10))])
def test_wrong_class_names_are_refused(tmp_path, names):
    folder = write_folder(tmp_path, records=made_up() | {"batches.meta": {"label_names": names}})
    assert "batches.meta" in refused(folder)


@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = write_folder(tmp_path)
    (folder / name).unlink()
    message = f"{name} missing; CIFAR-10 needs data_batch_1, data_batch_2"
    assert message in refused(folder, error=FileNotFoundError)
    assert message in refused(write_archive(folder, tmp_path / "c.tar.gz"), error=FileNotFoundError)


def test_the_test_split_needs_no_training_files(tmp_path):
    folder = write_folder(tmp_path)
    for i in range(1, 6):
        (folder / f"data_batch_{i}").unlink()
    assert len(load_cifar(folder, "cifar10", "test", minival=2)) == TEST


def test_a_missing_path_says_what_to_give(tmp_path):
    assert "no such file or folder; give cifar-10-python" in refused(tmp_path / "no", error=FileNotFoundError)
    assert "neither cifar-10-python.tar.gz nor cifar-10-batches-py" in refused(tmp_path, error=FileNotFoundError)


@pytest.mark.parametrize(("given", "wanted"), [("cifar100", "cifar10"), ("cifar10", "cifar100")])
def test_the_other_cifar_is_recognised(tmp_path, given, wanted):
    folder = write_folder(tmp_path, given)
    archive = write_archive(folder, tmp_path / "x.tar.gz")
    for path in (folder, tmp_path, archive):
        assert f"holds {LAYOUTS[given].title}, not {LAYOUTS[wanted].title}" in refused(path, wanted, "train")


def test_bad_options_are_named(tmp_path):
    write_folder(tmp_path)
    assert "choose one of cifar10, cifar100" in refused(tmp_path, "cifar20", "train")
    assert "choose one of train, minival, trainval, test" in refused(tmp_path, "cifar10", "val")
    assert "minival=30 images cannot be held out of 30" in refused(tmp_path, "cifar10", "train", minival=30)
    assert "minival=-1" in refused(tmp_path, "cifar10", "train", minival=-1)
    assert "the split minival is empty" in refused(tmp_path, "cifar10", "minival", minival=0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A tiny archive at the address from which torchvision fetches CIFAR-10; the folder that is served."""
    folder = tmp_path / "served"
    content = write_archive(write_folder(folder), folder / "cifar-10-python.tar.gz").read_bytes()
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as running:
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{running.server_port}/cifar-10-python.tar.gz"
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", address)
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", hashlib.md5(content).hexdigest())
        yield folder
        running.shutdown()


def test_download_fetches_the_archive_once(tmp_path, server):
    first = load_cifar(tmp_path / "new", "cifar10", "test", minival=2, download=True)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["cifar-10-python.tar.gz"]
    (server / "cifar-10-python.tar.gz").unlink()
    again = load_cifar(tmp_path / "new", "cifar10", "test", minival=2, download=True)
    assert torch.equal(first.images, again.images)


def test_a_failed_or_damaged_download_leaves_no_archive(tmp_path, server):
    target = tmp_path / "cifar.tar.gz"
    (server / "cifar-10-python.tar.gz").write_bytes(b"another file")
    assert "the download of CIFAR-10 failed" in refused(target, error=FileNotFoundError, download=True)
    (server / "cifar-10-python.tar.gz").unlink()
    assert "fetch http://127" in refused(target, error=FileNotFoundError, download=True)
    assert not target.exists()


@pytest.fixture
def real():
    """Make the real files of a data set for one test; they are too large to be left behind."""
    if not (REAL / "unpack.py").exists():
        pytest.skip("the official data is not beside the checkout")
    with tempfile.TemporaryDirectory() as folder:

        def unpack(dataset):
            subprocess.run([sys.executable, REAL / "unpack.py", dataset, folder], check=True, stdout=subprocess.DEVNULL)
            return folder

        yield unpack


@pytest.mark.parametrize(
    ("dataset", "title", "ends", "test_condition"),
    [
        ("cifar10", "CIFAR-10", ("airplane", "truck"), "20 of 10,000 test images come from a JPEG copy"),
        ("cifar100", "CIFAR-100", ("apple", "worm"), "matches the published SHA-1"),
    ],
)
def test_the_official_data_has_the_stated_statistics_and_condition(real, dataset, title, ends, test_condition):
    folder = real(dataset)
    test = load_cifar(folder, dataset, "test")
    assert len(test) == 10_000
    assert test.condition.startswith(f"{title} test: {test_condition}")
    data = load_cifar(folder, dataset, "trainval")
    assert data.condition == f"{title} trainval: matches the published SHA-1"
    assert (data.class_names[0], data.class_names[-1]) == ends
    classes = len(data.class_names)
    assert torch.bincount(data.labels).tolist() == [50_000 // classes] * classes
    for channel in range(3):  # from the histogram, in whole numbers
        counts = torch.bincount(data.images[:, channel].flatten(), minlength=256).tolist()
        mean = sum(value * count for value, count in enumerate(counts)) / sum(counts) / 255
        square = sum(value**2 * count for value, count in enumerate(counts)) / sum(counts) / 255**2
        assert data.mean[channel] == pytest.approx(mean, abs=5e-5)
        assert data.std[channel] == pytest.approx((square - mean**2) ** 0.5, abs=5e-5)
