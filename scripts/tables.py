"""Write the tables of README.md and the documents anew from the files under results/; ``--check`` only compares.

python scripts/tables.py [--check]
"""

import json
import re
import sys
from collections.abc import Callable

from table_parts import ROOT, measured, provenance, read, settings, shipped, stages, table

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "docs" / "benchmarks.md",
    ROOT / "docs" / "runtime.md",
    ROOT / "docs" / "export.md",
    ROOT / "docs" / "denoising.md",
    ROOT / "docs" / "deploying.md",
]


def classifier() -> str:
    """What the shipped classifier reaches."""
    found, profile = read("r2-cifar10"), read("profile-r2-cifar10")
    rows = settings(found, profile, macs_digits=1)
    where = profile["environment"]
    _, minutes, epochs = stages("r2-cifar10")
    return table(
        "| `r2-cifar10`, steps | CIFAR-10 test error (%) | MACs (M) | parameters in use (M) | ms |",
        rows,
        f"One network, n = 1 run of `r2-cifar10-short` (half width, {epochs}, "
        f"{minutes:.0f} minutes of one CPU core), last checkpoint, {found['images']:,} images, "
        f"standard error {max(row['standard_error'] for row in found['rows']):.2f}; "
        f"{found['condition'].rstrip('.')}. ms: batch {profile['rows'][0]['batch']}, "
        f"{profile['rows'][0]['threads']} thread of {where['processor']}.",
    )


def denoiser() -> str:
    """What the shipped denoiser of gray pictures reaches at three noise levels."""
    found, profile = read("denoise-gray"), read("profile-denoise-gray")
    latency, side = {row["steps"]: row["milliseconds"] for row in profile["rows"]}, profile["image_shape"][-1]
    by_steps = {steps: [row for row in found["rows"] if row["steps"] == steps] for steps in latency}
    rows = [
        f"| {steps} | "
        + " | ".join(f"{row['value']:.2f}" for row in own)
        + f" | {own[0]['macs'] / 1e6:.3f} | {own[0]['parameters'] / 1e6:.3f} | {latency[steps]:.0f} |"
        for steps, own in by_steps.items()
    ]
    sigmas = " | ".join(f"sigma {row['sigma']:g}" for row in by_steps[1])
    trained = shipped("denoise-gray", "recipe")
    epochs, minutes, _ = stages("denoise-gray")
    peers = json.loads((ROOT / "src" / "recurconv" / "reporting" / "peers.json").read_text(encoding="utf-8"))
    dncnn = next(peer for peer in peers["bsd68_gray_psnr"] if peer["net"] == "DnCNN-S")
    reached = ", ".join(f"{dncnn['sigma' + format(row['sigma'], 'g')]:.2f}" for row in by_steps[1])
    return table(
        f"| `denoise-gray`, steps | PSNR (dB) on BSD68, {sigmas} | MACs per pixel (M) | parameters in use (M) | ms |",
        rows,
        f"One network for every noise level, n = 1 run of `{trained['name']}` ({trained['channels']} channels, "
        f"{epochs * trained['patches_per_epoch']:,} patches, {minutes:.0f} minutes of two thirds of a CPU core), "
        f"{found['images']} pictures: so little trained, its larger settings are hardly better yet. "
        f"DnCNN, with a network for each level, 10 million patches and "
        f"{dncnn['macs_per_pixel_M']:.2f} M MACs per pixel, publishes {reached} dB. "
        f"ms: {side} x {side} pixels, {profile['rows'][0]['threads']} thread.",
    )


def training() -> str:
    """The training loop against a plain one."""
    found = read("training")
    rows = [f"| {name} | {measured(value, 1)} |" for name, value in found["images_per_second"].items()]
    rounds = found["ratio"]["n"]
    return table(
        "| loop | images per second |",
        rows,
        f"`recurconv train` / {found['peer']}: **{measured(found['ratio'], 2)}** ({rounds} rounds of "
        f"{found['iterations_per_round']} iterations, batch {found['batch']}, width {found['width']}). "
        + provenance(found),
    )


