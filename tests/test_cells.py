"""The cells of the paper's tables and figures: all are there, and each run is what its place says."""

import dataclasses
import json
from pathlib import Path

import pytest

import recurconv as rc
from conftest import python
from recurconv import cells, recipes
from recurconv.cells import CELLS, PRESETS, RUNS, TABLES, result_name, runs_of, select
from small import on_meta

WORDS = {"name", "summary", "reaches", "takes"}
SIZES = {"channels", "width", "epochs", "patches_per_epoch", "batch_size", "rate", "compile"}
R2 = [f"r2-{n}" for n in (1, 2, 3, 4)]
S2 = ["s2-2", "s2-3", "s2-4", "s2-4-half"]
CIFAR, SIGMAS, NORMS = ("cifar10", "cifar100"), ("sigma15", "sigma25", "sigma50"), ("none", "shared", "independent")


def changes(run, base, preset="full"):
    """The fields in which a run differs from another."""
    one, other = (vars(RUNS[r].recipe(preset, 0)) for r in (run, base))
    return {key: value for key, value in one.items() if value != other[key] and key not in WORDS}


def network(run):
    """Of a run at full size, without its tensors' memory."""
    recipe = run.recipe("full", 0)
    arguments = {"steps": recipe.steps if len(recipe.steps) > 1 else recipe.steps[0]}
    arguments |= {"channels": recipe.channels} if recipe.task == "denoising" else {"width": recipe.width}
    if recipe.task == "classification":
        arguments["num_classes"] = int(recipe.data.removeprefix("cifar"))
    if recipe.network.startswith("r"):
        arguments["norm"] = recipe.norm
    return on_meta(getattr(rc, recipe.network), **arguments)


def test_every_cell_of_the_paper_is_there():
    wanted = {
        "table1": (R2 + S2, CIFAR),
        "table2": (NORMS, CIFAR),
        "table3": (NORMS, SIGMAS),
        "table4": (["r2-dial"], CIFAR),
        "table5": (["r4-dial", "s4-1", "s4-2", "s4-3"], ["cifar100"]),
        "figure2": (["r2-4"], ["cifar10"]),
        "figure3": (["r4-dial"], ["cifar100"]),
        "figure4": (["r3-dial"], ["sigma25"]),
        "figure5": ([f"{kind}3-{n}" for kind in "rs" for n in (1, 2, 3, 4)], SIGMAS),
        "figure6": (["r4-dial"], ["cifar100"]),
        "figure7": (["r4-dial", "s4-1", "s4-2", "s4-3", "s4-deep"], ["cifar100"]),
        "ablations": (
            ["base", "independent-dial", "per-cell", "weighted", "ratio-0.25", "ratio-1", "no-clip", "uniform"],
            ["cifar10"],
        ),
    }
    assert tuple(wanted) == TABLES
    assert list(CELLS) == sorted(f"{t}/{r}/{c}" for t, (rows, columns) in wanted.items() for r in rows for c in columns)
    for id, cell in CELLS.items():
        assert id == f"{cell.table}/{cell.row}/{cell.column}" == cell.id


# The paper prints these, in millions; R_4 is the text's, not the printed 11.250 (docs/networks.md).
@pytest.mark.parametrize(
    ("cell", "millions"),
    [
        *((f"table1/r2-{n}/cifar10", count) for n, count in enumerate([1.259, 1.260, 1.262, 1.263], 1)),
        *((f"table1/s2-{n}/cifar10", count) for n, count in enumerate([2.514, 3.768, 5.023], 2)),
        ("table1/s2-4-half/cifar10", 1.258),
        *((f"table5/s4-{n}/cifar100", count) for n, count in enumerate([11.217, 17.488, 23.759], 1)),
        ("table5/r4-dial/cifar100", 11.242),
    ],
)
def test_a_run_trains_the_network_whose_parameters_the_paper_prints(cell, millions):
    count = sum(parameter.numel() for parameter in network(CELLS[cell].run).parameters())
    assert round(count / 1e6, 3) == millions


