"""What the paper shows: its cells, the runs that fill them, and the result files in between. No PyTorch here."""

from recurconv.cells.paper import CELLS, PRESETS, RUNS, SIGMAS, TABLES, Cell, Preset, Run, runs_of, select
from recurconv.cells.results import hardware, matches, read_result, result_name

__all__ = [
    "CELLS",
    "PRESETS",
    "RUNS",
    "SIGMAS",
    "TABLES",
    "Cell",
    "Preset",
    "Run",
    "hardware",
    "matches",
    "read_result",
    "result_name",
    "runs_of",
    "select",
]
