"""``recurconv report``: results, folders and names that are refused, and what is left as it was."""

import json

from made_results import result, write
from recurconv import cells
from recurconv.reporting import page

R2 = "table1/r2-4/cifar10"
R4 = "table5/r4-dial/cifar100"


def contents(results_folder):
    return {path: path.read_bytes() for path in results_folder.rglob("*") if path.is_file()}


def test_bad_results_are_one_line_and_nothing_is_lost(command, refused, little, results_folder, tmp_path):
    write(results_folder, R2, {4: 7.0})
    assert command("report", "--results", results_folder, "--out", tmp_path / "docs").status == 0
    before = contents(tmp_path / "docs")
    file = results_folder / f"{cells.result_name(cells.RUNS[R2], 'full', 0)}.json"
    whole = file.read_text(encoding="utf-8")

    def says(reason, **changes):
        if changes:
            file.write_text(json.dumps({**json.loads(whole), **changes}), encoding="utf-8")
        told = refused("report", "--results", results_folder, "--out", tmp_path / "docs")
        assert reason in told
        assert str(file) in told

    file.write_text(whole[:100], encoding="utf-8")
    says("is broken")
    says("format 1", format=2)
    says("which this version does not know", cell="table9/r2-4/cifar10")
    says("of another config than its cell: rate=0.7 instead of 0.4", recipe={**result(R2, {})["recipe"], "rate": 0.7})
    says("values is not a number (or null) for each setting", values={"4": "7.5"})
    says("values is not a number (or null) for each setting", values={"four": 7.5})
    says("values is not a number (or null) for each setting", values={"4": float("nan")})
    says("values cannot be right", values={"3": 7.5})
    says("values cannot be right", values={})
    says("macs cannot be right", macs={"4": None})
    says("higher_is_better cannot be right", higher_is_better=True)
    says("diverged cannot be right", diverged=5)
    says("training_seconds cannot be right", training_seconds="long")
    says("variables cannot be right", variables=[1])
    says("parameters_total cannot be right", parameters_total=None)
    says("lacks seed", seed=None)
    says("lacks seed", seed=True)
    says("lacks a seed of 0 or more", seed=-1)
    steps_alone = {"norm_over_steps": {"steps": [1, 2]}}
    says("what figure2 shows is broken (KeyError: 'mean')", variables=steps_alone)
    file.write_text("[]", encoding="utf-8")
    says("is not a result")
    file.write_text(whole, encoding="utf-8")
    (results_folder / "copy.json").write_text(whole, encoding="utf-8")
    says("of the same run as copy.json")
    (results_folder / "copy.json").unlink()
    file.unlink()
    file.mkdir()
    says("cannot be read")
    assert contents(tmp_path / "docs") == before


def test_all_broken_files_are_named_at_once(refused, results_folder):
    for run in (R2, R4):
        write(results_folder, run, {4: 7.0}).write_text("{", encoding="utf-8")
    told = refused("report", "--results", results_folder)
    assert told.count("is broken") == 2


def test_other_bad_input(refused, little, results_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "nowhere: no such folder; give the one that" in refused("report", "--results", "nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty has no result file (*.json)" in refused("report", "--results", "empty")
    assert "there is no table 'tabel1'; did you mean table1?" in refused(
        "report", "tabel1", "--results", results_folder
    )
    assert "choose from targets, findings, table1" in refused("report", "xyz", "--results", results_folder)
    assert "figure2 has no numbers to print" in refused("report", "figure2", "--results", results_folder)
    told = refused("report", "targets", "others", "--preset", "short", "--results", results_folder)
    assert "targets, others: nothing to show for preset short" in told
    assert "preset='fast' is not known; choose one of full, short, all" in refused("report", "--preset", "fast")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "results"]


def test_a_page_of_somebody_else_is_kept(refused, little, tmp_path):
    (tmp_path / "reproduction.md").write_text("my own", encoding="utf-8")
    assert "was not made by `recurconv report`" in refused("report", "--results", little, "--out", tmp_path)
    assert (tmp_path / "reproduction.md").read_text(encoding="utf-8") == "my own"
    assert not (tmp_path / "reproduction").exists()


def test_a_folder_that_cannot_be_written_is_one_line(refused, little, tmp_path):
    (tmp_path / "docs").write_text("a file", encoding="utf-8")
    assert "docs is a file; give the folder" in refused("report", "--results", little, "--out", tmp_path / "docs")


def test_the_page_is_replaced_when_all_figures_are_written(command, refused, little, tmp_path, monkeypatch):
    assert command("report", "--results", little, "--out", tmp_path / "docs").status == 0
    before = contents(tmp_path / "docs")
    write(little, R4, {1: 29.0, 2: 28.0, 3: 27.0})

    def full(path, write):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(page, "write_atomically", full)
    told = refused("report", "--results", little, "--out", tmp_path / "docs")
    assert "figure7-full.png cannot be written: No space left on device" in told
    assert contents(tmp_path / "docs") == before