def inference() -> str:
    """R_2 against S_2, eager and compiled."""
    found = read("inference")
    time = {(c["network"], c["mode"], c["batch"], c["steps"]): c["milliseconds"] for c in found["cases"]}
    rows = [
        f"| {r['batch']} | {r['steps']} | "
        + " | ".join(
            measured(time[n, m, r["batch"], r["steps"]], 2) for n in ("R_2", "S_2") for m in ("eager", "compiled")
        )
        + f" | {measured(r['r_over_s_eager'], 2)} | {measured(r['r_over_s_compiled'], 2)} |"
        for r in found["ratios"]
    ]
    return table(
        "| batch | steps | R eager (ms) | R compiled | S eager | S compiled | R / S eager | R / S compiled |",
        rows,
        f"n = {found['ratios'][0]['r_over_s_eager']['n']} rounds. " + provenance(found),
    )


def growth() -> str:
    """Time and memory of single points."""
    found = read("growth")
    rows = [
        f"| {p['mode']} | {p['steps']} | {p['batch']} | {p['side']} | {p['macs'] / 1e9:.2f} | "
        f"{measured(p['milliseconds'], 0)} | {measured(p['megabytes'], 0)} |"
        for p in found["points"]
    ]
    return table(
        "| mode | steps | batch | side | GMACs | ms | peak memory (MB) |",
        rows,
        f"n = {found['points'][0]['milliseconds']['n']} processes for each point. " + provenance(found),
    )


def confidence() -> str:
    """What confidence saves on the test set, and in time."""
    found = read("confidence-r2-cifar10")
    tuned, tested = found["curves"]
    times = found["batch"]["ratio_to_largest"]
    ((low, threshold),) = found["thresholds"].items()
    points = {f"steps={steps}": point for point in tested["fixed"] for steps in point["thresholds"]}
    largest = list(points)[-1]
    points["confidence"] = tested["chosen"]
    rows = []
    for name, point in points.items():
        call = f"confidence={{{low}: {threshold:g}}}" if name == "confidence" else name
        answered = ", ".join(f"{100 * share:.0f} % at {steps}" for steps, share in point["shares"].items())
        error = f"{point['error']:.2f} ± {point['standard_error']:.2f}"
        time = measured(times[name], 2) if name in times else ""
        rows.append(f"| `{call}` | {point['macs'] / 1e6:.1f} | {error} | {answered} | {time} |")
    return table(
        f"| `r2-cifar10` | mean MACs (M) | test error (%) ± standard error | images answered | time / {largest} |",
        rows,
        f"Threshold chosen on {tuned['images']:,} held-out images, for {found['wanted']}. {tested['images']:,} test "
        f"images; {tested['condition'].rstrip('.')}. Time: a batch of {found['batch']['images']}, of which "
        f"{100 * found['batch']['went_on']:.0f} % went on, {times['confidence']['n']} rounds. " + provenance(found),
    )


def shared_weights() -> str:
    """Where a model with the dial stores what its settings share."""
    found = read("shared-weights")
    largest = found["rows"][0]["bytes_largest"]
    settings = list(found["rows"][0]["ratio"])
    rows = [
        f"| {row['way']} | "
        + " | ".join(f"{row['ratio'][steps]:.2f}" for steps in settings)
        + f" | {row['bytes'] / largest:.3f} | {1e3 * row['load']['seconds']['median']:.0f} | "
        f"{row['load']['megabytes']['median']:.0f} |"
        for row in found["rows"]
    ]
    first = found["rows"][0]
    return table(
        "| stored as | "
        + " | ".join(f"time at steps={steps}" for steps in settings)
        + " | size / largest static model | load (ms) | memory (MB) |",
        rows,
        f"R_2, width {found['width']:g}, one 32 x 32 image; time is the median ratio to the static model of the same "
        f"round, {first['milliseconds'][settings[0]]['n']} rounds; load and memory of the static models are the sums "
        f"of all, {first['load']['seconds']['n']} processes each. " + provenance(found),
    )


