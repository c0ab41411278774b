"""Any picture file, read and written with all that it holds: depth, alpha, colour profile, metadata."""

from recurconv.imaging.hidden import fill_hidden
from recurconv.imaging.picture import Picture
from recurconv.imaging.reading import read
from recurconv.imaging.writing import WRITABLE_SUFFIXES, suffix_for, write

__all__ = ["WRITABLE_SUFFIXES", "Picture", "fill_hidden", "read", "suffix_for", "write"]
