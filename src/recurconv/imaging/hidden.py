"""Colour under alpha 0, which nobody sees and which must not show after a filter that looks at neighbours."""

from __future__ import annotations

import numpy as np

from recurconv.imaging.picture import Pixels

BAND, NEAR = 512, 256  # rows that are filled at once, and rows around them that are looked at


def fill_hidden(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Give every pixel under alpha 0 the colour of the nearest pixel that is visible at all.

    What a filter then makes of the visible pixels does not depend on the colours that were hidden. It works on bands of
    rows, since an index of all pixels would be larger than the picture: a visible pixel more than ``NEAR`` rows away
    from a band is not found, and colours so far from what is seen do not matter.

    Args:
        pixels: `[H, W]` or `[H, W, 3]`, any dtype; not changed.
        alpha: `[H, W]`; hidden is what is 0.

    Returns:
        Filled pixels, same shape and dtype; `pixels` itself if nothing is hidden, zeros if nothing is visible.

    Raises:
        ImportError: scipy is not installed.
    """
    hidden = alpha == 0
    if not hidden.any():
        return pixels
    if hidden.all():
        return np.zeros_like(pixels)
    try:
        from scipy.ndimage import distance_transform_edt
    except ImportError:
        raise ImportError('pictures with alpha need scipy: pip install "recurconv[denoise]"') from None
    filled: Pixels = pixels.copy(order="C")
    for top in range(0, len(pixels), BAND):
        band, first = slice(top, top + BAND), max(0, top - NEAR)
        around = slice(first, top + BAND + NEAR)
        if hidden[around].all():
            filled[band] = 0
        elif hidden[band].any():
            nearest = distance_transform_edt(hidden[around], return_distances=False, return_indices=True)
            rows, columns = nearest[:, top - first : top - first + BAND]
            filled[band] = pixels[around][rows, columns]
    return filled
