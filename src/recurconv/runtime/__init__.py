"""The runtime: an exported network whose cost is chosen per call, on onnxruntime and NumPy, without PyTorch."""

from recurconv.runtime.dial import Dial, Result

__all__ = ["Dial", "Result"]
