"""Recipes: a function for each returns a complete, frozen config of a training run.

recurconv recipes                                  lists them
recurconv train r2-cifar10 --data D --out RUN      trains one
... --set epochs=100 --set batch_size=256          changes it

Rows of the paper that have no function are a change of one that has: ``r2-cifar10 --set steps=4 --set probabilities=``
is R_2^4 of table 1, with ``--set norm=shared`` as well it is that of table 2.
"""

import dataclasses
import difflib
from collections.abc import Callable

from recurconv.recipe import Recipe, override, read

__all__ = ["RECIPES", "Recipe", "get", "override", "read", "recipe"]

RECIPES: dict[str, Callable[[], Recipe]] = {}


def recipe(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Register a recipe under its name."""
    RECIPES[function().name] = function
    return function


def get(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(RECIPES)}"
        raise ValueError(f"there is no recipe {name!r}; {hint}")
    return RECIPES[name]()


@recipe
def r2_cifar10() -> Recipe:
    """Table 4 of the paper, CIFAR-10: R_2 with the dial (2, 3, 4) drawn with probabilities (0.2, 0.3, 0.5)."""
    return Recipe(
        name="r2-cifar10",
        summary="R_2, dial (2, 3, 4), double, CIFAR-10",
        reaches="not run yet",
        takes="about 1.5 minutes on an H100 by a prototype's 0.8 s an epoch; more than a day on two CPU cores",
        task="classification",
        data="cifar10",
        network="r2",
        steps=(2, 3, 4),
        probabilities=(0.2, 0.3, 0.5),
        epochs=100,
        batch_size=512,
        rate=0.4,
        minival=0,
        compile=True,
    )


@recipe
def r2_cifar10_short() -> Recipe:
    """The same at half width and for two CPU cores: the shipped classifier."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar10-short",
        summary="R_2 x0.5, dial (2, 3, 4), double, CIFAR-10, sized for two CPU cores",
        reaches="17.75, 15.88, 15.55 % test error at 2, 3, 4 steps; 13.16, 11.40, 11.14 % after 16 and 10 more epochs, "
        "by --set init=RUN --set epochs=16 --set norm_batches=100, the last 10 at rate=0.05, warmup=0.1; seeds 0, 1, 2",
        takes="82 minutes on one CPU core with AVX2, and 102 and 63 more",
        width=0.5,
        epochs=12,
        batch_size=128,
        rate=0.1,
        minival=1000,
        compile=False,
    )


@recipe
def r2_cifar10_sandwich() -> Recipe:
    """Past the paper: the largest setting learns from the labels, smaller ones from its soft output."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar10-sandwich",
        summary="r2-cifar10 with sandwich sampling: distillation inside the dial",
        reaches="not run yet",
        takes="about 2.2 times r2-cifar10",
        sampling="sandwich",
    )


@recipe
def r2_cifar100() -> Recipe:
    """Table 4 of the paper, CIFAR-100."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-cifar100",
        summary="R_2, dial (2, 3, 4), double, CIFAR-100",
        data="cifar100",
    )


@recipe
def r4_cifar100() -> Recipe:
    """Table 5 of the paper: cost-adjustable R_4."""
    return dataclasses.replace(
        r2_cifar100(),
        name="r4-cifar100",
        summary="R_4, dial (1, 2, 3), double, CIFAR-100",
        takes="not run yet",
        network="r4",
        steps=(1, 2, 3),
    )


@recipe
def s2_cifar10() -> Recipe:
    """Table 1 of the paper: S_2^4, the untied twin of R_2 at its largest setting."""
    return dataclasses.replace(
        r2_cifar10(),
        name="s2-cifar10",
        summary="S_2^4, untied, CIFAR-10",
        takes="not run yet",
        network="s2",
        steps=(4,),
        probabilities=(),
    )


@recipe
def s4_cifar100() -> Recipe:
    """Table 5 of the paper: S_4^3, the untied twin of R_4 at its largest setting."""
    return dataclasses.replace(
        s2_cifar10(),
        name="s4-cifar100",
        summary="S_4^3, untied, CIFAR-100",
        data="cifar100",
        network="s4",
        steps=(3,),
    )


@recipe
def deeply_supervised_s4_cifar100() -> Recipe:
    """Section 5.3 of the paper: S_4^3 with classifiers after groups 2 and 3, too (Lee et al., 2015)."""
    return dataclasses.replace(
        s4_cifar100(),
        name="deeply-supervised-s4-cifar100",
        summary="S_4^3 with classifiers after groups 2, 3 and 4, CIFAR-100",
        network="deeply_supervised_s4",
        sampling="weighted",
    )


@recipe
def r2_folder() -> Recipe:
    """A user's own images: FOLDER/train/CLASS/*, or FOLDER/CLASS/*."""
    return dataclasses.replace(
        r2_cifar10(),
        name="r2-folder",
        summary="R_2 x0.5, dial (2, 3, 4), double, on a folder of your own images (--set size=64 for larger ones)",
        reaches="depends on the images",
        takes="depends on their number",
        data="folder",
        width=0.5,
        epochs=30,
        batch_size=64,
        rate=0.05,
        minival=1,
        compile=False,
    )


