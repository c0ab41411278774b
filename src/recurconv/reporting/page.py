"""The page of all tables and figures, built whole before anything of it is replaced."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from recurconv import cells
from recurconv.files import write_atomically
from recurconv.reporting import figures, findings, grids, tables
from recurconv.reporting.book import Book
from recurconv.reporting.results import SEED_SPREAD, read_results
from recurconv.reporting.tables import NOT_RUN, Table, markdown

PAGE, FOLDER = "reproduction.md", "reproduction"  # FOLDER: of the figures, beside the page
MARK = "<!-- Made by `recurconv report`; changes by hand are lost. -->"

# Every section with tables, in the order of the page: its heading, and what makes its table for a preset.
SECTIONS: dict[str, tuple[str, Callable[[Book, str], Table]]] = {
    "targets": ("Targets", findings.target_table),
    "findings": ("What the paper says, held against the results", findings.findings),
    **{name: (layout.title, tables.maker(name)) for name, layout in tables.LAYOUTS.items()},
    "figure4": (figures.FIGURES["figure4"].title, grids.dial),
    "figure5": (figures.FIGURES["figure5"].title, grids.denoisers),
    "figure7": (figures.FIGURES["figure7"].title, grids.relative),
    "ablations": ("Ablations", grids.ablations),
    "others": ("Other networks", grids.others),
    "runs": ("The runs", grids.runs),
}
ORDER = ("targets", "findings", *cells.TABLES, "others", "runs")  # of tables and figures on the page
FULL_ONLY = ("targets", "others")  # they ask for what the paper's training reaches

NOTES = {
    "findings": (
        "“confirmed” and “contradicted”: the differences are larger than two standard errors (where “no worse” is "
        "claimed, a mean that is no worse confirms). “undecided”: they are not, or some runs of a cell diverged. The "
        "standard error is that over seeds; of fewer than three an error in % has at least that over test images, and "
        f"a PSNR {SEED_SPREAD} dB. n: the fewest seeds."
    ),
    "table1": "The paper prints the parameters for 10 classes.",
    "table3": "The paper prints a dash where a network did not converge on the test set.",
    "table4": (
        "Beside its numbers the paper prints their distance from table 1. In three of six places that is not the "
        "difference of what it prints: CIFAR-10 at 4 steps (+0.02, by the numbers +0.22), CIFAR-100 at 2 steps (-0.34, "
        "-0.67) and at 4 steps (+0.12, +0.34)."
    ),
    "table5": (
        "By the paper's text T_2, T_3 and T_4 of R_4 have one norm group for each of three step counts, which gives "
        "the parameters of our column. With six groups there it would have the printed 11.250M."
    ),
    "others": "“plot”: read off a figure, ± 0.3. “computed”: our arithmetic from the published architecture.",
}
PRESETS = {
    "full": "Preset full: the paper's networks and length of training.",
    "short": (
        "Preset short: narrow networks and few epochs, for one CPU core. Its numbers can be compared with each other, "
        "not with the paper's."
    ),
}


def read_book(folder: Path) -> Book:
    """The results in a folder.

    Raises:
        ValueError, OSError: as for ``read_results``.
    """
    return Book(read_results(folder))


def section(name: str, book: Book, presets: Sequence[cells.Preset]) -> list[Table]:
    """The tables of a section, one for each preset: for the first one always, for others where any cell was run.

    Targets and other networks are for the full preset alone; a table without rows is left out.

    Raises:
        ValueError: there is no such section.
    """
    if name in figures.FIGURES and name not in SECTIONS:
        raise ValueError(f"{name} has no numbers to print; `recurconv report` without names draws it")
    if name not in SECTIONS:
        near = difflib.get_close_matches(name, SECTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(SECTIONS)}"
        raise ValueError(f"there is no table {name!r}; {hint}")
    _, make = SECTIONS[name]
    if name in FULL_ONLY:
        return [make(book, "full")] if "full" in presets else []
    places = cells.select([name if name in cells.TABLES else "all"])
    run = {preset for preset in presets if any(book.runs(cell.id, preset) for cell in places)}
    found = [make(book, preset) for preset in presets if preset in run or preset == presets[0]]
    return [table for table in found if table.rows]


def write(
    book: Book,
    out: Path,
    presets: Sequence[cells.Preset],
    *,
    source: str,
    say: Callable[[str], object] = lambda progress: None,
) -> list[Path]:
    """Write the page and its figures; nothing is replaced before all is made.

    Args:
        book: the results.
        out: the folder of ``reproduction.md`` and ``reproduction/``.
        presets: which presets to show, the first one even where it was not run.
        source: where the results are, for the page's text.
        say: told what is being done.

    Returns:
        The files written, the page last.

    Raises:
        ValueError: ``out`` is a file, or has a page of that name which this command did not make.
        OSError: a file cannot be written.
    """
    page = out / PAGE
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give the folder for {PAGE} by --out")
    if page.exists() and MARK not in page.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{page} was not made by `recurconv report`; move it away, or choose another folder by --out")
    drawn: dict[str, bytes] = {}
    for name in figures.FIGURES:
        for preset in presets:
            say(f"drawing {name}, preset {preset}")
            for kind, content in figures.draw(name, book, preset).items():
                drawn[f"{name}-{preset}.{kind}"] = content
    text = "\n\n".join(_page(book, presets, drawn, source)) + "\n"
    contents = {**{out / FOLDER / name: content for name, content in drawn.items()}, page: text.encode()}
    try:
        for path, content in contents.items():
            say(f"writing {path}")
            write_atomically(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    except OSError as error:  # which may name a temporary file
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from None
    return list(contents)


def _page(book: Book, presets: Sequence[cells.Preset], drawn: Mapping[str, bytes], source: str) -> Iterator[str]:
    yield MARK
    yield "# The paper, run again"
    yield _introduction(book, presets, source)
    for name in ORDER:
        if name in FULL_ONLY and "full" not in presets:
            continue
        yield f"## {SECTIONS[name][0] if name in SECTIONS else figures.FIGURES[name].title}"
        if name in figures.FIGURES:
            yield from _pictures(name, book, presets, drawn)
        if name in SECTIONS:
            yield from _tables(name, book, presets)


def _introduction(book: Book, presets: Sequence[cells.Preset], source: str) -> str:
    counts = [
        f"{len({r.run for r in book.results if r.preset == preset})} of {len(cells.RUNS)} trainings of preset {preset}"
        for preset in presets
    ]
    return (
        "Every table and figure of Zhang & Jung, *Recurrent Convolution for Compact and Cost-Adjustable Neural "
        f"Networks*, with our numbers beside the printed ones. There are results of {' and '.join(counts)}; what is "
        f"missing stands as “{NOT_RUN}”.\n\n"
        "```bash\n"
        f"recurconv reproduce all --data DATA --out RUNS --results {source} --minutes 60   # goes on where it stopped\n"
        f"recurconv reproduce all --data DATA --out RUNS --results {source} --preset short --seeds 1\n"
        f"recurconv report --results {source}\n"
        "```\n\n"
        "Ours: the last checkpoint on the test set, mean ± standard deviation over n seeds. "
        + " ".join(PRESETS[preset] for preset in presets)
    )


def _tables(name: str, book: Book, presets: Sequence[cells.Preset]) -> Iterator[str]:
    shown = {table.preset: table for table in section(name, book, presets)}
    for preset in ("full",) if name in FULL_ONLY else presets:
        if preset in shown:
            yield f"**Preset {preset}**"
            yield markdown(shown[preset])
        else:
            yield f"Preset {preset}: {NOT_RUN}."
    if name in NOTES:
        yield NOTES[name]


def _pictures(name: str, book: Book, presets: Sequence[cells.Preset], drawn: Mapping[str, bytes]) -> Iterator[str]:
    figure = figures.FIGURES[name]
    yield figure.caption
    for preset in presets:
        file = f"{FOLDER}/{name}-{preset}"
        if f"{name}-{preset}.png" in drawn:
            missing = [cell for cell in figure.cells if not book.runs(cell, preset)]
            rest = f" {len(missing)} of its {len(figure.cells)} cells: {NOT_RUN}." if missing else ""
            yield f"![{figure.title}, preset {preset}]({file}.png)\n\nPreset {preset} ([SVG]({file}.svg)).{rest}"
        else:
            run = any(book.runs(cell, preset) for cell in figure.cells)
            yield f"Preset {preset}: {'its runs have nothing to show' if run else NOT_RUN}."
