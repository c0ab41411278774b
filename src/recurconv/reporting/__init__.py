"""The paper's tables and figures beside its own numbers, from the small results of finished runs. No PyTorch here."""

from recurconv.reporting.page import SECTIONS, read_book, section, write

__all__ = ["SECTIONS", "read_book", "section", "write"]
