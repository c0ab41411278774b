"""How noisy a picture is, where nobody says so."""

import math
import warnings
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recurconv.cleaning.coarse import LUMA, LUMA_NOISE
from recurconv.cleaning.values import as_floats, white

Pixels = NDArray[Any]

SIDE = 64  # of a patch, in pixels
SMALLEST = 8  # height and width from which on noise can be estimated
PATCHES = 400  # at most, evenly over the picture: a larger one takes no longer
QUANTILE, NORMAL_QUANTILE = 0.1, -1.2816  # which of the patches counts, and where that is on a normal distribution
SPREAD = 1.166  # standard deviation of the estimate from n coefficients, relative to it, times the root of n
DOUBT = 0.02  # the share of a patch's values that may be black, white or not visible ...
FEW = 0.25  # ... unless so few of the patches are as good
# With more than this a patch tells nothing, and counts only where all are like that; of noise on black or white half is
# cut off.
HOPELESS = 0.6
# Of noise that differs from pixel to pixel, colour has twice the diagonal detail at full size that it has at half size,
# and photographs' own takes at most a third of that; where JPEG halved colour it is less than at half size.
COARSE = 1.2
# Noise of each channel's own makes the difference of two twice as noisy as brightness, and at least 1.2 times in 25
# pictures at 5 to 50/255; grain that the channels of a toned picture share, at most a quarter.
OF_BRIGHTNESS = 0.8
CUT_OFF = 0.2  # the share of values that are black or white, where noise cannot be told from its shape alone
STRONGEST = 127.5  # in 1/255: no noise inside black and white is stronger; a pattern is
FLAT = 2 / 255  # of white: a page or a frame around a photo differs by so little, also in a JPEG
# Noise makes small detail as well as large. Where the smaller of a patch's details tell of less than so much of what
# all of them do, it is not all noise: of type on a page, most of it is edges.
PEAKED = 0.7
SMALL, NORMAL_SMALL, SMALL_SPREAD = 0.3, 0.3853, 1.605  # which of them; where it is on a normal distribution; as SPREAD
LEAST_OF_THREE = -1.818  # as NORMAL_QUANTILE, for the least of three estimates
LEAST_USEFUL = 0.05  # the share of a patch's details that is enough to judge by
VALUES = 2  # noise has at least six times as many 8-bit values as its standard deviation, a dithered picture a few
TEXTURE = 1.5  # in 1/255: what photographs add even in such patches (results/denoising-unknown-noise.json)

NEEDS = 'estimating the noise needs scikit-image and PyWavelets: pip install "recurconv[denoise]", or say sigma'


def estimate_sigma(pixels: Pixels, visible: NDArray[np.bool_] | None = None, *, luma: bool = False) -> float:
    """Estimate the standard deviation of Gaussian noise, the same all over the picture.

    scikit-image's estimator (the median absolute diagonal detail of a wavelet transform) takes texture for noise. So it
    judges patches, and those with the least detail count: the tenth percentile over the patches, divided by where that
    percentile is expected if there is noise alone. From its variance that of the little texture is taken which
    photographs have even there. Where smaller details tell of much less noise, as in type and drawings, they count.
    Patches with clipped values, whose noise is cut off, count only where there are few others, and what was cut off of
    it is put back; the page around a photo
    and what is hidden around a cut-out never do.

    Args:
        pixels: [H, W] or [H, W, C]: uint8, uint16, or float with white at 1.
        visible: bool [H, W]; patches with pixels that are not visible count only where there are few others.
        luma: judge a colour picture's brightness alone, for noise that is coarse in colour (``is_coarse``).

    Returns:
        The standard deviation in 1/255 of white, of each channel; 0 for a picture with no detail at all, or too small
        to tell, and for a pattern, such as a dithered picture, that no noise could be.

    Raises:
        ImportError: scikit-image or PyWavelets is not installed.

    Source: Donoho and Johnstone, *Ideal spatial adaptation by wavelet shrinkage*, 1994.
    """
    if min(pixels.shape[:2]) < SMALLEST:
        return 0.0
    patches = _judged(pixels, visible)
    weights, gain = (np.array(LUMA, np.float32), LUMA_NOISE) if luma else (None, 1.0)
    floats = map(as_floats, patches)
    judged = (patch if weights is None else patch @ weights for patch in floats)
    details, smaller, values = np.array([_judge(patch) for patch in judged]).T
    root = math.sqrt(math.prod(side / 2 for side in patches[0].shape[:2]))  # of the number of coefficients
    detail = _of_patches(details, NORMAL_QUANTILE * SPREAD / root)
    small = _of_patches(smaller, LEAST_OF_THREE * SMALL_SPREAD / root)
    detail = small if small < PEAKED * detail else detail
    sigma = math.sqrt(max(0.0, detail**2 - TEXTURE**2)) / gain
    pattern = float(np.median(values)) < min(VALUES * detail, patches[0].size / 8)
    return 0.0 if pattern or sigma > STRONGEST else sigma


