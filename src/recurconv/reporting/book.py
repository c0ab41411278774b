"""Everything that the report reads, in one place: results, the paper's numbers, counts of the networks."""

import functools
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from recurconv import cells
from recurconv.reporting.results import Result, Summary, summarise


@functools.cache
def _asset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((resources.files("recurconv.reporting") / name).read_text(encoding="utf-8"))
    return found


def paper_value(cell: str, setting: int) -> float | None:
    """What the paper prints for a cell at a setting; None where it prints nothing, or "not convergent"."""
    return _values().get(cell, {}).get(str(setting))


def paper_prints(cell: str, setting: int) -> bool:
    """Whether the paper has an entry there, be it a dash."""
    return str(setting) in _values().get(cell, {})


def _values() -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = _asset("paper.json")["values"]
    return found


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

    def counted(self, what: str, cell: str, setting: int, preset: str) -> float | None:
        """ "parameters", "macs" or "depth" of a cell's network: of its run, or where it was not run of its recipe."""
        for run in self.runs(cell, preset):
            by_setting: Mapping[int, float] = getattr(run, what)
            if setting in by_setting:
                return by_setting[setting]
        return _asset("networks.json").get(f"{cells.CELLS[cell].run.id}--{preset}", {}).get(what, {}).get(str(setting))  # type: ignore[no-any-return]
