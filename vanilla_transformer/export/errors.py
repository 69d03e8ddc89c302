"""The error of an export."""

__all__ = ["ExportError"]


class ExportError(ValueError):
    """Raise with one clear sentence: why a model was not exported, and what to do. Nothing was written."""