def _judge(patch: Pixels) -> tuple[float, float, float]:
    """Of a patch: the noise that all of its detail and that its smaller detail tells of, and how many values it has."""
    channels = np.moveaxis(np.atleast_3d(patch), 2, 0)
    lost = _cut_off(patch)
    return _sigma(patch) * lost, _small(patch) * lost, max(len(np.unique(np.rint(255 * own))) for own in channels)


def _of_patches(found: NDArray[np.float64], beside: float) -> float:
    """The estimate in 1/255 for a picture; ``beside``: how far its quantile over the patches is from their mean."""
    return 255 * float(np.quantile(found, QUANTILE)) / (1 + beside if len(found) > 1 else 1.0)


def _cut_off(patch: Pixels) -> float:
    """How much stronger the noise of a patch was before black or white cut it off, by the share of values that are so.

    A normal variable that is cut off at 0 with the probability p has the mean over the standard deviation that p tells,
    and that tells the variance that is left (Foi, *Clipped noisy images*, 2009). Noise on plain black or white is cut
    off in half of the values; where more are black, the picture is.
    """
    share = max(float((patch <= 0).mean()), float((patch >= 1).mean()))
    if not 0 < share <= HOPELESS:
        return 1.0
    normal = NormalDist()
    mean = -normal.inv_cdf(share)
    first = mean * (1 - share) + normal.pdf(mean)
    return float(1 / math.sqrt((mean**2 + 1) * (1 - share) + mean * normal.pdf(mean) - first**2))


def is_coarse(pixels: Pixels, visible: NDArray[np.bool_] | None = None) -> bool:
    """Whether the noise of a colour picture is coarser than a pixel in its colour, or not there.

    Such is the noise of most photographs: JPEG keeps colour at half the size, cameras see one colour in each pixel, and
    film's grain is of brightness alone. If noise differs from pixel to pixel, the mean of 2x2 pixels has half of it.
    So colour's diagonal detail at full and at half size is compared, in patches, as in ``estimate_sigma``; and with
    that of brightness, since a toned picture has its grain in all channels.

    Args:
        pixels: [H, W, 3]; one of less than 64 pixels a side is taken not to be.
        visible: as for ``estimate_sigma``.
    """
    if min(pixels.shape[:2]) < SIDE:
        return False
    full, half, bright = [], [], []
    for patch in _judged(pixels, visible):
        values = as_floats(patch)
        bright.append(_diagonal(*_corners(values @ np.array(LUMA, np.float32))))
        colour = values[..., (0, 2)] - values[..., (1, 1)]  # red and blue against green: no brightness in it
        a, b, c, d = _corners(colour)
        full.append(_diagonal(a, b, c, d))
        half.append(_diagonal(*_corners((a + b + c + d) / 4)))
    of_full, of_half, of_bright = (float(np.quantile(found, QUANTILE)) for found in (full, half, bright))
    return of_full <= max(COARSE * of_half, OF_BRIGHTNESS * of_bright)


def is_cut_off(pixels: Pixels, visible: NDArray[np.bool_] | None = None) -> bool:
    """Whether black or white cuts noise off all over a picture: in a fifth of the values where it cuts off the fewest.

    Args:
        pixels: as for ``estimate_sigma``.
        visible: as for ``estimate_sigma``.
    """
    if min(pixels.shape[:2]) < SMALLEST:
        return False
    patches = _judged(pixels, visible)
    return float(np.median([max((p <= 0).mean(), (p >= white(p.dtype)).mean()) for p in patches])) > CUT_OFF


def _corners(values: Pixels) -> tuple[Pixels, Pixels, Pixels, Pixels]:
    """The four pixels of each 2x2, [H / 2, W / 2, C]; the rest of an odd size is left out."""
    height, width = values.shape[0] // 2 * 2, values.shape[1] // 2 * 2
    values = values[:height, :width]
    return values[::2, ::2], values[::2, 1::2], values[1::2, ::2], values[1::2, 1::2]


def _diagonal(a: Pixels, b: Pixels, c: Pixels, d: Pixels) -> float:
    """The median diagonal detail of 2x2 pixels."""
    return float(np.median(np.abs(a - b - c + d)))