def test_the_norm_usages_are_compared_under_the_same_conditions():
    for data in CIFAR:
        assert CELLS[f"table2/independent/{data}"].run is RUNS[f"table1/r2-4/{data}"]
        for norm in ("none", "shared"):
            assert changes(f"table2/{norm}/{data}", f"table1/r2-4/{data}") == {"norm": norm}
    for sigma in SIGMAS:
        for norm in ("none", "shared"):
            assert changes(f"table3/{norm}/{sigma}", f"table3/independent/{sigma}") == {"norm": norm}
            assert RUNS[f"table3/{norm}/{sigma}"].recipe("full", 0).sigma == float(sigma.removeprefix("sigma"))


def test_an_ablation_changes_one_thing():
    base = CELLS["ablations/base/cifar10"].run.id
    assert base == "table4/r2-dial/cifar10"
    assert {id.split("/")[1]: changes(id, base) for id in RUNS if id.startswith("ablations/")} == {
        "independent-dial": {"norm": "independent"},
        "per-cell": {"sampling": "per-cell"},
        "weighted": {"sampling": "weighted"},
        "ratio-0.25": {"shared_ratio": 0.25},
        "ratio-1": {"shared_ratio": 1.0},
        "no-clip": {"clip": 0.0},
        "uniform": {"probabilities": ()},
    }
    recipe = RUNS[base].recipe("full", 0)
    assert (recipe.steps, recipe.probabilities, recipe.shared_ratio) == ((2, 3, 4), (0.2, 0.3, 0.5), 0.5)
    assert recipe.clip > 0


def test_a_figure_reads_a_run_of_what_it_shows():
    shown = {cell.id: cell.run.recipe("full", 0) for cell in CELLS.values() if cell.table.startswith("figure")}
    assert (shown["figure2/r2-4/cifar10"].network, shown["figure2/r2-4/cifar10"].steps) == ("r2", (4,))
    assert shown["figure3/r4-dial/cifar100"].network == shown["figure6/r4-dial/cifar100"].network == "r4"
    assert shown["figure4/r3-dial/sigma25"].steps == (1, 2, 3, 4)
    assert shown["figure7/s4-deep/cifar100"].network == "deeply_supervised_s4"
    for id, recipe in shown.items():
        if id.startswith("figure5/"):
            _, row, column = id.split("/")
            assert (f"{recipe.network}-{recipe.steps[0]}", f"sigma{recipe.sigma:g}") == (row, column)
            assert len(recipe.steps) == 1


def test_full_runs_train_on_all_training_images_for_as_long_as_the_paper_says():
    for run in RUNS.values():
        recipe = run.recipe("full", 2)
        assert (recipe.minival, recipe.seed, recipe.trained_on) == (0, 2, "trainval")
        if recipe.task == "denoising":
            assert 11e6 < recipe.epochs * recipe.patches_per_epoch < 13e6
            assert recipe.patch == 40
        else:
            assert recipe.epochs == 100


def test_a_short_run_is_smaller_and_nothing_else():
    for run in RUNS.values():
        full, short = (vars(run.recipe(preset, 0)) for preset in PRESETS)
        assert {key for key in full if full[key] != short[key]} - WORDS <= SIZES
        assert short["epochs"] < full["epochs"]
        assert not short["compile"]
    half, whole = (RUNS[f"table1/{row}/cifar10"].recipe("short", 0).width for row in ("s2-4-half", "s2-4"))
    assert half == whole / 2


def test_a_runs_words_do_not_change_with_those_of_its_recipe(monkeypatch):
    """A run goes on only with the recipe that it was started with, words included."""
    before = RUNS["table4/r2-dial/cifar10"].recipe("full", 0)
    reached = dataclasses.replace(recipes.get("r2-cifar10"), reaches="more", takes="less", summary="other")
    monkeypatch.setitem(recipes.RECIPES, "r2-cifar10", lambda: reached)
    assert RUNS["table4/r2-dial/cifar10"].recipe("full", 0) == before


