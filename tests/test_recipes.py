"""Recipes are complete, frozen and checked; what is wrong with a change is told at once."""

import dataclasses
import json
import math

import pytest

from recurconv import files, recipes
from recurconv.recipe import Recipe

R2 = recipes.get("r2-cifar10")
R3 = recipes.get("r3-gray25")


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_a_recipe_comes_back_from_its_file(name, tmp_path):
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipe.summary
    assert recipe.reaches
    assert recipe.takes
    files.write_json(tmp_path / "recipe.json", dataclasses.asdict(recipe))
    assert recipes.read(tmp_path / "recipe.json") == recipe
    changed = recipes.override(recipe, ["epochs=3", "seed=5", "clip=0"])
    files.write_json(tmp_path / "recipe.json", dataclasses.asdict(changed))
    assert recipes.read(tmp_path / "recipe.json") == changed != recipe


def test_the_papers_recipes_have_the_papers_settings():
    assert R2.steps == (2, 3, 4)
    assert R2.draws == (0.2, 0.3, 0.5)  # section 5.3
    assert R2.shared_ratio == 0.5  # section 3.3
    assert (R2.sampling, R2.norm) == ("unified", None)
    assert recipes.get("r4-cifar100").steps == (1, 2, 3)
    assert R3.steps == (1, 2, 3, 4)
    assert math.isclose(sum(R3.draws), 1)
    assert recipes.get("deeply-supervised-s4-cifar100").settings == (2, 3, 4)
    published = [name for name in recipes.RECIPES if "folder" not in name and "short" not in name]
    assert all(recipes.get(name).minival == 0 for name in published)  # final runs train on all


def test_a_recipe_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        R2.epochs = 3


def test_values_are_read_as_their_fields_types():
    changed = recipes.override(
        R2,
        [
            *("epochs=7", "rate=1e-2", "steps=1,2,6", "probabilities=0.5,0.25,0.25", "flip=False", "norm=independent"),
            *("sampling=sandwich", "precision=bf16", "compile=true", "data=cifar100"),
        ],
    )
    assert (changed.epochs, changed.rate, changed.steps) == (7, 0.01, (1, 2, 6))
    assert changed.draws == (0.5, 0.25, 0.25)
    assert (changed.flip, changed.compile, changed.norm) == (False, True, "independent")
    assert (changed.sampling, changed.precision, changed.data) == ("sandwich", "bf16", "cifar100")
    assert changed.reaches == "changed by --set"
    assert recipes.override(changed, ["norm=default"]).norm is None
    assert recipes.override(R2, ["steps=4", "probabilities="]).draws == (1.0,)
    assert recipes.override(R2, ["steps=1,5", "probabilities="]).draws == (0.5, 0.5)


def test_a_change_to_what_it_is_already_is_none():
    assert recipes.override(R2, []) is R2
    assert recipes.override(R2, ["epochs=100"]) is R2


def test_all_that_is_wrong_is_told_at_once():
    settings = ["epoch=3", "rate=fast", "clip", "batch_size=0", "sampling=sometimes", "sigma=15", "name=mine", "xyz=1"]
    with pytest.raises(ValueError, match="unknown key 'epoch', did you mean epochs") as error:
        recipes.override(R2, settings)
    told = str(error.value)
    for part in (
        "rate='fast' must be a finite number",
        "'clip' is not key=value",
        "batch_size=0 must be above 0",
        "sampling='sometimes' must be one of unified, per-cell, weighted, sandwich",
        "sigma has no meaning for classification",
        "unknown key 'name', ",
        "unknown key 'xyz', one of ",
    ):
        assert part in told
    assert "\n" not in told
    assert "did you mean name" not in told


