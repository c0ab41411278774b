"""The page, its figures and the command: what is drawn, what is written, what is refused."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from conftest import python
from made_results import write
from recurconv import cells, reporting
from recurconv.reporting import figures

R2 = "table1/r2-4/cifar10"
R4 = "table5/r4-dial/cifar100"
DIAL = "figure4/r3-dial/sigma25"
ABLATION = "ablations/uniform/cifar10"
FIGURES = {f"figure{n}" for n in range(2, 8)}


def png(value, shape=(8, 12)):
    file = io.BytesIO()
    Image.fromarray(np.full(shape, value, np.uint8)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def norm(steps, channels=4):
    """Channel c at step s has the value 10 c + s, each variable 100 more than the one before."""
    values = [[10.0 * c + s for c in range(channels)] for s in steps]
    return {
        "steps": steps,
        **{name: [[v + 100 * i for v in row] for row in values] for i, name in enumerate(figures.NAMES)},
    }


FEATURES = {
    "steps": 3,
    "images": [
        {
            "image": png(9, (8, 8, 3)),
            "C_2": {"channels": [5, 1], "maps": png(50, (8, 12))},
            "C_3": {"channels": [7, 2], "maps": png(90, (4, 6))},
        }
    ],
}
DENOISED = {
    "sigma": 25,
    "clean": png(10),
    "noisy": png(20),
    "noisy_psnr": 20.5,
    "settings": {str(n): {"psnr": 28.0 + n, "image": png(30 + n)} for n in (1, 2, 3, 4)},
}


@pytest.fixture
def everything(results_folder):
    return fill(results_folder)


def fill(results_folder):
    """Results for every figure, one seed each; PSNR is 28 + n / 10 (S: + 0.05), the error of R_4 30 - n."""
    write(results_folder, R2, {4: 7.5}, variables={"norm_over_steps": norm([1, 2, 3, 4])})
    variables = {"norm_by_steps": norm([1, 2, 3]), "features": FEATURES}
    write(results_folder, R4, {1: 29.0, 2: 28.0, 3: 27.0}, variables=variables)
    for n in (1, 2, 3):
        write(results_folder, f"table5/s4-{n}/cifar100", {n: 30.0 - 2 * n})
    write(results_folder, "figure7/s4-deep/cifar100", {2: 40.0, 3: 30.0, 4: 25.0})
    write(results_folder, DIAL, dict.fromkeys((1, 2, 3, 4), 29.0), variables={"denoised": DENOISED})
    for n in (1, 2, 3, 4):
        write(results_folder, f"figure5/s3-{n}/sigma25", {n: 28.05 + n / 10})
        write(results_folder, "table3/independent/sigma25" if n == 4 else f"figure5/r3-{n}/sigma25", {n: 28 + n / 10})
    return reporting.read_book(results_folder)


def drawn(name, book, preset="full"):
    return figures.FIGURES[name].draw(book, preset)


def curves(axes):
    """Each line with a label: its points."""
    handles, labels = axes.get_legend_handles_labels()
    lines = [handle.lines[0] if hasattr(handle, "lines") else handle for handle in handles]
    return {label: line.get_xydata() for label, line in zip(labels, lines, strict=True)}


# --- figures


@pytest.mark.parametrize(("name", "steps"), [("figure2", [1, 2, 3, 4]), ("figure3", [1, 2, 3])])
def test_norm_variables_are_drawn_for_each_step(everything, name, steps):
    figure = drawn(name, everything)
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["running mean μ", "running variance σ²", "scale γ", "shift β"]
    for place, axes in enumerate(figure.axes):
        assert axes.get_xlabel() in ("unrolling step of $C_1$", "steps of $C_1$")
        (points,) = curves(axes).values()
        np.testing.assert_allclose(points, [[s, 15 + s + 100 * place] for s in steps])  # the mean over channels
        thin = [line for line in axes.lines if line.get_linewidth() == 0.5]
        assert len(thin) == 4
        np.testing.assert_allclose(thin[2].get_ydata(), [20 + s + 100 * place for s in steps])


def test_psnr_is_drawn_by_n_for_the_noise_that_was_run(everything):
    (axes,) = drawn("figure5", everything).axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("σ = 25", "steps n", "PSNR on BSD68 (dB)")
    found = curves(axes)
    assert set(found) == {"$R_3^n$", "$S_3^n$", "$R_3^4$, paper"}
    np.testing.assert_allclose(found["$R_3^n$"], [[n, 28 + n / 10] for n in (1, 2, 3, 4)], atol=0.05)
    np.testing.assert_allclose(found["$S_3^n$"][:, 1], [28.15, 28.25, 28.35, 28.45])
    np.testing.assert_allclose(found["$R_3^4$, paper"], [[4, 29.07]])


def test_each_noise_has_a_panel_of_its_own(everything, results_folder):
    write(results_folder, "figure5/s3-2/sigma50", {2: 25.5})
    axes = drawn("figure5", reporting.read_book(results_folder)).axes
    assert [own.get_title() for own in axes] == ["σ = 25", "σ = 50"]
    assert set(curves(axes[1])) == {"$S_3^n$", "$R_3^4$, paper"}


def test_the_bars_are_the_spread_over_seeds(results_folder):
    for seed, value in enumerate((28.0, 29.0)):
        write(results_folder, "figure5/s3-1/sigma25", {1: value}, seed=seed)
    (axes,) = drawn("figure5", reporting.read_book(results_folder)).axes
    (_, _, (bars,)) = axes.containers[0]
    (low, high) = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((28.5 - 0.5**0.5, 28.5 + 0.5**0.5))


def test_accuracy_and_flops_are_relative_to_the_largest_setting(everything):
    axes, detail = drawn("figure7", everything).axes
    assert axes.get_xlabel() == "relative FLOPs"
    assert axes.get_ylabel() == "relative accuracy, CIFAR-100"
    found = curves(axes)
    np.testing.assert_allclose(found["$R_4$, one network"], [[1 / 3, 71 / 73], [2 / 3, 72 / 73], [1, 1]])
    np.testing.assert_allclose(found["$S_4^n$, a network for each n"], [[1 / 3, 72 / 76], [2 / 3, 74 / 76], [1, 1]])
    np.testing.assert_allclose(found["$S_4^3$, deeply supervised"], [[2 / 4, 60 / 75], [3 / 4, 70 / 75], [1, 1]])
    printed = found["$R_4$, one network, paper"]
    np.testing.assert_allclose(printed[:, 1], [74.17 / 74.71, 74.46 / 74.71, 1])
    assert len(found) == 5
    near = curves(detail)  # without what is far below
    assert set(near) == set(found) - {"$S_4^3$, deeply supervised"}
    assert all(np.array_equal(near[label], found[label]) for label in near)
    for label, line in zip(near, detail.lines, strict=True):
        assert ("paper" in label) == (line.get_markerfacecolor() == "none")  # ours stays visible below the paper's


def test_a_noise_level_without_a_value_has_no_panel(everything, results_folder):
    write(results_folder, "figure5/s3-2/sigma50", {2: None}, diverged="the loss is nan")
    book = reporting.read_book(results_folder)
    assert [own.get_title() for own in drawn("figure5", book).axes] == ["σ = 25"]
    write(results_folder, R4, dict.fromkeys((1, 2, 3), 100.0))
    assert len(drawn("figure7", reporting.read_book(results_folder)).axes) == 2  # S_4 and deep supervision are left


def test_a_curve_without_its_largest_setting_is_left_out(results_folder):
    write(results_folder, R4, {1: 29.0, 2: 28.0, 3: 27.0})
    write(results_folder, "table5/s4-1/cifar100", {1: 26.0})
    write(results_folder, "figure7/s4-deep/cifar100", {2: 40.0, 3: 30.0, 4: None})
    (axes,) = drawn("figure7", reporting.read_book(results_folder)).axes
    assert {label for label in curves(axes) if "paper" not in label} == {"$R_4$, one network"}


def test_curves_differ_without_colour(everything):
    for name in ("figure5", "figure7"):
        for axes in drawn(name, everything).axes:
            lines = [line for line in axes.lines if line.get_marker() in ("o", "s", "^") and len(line.get_xdata()) > 1]
            looks = {(line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()) for line in lines}
            assert len(looks) == len(lines) > 1
            for line in lines:
                red, green, blue = to_rgb(line.get_color())
                assert red == green == blue


def test_the_denoised_picture_is_shown_at_each_setting(everything):
    axes = [axes for axes in drawn("figure4", everything).axes if axes.images]
    titles = ["noisy, 20.50 dB", "1 step, 29.00 dB", *(f"{n} steps, {28 + n}.00 dB" for n in (2, 3, 4)), "clean"]
    assert [own.get_title() for own in axes] == titles
    for own, value in zip(axes, (20, 31, 32, 33, 34, 10), strict=True):
        np.testing.assert_allclose(own.images[0].get_array(), np.full((8, 12), value / 255), atol=1e-6)
        assert own.images[0].get_clim() == (0, 1)


def test_feature_maps_have_their_steps_and_channels_beside_them(everything):
    image, second, third = drawn("figure6", everything).axes
    assert [axes.get_title() for axes in (image, second, third)] == ["test image", "$C_2$", "$C_3$"]
    for axes, channels, centres in ((second, (5, 1), [1.5, 5.5, 9.5]), (third, (7, 2), [0.5, 2.5, 4.5])):
        assert [text.get_text() for text in axes.get_yticklabels()] == [f"channel {c}" for c in channels]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["step 1", "step 2", "step 3"]
        np.testing.assert_allclose(axes.get_xticks(), centres)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_what_was_not_run_is_not_drawn(little, name):
    book = reporting.read_book(little)
    assert drawn(name, book) is None
    assert figures.draw(name, book, "full") == {}


def test_the_same_results_give_the_same_files(everything):
    first, second = (figures.draw("figure7", everything, "full") for _ in range(2))
    assert first == second
    assert Image.open(io.BytesIO(first["png"])).width > 400
    assert ElementTree.fromstring(first["svg"]).tag.endswith("svg")


# --- the page


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """Where the page of results for every figure was written."""
    out = tmp_path_factory.mktemp("report")
    reporting.write(fill(out / "results"), out / "docs", cells.PRESETS, source="results")
    return out / "docs"


@pytest.fixture(scope="module")
def text(docs):
    return (docs / "reproduction.md").read_text(encoding="utf-8")


def test_the_page_shows_every_table_and_figure(text, docs):
    headings = re.findall(r"^## (.+)", text, re.M)
    titles = [heading.split(":")[0] for heading in headings]
    numbers = [*(f"Table {n}" for n in range(1, 6)), *(f"Figure {n}" for n in range(2, 8))]
    words = ["Targets", "What the paper says, held against the results"]
    assert titles == [*words, *numbers, "Ablations", "Other networks", "The runs"]
    pictures = re.findall(r"\(reproduction/([^)]+)\)", text)
    assert {name.split("-")[0] for name in pictures} == FIGURES
    assert sorted(pictures) == sorted(path.name for path in (docs / "reproduction").iterdir())


def test_every_table_of_the_page_is_whole(text):
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert len(tables) >= 12
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_cells_that_were_not_run_stand_on_the_page(text):
    assert "| R_2^1 | CIFAR-10 | 14.46 | not run |  | 0 |  | 1,258,954 (paper: 1.259M) | 6 |  |" in text
    assert "Preset short: not run." in text
    assert "| claim | data | verdict | n | ours | source |\n| --- | --- | --- | --- | --- | --- |\n| R" in text
    assert text.rstrip().endswith("Preset short: not run.")  # no table of runs without a run
    assert re.search(r"16 of its 24 cells: not run", text)
    assert "| R_4, dial (1, 2, 3), 1 step | CIFAR-100 | 25.83 | 29.00 | worse by 3.17 | 1 | 100 |" in text


def test_other_networks_stand_with_their_sources(text):
    assert "| CIFAR-10 | ResNet-32 | 6.47 | 69 | 0.47 | chenyaofo/pytorch-cifar-models README |" in text
    assert "| BSD68, sigma 25 | R_3, dial, setting 2 | 29.00 |" in text
    assert "| R_3, dial (1, 2, 3, 4), 2 steps | 29.00 | 200.0000 | 1 | 90 |" in text


def test_the_command_prints_the_tables_and_writes_the_page(command, little, tmp_path):
    done = command("report", "--results", little, "--out", tmp_path / "docs")
    assert (done.status, done.err) == (0, "")
    for title in ("Targets: mean", "What the paper says", "Table 1:", "Table 5:", "Figure 5:", "Ablations", "The runs"):
        assert title in done.out
    assert done.out.endswith(f"\nThe page is {tmp_path / 'docs' / 'reproduction.md'}\n")
    before = (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8")
    write(little, ABLATION, {2: 8.0, 3: 8.0, 4: 8.0})
    assert command("report", "--results", little, "--out", tmp_path / "docs").status == 0
    assert (tmp_path / "docs" / "reproduction.md").read_text(encoding="utf-8") == before.replace("9.00", "8.00")


def test_a_preset_alone_is_shown_alone(command, little, tmp_path):
    write(little, R2, {4: 33.0}, preset="short")
    assert command("report", "--results", little, "--out", tmp_path / "a", "--preset", "short").status == 0
    text = (tmp_path / "a" / "reproduction.md").read_text(encoding="utf-8")
    assert "33.00" in text
    assert "preset full" not in text.lower()
    assert "Other networks" not in text


def test_tables_can_be_printed_alone(command, little, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("report", "table1", "findings", "--results", little)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Table 1: recurrent and standard networks, preset full\n")
    assert "What the paper says, preset full" in done.out
    assert "Table 2" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results"]


def test_it_needs_no_pytorch(results_folder, tmp_path):
    write(results_folder, R4, {1: 29.0, 2: 28.0, 3: 27.0})  # figure 7 is drawn
    words = ["recurconv", "report", "--results", str(results_folder), "--out", str(tmp_path / "docs")]
    code = (
        "import sys; from recurconv.cli import main\n"
        f"sys.argv = {words!r}\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print(*sorted({'torch', 'lightning', 'torchvision'} & set(sys.modules)), 'END')"
    )
    done = python(code)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "END"
    assert (tmp_path / "docs" / "reproduction" / "figure7-full.svg").is_file()