# --- which


def test_all_takes_every_cell_and_each_run_is_trained_once():
    assert select(["all"]) == list(CELLS.values())
    runs = runs_of(select(["all"]))
    assert len({run.id for run in runs}) == len(runs) == len(RUNS)
    assert [run.id for run in runs[:4]] == [
        f"{t}/cifar10" for t in ("table1/r2-4", "table4/r2-dial", "table2/none", "table2/shared")
    ]
    assert len({result_name(run, preset, seed) for run in runs for preset in PRESETS for seed in (0, 1)}) == 4 * len(
        runs
    )


def test_tables_rows_and_patterns_are_names():
    assert {cell.table for cell in select(["table4", "figure2"])} == {"table4", "figure2"}
    assert [cell.id for cell in select(["table1/r2-4"])] == ["table1/r2-4/cifar10", "table1/r2-4/cifar100"]
    assert [cell.id for cell in select(["table2/*/cifar10"])] == [f"table2/{n}/cifar10" for n in sorted(NORMS)]
    assert [run.id for run in runs_of(select(["figure2", "table2/independent/cifar10"]))] == ["table1/r2-4/cifar10"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tabel1", "did you mean table1?"),
        ("table1/r2-5", "did you mean table1/r2-"),
        ("x", "choose all or some of table1"),
    ],
)
def test_an_unknown_name_is_told(name, hint):
    with pytest.raises(ValueError, match=f"there is no table, figure or cell '{name}'; ") as told:
        select(["table1", name])
    assert hint in str(told.value)


def test_the_list_needs_no_pytorch():
    done = python("import sys, recurconv.cells; print({'torch', 'numpy'} & set(sys.modules))")
    assert (done.stdout, done.stderr) == ("set()\n", "")


# --- results


def result(**changed):
    run = RUNS["table1/r2-4/cifar10"]
    return {
        "format": 1,
        "cell": run.id,
        "preset": "full",
        "seed": 1,
        "recipe": dataclasses.asdict(run.recipe("full", 1)),
        "metric": "error (%)",
        "higher_is_better": False,
        "values": {"4": 7.65},
        "standard_errors": {"4": 0.3},
        "images": 10_000,
        "epochs": 100,
        "parameters": {"4": 1},
        "macs": {"4": 1},
        "environment": {},
        **changed,
    }


def write(folder: Path, value):
    file = folder / "result.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_a_result_is_read_and_compared_with_what_its_run_would_be_now(tmp_path):
    found = cells.read_result(write(tmp_path, result()))
    assert found == json.loads(json.dumps(result()))
    assert cells.matches(found) == ""
    found["recipe"] |= {"rate": 0.5, "steps": [3], "reaches": "words do not count"}
    assert cells.matches(found) == "steps=[3] instead of [4], rate=0.5 instead of 0.4"


def test_a_result_older_than_a_field_has_its_default(tmp_path):
    recipe = result()["recipe"]
    del recipe["sampling"], recipe["trained_on"]
    assert cells.matches(cells.read_result(write(tmp_path, result(recipe=recipe)))) == ""
    del recipe["epochs"]  # has none
    assert cells.matches(cells.read_result(write(tmp_path, result(recipe=recipe)))) == "epochs=None instead of 100"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "is broken"),
        ("[]", "is not a result of"),
        ({"format": 2}, "is not a result of"),
        (result(values=None), "lacks values,"),
        (result(seed="1", recipe=[]), "lacks seed, recipe,"),
        (result(cell="table9/r2-4/cifar10"), "which this version does not know"),
        (result(preset="tiny"), "which this version does not know"),
    ],
)
def test_a_file_that_is_no_result_is_told(value, reason, tmp_path):
    file = write(tmp_path, value)
    with pytest.raises(ValueError, match=reason) as told:
        cells.read_result(file)
    assert str(file) in str(told.value)
