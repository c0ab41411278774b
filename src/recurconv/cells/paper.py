"""Every cell of the paper's tables and figures, and the training run that fills it.

Figures are counted as they stand in the paper:

======== ======================================================== =====================================
figure2  variables of the first norm layer of C_1 over steps      R_2^4, CIFAR-10: the run of table 1
figure3  variables of the first norm layer of T_2 by C_1's steps  R_4 with a dial: the run of table 5
figure4  a denoised picture at each setting                       R_3 with a dial: a run of its own
figure5  PSNR of R_3^n and S_3^n, n = 1 ... 4                     runs of its own; R_3^4 is that of table 3
figure6  feature maps at the end of each step of C_2 and C_3      R_4 with a dial: the run of table 5
figure7  relative accuracy against relative FLOPs                 table 5, and S_4 with deep supervision
======== ======================================================== =====================================

(Figure 1 is a drawing.) "independent" of tables 2 and 3, and the base line of the ablations, are runs of other tables,
too: a run is trained once, whatever number of cells read it.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from recurconv import recipes
from recurconv.recipe import Recipe

Preset = Literal["full", "short"]
PRESETS: tuple[Preset, ...] = get_args(Preset)

CIFAR = ("cifar10", "cifar100")
SIGMAS = {"sigma15": 15.0, "sigma25": 25.0, "sigma50": 50.0}

# What a sweep trains first; a run comes at the first pattern that it matches.
_ORDER = (
    "table1/r2-4/cifar10",
    "table4/*/cifar10",
    "table2/*/cifar10",
    "table1/*/cifar10",
    "table3/*/sigma25",
    "table5/*",
    "*/cifar100",
    "figure5/*/sigma25",
    "*",
)


@dataclass(frozen=True)
class Run:
    """A training that fills one or more cells.

    ``id`` is the first of these cells; ``base`` names a recipe of ``recurconv.recipes``, ``changes`` are the fields in
    which the run differs from it.
    """

    id: str
    base: str
    changes: dict[str, Any] = dataclasses.field(compare=False)

    @property
    def data(self) -> str:
        """The data set: "cifar10", "cifar100" or "pictures" (BSD)."""
        return self.recipe("full", 0).data

    def recipe(self, preset: Preset, seed: int) -> Recipe:
        """The complete config.

        Args:
            preset: "full" is the paper's length and width; "short" takes a small part of both, for a CPU core. Short
                runs can tell how variants compare after little training, and nothing of the paper's figures.
            seed: of everything random.
        """
        recipe = dataclasses.replace(recipes.get(self.base), **self.changes)
        if preset == "short":
            recipe = _short(recipe)
        # Words that stay the same: a run goes on only with the recipe that it was started with.
        words: dict[str, Any] = {"summary": f"{self.id}, preset {preset}", "reaches": "", "takes": ""}
        return dataclasses.replace(recipe, **words, seed=seed)


@dataclass(frozen=True)
class Cell:
    """A place in a table or figure, ``table/row/column``, and the run whose numbers stand there."""

    id: str
    run: Run

    @property
    def table(self) -> str:
        """E.g. "table1"."""
        return self.id.split("/")[0]

    @property
    def row(self) -> str:
        """E.g. "r2-4"."""
        return self.id.split("/")[1]

    @property
    def column(self) -> str:
        """E.g. "cifar10"."""
        return self.id.split("/")[2]


def _short(recipe: Recipe) -> Recipe:
    """About ten minutes of one CPU core with AVX2, with the rates of the recipes of shipped networks.

    No rate was chosen for a single variant, so that all meet the same conditions.
    """
    if recipe.task == "denoising":
        size: dict[str, Any] = {"channels": 16, "epochs": 4, "patches_per_epoch": 5_000, "batch_size": 16, "rate": 2e-3}
    else:
        factor = 0.25 if recipe.network in ("r2", "s2") else 0.125
        size = {"width": recipe.width * factor, "epochs": 2, "batch_size": 64, "rate": 0.05}
    return dataclasses.replace(recipe, **size, compile=False)


def _runs() -> Iterator[Run]:
    one = {"probabilities": ()}  # one count instead of a dial
    for data in CIFAR:
        r2, s2 = {"base": f"r2-{data}"}, {"base": "s2-cifar10"}
        for n in (1, 2, 3, 4):
            yield Run(f"table1/r2-{n}/{data}", **r2, changes={**one, "steps": (n,)})
        for n in (2, 3, 4):
            yield Run(f"table1/s2-{n}/{data}", **s2, changes={"data": data, "steps": (n,)})
        yield Run(f"table1/s2-4-half/{data}", **s2, changes={"data": data, "steps": (4,), "width": 0.5})
        for norm in ("none", "shared"):
            yield Run(f"table2/{norm}/{data}", **r2, changes={**one, "steps": (4,), "norm": norm})
        yield Run(f"table4/r2-dial/{data}", **r2, changes={})
    yield Run("table5/r4-dial/cifar100", "r4-cifar100", {})
    for n in (1, 2, 3):
        yield Run(f"table5/s4-{n}/cifar100", "s4-cifar100", {"steps": (n,)})
    yield Run("figure7/s4-deep/cifar100", "deeply-supervised-s4-cifar100", {})
    for column, sigma in SIGMAS.items():
        for norm in ("none", "shared", "independent"):
            changes = {"steps": (4,), "norm": norm, "sigma": sigma}
            yield Run(f"table3/{norm}/{column}", "r3-gray25", changes)
        for n in (1, 2, 3):
            yield Run(f"figure5/r3-{n}/{column}", "r3-gray25", {"steps": (n,), "sigma": sigma})
        for n in (1, 2, 3, 4):
            yield Run(f"figure5/s3-{n}/{column}", "s3-gray25", {"steps": (n,), "sigma": sigma})
    yield Run("figure4/r3-dial/sigma25", "r3-gray25", {})
    ablations: dict[str, dict[str, Any]] = {
        "independent-dial": {"norm": "independent"},
        "per-cell": {"sampling": "per-cell"},
        "weighted": {"sampling": "weighted"},
        "ratio-0.25": {"shared_ratio": 0.25},
        "ratio-1": {"shared_ratio": 1.0},
        "no-clip": {"clip": 0.0},
        "uniform": {"probabilities": ()},
    }
    for name, changes in ablations.items():
        yield Run(f"ablations/{name}/cifar10", "r2-cifar10", changes)


def _readers() -> Iterator[tuple[str, str]]:
    """Cells that have no training of their own, and the run that they read."""
    for data in CIFAR:
        yield f"table2/independent/{data}", f"table1/r2-4/{data}"
    yield "figure2/r2-4/cifar10", "table1/r2-4/cifar10"
    yield "figure3/r4-dial/cifar100", "table5/r4-dial/cifar100"
    for column in SIGMAS:
        yield f"figure5/r3-4/{column}", f"table3/independent/{column}"
    yield "figure6/r4-dial/cifar100", "table5/r4-dial/cifar100"
    for row in ("r4-dial", "s4-1", "s4-2", "s4-3"):
        yield f"figure7/{row}/cifar100", f"table5/{row}/cifar100"
    yield "ablations/base/cifar10", "table4/r2-dial/cifar10"


RUNS: dict[str, Run] = {run.id: run for run in _runs()}
CELLS: dict[str, Cell] = {
    id: Cell(id, RUNS[run]) for id, run in sorted([*((id, id) for id in RUNS), *_readers()])
}  # by table, row, column
TABLES: tuple[str, ...] = (
    *(f"table{n}" for n in range(1, 6)),
    *(f"figure{n}" for n in range(2, 8)),
    "ablations",
)


def select(names: Sequence[str]) -> list[Cell]:
    """The cells of some tables and figures.

    Args:
        names: of ``TABLES``, "all", or parts of cells such as "table1/r2-4" and "table2/*/cifar10".

    Raises:
        ValueError: a name that stands for no cell.
    """
    chosen: set[str] = set()
    for name in names:
        found = [id for id in CELLS if name == "all" or any(fnmatchcase(id, name + end) for end in ("", "/*"))]
        if not found:
            known = [id.rsplit("/", parts)[0] for id in CELLS for parts in (2, 1, 0)]  # tables, rows, cells
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"choose all or some of {', '.join(TABLES)}"
            raise ValueError(f"there is no table, figure or cell {name!r}; {hint}")
        chosen.update(found)
    return [cell for id, cell in CELLS.items() if id in chosen]


def runs_of(cells: Iterable[Cell]) -> list[Run]:
    """The runs that fill some cells, each once, in the order in which a sweep trains them: headline cells first."""
    wanted = {cell.run.id for cell in cells}
    return sorted((run for run in RUNS.values() if run.id in wanted), key=_rank)


def _rank(run: Run) -> int:
    return next(place for place, pattern in enumerate(_ORDER) if fnmatchcase(run.id, pattern))
