"""Sweeps as processes: killed, interrupted, two at once; the command line; on to the report."""

import os
import signal
import time

import pytest

import sweeping
import tiny
from recurconv.cells import paper
from recurconv.reproduction import plan
from recurconv.training import Trainer

NAMES = ("table2/none/cifar10", "table2/shared/cifar10", "table4/*/cifar10")


@pytest.fixture(autouse=True)
def small_runs(monkeypatch):
    monkeypatch.setattr(paper, "_short", sweeping.tiny_size)


@pytest.fixture
def root(tmp_path):
    sweeping.places(tmp_path)
    return tmp_path


def wait_until(true, seconds=240):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never comes"
        time.sleep(0.02)


def slow():
    """Tiny runs whose first waits after its second iteration, for the file "go"."""
    sweeping.shrink()
    step = Trainer.step

    def stepping(self, inputs, targets):
        step(self, inputs, targets)
        if self.iteration == 2:
            (self.run.path / "two").touch()
            while (self.run.path / "two").exists():
                time.sleep(0.01)

    Trainer.step = stepping


def test_a_sweep_that_is_killed_frees_its_run_and_the_next_one_goes_on(root, tmp_path):
    (item,) = sweeping.items(root, "table2/none/cifar10")
    first = sweeping.command(root, "table2/none/cifar10", "--seeds", "1", prepare=slow)
    wait_until((item.folder / "two").exists)
    state, note = plan.state(item)
    assert state == "running"
    assert note.startswith(f"process {first.process.pid} on ")
    with plan.claim(item, patience=0.1) as mine:
        assert not mine
    os.kill(first.process.pid, signal.SIGKILL)
    first.wait(240)
    (item.folder / "two").unlink()
    assert plan.state(item) == ("interrupted", "")
    status, said = sweeping.command(root, "table2/none/cifar10", "--seeds", "1").wait(240)
    assert (status, said.splitlines()[0]) == (0, "1/1 table2/none/cifar10, short, seed 0: goes on")
    assert sweeping.starts(item) == 2
    data = root / "data" / "cifar-10-batches-py"
    tiny.assert_same_run(item.folder, tiny.train(item.run.recipe("short", 0), data, tmp_path / "whole").path)


def test_ctrl_c_saves_the_run_and_ends_with_130(root):
    (item, *_) = sweeping.items(root, *NAMES)
    process = sweeping.command(root, *NAMES, "--seeds", "1", prepare=slow)
    wait_until((item.folder / "two").exists)
    process.interrupt()
    (item.folder / "two").unlink()
    status, said = process.wait(240)
    assert status == 130
    assert said.splitlines()[-1] == f"recurconv: stopped; {item.folder} is saved, the same command goes on with it"
    assert plan.state(item) == ("interrupted", "")
    assert not any((root / "runs" / "locks").glob("*.json"))
    status, said = sweeping.command(root, *NAMES, "--seeds", "1").wait(240)
    assert status == 0
    assert said.splitlines()[-1] == f"3 runs: 3 finished; the results are in {root / 'runs' / 'results'}"


def test_two_sweeps_at_once_train_each_run_once(root):
    items = sweeping.items(root, *NAMES, seeds=2)
    first, second = (sweeping.command(root, *NAMES, "--seeds", "2") for _ in range(2))
    (one, said_one), (two, said_two) = first.wait(240), second.wait(240)
    assert (one, two) == (0, 0)
    said = (said_one + said_two).splitlines()
    begun = [line.split(" ", 1)[1] for line in said if line.endswith(": begins")]
    assert sorted(begun) == sorted(f"{item.name}: begins" for item in items)
    assert [sweeping.starts(item) for item in items] == [1] * len(items)
    assert {plan.state(item) for item in items} == {("done", "")}


def test_while_one_sweep_works_on_a_run_another_does_the_rest(root):
    held, *rest = sweeping.items(root, *NAMES)
    first = sweeping.command(root, *NAMES, "--seeds", "1", prepare=slow)
    wait_until((held.folder / "two").exists)
    status, said = sweeping.command(root, *NAMES, "--seeds", "1").wait(240)
    assert status == 0
    assert said.startswith(f"{held.name}: process {first.process.pid} on ")
    assert "3 runs: 1 elsewhere, 2 finished" in said
    (held.folder / "two").unlink()
    status, said = first.wait(240)
    assert status == 0
    assert "3 runs: 1 finished, 2 there before" in said
    assert [sweeping.starts(item) for item in (held, *rest)] == [1, 1, 1]


