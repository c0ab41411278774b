"""Everything that the report reads, in one place: results, the paper's numbers, counts of the networks."""

import functools
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

from recurconv import cells
from recurconv.reporting.results import Result, Summary, summarise, summarise_relative


@functools.cache
def _asset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("recurconv.reporting") / name).read_text(encoding="utf-8"))
    return found


def paper_value(cell: str, setting: int) -> float | None:
    """What the paper prints for a cell at a setting; None where it prints nothing, or "not convergent"."""
    return _printed(cell).get(str(setting))


def paper_prints(cell: str, setting: int) -> bool:
    """Whether the paper has an entry there, be it a dash."""
    return str(setting) in _printed(cell)


def _printed(cell: str) -> dict[str, float | None]:
    """By setting; a cell without an entry of its own may read the run of one that has."""
    values: dict[str, dict[str, float | None]] = _asset("paper.json")["values"]
    return values.get(cell) or values.get(cells.CELLS[cell].run.id) or {}


def paper_parameters(cell: str, setting: int) -> float | None:
    """The paper's parameters of a cell, in millions; None where it prints none."""
    return _asset("paper.json")["parameters_M"].get(cell.rpartition("/")[0], {}).get(str(setting))  # type: ignore[no-any-return]


def peers() -> dict[str, Any]:
    """What other networks reach, as they publish it, with sources."""
    return _asset("peers.json")


class Book:
    """The results by cell and preset.

    Args:
        results: of one folder.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self.results = list(results)
        self._runs: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            self._runs.setdefault((result.run, result.preset), []).append(result)

    def runs(self, cell: str, preset: str) -> list[Result]:
        """The runs of a cell, in the order of their seeds; none where it was not run."""
        return sorted(self._runs.get((cells.CELLS[cell].run.id, preset), []), key=lambda result: result.seed)

    def summary(self, cell: str, setting: int, preset: str) -> Summary:
        """The mean over seeds."""
        return summarise(self.runs(cell, preset), setting)

    def relative(self, cell: str, setting: int, largest: int, preset: str) -> Summary:
        """Likewise of the accuracy in % of that at the largest setting of the same network."""
        return summarise_relative(self.runs(cell, preset), setting, largest)

    def parameters(self, cell: str, preset: str) -> int:
        """The parameters of a cell's network, of all settings together: of its run, or of what would be trained."""
        runs = self.runs(cell, preset)
        return runs[0].parameters if runs else int(_network(cell, preset)["parameters"])

    def macs(self, cell: str, setting: int, preset: str) -> float:
        """Multiply-accumulates per image, or per pixel of a denoiser; likewise."""
        return self._counted("macs", cell, setting, preset)

    def depth(self, cell: str, setting: int, preset: str) -> int:
        """Convolutions and linear layers on the way from the image to the output; likewise."""
        return int(self._counted("depth", cell, setting, preset))

    def _counted(self, what: str, cell: str, setting: int, preset: str) -> float:
        counts: list[dict[int, float]] = [getattr(run, what) for run in self.runs(cell, preset)]
        own = next((count for count in counts if setting in count), None)
        return float(_network(cell, preset)[what][str(setting)] if own is None else own[setting])


def _network(cell: str, preset: str) -> dict[str, Any]:
    """The counts of the network that would be trained for a cell."""
    found: dict[str, Any] = _asset("networks.json")[f"{cells.CELLS[cell].run.id}--{preset}"]
    return found