def exported() -> str:
    """Every form of a network at every setting."""
    found = read("export")
    rows = []
    for name, network in found["networks"].items():
        cases = {(c["form"], c["batch"], c["steps"]): c for c in network["cases"]}
        for r in network["ratios"]:
            own = {form: cases.get((form, r["batch"], r["steps"])) for form in network["ranks_as_macs"]}
            times = [own[form] for form in ("eager", "bodies", "whole", "pt2", "static", "dial", "int8 dial")]
            rows.append(
                f"| {name} | {r['batch']} | {r['steps']} | {own['dial']['macs'] / 1e6:,.0f} | "
                + " | ".join(measured(case["milliseconds"], 1) if case else "" for case in times)
                + f" | {measured(r['dial_over_static'], 2)} | {measured(r['fp32_over_int8'], 2)} | "
                + " | ".join(f"{100 * own[form]['share']['median']:.0f}" for form in ("dial", "int8 dial"))
                + " |"
            )
    rates = next(iter(found["networks"].values()))["macs_per_second"].values()
    fp32, int8 = (f"{rate['median'] / 1e9:.0f}" for rate in rates)
    return table(
        "| network | batch | steps | MMACs | eager (ms) | compiled bodies | compiled whole | .pt2 | static ONNX | dial "
        "| int8 dial | dial / static | fp32 / int8 | fp32 share (%) | int8 share (%) |",
        rows,
        f"Share: of the rate of a 1024 x 1024 x 1024 matrix product, measured in the same rounds: {fp32} GMACs a "
        f"second in fp32, {int8} in int8. n = {found['networks']['R_2']['ratios'][0]['dial_over_static']['n']} rounds. "
        + provenance(found),
    )


def exported_files() -> str:
    """What the forms take on disk and in memory."""
    rows = []
    for name, network in read("export")["networks"].items():
        sizes, peak = network["bytes"], network["peak_megabytes"]
        largest = max(size for form, size in sizes.items() if form.startswith("static"))
        used = [f"{peak[form] - peak['nothing']:.0f}" for form in ("static", "dial", "int8 dial")]
        rows.append(
            f"| {name} | {largest / 1e6:.2f} | {sizes['dial'] / 1e6:.2f} | {sizes['dial'] / largest:.2f} | "
            f"{sizes['int8 dial'] / 1e6:.2f} | {sizes['int8 dial'] / sizes['dial']:.2f} | {' | '.join(used)} |"
        )
    return table(
        "| network | largest static (MB) | dial (MB) | dial / static | int8 dial (MB) | int8 / fp32 "
        "| memory static (MB) | dial | int8 dial |",
        rows,
        "Memory: peak of a process that runs every setting once with one image, less that of one that only imports "
        "onnxruntime. `dial / static` is of bytes here.",
    )


def side_by_side() -> str:
    """One dial against a network for each setting."""
    found = read("export")
    rows = [
        f"| {kind} | {value['megabytes_on_disk']:.2f} | {measured(value['megabytes'], 0)} | "
        f"{measured(value['load_milliseconds'], 0)} | {measured(value['switching_milliseconds'], 2)} |"
        for kind, value in found["side_by_side"].items()
    ]
    return table(
        "| | disk (MB) | peak memory of the process (MB) | loading (ms) | switching (ms) |",
        rows,
        "Switching: what a call takes more right after one of another setting than after one of its own, one image. "
        + provenance(found),
    )


def int8() -> str:
    """What int8 costs trained networks, and what shared ranges would."""
    rows = []
    for path in sorted((ROOT / "results").glob("int8-*.json")):
        found = read(path.stem)
        for row in found["rows"]:
            changes = (row[name] for name in ("own", "shared_steps", "shared_all"))
            rows.append(
                f"| `{found['model']}` | {found['metric']} | {row['steps']} | {row['fp32']:.2f} | "
                + " | ".join(f"{change['change']:+.3f} ± {change['standard_error']:.3f}" for change in changes)
                + f" | {row['images']:,} |"
            )
    return table(
        "| network | measure | steps | fp32 | int8, own ranges | one range for all steps "
        "| one for all steps and settings | images |",
        rows,
        "Change against fp32 on minival (held out of training; not so for `denoise-gray`), mean ± its standard error. "
        "`python benchmarks/int8.py MODEL --data PATH`.",
    )


