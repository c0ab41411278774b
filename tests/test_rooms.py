"""The rooms of the package: imports go downwards only, and ``import recurconv`` is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import recurconv

PACKAGE = Path(recurconv.__file__).parent

# A room is a file or a folder of the package. Each may import from those before it, and from nothing after it.
ROOMS = [
    "_version",
    "usage",
    "files",
    "memory",
    "runtime",
    "recipe",
    "recipes",
    "cells",
    "reporting",
    "devices",
    "norms",
    "settling",
    "cell",
    "checkpoint",
    "network",
    "networks",
    "denoisers",
    "loading",
    "starting",
    "costs",
    "data",
    "runs",
    "tasks",
    "objectives",
    "distributed",
    "graphs",
    "optimisation",
    "divergence",
    "interruption",
    "progress",
    "training",
    "evaluation",
    "prediction",
    "imaging",
    "cleaning",
    "measuring",
    "export",
    "tuning",
    "reproduction",
    "demo",
    "cli",
    "__main__",
]
# The one import upwards, inside a method: Network.from_pretrained, a name that users expect on the class.
UPWARDS = {("network", "loading")}

SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """The rooms that a file imports from, wherever in it."""
    here = ("recurconv", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            modules = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (module[1] for module in modules if module[0] == "recurconv" and len(module) > 1)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    room = room_of(path)
    assert room in ROOMS, (
        f"{room} is a new room: add it to ROOMS in {Path(__file__).name}, behind those it imports from"
    )
    for other in imports(path):
        assert other in ROOMS, f"{room} imports {other}, not a room of ROOMS: add it there, or name the room it is in"
        below = ROOMS.index(other) <= ROOMS.index(room) or (room, other) in UPWARDS
        assert below, f"{room} imports from {other}, which is above it"


def test_the_rule_reads_every_form_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / "cli" / "train.py"
    path.parent.mkdir()
    path.write_text(
        "import os, recurconv.costs\n"
        "from torch import nn\n"
        "from recurconv import checkpoint, r2\n"
        "from recurconv.data.cifar import load_cifar\n"
        "from . import shared\n"
        "from ..runs import RunFolder\n"
        "def late():\n    from recurconv.training import train\n"
    )
    assert room_of(path) == "cli"
    assert list(imports(path)) == ["costs", "checkpoint", "r2", "data", "cli", "runs", "training"]


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_does_not_import_pytorch():
    code = (
        "import sys, recurconv as rc; rc.__version__; dir(rc); "
        "print(*sorted({'torch', 'numpy', 'huggingface_hub', 'safetensors', 'PIL'} & set(sys.modules)), 'end')"
    )
    assert python(code) == ["end"]


def test_every_public_name_is_there_and_the_same_as_in_its_room():
    assert set(recurconv.__all__) == set(dir(recurconv))
    promised = (
        "r2 s2 r3 s3 r4 s4 deeply_supervised_s4 RecurrentCell StandardCell NormBank NormGroup Dial load cost steps_for "
        "r3_half denoise settle_norms"
    )
    assert {*promised.split(), "Network", "__version__"} == set(recurconv.__all__)
    for name in recurconv.__all__:
        value = getattr(recurconv, name)
        assert value.__name__ == name if callable(value) else name == "__version__"


def test_type_checkers_see_the_names_in_the_rooms_they_come_from():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {f.module.split(".")[1]: tuple(alias.name for alias in f.names) for f in guarded.body}
    assert seen == recurconv._HOME


def test_names_do_not_depend_on_what_was_imported_before():
    code = (
        "import recurconv.costs, recurconv.loading, recurconv.networks, recurconv as rc; "
        "print(*(getattr(rc, name).__module__ for name in ('cost', 'steps_for', 'load', 'r2')))"
    )
    assert python(code) == ["recurconv.costs", "recurconv.costs", "recurconv.loading", "recurconv.networks"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'recurconv' has no attribute 'r5'"):
        recurconv.r5  # noqa: B018
    with pytest.raises(ImportError, match="r5"):
        from recurconv import r5  # noqa: F401
