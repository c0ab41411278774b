"""Networks as ONNX models with an input ``steps``, and as programs of ``torch.export``."""

from recurconv.export.joining import Joined, join_settings
from recurconv.export.tracing import static_model
from recurconv.export.writing import Exported, export_onnx, export_program

__all__ = ["Exported", "Joined", "export_onnx", "export_program", "join_settings", "static_model"]
