"""Tables that the paper has no like of: numbers behind figures, ablations, other networks, the runs themselves."""

from collections.abc import Iterable, Sequence

from recurconv.reporting.book import Book, peers
from recurconv.reporting.figures import LABELS, PLACES, points
from recurconv.reporting.tables import DATA, NOT_RUN, Table, value_text

ABLATIONS = {
    "base": "as in table 4: double, unified, one sampled setting, ratio 0.5, clipping, skewed",
    "independent-dial": "independent norm",
    "per-cell": "a step count for each cell",
    "weighted": "weighted sum of all settings",
    "ratio-0.25": "learning-rate ratio 0.25",
    "ratio-1": "learning-rate ratio 1",
    "no-clip": "no clipping",
    "uniform": "uniform probabilities",
}


def dial(book: Book, preset: str) -> Table:
    """What the denoiser of figure 4 reaches on the test pictures."""
    cell = "figure4/r3-dial/sigma25"
    rows = [
        (
            f"R_3, dial (1, 2, 3, 4), {n} step{'s' if n > 1 else ''}",
            value_text(book.summary(cell, n, preset)),
            f"{book.macs(cell, n, preset) / 1e6:.4f}",
            str(len(book.runs(cell, preset))),
            _range(run.epochs for run in book.runs(cell, preset)),
        )
        for n in (1, 2, 3, 4)
    ]
    columns = ("network", "PSNR on BSD68 (dB)", "MACs per pixel (M)", "n", "epochs")
    return Table("Figure 4: sigma 25", preset, columns, rows)


def denoisers(book: Book, preset: str) -> Table:
    """The numbers of figure 5."""
    sigmas = ("sigma15", "sigma25", "sigma50")
    rows = [
        (f"{kind}_3^{n}", [(f"figure5/{kind.lower()}3-{n}/{sigma}", n) for sigma in sigmas])
        for kind in "RS"
        for n in (1, 2, 3, 4)
    ]
    return _grid("Figure 5: PSNR on BSD68 (dB)", ["network", *(DATA[s] for s in sigmas)], rows, book, preset)


def ablations(book: Book, preset: str) -> Table:
    """What section 4.2 says in words, each a change of table 4's network."""
    rows = [(text, [(f"ablations/{name}/cifar10", n) for n in (2, 3, 4)]) for name, text in ABLATIONS.items()]
    title = "Ablations: R_2 with dial (2, 3, 4), CIFAR-10, test error (%)"
    return _grid(title, ["variant", *(f"{n} steps" for n in (2, 3, 4))], rows, book, preset)


def _grid(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, list[tuple[str, int]]]], book: Book, preset: str
) -> Table:
    """A row for each name, a column for it and for each of its cells."""
    lines = []
    for name, places in rows:
        runs = [book.runs(cell, preset) for cell in dict.fromkeys(cell for cell, _ in places)]
        values = [value_text(book.summary(cell, n, preset)) for cell, n in places]
        lines.append((name, *values, _range(map(len, runs)), _range(run.epochs for own in runs for run in own)))
    return Table(title, preset, (*columns, "n", "epochs"), lines)


def _range(counts: Iterable[int]) -> str:
    """One number, or the least and the most."""
    found = sorted(set(counts))
    return "" if not found else f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def relative(book: Book, preset: str) -> Table:
    """The numbers of figure 7."""
    rows = []
    for kind, places in PLACES.items():
        known = points(book, preset, places)
        full = book.macs(*places[-1], preset)
        for cell, n in places:
            summary = book.summary(cell, n, preset)
            macs = book.macs(cell, n, preset)
            name = LABELS[kind].replace("$", "")
            accuracy = f"{known[n][1]:.3f}" if n in known else "none" if summary.seeds else NOT_RUN
            rows.append((name, str(n), value_text(summary), f"{macs / 1e6:,.1f}", f"{macs / full:.3f}", accuracy))
    columns = ("network", "setting", "test error (%)", "MACs (M)", "relative FLOPs", "relative accuracy")
    return Table("Figure 7: CIFAR-100", preset, columns, rows, words=2)


def others(book: Book, preset: str) -> Table:
    """Other networks beside ours: what they reach for which cost."""
    ours = [
        ("cifar10", [("table4/r2-dial/cifar10", n) for n in (2, 3, 4)]),
        ("cifar100", [("table5/r4-dial/cifar100", n) for n in (1, 2, 3)]),
        ("bsd68_gray_psnr", [("figure4/r3-dial/sigma25", n) for n in (1, 2, 3, 4)]),
    ]
    rows: list[Sequence[str]] = []
    for data, places in ours:
        title = {"bsd68_gray_psnr": "BSD68, sigma 25"}.get(data) or DATA[data]
        for cell, n in places:
            summary, macs = book.summary(cell, n, preset), book.macs(cell, n, preset)
            parameters = book.parameters(cell, preset)
            name = f"{cell.split('/')[1].replace('-dial', '').upper().replace('R', 'R_')}, dial, setting {n}"
            rows.append(
                (title, name, value_text(summary), _number(macs / 1e6), f"{parameters / 1e6:.2f}", "this report")
            )
        for peer in peers()[data]:
            rows += [(title, *line) for line in _peer_lines(peer)]
    return Table(
        "Other networks, as they publish it: recipes and training sets differ",
        preset,
        ("data", "network", "error (%) or PSNR (dB)", "MACs (M), per pixel for BSD68", "parameters (M)", "source"),
        rows,
        words=2,
    )


def _peer_lines(peer: dict[str, object]) -> list[Sequence[str]]:
    """A line for each point that a peer publishes."""
    name, source, parameters = str(peer["net"]), str(peer["source"]), _known(peer.get("params_M"))
    found = peer.get("points")
    if isinstance(found, list):
        return [(name, f"{value:.2f}", _known(macs), parameters, source) for macs, value in found]
    value = peer.get("error", peer.get("sigma25"))
    return [(name, f"{value:.2f}", _known(peer.get("macs_M", peer.get("macs_per_pixel_M"))), parameters, source)]


def _known(value: object) -> str:
    return "unknown" if value is None else f"{value:g}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def runs(book: Book, preset: str) -> Table:
    """Every run of a preset: how long it took, on what, with which versions."""
    found = sorted((run for run in book.results if run.preset == preset), key=lambda run: (run.run, run.seed))
    rows = [
        (
            run.run,
            str(run.seed),
            str(run.epochs),
            f"{run.seconds / 60:.1f}",
            run.hardware,
            str(run.environment.get("torch", "unknown")),
            str(run.environment.get("commit") or "unknown"),
            str(run.environment.get("date", "unknown"))[:10],
            run.diverged or "",
        )
        for run in found
    ]
    columns = ("run", "seed", "epochs", "minutes", "hardware", "PyTorch", "commit", "date", "note")
    notes = [f"Data: {condition}" for condition in dict.fromkeys(run.condition for run in found) if condition]
    return Table("The runs", preset, columns, rows, notes, shown=5, words=1)