def denoising() -> str:
    """Denoisers at each setting beside what a person would use instead."""
    found = read("denoising")
    rows = [
        f"| {row['method']}{', published PSNR' if row['method'] == 'DnCNN' else ''} | {row['psnr']:.2f} | "
        f"{measured(row['seconds_per_megapixel'], 2)} | {row['megabytes']:.0f} | "
        f"{'' if row['macs'] is None else format(row['macs'] / 1e3, '.0f')} | "
        f"{'' if row['parameters'] is None else format(row['parameters'] / 1e3, '.0f')} |"
        for row in found["rows"]
    ]
    return table(
        "| method | PSNR (dB) | seconds per megapixel | peak memory (MB) | MACs per pixel (k) | parameters (k) |",
        rows,
        f"Sigma {found['sigma']}, told; {len(found['pictures'])} gray pictures of BSD68. " + provenance(found),
    )


def unknown_noise() -> str:
    """What the estimate finds, and what a network makes of it."""
    found = read("denoising-unknown-noise")
    ways = ("noisy", "true", "auto", "estimate", "whole", "blind")
    rows = [
        f"| {'gray' if row['channels'] == 1 else 'colour'} | {row['sigma']} | "
        + " | ".join(f"{row['found'][way][2]:.1f}" for way in ("estimate", "whole"))
        + " | "
        + " | ".join(f"{row['psnr'][way]:.2f}" if way in row["psnr"] else "" for way in ways)
        + " |"
        for row in found["rows"]
    ]
    return table(
        "| pictures | true sigma | estimate, median | scikit-image's | PSNR (dB) noisy | told the true sigma | "
        "`auto` | told the estimate | told scikit-image's | blind |",
        rows,
        f"{found['pictures']} pictures of BSD's training set, 8 bits, largest setting. " + provenance(found),
    )


def coarse_noise() -> str:
    """Noise of photographs, by the colour network alone and by brightness and colour apart."""
    found = read("denoising-coarse-noise")
    rows = [
        f"| {row['kind']} | {row['sigma']} | "
        + " | ".join(f"{row['psnr'][way]:.2f}" for way in ("noisy", "alone", "auto", "told"))
        + f" | {row['coarse']} | {row['found']:.1f} |"
        for row in found["rows"]
    ]
    return table(
        "| noise | true sigma | PSNR (dB) noisy | `denoise-color` alone | `auto` | told the true sigma | "
        "taken for coarse | estimate, median |",
        rows,
        f"{found['pictures']} colour pictures of BSD's training set, 8 bits, steps {found['steps']}. "
        + provenance(found),
    )


def other_pictures() -> str:
    """Drawings and dark photographs, of noise that is estimated and told."""
    found = read("denoising-other-pictures")
    rows = [
        f"| {row['kind']} | {row['sigma']} | "
        + " | ".join(f"{row['psnr'][way]:.2f}" for way in ("noisy", "auto", "told"))
        + f" | {row['worse']} of {row['pictures']} |"
        for row in found["rows"]
    ]
    return table(
        "| pictures | true sigma | PSNR (dB) noisy | `auto` | told the true sigma | `auto` is worse than noisy |",
        rows,
        "8 bits, largest setting; drawings that were not trained on, BSD's training set at an eighth of its light. "
        + provenance(found),
    )


TABLES: dict[str, Callable[[], str]] = {
    "confidence": confidence,
    "r2-cifar10": classifier,
    "denoise-gray": denoiser,
    "training": training,
    "export": exported,
    "export-files": exported_files,
    "side-by-side": side_by_side,
    "int8": int8,
    "inference": inference,
    "growth": growth,
    "shared-weights": shared_weights,
    "denoising": denoising,
    "unknown-noise": unknown_noise,
    "coarse-noise": coarse_noise,
    "other-pictures": other_pictures,
}


def filled(text: str) -> str:
    """``text`` with every table between its marks made anew."""
    return re.sub(
        r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    """Compare or write each document."""
    for document in DOCUMENTS:
        before = document.read_text(encoding="utf-8")
        after = filled(before)
        if "--check" in sys.argv and before != after:
            raise SystemExit(f"{document.name} is not what the results say; run python scripts/tables.py")
        if before != after:
            document.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