@pytest.mark.parametrize(
    ("base", "setting", "complaint"),
    [
        (R2, "epochs=2.5", "epochs='2.5' must be a whole number"),
        (R2, "rate=nan", "rate=nan must be a finite number"),
        (R2, "rate=inf", "rate=inf must be a finite number"),
        (R2, "rate=-1", "rate=-1.0 must be above 0"),
        (R2, "seed=9223372036854775808", "seed=9223372036854775808 must be at most 9223372036854775807"),
        (R2, "width=1e9", "width=1000000000.0 must be at most 64"),
        (recipes.get("r2-folder"), "size=100000", "size=100000 must be at most 4096"),
        (R2, "momentum=1", "momentum=1.0 must be below 1"),
        (R2, "momentum=-0.1", "momentum=-0.1 must be 0 or more"),
        (R2, "label_smoothing=-0.1", "label_smoothing=-0.1 must be 0 or more"),
        (R2, "warmup=1", "warmup=1.0 must be below 1"),
        (R2, "flip=yes", "flip='yes' must be one of true, false"),
        (R2, "steps=2,,3", "steps='2,,3' must be whole numbers like 2,3,4"),
        (R2, "steps=", r"steps=\(\) must be different counts of at least 1, ascending"),
        (R2, "steps=0,1", r"steps=\(0, 1\) must be different counts of at least 1, ascending"),
        (R2, "steps=3,2,4", r"steps=\(3, 2, 4\) must be different counts"),
        (R2, "steps=2,2,4", r"steps=\(2, 2, 4\) must be different counts"),
        (R2, "steps=2,4", r"must be 2 numbers above 0 that sum to 1, one for each of \(2, 4\); or nothing, for all"),
        (R2, "probabilities=0.5,0.5,0.5", "must be 3 numbers above 0 that sum to 1"),
        (R2, "probabilities=0.5,0.5,0", "must be 3 numbers above 0 that sum to 1"),
        (R2, "probabilities=nan,0.5,0.5", "must be finite numbers like"),
        (R2, "norm=batch", "norm='batch' must be one of default, none, shared, independent, double"),
        (R2, "network=s2", r"steps=\(2, 3, 4\): s2 is untied and has one step count"),
        (R2, "network=r3", "network=r3 is not for classification"),
        (R2, "data=pictures", "data=pictures is not for classification"),
        (R2, "channels=32", "channels has no meaning for classification"),
        (R2, "task=denoising", "unknown key 'task'"),
        (R3, "width=2", "width has no meaning for denoising"),
        (R3, "data=cifar10", "data=cifar10 is not for denoising"),
        (R3, "tinted=0.5", "tinted=0.5 needs colour pictures"),
        (R3, "image_channels=2", "image_channels=2 must be 1 or 3 for denoising"),
        (
            recipes.get("r3-gray25-short"),
            "trained_on=train400",
            "trained_on=train400 holds the pictures of minival; take minival=0 with it",
        ),
        (R3, "sigmas=55,0", r"sigmas=\(55.0, 0.0\) must be a range like 0,55, or nothing"),
        (recipes.get("s2-cifar10"), "norm=shared", "norm=shared: s2 is untied"),
        (recipes.get("s2-cifar10"), "sampling=sandwich", "sampling=sandwich needs a dial of two or more settings"),
        (recipes.get("deeply-supervised-s4-cifar100"), "steps=2,3", "deeply_supervised_s4 is untied and has one"),
        (recipes.get("deeply-supervised-s4-cifar100"), "sampling=per-cell", "sampling=per-cell needs recurrent cells"),
    ],
)
def test_a_bad_value_is_told_with_what_is_allowed(base, setting, complaint):
    with pytest.raises(ValueError, match=complaint):
        recipes.override(base, [setting])


def test_double_needs_a_dial():
    with pytest.raises(ValueError, match=r"norm=double needs a dial of two or more counts, not steps=\(4,\)"):
        recipes.override(R2, ["steps=4", "probabilities=", "norm=double"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"epochs": "3"}, "epochs='3' must be a whole number"),
        ({"epochs": True}, "epochs=True must be a whole number"),
        ({"steps": [2, 3, 4]}, r"steps=\[2, 3, 4\] must be whole numbers like 2,3,4"),
        ({"flip": 1, "rate": None}, "rate=None must be a finite number; flip=1 must be one of true, false"),
    ],
)
def test_types_are_checked_in_python_as_well(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(R2, **change)


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", '{"name": "x"}', json.dumps({**dataclasses.asdict(R2), "colour": "red"})]
)
def test_a_file_that_is_no_recipe_is_one_line(text, tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"recipe.json is not a recipe of this version") as error:
        recipes.read(file)
    assert "\n" not in str(error.value)


def test_fields_that_came_later_have_their_defaults(tmp_path):
    fields = dataclasses.asdict(R2)
    del fields["cuda_graphs"]
    (tmp_path / "recipe.json").write_text(json.dumps(fields))
    assert recipes.read(tmp_path / "recipe.json") == R2


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match=r"there is no recipe 'r2-cifar1'; did you mean r2-cifar10\?"):
        recipes.get("r2-cifar1")
    with pytest.raises(ValueError, match="there is no recipe 'resnet'; choose one of r2-cifar10, "):
        recipes.get("resnet")


def test_every_field_stands_in_exactly_one_place():
    """A field that is checked nowhere, or of both tasks, would be a slip."""
    from recurconv import recipe

    fields = {field.name for field in dataclasses.fields(Recipe)}
    for names in (recipe._ABOVE_ZERO, recipe._FROM_ZERO, recipe._BELOW_ONE, recipe._DENOISING, recipe._CLASSIFICATION):
        assert set(names) <= fields
    assert not set(recipe._DENOISING) & set(recipe._CLASSIFICATION)
    numbers = {f for f, kind in recipe._TYPES.items() if kind in (int, float)} - {"image_channels", "label_smoothing"}
    assert numbers == set(recipe._ABOVE_ZERO) | set(recipe._FROM_ZERO)
