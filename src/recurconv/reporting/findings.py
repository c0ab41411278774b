"""What the paper says in words and what the project aims at, held against the results."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from recurconv.reporting.book import Book, paper_value
from recurconv.reporting.results import Summary
from recurconv.reporting.tables import DATA, LAYOUTS, NOT_RUN, Table, value_text

NOISE = 2.0  # standard errors that a difference must have to count as one
SEEDS = 3  # that a target asks for


@dataclass(frozen=True)
class Place:
    """A cell at a setting, under a name for a sentence; ``largest``: its accuracy is relative to that setting's."""

    name: str
    cell: str
    setting: int
    largest: int | None = None

    def summary(self, book: Book, preset: str) -> Summary:
        """What its runs reach."""
        if self.largest is None:
            return book.summary(self.cell, self.setting, preset)
        return book.relative(self.cell, self.setting, self.largest, preset)


@dataclass(frozen=True)
class Claim:
    """Something that the paper says: in each chain the places stand in the order from worse to better.

    ``strictly``: each must be better than the one before; otherwise it is enough that it is no worse.
    """

    text: str
    source: str
    chains: tuple[tuple[Place, ...], ...]
    higher_is_better: bool = False
    strictly: bool = True

    @property
    def data(self) -> str:
        """The data set or the noise."""
        return DATA[self.chains[0][0].cell.rpartition("/")[2]]


def claims() -> Iterator[Claim]:
    """Everything that is checked, in the order of the paper's tables."""
    for data in ("cifar10", "cifar100"):
        yield from _cifar_claims(data)
    for sigma in ("sigma15", "sigma25", "sigma50"):
        norms = tuple(Place(usage, f"table3/{usage}/{sigma}", 4) for usage in ("shared", "none", "independent"))
        yield Claim("R_3^4: shared is worse than none, none worse than independent", "table 3", (norms,), True)
        for kind in "RS":
            counts = tuple(Place(f"{kind}_3^{n}", f"figure5/{kind.lower()}3-{n}/{sigma}", n) for n in (1, 2, 3, 4))
            yield Claim(f"{kind}_3: more steps, higher PSNR", "figure 5", (counts,), True)
        kinds = [
            tuple(Place(f"{kind}_3^{n}", f"figure5/{kind.lower()}3-{n}/{sigma}", n) for kind in "RS")
            for n in range(1, 5)
        ]
        yield Claim("R_3^n does not reach S_3^n", "figure 5", tuple(kinds), True)
    yield from _ablation_claims()
    pairs = [
        (Place(f"S_4^{n}", f"table5/s4-{n}/cifar100", n), Place("R_4", "table5/r4-dial/cifar100", n)) for n in (1, 2, 3)
    ]
    yield Claim("R_4 with a dial is no worse than S_4^n", "table 5", tuple(pairs), strictly=False)
    exits = [
        (
            Place(f"exit {n - 1} of deep supervision", "figure7/s4-deep/cifar100", n, largest=4),
            Place(f"R_4 at {_steps(n - 1)}", "figure7/r4-dial/cifar100", n - 1, largest=3),
        )
        for n in (2, 3)
    ]
    text = "R_4 keeps a larger part of its accuracy (%) than deep supervision does with a larger part of its FLOPs"
    yield Claim(text, "figure 7", tuple(exits), True)


def _cifar_claims(data: str) -> Iterator[Claim]:
    r2, s2 = (
        {n: Place(f"{kind}_2^{n}", f"table1/{kind.lower()}2-{n}/{data}", n) for n in counts}
        for kind, counts in (("R", (1, 2, 3, 4)), ("S", (2, 3, 4)))
    )
    dial = {n: Place("with a dial", f"table4/r2-dial/{data}", n) for n in (2, 3, 4)}
    half = Place("S_2^4 x0.5", f"table1/s2-4-half/{data}", 4)
    norms = tuple(Place(usage, f"table2/{usage}/{data}", 4) for usage in ("shared", "none", "independent"))
    yield Claim("R_2^4: shared is worse than none, none worse than independent", "table 2", (norms,))
    yield Claim("R_2: more steps, lower error", "table 1", (tuple(r2.values()),))
    yield Claim("S_2: more steps, lower error", "table 1", (tuple(s2.values()),))
    yield Claim("R_2^4 is better than S_2^2, which has twice its parameters", "table 1", ((s2[2], r2[4]),))
    yield Claim("R_2^4 is better than S_2^4 x0.5, which has as many parameters", "table 1", ((half, r2[4]),))
    yield Claim("R_2^n does not reach S_2^n", "table 1", tuple((r2[n], s2[n]) for n in s2))
    yield Claim(
        "R_2 with a dial is no worse than R_2^n", "table 4", tuple((r2[n], dial[n]) for n in dial), strictly=False
    )


