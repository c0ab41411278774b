"""Networks as ONNX models with an input ``steps``, and as programs of ``torch.export``."""

from recurconv.export.joining import Joined, join_settings
from recurconv.export.tracing import static_model

__all__ = ["Joined", "join_settings", "static_model"]
