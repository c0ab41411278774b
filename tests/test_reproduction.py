"""The sweep: what it does in which order, how it stops and goes on, what a finished run becomes."""

import contextlib
import json
import math
import tempfile
import types

import pytest
import torch

import recurconv as rc
import sweeping
import tiny
from recurconv import cells, costs, evaluation, reporting, training
from recurconv.cells import paper
from recurconv.data.places import find_data
from recurconv.interruption import InterruptionError
from recurconv.reproduction import plan, reduction
from recurconv.reproduction import sweep as sweeping_module
from recurconv.reproduction.sweep import sweep

TWO = ("table2/none/cifar10", "figure2")  # the run of figure 2 is a headline one


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    monkeypatch.setattr(paper, "_short", sweeping.tiny_size)
    with tiny.tiny_data():
        yield


@pytest.fixture
def root(tmp_path):
    sweeping.places(tmp_path)
    return tmp_path


def statuses(reports):
    return [(report.item.run.id.split("/")[1], report.item.seed, report.status) for report in reports]


def fill(root, items, **options):
    return sweep(items, [root / "data"], device="cpu", quiet=True, **options)


class Clock:
    """A second passes at every look at it."""

    def __init__(self):
        self.now = 0

    def monotonic(self):
        self.now += 1
        return float(self.now)


@pytest.fixture
def clock(monkeypatch):
    made = types.SimpleNamespace(monotonic=Clock().monotonic)
    monkeypatch.setattr(training, "time", made)
    monkeypatch.setattr(sweeping_module, "time", made)


# --- order


def test_all_runs_of_a_seed_come_before_any_of_the_next_and_headlines_first(root):
    said = []
    reports = fill(root, sweeping.items(root, *TWO, seeds=2), say=said.append)
    assert statuses(reports) == [
        ("r2-4", 0, "finished"),
        ("none", 0, "finished"),
        ("r2-4", 1, "finished"),
        ("none", 1, "finished"),
    ]
    assert [line.split(":")[0] for line in said if line.endswith("begins")] == [
        "1/4 table1/r2-4/cifar10, short, seed 0",
        "2/4 table2/none/cifar10, short, seed 0",
        "3/4 table1/r2-4/cifar10, short, seed 1",
        "4/4 table2/none/cifar10, short, seed 1",
    ]


def test_what_is_there_is_left_as_it_is(root):
    (item,) = sweeping.items(root, "table2/none/cifar10")
    fill(root, [item])
    before = tiny.files(root)
    assert statuses(fill(root, sweeping.items(root, "table2/none/cifar10"))) == [("none", 0, "there before")]
    assert tiny.files(root) == before
    assert statuses(fill(root, sweeping.items(root, *TWO, seeds=2))) == [
        ("r2-4", 0, "finished"),
        ("none", 0, "there before"),
        ("r2-4", 1, "finished"),
        ("none", 1, "finished"),
    ]


def test_a_cell_that_shares_a_run_is_done_with_it(root):
    (item,) = sweeping.items(root, "table2/independent/cifar10", "table1/r2-4/cifar10", "figure2")
    fill(root, [item])
    assert plan.state(item) == ("done", "")
    assert sweeping.result(item)["cell"] == "table1/r2-4/cifar10"


# --- budget


def test_without_time_nothing_is_begun(root):
    items = sweeping.items(root, *TWO)
    assert {report.status for report in fill(root, items, minutes=0)} == {"no time left"}
    assert not tiny.files(root / "runs")


@pytest.mark.parametrize("file", ["runs", "runs/results"])
def test_a_file_in_place_of_a_folder_is_told_and_kept(root, file):
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("mine")
    with pytest.raises(ValueError, match=f"{file} is not a folder; give another place for runs or results"):
        fill(root, sweeping.items(root, "figure2"))
    assert (root / file).read_text() == "mine"