# --- the command line


def test_the_list_shows_each_cell_and_changes_nothing(command, root):
    items = sweeping.items(root, "table2/*/cifar10", seeds=2)
    items[1].folder.mkdir(parents=True)
    (items[1].folder / "recipe.json").touch()
    items[2].result.parent.mkdir(parents=True)
    items[2].result.write_text("{")
    before = tiny.files(root)
    words = ["reproduce", "table2", "--out", root / "runs", "--preset", "short", "--seeds", "2", "--list"]
    with plan.claim(items[0]):
        done = command(*words)
    assert (done.status, done.err) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.out.splitlines() if line[:1] == "│"]
    told = dict(rows)
    assert told["table2/independent/cifar100"] == "2 missing"
    assert set(told["table2/independent/cifar10"].split(", ")) == {"1 running", "1 missing"}
    assert set(told["table2/none/cifar10"].split(", ")) == {"1 interrupted", "1 missing"}
    assert set(told["table2/shared/cifar10"].split(", ")) == {"1 wrong", "1 missing"}
    assert "table2/independent/cifar10: the run of table1/r2-4/cifar10" in done.out
    assert f"{items[0].name}: process {os.getpid()} on " in done.out
    assert f"{items[2].name}: {items[2].result} is broken" in done.out
    after = tiny.files(root)
    assert {path: content for path, content in after.items() if path.parent.name != "locks"} == before


def test_the_list_needs_no_right_to_write(command, root, monkeypatch):
    (item,) = sweeping.items(root, "table2/none/cifar10")
    with plan.claim(item):
        pass

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(plan.FileLock, "acquire", refuse)
    done = command("reproduce", "table2", "--out", root / "runs", "--preset", "short", "--list")
    assert (done.status, done.err) == (0, "")
    assert "3 missing" in done.out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tabel2"], "there is no table, figure or cell 'tabel2'; did you mean table2?"),
        (["table2"], "where is the data? give the folders that hold CIFAR and BSD, each by --data"),
        (["table2", "--data", "nowhere"], "nowhere: no such file or folder; give folders with CIFAR or BSD by --data"),
        (
            ["table2", "--data", "data", "--device", "tpu"],
            "device='tpu' is not known; choose auto, cpu, cuda or cuda:N",
        ),
        (["figure4", "--data", "."], ". holds no data for these runs (BSD); give the folders that do, each by --data"),
    ],
)
def test_what_cannot_be_done_is_one_line(refused, root, monkeypatch, words, reason):
    monkeypatch.chdir(root)
    assert refused("reproduce", *words, "--out", root / "runs") == f"recurconv: {reason}\n"
    assert not (root / "runs").exists()


def test_data_that_is_missing_for_some_gives_exit_status_1(command, root):
    with tiny.tiny_data():
        words = ["reproduce", "table2/none", "--data", root / "data", "--out", root / "runs", "--seeds", "1"]
        done = command(*words, *sweeping.WORDS)
    assert done.status == 1
    assert done.out == f"2 runs: 1 finished, 1 no data; the results are in {root / 'runs' / 'results'}\n"
    assert f"{root / 'data'} holds no CIFAR-100: 1 runs are left out" in done.err


def test_from_training_to_the_page(command, root):
    with tiny.tiny_data():
        words = ["reproduce", "table2/*/cifar10", "--data", root / "data", "--out", root / "runs", "--seeds", "1"]
        assert command(*words, *sweeping.WORDS, "--results", root / "results").status == 0
    done = command("report", "--results", root / "results", "--out", root / "docs", "--preset", "short")
    assert (done.status, done.err) == (0, "")
    page = (root / "docs" / "reproduction.md").read_text()
    items = plan.items(sweeping.cells.select(["table2/*/cifar10"]), "short", 1, root / "runs", root / "results")
    for item in items:
        assert f"{sweeping.result(item)['values']['4']:.2f}" in page
