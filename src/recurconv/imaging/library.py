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
    lines = str(getattr(error, "detail", None) or error).split("\n")
    return "; ".join(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip())) or type(error).__name__