def _judged(pixels: Pixels, visible: NDArray[np.bool_] | None) -> list[Pixels]:
    """The patches that count, as they are in the picture."""
    box = _box(pixels, visible)
    pixels, visible = pixels[box], None if visible is None else visible[box]
    patches = _patches(*pixels.shape[:2])
    doubts = np.array([_doubt(pixels[patch], None if visible is None else visible[patch]) for patch in patches])
    fewest = np.quantile(doubts[doubts <= max(HOPELESS, doubts.min())], FEW)
    return [pixels[patches[number]] for number in np.flatnonzero(doubts <= max(DOUBT, fewest))]


def _useful(part: Pixels, visible: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    """Which values tell something: visible, and neither black nor white, where noise is cut off."""
    useful: NDArray[np.bool_] = (part > 0) & (part < white(part.dtype))
    if visible is not None:
        useful &= visible.reshape(visible.shape + (1,) * (part.ndim - 2))
    return useful


def _doubt(patch: Pixels, visible: NDArray[np.bool_] | None) -> float:
    """The share of values that tell nothing."""
    return 1 - float(_useful(patch, visible).mean())


def _box(pixels: Pixels, visible: NDArray[np.bool_] | None) -> tuple[slice, slice]:
    """Rows and columns around useful values that differ: no page around a photo, nothing hidden around a cut-out."""
    height, width = pixels.shape[:2]
    rows = np.zeros(height, bool)
    least, most = np.full(pixels.shape[1:], np.inf, np.float32), np.full(pixels.shape[1:], -np.inf, np.float32)
    flat = FLAT * white(pixels.dtype)
    for top in range(0, height, SIDE):  # part by part, which takes less memory
        part = slice(top, top + SIDE)
        useful = _useful(pixels[part], None if visible is None else visible[part])
        low, high = (np.where(useful, pixels[part], end).astype(np.float32) for end in (np.inf, -np.inf))
        spread = high.max(1) - low.min(1)
        rows[part] = spread.reshape(len(spread), -1).max(1) > flat
        least, most = np.minimum(least, low.min(0)), np.maximum(most, high.max(0))
    columns = (most - least).reshape(width, -1).max(1) > flat
    return _span(rows), _span(columns)


def _span(useful: NDArray[np.bool_]) -> slice:
    """From the first to the last, and no shorter than what can be judged; everything where there is none."""
    found = np.flatnonzero(useful)
    if not found.size:
        return slice(0, len(useful))
    start = min(int(found[0]), len(useful) - SMALLEST)
    return slice(start, max(int(found[-1]) + 1, start + SMALLEST))


def _patches(height: int, width: int) -> list[tuple[slice, slice]]:
    """Patches evenly over the picture, at most about ``PATCHES``."""
    down, across = max(1, height // SIDE), max(1, width // SIDE)
    fewer = max(1.0, math.sqrt(down * across / PATCHES))
    return [
        (slice(top, top + SIDE), slice(left, left + SIDE))
        for top in _starts(height, max(1, int(down / fewer)))
        for left in _starts(width, max(1, int(across / fewer)))
    ]


def _starts(length: int, count: int) -> list[int]:
    """Where ``count`` patches start along an axis."""
    return [int(start) for start in np.linspace(0, max(0, length - SIDE), count)]


def _sigma(patch: Pixels) -> float:
    """Of one patch, [H, W] or [H, W, C], in units of white: the mean over channels."""
    channels = np.moveaxis(np.atleast_3d(patch), 2, 0)
    try:
        from skimage import restoration

        estimate: Any = restoration.estimate_sigma
        with warnings.catch_warnings():  # without any diagonal detail there is nothing to take a median of
            warnings.simplefilter("ignore", RuntimeWarning)
            found = [estimate(channel) for channel in channels]
    except ImportError:  # scikit-image asks for PyWavelets at the call
        raise ImportError(NEEDS) from None
    return float(np.mean(np.nan_to_num(found)))


def _small(patch: Pixels) -> float:
    """The same from the smaller details, the least of horizontal, vertical and diagonal ones.

    Zeros count; details that black or white pixels are part of, where noise is cut off, do not, unless few are left.
    """
    import pywt

    found = []
    for channel in np.moveaxis(np.atleast_3d(patch), 2, 0):
        details = np.abs(pywt.dwt2(channel, "db2")[1])
        cut_off, _ = pywt.dwt2(((channel <= 0) | (channel >= 1)).astype(np.float32), "db2")
        useful = np.abs(cut_off) < 1e-6
        details = details[:, useful] if useful.mean() > LEAST_USEFUL else details.reshape(3, -1)
        found.append(np.quantile(details, SMALL, axis=1).min() / NORMAL_SMALL)
    return float(np.mean(found))
