"""Confidence: images of which a small setting is not sure go on to a larger one."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Logits: TypeAlias = NDArray[np.float32]
Thresholds: TypeAlias = Mapping[int, float] | Mapping[str, float]


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities [N, classes] from logits [N, classes], in float64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def confidence(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """The largest probability of each image, [N] in [1 / classes, 1]; NaN where the logits are not finite."""
    return np.asarray(softmax(logits).max(axis=1))


def stages(wanted: float | Thresholds, dial: Sequence[int]) -> dict[int, float]:
    """The settings that a batch passes, ascending, each with the confidence that suffices there.

    Args:
        wanted: one threshold for the smallest setting, behind which the largest follows; or a threshold for each
            setting that is to run, as ``recurconv tune-confidence`` writes them. The largest setting always suffices
            and need not be named; where it is not to run, a setting before it has the threshold 0.
        dial: the settings, ascending.

    Raises:
        ValueError: a threshold outside [0, 1], a setting off the dial, or none.
    """
    given = wanted if isinstance(wanted, Mapping) else {dial[0]: wanted}
    found: dict[int, float] = {}
    for key, value in given.items():
        steps = int(key) if isinstance(key, str) and key.isdecimal() else key
        if steps not in dial:
            raise ValueError(f"confidence has a threshold for steps={key}, not on this file's dial {tuple(dial)}")
        if isinstance(value, bool) or not isinstance(value, int | float | np.floating) or not 0 <= value <= 1:
            raise ValueError(f"confidence={value!r} is no probability; give a number from 0 to 1, such as 0.9")
        found[int(steps)] = float(value)
    if not found:
        raise ValueError("confidence has no threshold; give a number from 0 to 1, such as 0.9")
    return {**dict(sorted(found.items())), dial[-1]: 0.0}


def cascade(
    run: Callable[[int, NDArray[np.intp]], Logits], images: int, thresholds: Mapping[int, float]
) -> tuple[Logits, NDArray[np.int64]]:
    """Run a batch through the stages; at each only the images that no stage before was sure of.

    Args:
        run: (steps, which images [M]) -> their logits [M, classes].
        images: how many there are.
        thresholds: of ``stages``.

    Returns:
        The logits [N, classes], each image's from the last setting that it ran at, and these settings [N].
    """
    unsure = np.arange(images)
    ran = np.zeros(images, np.int64)
    logits: Logits | None = None
    for steps, threshold in thresholds.items():
        own = run(steps, unsure)
        if logits is None:
            logits = np.empty((images, *own.shape[1:]), own.dtype)
        logits[unsure], ran[unsure] = own, steps
        unsure = unsure[~(confidence(own) >= threshold)]  # not "<": a NaN is not sure
        if not len(unsure):
            break
    assert logits is not None
    return logits, ran
