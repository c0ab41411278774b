"""Findings and targets: verdicts on made-up results."""

import pytest

from made_results import write
from recurconv import reporting
from recurconv.reporting import findings

R2 = "table1/r2-4/cifar10"
DIAL = "table4/r2-dial/cifar10"


@pytest.fixture
def norms(tmp_path):
    """Write Table 2 on CIFAR-10, all with a standard error of 0.1, and give the verdict on its order."""

    def verdict(shared, none, independent, preset="full"):
        write(tmp_path, "table2/shared/cifar10", {4: shared}, preset)
        write(tmp_path, "table2/none/cifar10", {4: none}, preset)
        write(tmp_path, R2, {4: independent}, preset)
        return judged(tmp_path, "R_2^4: shared is worse", preset)

    return verdict


def judged(folder, text, preset="full", data="CIFAR-10"):
    (claim,) = (claim for claim in findings.claims() if claim.text.startswith(text) and claim.data == data)
    return findings.judge(claim, reporting.read_book(folder), preset)


def target(folder, text):
    (found,) = (target for target in findings.targets() if target.text.startswith(text))
    return findings.reached(found, reporting.read_book(folder))


def test_an_order_is_confirmed_by_differences_above_two_standard_errors(norms):
    assert norms(21.0, 10.4, 7.6) == ("confirmed", 1, "shared 21.00, none 10.40, independent 7.60")
    assert norms(21.0, 7.91, 7.6)[0] == "confirmed"  # 0.31 > 2 x 0.1 x sqrt(2)
    assert norms(21.0, 7.85, 7.6)[0] == "undecided"
    assert norms(21.0, 7.45, 7.6)[0] == "undecided"


def test_an_order_is_contradicted_by_one_difference_the_other_way(norms):
    assert norms(9.0, 10.4, 7.6)[0] == "contradicted"
    assert norms(21.0, 7.0, 7.6)[0] == "contradicted"


def test_a_network_that_diverged_is_worse_than_any(norms):
    assert norms(None, 10.4, 7.6) == ("confirmed", 1, "shared diverged, none 10.40, independent 7.60")
    assert norms(21.0, 10.4, None)[0] == "contradicted"
    assert norms(None, None, 7.6)[0] == "undecided"


def test_presets_are_judged_apart(norms, tmp_path):
    assert norms(60.0, 40.0, 30.0, "short")[0] == "confirmed"
    assert judged(tmp_path, "R_2^4: shared is worse")[0] == "not run"


def test_higher_psnr_is_better(tmp_path):
    for n, value in ((1, 28.0), (2, 28.5), (3, 29.0)):
        write(tmp_path, f"figure5/r3-{n}/sigma25", {n: value})
    assert judged(tmp_path, "R_3: more steps", data="sigma 25")[0] == "not run"
    write(tmp_path, "table3/independent/sigma25", {4: 29.5})
    assert judged(tmp_path, "R_3: more steps", data="sigma 25")[0] == "confirmed"
    write(tmp_path, "figure5/r3-2/sigma25", {2: 27.0})
    assert judged(tmp_path, "R_3: more steps", data="sigma 25")[0] == "contradicted"


def test_of_a_psnr_seeds_count_and_pictures_do_not(tmp_path):
    def verdict(none, independent, seed=0):
        for usage, value in (("shared", 20.0 + seed / 100), ("none", none), ("independent", independent)):
            write(tmp_path, f"table3/{usage}/sigma25", {4: value}, seed=seed)  # the standard error of pictures is 0.1
        return judged(tmp_path, "R_3^4: shared", data="sigma 25")[:2]

    assert verdict(28.77, 28.80) == ("undecided", 1)
    assert verdict(28.77, 28.92) == ("confirmed", 1)  # 0.15 > 2 x 0.05 x sqrt(2)
    assert verdict(28.77, 28.80) == ("undecided", 1)
    assert verdict(28.78, 28.81, seed=1) == ("undecided", 2)
    assert verdict(28.77, 28.80, seed=2) == ("confirmed", 3)  # 0.03 > 2 x 0.0058 / sqrt(3) x sqrt(2)


def test_where_some_runs_diverged_nothing_is_decided(norms, tmp_path):
    assert norms(21.0, 10.4, 7.6)[0] == "confirmed"
    write(tmp_path, R2, {4: None}, seed=1)
    assert judged(tmp_path, "R_2^4: shared is worse")[0] == "undecided"


