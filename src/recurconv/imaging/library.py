"""libvips, which decodes and encodes."""

from __future__ import annotations

from typing import Any


def libvips() -> Any:
    """Return the module pyvips, imported when a picture is first read or written.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyvips
    except (ImportError, OSError):  # OSError: pyvips without the library itself
        raise ImportError('picture files need pyvips: pip install "recurconv[denoise]"') from None
    return pyvips


def reason(error: Exception) -> str:
    """Return what libvips or Pillow complains of, on one line."""
    lines = [" ".join(line.split()) for line in str(getattr(error, "detail", None) or error).split("\n")]
    # Of a truncated AVIF file, libvips names each place that it tried to reach.
    lines = [line for line in dict.fromkeys(lines) if line and "bad seek to" not in line]
    return "; ".join(lines) or type(error).__name__
