"""What can go wrong in an export."""

__all__ = ["ExportError"]


class ExportError(ValueError):
    """Say why a model was not exported, and what to do, in one sentence. Nothing was written."""