def _ablation_claims() -> Iterator[Claim]:
    variants = (
        (
            "independent-dial",
            "independent",
            "double",
            "Double norm with a dial is no worse than independent",
            "4.1",
            False,
        ),
        (
            "per-cell",
            "per cell",
            "unified",
            "One step count for all cells trains better than one for each",
            "4.2",
            True,
        ),
        ("ratio-1", "ratio 1", "0.5", "Half the rate for shared kernels is better than the full rate", "3.3", True),
        ("no-clip", "none", "clipping", "Clipping is no worse than none", "3.3", False),
        (
            "uniform",
            "uniform",
            "skewed",
            "Higher probabilities of larger counts are better than uniform ones",
            "4.2",
            True,
        ),
    )

    def place(name: str, cell: str, n: int) -> Place:
        return Place(name, f"ablations/{cell}/cifar10", n)

    for cell, other, base, text, section, strictly in variants:
        pairs = tuple((place(other, cell, n), place(base, "base", n)) for n in (2, 3, 4))
        yield Claim(text, f"section {section}", pairs, strictly=strictly)
    sums = tuple((place("one setting", "base", n), place("sum", "weighted", n)) for n in (2, 3, 4))
    yield Claim(
        "The weighted sum of all settings is no worse than one sampled setting", "section 4.2", sums, strictly=False
    )


def judge(claim: Claim, book: Book, preset: str) -> tuple[str, int, str]:
    """The verdict, the fewest seeds and the numbers that it rests on.

    Of a chain: "confirmed" if every difference goes the claimed way and is larger than two standard errors (where no
    worse is enough: the mean is no worse); "contradicted" if one goes the other way, and is larger than that;
    "undecided" otherwise, and where some runs of a cell diverged; "not run" if a cell is missing. Where the chains of a
    claim differ, each verdict is counted.
    """
    verdicts, numbers, seeds = [], [], []
    for chain in claim.chains:
        found = [place.summary(book, preset) for place in chain]
        verdicts.append(_verdict(claim, found))
        told = ", ".join(f"{place.name} {value_text(one)}" for place, one in zip(chain, found, strict=True))
        settings = {place.setting for place in chain}
        one_of_many = len(claim.chains) > 1 and len(settings) == 1
        numbers.append(f"{_steps(*settings)}: {told}" if one_of_many else told)
        seeds += [one.seeds for one in found]
    counts = Counter(verdicts)
    verdict = verdicts[0] if len(counts) == 1 else ", ".join(f"{count} {word}" for word, count in counts.items())
    return verdict, min(seeds), "; ".join(numbers)


def _steps(count: int) -> str:
    return f"{count} step{'s' if count > 1 else ''}"


def _verdict(claim: Claim, found: Sequence[Summary]) -> str:
    if not all(summary.seeds for summary in found):
        return NOT_RUN
    if any(0 < summary.diverged < summary.seeds for summary in found):
        return "undecided"
    gaps = [_gap(a, b, claim.higher_is_better) for a, b in pairwise(found)]
    if any(gap is not None and gap[0] < -gap[1] for gap in gaps):
        return "contradicted"
    if all(gap is not None and (gap[0] > gap[1] if claim.strictly else gap[0] >= 0) for gap in gaps):
        return "confirmed"
    return "undecided"


def _gap(worse: Summary, better: Summary, higher_is_better: bool) -> tuple[float, float] | None:
    """By how much the second is better, and how large that must be to count; None where both diverged."""
    if worse.mean is None or better.mean is None:
        if worse.mean is None and better.mean is None:
            return None
        return (1.0 if worse.mean is None else -1.0), 0.0  # a network that diverged is worse than any
    sign = 1 if higher_is_better else -1
    errors = (worse.standard_error or 0.0, better.standard_error or 0.0)
    return sign * (better.mean - worse.mean), NOISE * (errors[0] ** 2 + errors[1] ** 2) ** 0.5


