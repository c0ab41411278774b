"""The report's tables against made-up result files whose means are known."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from made_results import result, write
from recurconv import cells, reporting
from recurconv.reporting import book as books
from recurconv.reporting import tables
from recurconv.reporting.results import SEED_SPREAD, summarise

R2 = "table1/r2-4/cifar10"
DIAL = "table4/r2-dial/cifar10"


def book(results_folder):
    return reporting.read_book(results_folder)


def lines(results_folder, name, preset="full"):
    """The rows of a section's table, by their first two words."""
    (table,) = (t for t in reporting.section(name, book(results_folder), cells.PRESETS) if t.preset == preset)
    return {tuple(row[: 2 if name.startswith("table") else 1]): row for row in table.rows}


# --- means


def test_means_and_spreads_are_those_of_numpy(results_folder):
    values = [7.61, 7.2, 7.96]
    for seed, value in enumerate(values):
        write(results_folder, R2, {4: value}, seed=seed)
    summary = summarise(book(results_folder).runs(R2, "full"), 4)
    assert (summary.seeds, summary.diverged) == (3, 0)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.spread == pytest.approx(np.std(values, ddof=1))
    assert summary.standard_error == pytest.approx(np.std(values, ddof=1) / math.sqrt(3))
    row = lines(results_folder, "table1")["R_2^4", "CIFAR-10"]
    assert row[2:7] == ["7.65", "7.59 ± 0.38", "better by 0.06", "3", "100"]


def test_three_seeds_tell_how_uncertain_a_mean_is_and_of_two_the_test_images_do_too(results_folder):
    values = [7.61, 7.62, 7.63]
    for seed, value in enumerate(values):
        write(results_folder, R2, {4: value}, seed=seed)
        write(results_folder, "table3/none/sigma15", {4: 20 + value}, seed=seed)
        summary = summarise(book(results_folder).runs(R2, "full"), 4)
        denoiser = summarise(book(results_folder).runs("table3/none/sigma15", "full"), 4)
        assert summary.standard_error == pytest.approx(0.1 if seed < 2 else 0.01 / math.sqrt(3))
        assert denoiser.standard_error == pytest.approx(SEED_SPREAD if seed < 2 else 0.01 / math.sqrt(3))


def test_relative_accuracy_is_of_each_run(results_folder):
    run = "figure7/s4-deep/cifar100"
    for seed, values in enumerate(({2: 40.0, 3: 30.0, 4: 25.0}, {2: 28.0, 3: 30.0, 4: 20.0})):
        write(results_folder, run, values, seed=seed)
    summary = book(results_folder).relative(run, 2, 4, "full")
    assert (summary.seeds, summary.mean) == (2, pytest.approx(85.0))  # of 80 and 90 %
    assert summary.spread == pytest.approx(np.std([80, 90], ddof=1))
    write(results_folder, run, dict.fromkeys((2, 3, 4), 100.0), seed=1)
    summary = book(results_folder).relative(run, 2, 4, "full")
    assert (summary.diverged, summary.mean) == (1, pytest.approx(80.0))
    assert summary.standard_error == pytest.approx(100 * math.hypot(0.1, 0.1) / 75)


def test_one_run_has_no_spread_and_the_error_of_its_images(results_folder):
    write(results_folder, R2, {4: 7.7})
    summary = summarise(book(results_folder).runs(R2, "full"), 4)
    assert (summary.mean, summary.spread, summary.standard_error) == (7.7, None, 0.1)
    assert lines(results_folder, "table1")["R_2^4", "CIFAR-10"][3:6] == ["7.70", "worse by 0.05", "1"]


def test_runs_that_diverged_are_told_and_not_averaged(results_folder):
    shared = "table3/shared/sigma50"
    write(results_folder, shared, {4: 20.0})
    write(results_folder, shared, {4: None}, seed=1, diverged="the loss is nan")
    write(results_folder, "table3/shared/sigma15", {4: None}, diverged="the loss is nan")
    write(results_folder, "table3/shared/sigma25", {4: 12.5})
    rows = lines(results_folder, "table3")
    assert rows["R_3^4, shared", "sigma 50"][2:6] == ["17.54", "20.00 (1 of 2 diverged)", "some diverge", "2"]
    assert rows["R_3^4, shared", "sigma 15"][2:6] == ["not convergent", "diverged", "as in the paper", "1"]
    assert rows["R_3^4, shared", "sigma 25"][2:6] == ["not convergent", "12.50", "as in the paper", "1"]
    write(results_folder, "table3/shared/sigma25", {4: 20.18})  # the noisy pictures have 20.17
    assert lines(results_folder, "table3")["R_3^4, shared", "sigma 25"][4] == "better: it converges"


def test_a_network_that_diverged_is_worse_than_the_papers(results_folder):
    write(results_folder, R2, {4: None})
    assert lines(results_folder, "table1")["R_2^4", "CIFAR-10"][3:5] == ["diverged", "worse: it diverges"]


def test_higher_is_better_for_psnr(results_folder):
    write(results_folder, "table3/none/sigma15", {4: 31.40})
    write(results_folder, "table3/independent/sigma15", {4: 31.60})
    write(results_folder, "table3/none/sigma25", {4: 28.782})
    rows = lines(results_folder, "table3")
    assert rows["R_3^4, none", "sigma 15"][4] == "better by 0.04"
    assert rows["R_3^4, independent", "sigma 15"][4] == "worse by 0.01"
    assert rows["R_3^4, none", "sigma 25"][4] == "equal"


