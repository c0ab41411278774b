"""Colour under alpha 0, which nobody sees and which must not show after a filter that looks at neighbours."""

from __future__ import annotations

import numpy as np

from recurconv.imaging.picture import Pixels


def fill_hidden(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Give every pixel under alpha 0 the colour of the nearest pixel that is visible at all.

    What a filter then makes of the visible pixels does not depend on the colours that were hidden.

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
    rows, columns = distance_transform_edt(hidden, return_distances=False, return_indices=True)
    filled = np.empty_like(pixels, order="C")
    for y in range(len(pixels)):  # by rows: an index of all pixels at once would be larger than the picture
        filled[y] = pixels[rows[y], columns[y]]
    return filled