@recipe
def r3_gray25() -> Recipe:
    """Section 5 of the paper with a dial: R_3, gray, sigma 25, about 12 million patches; DnCNN saw 10."""
    return Recipe(
        name="r3-gray25",
        summary="R_3, dial (1, 2, 3, 4), double, gray pictures, sigma 25",
        reaches="not run yet",
        takes="not run yet",
        task="denoising",
        data="pictures",
        network="r3",
        steps=(1, 2, 3, 4),
        epochs=90,
        image_channels=1,
        optimizer="adam",
        rate=1e-3,
        weight_decay=0.0,
        warmup=0.02,
        decay="cosine",
        minival=0,
        sigma=25.0,
    )


@recipe
def denoise_gray() -> Recipe:
    """Past the paper: half resolution, residual cells, any noise level; DnCNN's 400 pictures, 12 million patches.

    With a sixth of drawings, that type and thin lines are kept; half of the patches as files hold them.
    """
    return dataclasses.replace(
        r3_gray25(),
        name="denoise-gray",
        summary="R_3 at half resolution, dial (1, 2, 3, 4), double, gray pictures, sigma 0 to 55, told or unknown",
        network="r3_half",
        sigmas=(0.0, 55.0),
        trained_on="train400",
        clip=1.0,
        norm_batches=160,
        frozen_norms=0.25,
        drawings=80,
        clipped=0.5,
    )


@recipe
def denoise_color() -> Recipe:
    """The same for colour; all of BSDS500 but BSD68. A quarter in two colours: photographs have few strong ones."""
    return dataclasses.replace(
        denoise_gray(),
        name="denoise-color",
        summary="R_3 at half resolution, dial (1, 2, 3, 4), double, colour pictures, sigma 0 to 55, told or unknown",
        image_channels=3,
        trained_on="train432",
        halves=True,
        drawings=90,
        tinted=0.25,
    )


@recipe
def denoise_gray_short() -> Recipe:
    """The same for a CPU core."""
    return dataclasses.replace(
        denoise_gray(),
        name="denoise-gray-short",
        summary="denoise-gray of 48 channels, sized for a CPU core",
        reaches="28.58, 28.69, 28.71, 28.71 dB on BSD68 at sigma 25, 1 to 4 steps (results/denoise-gray.json), in "
        "three runs: 48 epochs with frozen_norms=0, then 18 by --set init=RUN --set frozen_norms=1 --set rate=5e-4, "
        "these with drawings=0 and clipped=0, then 22 by --set init=RUN --set frozen_norms=0.5 --set warmup=0.05",
        takes="110 minutes on two thirds of a CPU core with AVX2, and 41 and 45 more",
        channels=48,
        epochs=48,
        batch_size=16,
        patches_per_epoch=8_000,
    )


@recipe
def denoise_color_short() -> Recipe:
    """The same for a CPU core."""
    return dataclasses.replace(
        denoise_color(),
        name="denoise-color-short",
        summary="denoise-color of 48 channels, sized for a CPU core",
        reaches="30.53, 30.64, 30.65, 30.66 dB on colour BSD68 at sigma 25, 1 to 4 steps (results/denoise-color.json), "
        "in five runs: 48 epochs with frozen_norms=0 and halves=false, 20 by --set init=RUN --set frozen_norms=0 "
        "--set rate=5e-4, 14 by --set init=RUN --set frozen_norms=1 --set rate=4e-4, these with tinted=0, 36 by --set "
        "init=RUN --set frozen_norms=0.5 --set warmup=0.05, all these with drawings=0 and clipped=0, 18 by --set "
        "init=RUN --set frozen_norms=0.6 --set warmup=0.05 --set rate=6e-4",
        takes="110 minutes on two thirds of a CPU core with AVX2, and 73, 66 and 36 more",
        channels=48,
        epochs=48,
        batch_size=16,
        patches_per_epoch=8_000,
    )


@recipe
def s3_gray25() -> Recipe:
    """Figure 5 of the paper: S_3^4, the untied twin of R_3 at its largest setting."""
    return dataclasses.replace(
        r3_gray25(),
        name="s3-gray25",
        summary="S_3^4, untied, gray pictures, sigma 25",
        network="s3",
        steps=(4,),
    )


@recipe
def r3_gray25_short() -> Recipe:
    """The same for two CPU cores: the shipped denoiser."""
    return dataclasses.replace(
        r3_gray25(),
        name="r3-gray25-short",
        summary="R_3 of 32 channels, dial (1, 2, 3, 4), double, gray pictures, sigma 25, sized for two CPU cores",
        reaches="28.29, 28.39, 28.39, 28.36 dB on BSD68 at 1, 2, 3, 4 steps (results/r3-gray25.json)",
        takes="74 minutes on half a CPU core with AVX2",
        channels=32,
        epochs=20,
        batch_size=16,
        rate=2e-3,
        patches_per_epoch=8_000,
        minival=8,
    )