def findings(book: Book, preset: str) -> Table:
    """Every claim in one preset, those that were run first; of the short preset these alone."""
    judged = [(claim, *judge(claim, book, preset)) for claim in claims()]
    judged.sort(key=lambda row: row[1] == NOT_RUN)
    missing = sum(verdict == NOT_RUN for _, verdict, _, _ in judged)
    rows = [
        (claim.text, claim.data, verdict, str(seeds), "" if verdict == NOT_RUN else numbers, claim.source)
        for claim, verdict, seeds, numbers in judged
        if preset == "full" or verdict != NOT_RUN
    ]
    return Table(
        title="What the paper says",
        preset=preset,
        columns=("claim", "data", "verdict", "n", "ours", "source"),
        rows=rows,
        notes=() if preset == "full" or not missing else (f"{missing} further claims: {NOT_RUN} in this preset.",),
        shown=5,
        words=6,
    )


@dataclass(frozen=True)
class Target:
    """What the project aims at: a bound that each of some cells must keep; None for the paper's own number."""

    text: str
    places: tuple[tuple[str, int], ...]
    bound: float | None = None
    higher_is_better: bool = False


def targets() -> list[Target]:
    """The targets, for the full preset, as the mean of three seeds."""

    def places(*tables: str) -> tuple[tuple[str, int], ...]:
        rows = [row for name in tables for row in LAYOUTS[name].rows]
        return tuple((row.cell, row.setting) for row in rows if paper_value(row.cell, row.setting) is not None)

    independent = tuple(place for place in places("table2") if "/independent/" in place[0])
    return [
        Target("Table 1: every cell at or below the paper's error", places("table1")),
        Target("Table 2: independent at or below the paper's error", independent),
        Target("Table 3: every cell at or above the paper's PSNR", places("table3"), higher_is_better=True),
        Target("Table 4: every cell at or below the paper's error", places("table4")),
        Target("Table 5: every cell at or below the paper's error", places("table5")),
        Target("R_2^4 on CIFAR-10 at 6.5 % or less", (("table1/r2-4/cifar10", 4),), 6.5),
        Target("R_2^4 on CIFAR-100 at 28.0 % or less", (("table1/r2-4/cifar100", 4),), 28.0),
        Target(
            "R_4 at 23 % or less at every setting",
            tuple(("table5/r4-dial/cifar100", n) for n in (1, 2, 3)),
            23.0,
        ),
    ]


def reached(target: Target, book: Book) -> tuple[str, str]:
    """The verdict on a target in the full preset, and how its cells stand."""
    counts = {"met": 0, "not met": 0, NOT_RUN: 0}
    fewest = SEEDS  # runs of a cell
    for cell, setting in target.places:
        summary = book.summary(cell, setting, "full")
        bound = paper_value(cell, setting) if target.bound is None else target.bound
        if not summary.seeds:
            counts[NOT_RUN] += 1
            continue
        fewest = min(fewest, summary.seeds)
        counts["met" if _keeps(summary, bound, target.higher_is_better) else "not met"] += 1
    if counts["not met"]:
        verdict = "not met"
    elif counts[NOT_RUN]:
        verdict = "met where run" if counts["met"] else NOT_RUN
    else:
        verdict = "met" if fewest == SEEDS else f"met, with n = {fewest} and not {SEEDS}"
    return verdict, _shares(counts, len(target.places))


def _keeps(summary: Summary, bound: float | None, higher_is_better: bool) -> bool:
    if summary.mean is None or summary.diverged or bound is None:
        return False
    mean = round(summary.mean, 2)  # as the paper prints
    return mean >= bound if higher_is_better else mean <= bound


def _shares(counts: dict[str, int], total: int) -> str:
    return ", ".join(f"{count} of {total} {word}" for word, count in counts.items() if count)


def target_table(book: Book, preset: str = "full") -> Table:
    """Every target; they are for the full preset."""
    rows: list[Sequence[str]] = [(target.text, *reached(target, book)) for target in targets()]
    return Table("Targets: mean of three seeds", preset, ("target", "verdict", "cells"), rows, words=3)