def test_a_run_stops_in_time_and_goes_on_to_the_bits_of_one_that_did_not(root, clock, tmp_path):
    items = sweeping.items(root, *TWO)
    ends, calls = [], 0
    while not all(item.result.is_file() for item in items):
        reports = fill(root, items, minutes=11 / 60)  # 11 looks at the clock: not enough for a run
        ends.append([report.status for report in reports])
        calls += 1
        assert calls < 20
    assert calls > 2
    assert ends[0] == ["no time left", "no time left"]
    assert all(sweeping.starts(item) > 1 for item in items)
    for item in items:
        recipe = item.run.recipe("short", 0)
        whole = tiny.train(recipe, root / "data" / "cifar-10-batches-py", tmp_path / "whole" / item.folder.name)
        tiny.assert_same_run(item.folder, whole.path)


def test_time_is_kept_to_measure_a_run(root, monkeypatch):
    given = []

    def train(*arguments, seconds, **options):
        given.append(seconds)
        raise InterruptionError("in a test")

    monkeypatch.setattr(sweeping_module, "train", train)
    (item,) = sweeping.items(root, "table2/none/cifar10")
    with pytest.raises(InterruptionError, match=r"seed0 is saved, the same command goes on with it"):
        fill(root, [item], minutes=5)
    with pytest.raises(InterruptionError):
        fill(root, [item], minutes=100)
    with pytest.raises(InterruptionError):
        fill(root, [item])
    assert given[:2] == pytest.approx([270, 5940], abs=5)
    assert given[2] == math.inf


# --- reduction


@pytest.mark.parametrize("name", ["table4/r2-dial/cifar10", "table2/shared/cifar10"])
def test_a_result_holds_what_evaluate_measures(root, name):
    (item,) = sweeping.items(root, name)
    fill(root, [item])
    result = sweeping.result(item)
    measured = evaluation.evaluate(item.folder, root / "data" / "cifar-10-batches-py", "test", device="cpu")
    for key in ("value", "standard_error", "macs", "parameters"):
        name = {"value": "values", "standard_error": "standard_errors"}.get(key, key)
        assert result[name] == {str(row.steps): pytest.approx(getattr(row, key), abs=1e-4) for row in measured.rows}
    network = rc.load(item.folder)
    assert result["depth"] == {str(row.steps): row.depth for row in costs.cost(network, (3, 8, 8))}
    assert result["parameters_total"] == sum(parameter.numel() for parameter in network.parameters())
    assert (result["metric"], result["higher_is_better"], result["images"]) == ("error (%)", False, 12)
    assert (result["epochs"], result["iterations"], result["macs_per"]) == (2, 6, "image")
    assert result["condition"] == measured.condition
    assert result["training_seconds"] == tiny.RunFolder(item.folder).metrics()[-1]["seconds"]
    assert result["environment"]["device"] == "cpu"
    assert result["environment"]["starts"] == 1
    assert str(root) not in item.result.read_text()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("table5/r4-dial/cifar100", "123"),
        ("table5/s4-2/cifar100", "2"),
        ("figure7/s4-deep/cifar100", "234"),
        ("ablations/per-cell/cifar10", "234"),
        ("ablations/weighted/cifar10", "234"),
    ],
)
def test_every_kind_of_run_comes_to_a_value_at_each_setting(root, name, settings):
    (root / "data" / "meta").touch()  # CIFAR-100, too
    (item,) = sweeping.items(root, name)
    assert fill(root, [item])[0].status == "finished"
    values = sweeping.result(item)["values"]
    assert list(values) == list(settings)
    assert all(0 <= value <= 100 for value in values.values())


def test_a_denoiser_is_reduced_too(root, monkeypatch):
    tiny.gray_pictures(root / "gray")
    monkeypatch.setattr(sweeping_module, "find_data", lambda name, places: root / "gray")
    (item,) = sweeping.items(root, "figure5/r3-2/sigma25")
    fill(root, [item])
    result = sweeping.result(item)
    (row,) = evaluation.evaluate(item.folder, root / "gray", "test", device="cpu").rows
    assert result["values"] == {"2": pytest.approx(row.value, abs=1e-4)}
    assert (result["metric"], result["macs_per"], result["images"]) == ("PSNR (dB)", "pixel", 6)
    assert result["macs"] == {"2": 2 * 9 * 4 + 3 * 2 * 9 * 16}


