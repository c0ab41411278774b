"""Atomic writes: all of a file is there, or the old one."""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST = 40  # characters of a name that a temporary file is given: one of 255 bytes has no room for more


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place: all of it is there, or the old one.

    Raises:
        OSError: what the disk says; the temporary file is gone then and the old file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:LONGEST]}.{uuid.uuid4().hex}")
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)  # safetensors leaves a file that only its owner can read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically."""
    text = json.dumps(value, indent=2) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
