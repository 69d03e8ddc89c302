"""Models of this package in other runtimes; each export is compared with `generate()` before it appears."""

from .errors import ExportError
from .folders import export_folder, to_ctranslate2, to_gguf, to_onnx

__all__ = ["ExportError", "export_folder", "to_ctranslate2", "to_gguf", "to_onnx"]