def test_parts_of_accuracy_are_compared_with_deep_supervision(tmp_path):
    write(tmp_path, "table5/r4-dial/cifar100", {1: 26.0, 2: 25.5, 3: 25.0})
    write(tmp_path, "figure7/s4-deep/cifar100", {2: 55.0, 3: 40.0, 4: 25.0})
    verdict, seeds, numbers = judged(tmp_path, "R_4 keeps a larger part", data="CIFAR-100")
    assert (verdict, seeds) == ("confirmed", 1)
    first, second = numbers.split("; ")
    assert first == "exit 1 of deep supervision 60.00, R_4 at 1 step 98.67"
    assert second == "exit 2 of deep supervision 80.00, R_4 at 2 steps 99.33"
    write(tmp_path, "figure7/s4-deep/cifar100", {2: 25.4, 3: 25.3, 4: 25.0})  # 99.5 and 99.6 %
    assert judged(tmp_path, "R_4 keeps a larger part", data="CIFAR-100")[0] == "1 contradicted, 1 undecided"


def test_where_no_worse_is_claimed_the_mean_decides_and_each_setting_counts(tmp_path):
    write(tmp_path, DIAL, {2: 8.0, 3: 8.0, 4: 8.0})
    write(tmp_path, "ablations/independent-dial/cifar10", {2: 8.05, 3: 7.9, 4: 7.5})
    verdict, _, numbers = judged(tmp_path, "Double norm")
    assert verdict == "1 confirmed, 1 undecided, 1 contradicted"
    assert numbers.startswith("2 steps: independent 8.05, double 8.00; 3 steps: ")
    write(tmp_path, "ablations/independent-dial/cifar10", {2: 8.0, 3: 9.0, 4: 9.0})
    assert judged(tmp_path, "Double norm")[0] == "confirmed"


def test_every_claim_stands_in_the_table_of_the_full_preset(tmp_path):
    write(tmp_path, R2, {4: 7.6})
    book = reporting.read_book(tmp_path)
    full, short = (findings.findings(book, preset) for preset in ("full", "short"))
    assert len(full.rows) == len(list(findings.claims()))
    assert {row[2] for row in full.rows} == {"not run"}
    assert short.rows == []
    assert short.notes == (f"{len(full.rows)} further claims: not run in this preset.",)


def test_a_target_is_met_by_three_seeds_at_the_bound(tmp_path):
    assert_target = "R_2^4 on CIFAR-10 at"
    for seed, value in enumerate((6.4, 6.5, 6.6)):
        write(tmp_path, R2, {4: value}, seed=seed)
        expected = ("met, with n = 1 and not 3", "met, with n = 2 and not 3", "met")[seed]
        assert target(tmp_path, assert_target) == (expected, "1 of 1 met")
    write(tmp_path, R2, {4: 6.63}, seed=2)  # a mean of 6.51
    assert target(tmp_path, assert_target) == ("not met", "1 of 1 not met")
    write(tmp_path, R2, {4: None}, seed=2)
    assert target(tmp_path, assert_target)[0] == "not met"


def test_a_target_of_many_cells_counts_them(tmp_path):
    write(tmp_path, R2, {4: 7.65})
    assert target(tmp_path, "Table 1") == ("met where run", "1 of 16 met, 15 of 16 not run")
    assert target(tmp_path, "Table 2") == ("met where run", "1 of 2 met, 1 of 2 not run")
    assert target(tmp_path, "Table 5") == ("not run", "6 of 6 not run")
    write(tmp_path, "table1/s2-2/cifar10", {2: 7.94})
    assert target(tmp_path, "Table 1") == ("not met", "1 of 16 met, 1 of 16 not met, 14 of 16 not run")


def test_targets_ask_for_psnr_from_below_and_never_for_what_did_not_converge(tmp_path):
    write(tmp_path, "table3/none/sigma15", {4: 31.36})
    assert target(tmp_path, "Table 3") == ("met where run", "1 of 7 met, 6 of 7 not run")
    write(tmp_path, "table3/none/sigma15", {4: 31.35})
    assert target(tmp_path, "Table 3")[0] == "not met"


def test_the_short_preset_meets_no_target(tmp_path):
    write(tmp_path, R2, {4: 1.0}, preset="short")
    assert target(tmp_path, "R_2^4 on CIFAR-10 at")[0] == "not run"