def test_a_run_that_a_figure_shows_keeps_what_it_needs(root):
    first, second = sweeping.items(root, "figure2", seeds=2)
    (other,) = sweeping.items(root, "table2/shared/cifar10")
    fill(root, [first, second, other])
    bank = rc.load(first.folder).cells()[0].bank
    shown = sweeping.result(first)["variables"]["norm_over_steps"]
    assert shown["shift"] == [pytest.approx(bank[4, step][0].bias.tolist(), rel=1e-3) for step in range(4)]
    assert sweeping.result(second)["variables"]["norm_over_steps"]["shift"] != shown["shift"]
    assert sweeping.result(other)["variables"] == {}


def test_a_result_tells_all_the_hardware_that_its_run_was_trained_on(root):
    (item,) = sweeping.items(root, "table2/none/cifar10")
    fill(root, [item])
    assert "hardware" not in sweeping.result(item)["environment"]
    item.result.unlink()
    file = item.folder / "environment.json"
    (start,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**start, "gpu": "NVIDIA H100"}, start]))
    fill(root, [item])
    (result,) = reporting.read_book(item.result.parent).results
    assert result.hardware == f"NVIDIA H100, then {cells.hardware(start)}"


def test_a_loss_that_is_not_finite_is_a_result(root, monkeypatch):
    monkeypatch.setattr(
        paper, "_short", lambda recipe: sweeping.dataclasses.replace(sweeping.tiny_size(recipe), rate=1e30, clip=0.0)
    )
    (item,) = sweeping.items(root, "table4/r2-dial/cifar10")
    (report,) = fill(root, [item])
    assert report.status == "finished"
    result = sweeping.result(item)
    assert result["values"] == result["standard_errors"] == {"2": None, "3": None, "4": None}
    assert "the last checkpoint is kept" in result["diverged"] == report.note
    assert result["parameters"]["2"] > 0
    assert fill(root, [item])[0].status == "there before"


# --- bad input


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory\nand more"), RuntimeError("cuDNN error")])
def test_a_run_that_fails_does_not_stop_the_others(root, monkeypatch, error):
    def train(recipe, *arguments, **options):
        if recipe.seed == 0:
            raise error
        return training.train(recipe, *arguments, **options)

    monkeypatch.setattr(sweeping_module, "train", train)
    failed, fine = fill(root, sweeping.items(root, "table2/none/cifar10", seeds=2))
    assert (failed.status, failed.note) == ("failed", str(error).splitlines()[0])
    assert fine.status == "finished"


@pytest.mark.parametrize("place", ["runs", "results"])
def test_a_folder_that_cannot_be_written_is_told_before_anything_is_trained(root, monkeypatch, place):
    def refuse(dir):
        if dir.name == place:
            raise PermissionError(13, "Permission denied", "tmpx1")
        return contextlib.nullcontext()

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match=rf"{place} cannot be written \(Permission denied\); give another place"):
        fill(root, sweeping.items(root, "table2/none/cifar10"))


def test_a_broken_result_is_told_and_kept_and_the_others_go_on(root):
    items = sweeping.items(root, *TWO)
    items[0].result.parent.mkdir(parents=True)
    items[0].result.write_text("{")
    said = []
    assert statuses(fill(root, items, say=said.append)) == [("r2-4", 0, "failed"), ("none", 0, "finished")]
    assert items[0].result.read_text() == "{"
    assert sum("is broken" in line for line in said) == 1
    state, note = plan.state(items[0])
    assert (state, str(items[0].result) in note) == ("wrong", True)


