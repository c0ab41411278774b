"""The paper's tables with our numbers beside its own: a table for each preset, which are never mixed."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from recurconv import cells
from recurconv.reporting.book import Book, paper_parameters, paper_prints, paper_value
from recurconv.reporting.results import Summary

DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "sigma15": "sigma 15",
    "sigma25": "sigma 25",
    "sigma50": "sigma 50",
}
NOT_RUN = "not run"
COLUMNS = ("network", "data", "paper", "ours", "against the paper", "n", "epochs", "parameters", "depth", "hardware")


@dataclass(frozen=True)
class Row:
    """A line of a table: a cell at a setting."""

    label: str
    cell: str
    setting: int

    @property
    def data(self) -> str:
        """The data set or the noise, which is the last part of a cell's name."""
        return DATA[self.cell.rpartition("/")[2]]


@dataclass(frozen=True)
class Layout:
    """A table or a figure's numbers: what stands in it."""

    title: str
    metric: str
    higher_is_better: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table to be shown. The first ``words`` columns are words; the first ``shown`` ones fit a terminal."""

    title: str
    preset: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    shown: int | None = None
    words: int = 1


def _rows(template: str, names: Iterable[tuple[str, str, int]], data: Iterable[str]) -> tuple[Row, ...]:
    """A row for each data set and (label, slug, setting); the template takes slug and data."""
    return tuple(
        Row(label, template.format(slug, column), setting) for column in data for label, slug, setting in list(names)
    )


_CIFAR = ("cifar10", "cifar100")
_SIGMAS = ("sigma15", "sigma25", "sigma50")
_NORMS = [(f"R_{{}}^4, {usage}", usage, 4) for usage in ("none", "shared", "independent")]
_COUNTS = (1, 2, 3, 4)

LAYOUTS = {
    "table1": Layout(
        "Table 1: recurrent and standard networks",
        "test error (%)",
        False,
        _rows(
            "table1/{}/{}",
            [
                *((f"R_2^{n}", f"r2-{n}", n) for n in _COUNTS),
                *((f"S_2^{n}", f"s2-{n}", n) for n in _COUNTS[1:]),
                ("S_2^4 x0.5", "s2-4-half", 4),
            ],
            _CIFAR,
        ),
    ),
    "table2": Layout(
        "Table 2: R_2^4 by norm usage",
        "test error (%)",
        False,
        _rows("table2/{}/{}", [(label.format(2), slug, n) for label, slug, n in _NORMS], _CIFAR),
    ),
    "table3": Layout(
        "Table 3: R_3^4 by norm usage (the paper's caption has R_2^4)",
        "PSNR on BSD68 (dB)",
        True,
        _rows("table3/{}/{}", [(label.format(3), slug, n) for label, slug, n in _NORMS], _SIGMAS),
    ),
    "table4": Layout(
        "Table 4: cost-adjustable R_2, one network for each data set",
        "test error (%)",
        False,
        _rows("table4/{}/{}", [(f"R_2, dial (2, 3, 4), {n} steps", "r2-dial", n) for n in _COUNTS[1:]], _CIFAR),
    ),
    "table5": Layout(
        "Table 5: cost-adjustable R_4, one network, and standard networks",
        "test error (%)",
        False,
        _rows(
            "table5/{}/{}",
            [
                *((f"R_4, dial (1, 2, 3), {n} step{'s' if n > 1 else ''}", "r4-dial", n) for n in _COUNTS[:3]),
                *((f"S_4^{n}", f"s4-{n}", n) for n in _COUNTS[:3]),
            ],
            ("cifar100",),
        ),
    ),
}


def maker(name: str) -> Callable[[Book, str], Table]:
    """What makes one of ``LAYOUTS`` in a preset."""
    return lambda book, preset: _table(LAYOUTS[name], book, preset)


def _table(layout: Layout, book: Book, preset: str) -> Table:
    columns = [*COLUMNS[:3], f"ours: {layout.metric}", *COLUMNS[4:]]
    rows = [_line(row, layout, book, preset) for row in layout.rows]
    if preset == "full":
        return Table(layout.title, preset, columns, rows, shown=6, words=2)
    # Other networks, less training: there is nothing to hold against the paper's numbers.
    columns, *rows = ([*line[:4], *line[5:]] for line in (columns, *rows))
    return Table(layout.title, preset, columns, rows, shown=5, words=2)


def _line(row: Row, layout: Layout, book: Book, preset: str) -> list[str]:
    runs = book.runs(row.cell, preset)
    summary = book.summary(row.cell, row.setting, preset)
    return [
        row.label,
        row.data,
        paper_text(row.cell, row.setting),
        value_text(summary),
        difference_text(row, summary, layout.higher_is_better),
        str(len(runs)),
        _alike(str(run.epochs) for run in runs) if runs else "",
        _parameters(row, book, preset),
        str(book.depth(row.cell, row.setting, preset)),
        _alike(run.hardware for run in runs),
    ]


def value_text(summary: Summary) -> str:
    """A mean and its spread over seeds, or why there is none."""
    if not summary.seeds:
        return NOT_RUN
    if summary.mean is None:
        return "diverged"
    spread = "" if summary.spread is None else f" ± {summary.spread:.2f}"
    some = f" ({summary.diverged} of {summary.seeds} diverged)" if summary.diverged else ""
    return f"{summary.mean:.2f}{spread}{some}"


def paper_text(cell: str, setting: int) -> str:
    """The paper's number; what it prints where a network did not converge; nothing where it prints none."""
    value = paper_value(cell, setting)
    if value is not None:
        return f"{value:.2f}"
    return "not convergent" if paper_prints(cell, setting) else "not printed"


def difference_text(row: Row, summary: Summary, higher_is_better: bool) -> str:
    """Better or worse than the paper, and by how much."""
    paper = paper_value(row.cell, row.setting)
    if not summary.seeds or not paper_prints(row.cell, row.setting):
        return ""
    if summary.mean is not None and summary.diverged:
        return "some diverge"
    if paper is None:
        return "better: it converges" if _cleans(row, summary) else "as in the paper"
    if summary.mean is None:
        return "worse: it diverges"
    gain = round(summary.mean, 2) - paper if higher_is_better else paper - round(summary.mean, 2)
    return "equal" if abs(gain) < 0.005 else f"{'better' if gain > 0 else 'worse'} by {abs(gain):.2f}"


def _cleans(row: Row, summary: Summary) -> bool:
    """Whether a denoiser makes pictures better than its noisy input is; the paper's dashes are of denoisers."""
    sigma = cells.SIGMAS[row.cell.rpartition("/")[2]]
    return summary.mean is not None and summary.mean > 20 * math.log10(255 / sigma)


def _parameters(row: Row, book: Book, preset: str) -> str:
    """How many, and the paper's number where the network is the same."""
    printed = paper_parameters(row.cell, row.setting)
    ours = f"{book.parameters(row.cell, preset):,}"
    return f"{ours} (paper: {printed:.3f}M)" if printed is not None and preset == "full" else ours


def _alike(words: Iterable[str]) -> str:
    """What runs have in common, or all that they have."""
    return "; ".join(dict.fromkeys(words))


def markdown(table: Table) -> str:
    """The table in Markdown, its notes below it."""
    numbers = len(table.columns) - table.words
    lines = [table.columns, ["---"] * table.words + ["---:"] * numbers, *table.rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return "\n\n".join([text, *table.notes])
