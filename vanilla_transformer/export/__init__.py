"""Models of this package in other runtimes; each export is compared with `generate()` before it appears."""

from vanilla_transformer.export.errors import ExportError
from vanilla_transformer.export.folders import export_folder, to_ctranslate2, to_gguf, to_onnx

__all__ = ["ExportError", "export_folder", "to_ctranslate2", "to_gguf", "to_onnx"]
