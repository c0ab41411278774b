"""The packages that only an export needs."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needing_onnx() -> Iterator[None]:
    """Around the imports of onnx, onnxruntime and onnxscript.

    Raises:
        ImportError: one is not installed; the message says how to get them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f'{error.name} is not installed, and an export needs it; pip install "recurconv[onnx]"'
        ) from None