def test_a_result_of_another_recipe_or_run_is_told_and_kept(root, monkeypatch):
    items = sweeping.items(root, *TWO)
    fill(root, items)
    texts = [item.result.read_text() for item in items]
    monkeypatch.setattr(
        paper, "_short", lambda recipe: sweeping.dataclasses.replace(sweeping.tiny_size(recipe), epochs=3)
    )
    told = [report.note for report in fill(root, sweeping.items(root, *TWO))]
    assert all("is of another recipe (epochs=2 instead of 3); move it away" in note for note in told)
    assert [item.result.read_text() for item in items] == texts
    items[0].result.write_text(texts[1])
    assert "is of table2/none/cifar10, short, seed 0; give it back its name" in fill(root, items)[0].note


def test_a_run_folder_of_another_recipe_is_told_and_kept(root, monkeypatch):
    (item,) = sweeping.items(root, "table2/none/cifar10")
    fill(root, [item])
    item.result.unlink()
    before = tiny.files(item.folder)
    monkeypatch.setattr(
        paper, "_short", lambda recipe: sweeping.dataclasses.replace(sweeping.tiny_size(recipe), epochs=3)
    )
    (report,) = fill(root, sweeping.items(root, "table2/none/cifar10"))
    assert report.status == "failed"
    assert "was started with another recipe: epochs=2; go on with that, or start anew in another folder" in report.note
    assert tiny.files(item.folder) == before
    assert not item.result.exists()


def test_runs_without_data_are_left_out_and_named(root):
    said = []
    reports = fill(root, sweeping.items(root, "table2/none", "figure4", seeds=2), say=said.append)
    assert [(r.item.run.data, r.status) for r in reports] == 2 * [
        ("cifar10", "finished"),
        ("cifar100", "no data"),
        ("pictures", "no data"),
    ]
    assert said[:2] == [f"{root / 'data'} holds no {name}: 2 runs are left out" for name in ("CIFAR-100", "BSD")]


def test_no_data_at_all_is_an_error(root):
    with pytest.raises(ValueError, match=r"holds no data for these runs \(CIFAR-100, BSD\)"):
        fill(root, sweeping.items(root, "table2/none/cifar100", "figure4"))
    with pytest.raises(FileNotFoundError, match="nowhere: no such file or folder; give folders with CIFAR or BSD"):
        sweep(sweeping.items(root, "figure4"), [root / "nowhere"])
    assert not (root / "runs").exists()


def test_several_processes_of_torchrun_are_refused(root, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="reproduce works on one device; start it once for each"):
        fill(root, sweeping.items(root, "figure2"))


def test_data_is_found_inside_the_places_given(root, tmp_path):
    cifar = root / "data" / "cifar-10-batches-py"
    archive = tmp_path / "archives" / "cifar-100-python.tar.gz"
    archive.parent.mkdir()
    archive.touch()
    for folder in ("one/bsd", "two/BSR/BSDS500/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "one/bsd/splits.json").touch()
    for part in ("train", "val", "test"):
        (tmp_path / "two/BSR/BSDS500/data/images" / part).mkdir(parents=True)
    places = [root / "data", archive.parent, tmp_path / "one"]
    assert find_data("cifar10", places) == find_data("cifar10", [cifar]) == cifar
    assert find_data("cifar100", places) == archive.parent
    assert find_data("cifar100", [archive]) == archive
    assert find_data("pictures", places) == find_data("pictures", [tmp_path / "one/bsd"]) == tmp_path / "one/bsd"
    assert find_data("pictures", [tmp_path / "two"]) == tmp_path / "two/BSR/BSDS500/data"
    assert find_data("pictures", places[:2]) is None


def test_nothing_half_written_stays_where_the_reduction_fails(root, monkeypatch):
    def fail(*arguments):
        raise OSError("the disk is full")

    (item,) = sweeping.items(root, "table2/none/cifar10")
    with monkeypatch.context() as patched:
        patched.setattr(reduction, "files", types.SimpleNamespace(write_json=fail))
        assert fill(root, [item])[0].note == "the disk is full"
    assert plan.state(item) == ("interrupted", "")
    assert fill(root, [item])[0].status == "finished"
    assert sweeping.starts(item) == 1  # it was trained once