def test_each_setting_of_a_dial_stands_in_its_row(results_folder):
    write(results_folder, DIAL, {2: 9.0, 3: 8.0, 4: 7.5})
    rows = lines(results_folder, "table4")
    assert [rows[f"R_2, dial (2, 3, 4), {n} steps", "CIFAR-10"][3] for n in (2, 3, 4)] == ["9.00", "8.00", "7.50"]
    assert [rows[f"R_2, dial (2, 3, 4), {n} steps", "CIFAR-10"][8] for n in (2, 3, 4)] == ["10", "14", "18"]


def test_a_cell_that_reads_another_cells_run_shows_it(results_folder):
    write(results_folder, R2, {4: 7.0})
    assert lines(results_folder, "table2")["R_2^4, independent", "CIFAR-10"][2:4] == ["7.65", "7.00"]
    assert lines(results_folder, "table2")["R_2^4, none", "CIFAR-10"][3] == "not run"


def test_hardware_and_epochs_are_told_for_each_cell(results_folder):
    write(results_folder, R2, {4: 7.0})
    gpu = {**result(R2, {})["environment"], "gpu": "NVIDIA H100"}
    write(results_folder, R2, {4: 7.0}, seed=1, environment=gpu)
    assert lines(results_folder, "table1")["R_2^4", "CIFAR-10"][9] == "a CPU, 1 thread; NVIDIA H100"


# --- what was not run


def test_what_was_not_run_says_so_and_never_shows_the_papers_number_as_ours(results_folder):
    write(results_folder, "figure5/s3-1/sigma25", {1: 28.0})
    for name in tables.LAYOUTS:
        for row in lines(results_folder, name).values():
            assert row[3:7] == ["not run", "", "0", ""]
            assert row[2] != ""
            assert int(row[7].split()[0].replace(",", "")) > 100_000  # counted all the same
    assert list(lines(results_folder, "figure5")[("S_3^1",)][1:4]) == ["not run", "28.00", "not run"]


def test_presets_never_share_a_table(results_folder):
    write(results_folder, R2, {4: 7.0})
    write(results_folder, R2, {4: 30.0}, preset="short")
    assert lines(results_folder, "table1")["R_2^4", "CIFAR-10"][3] == "7.00"
    # Nothing is held against the paper's number, which another network reached.
    assert lines(results_folder, "table1", "short")["R_2^4", "CIFAR-10"][2:5] == ["7.65", "30.00", "1"]
    short = {table.preset: table for table in reporting.section("table1", book(results_folder), cells.PRESETS)}["short"]
    assert "against the paper" not in short.columns
    assert {len(row) for row in short.rows} == {len(short.columns)}
    assert [t.preset for t in reporting.section("table1", book(results_folder), cells.PRESETS)] == ["full", "short"]
    assert [t.preset for t in reporting.section("table5", book(results_folder), cells.PRESETS)] == ["full"]
    assert [t.preset for t in reporting.section("table5", book(results_folder), ("short",))] == ["short"]


def test_every_cell_of_the_papers_tables_has_its_row_at_a_setting_that_is_trained():
    for name, layout in tables.LAYOUTS.items():
        rows = {(row.cell, row.setting) for row in layout.rows}
        assert {cell for cell, _ in rows} == {cell.id for cell in cells.select([name])}
        for cell, setting in rows:
            assert setting in cells.CELLS[cell].run.recipe("full", 0).settings
            assert books.paper_prints(cell, setting)
    assert sum(len(layout.rows) for layout in tables.LAYOUTS.values()) == 16 + 6 + 9 + 6 + 6


def test_the_committed_results_fit_the_cells_of_now():
    committed = book(Path(__file__).parent.parent / "results" / "reproduction")
    assert committed.results
    for run in committed.results:
        assert run.parameters == books._network(run.run, run.preset)["parameters"]


# --- the paper's numbers and the counts


def test_the_papers_numbers_agree_with_each_other():
    assert books.paper_value("table2/independent/cifar10", 4) == books.paper_value(R2, 4) == 7.65
    assert books.paper_value("table2/independent/cifar100", 4) == books.paper_value("table1/r2-4/cifar100", 4)
    for data, n, gap in (("cifar10", 2, -0.07), ("cifar10", 3, -0.36), ("cifar100", 3, -0.57)):  # in bold in table 4
        fixed = books.paper_value(f"table1/r2-{n}/{data}", n)
        assert books.paper_value(f"table4/r2-dial/{data}", n) - fixed == pytest.approx(gap)


def test_the_counts_are_the_papers_to_the_last_digit_but_for_r4(results_folder):
    write(results_folder, DIAL, {2: 9.0, 3: 8.0, 4: 7.5})
    found = book(results_folder)
    depth = {"1": 6, "2": 10, "3": 14, "4": 18}
    for name in ("table1", "table5"):
        for row in tables.LAYOUTS[name].rows:
            printed = books.paper_parameters(row.cell, row.setting)
            count = found.parameters(row.cell, "full")
            if "r4-dial" in row.cell:
                assert (count, printed) == (11_241_892, 11.25)
            elif row.cell.endswith("cifar10") or name == "table5":  # 100 classes have more; the paper prints 10's
                assert round(count / 1e6, 3) == printed
            own = found.depth(row.cell, row.setting, "full")
            assert own == (depth[str(row.setting)] if name == "table1" else 8 * row.setting + 10)


@pytest.mark.parametrize(
    ("run", "preset"), [(R2, "short"), ("table5/r4-dial/cifar100", "full"), ("figure5/s3-2/sigma15", "full")]
)
def test_the_committed_counts_are_what_the_code_counts(run, preset):
    counts = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "counts.py"))
    committed = json.loads(counts["FILE"].read_text(encoding="utf-8"))
    assert committed[f"{run}--{preset}"] == counts["counts"](cells.RUNS[run].recipe(preset, 0))
    assert set(committed) == {f"{id}--{preset}" for id in cells.RUNS for preset in cells.PRESETS}
