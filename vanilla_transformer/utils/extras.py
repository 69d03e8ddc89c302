"""Packages that are installed only where they are asked for: what to type where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

PACKAGES: dict[str, tuple[str, str | None]] = {
    "comet": ("unbabel-comet", None),
    "ctranslate2": ("ctranslate2", "export"),
    "fastapi": ("fastapi", "serve"),
    "gguf": ("gguf", "export"),
    "matplotlib": ("matplotlib", "plots"),
    "nltk": ("nltk", "parsing"),
    "onnx": ("onnx", "export"),
    "onnx_ir": ("onnxscript", "export"),
    "onnxruntime": ("onnxruntime", "export"),
    "onnxscript": ("onnxscript", "export"),
    "peft": ("peft", "peft"),
    "prometheus_client": ("prometheus-client", "serve"),
    "protobuf": ("protobuf", None),
    "sacremoses": ("sacremoses", "convert"),
    "sentencepiece": ("sentencepiece", "convert"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "tiktoken": ("tiktoken", None),
    "trackio": ("trackio", "trackio"),
    "uvicorn": ("uvicorn", "serve"),
}
"""Modules by their names in Python: what pip calls their package, and the extra of this package that holds it."""


def missing(what: str, module: str) -> str:
    """Return one sentence that says what needs a package, and how to install it.

    Args:
        what: needs it, as the sentence begins: "the server".
        module: a name in [`PACKAGES`].
    """
    package, extra = PACKAGES[module]
    said = f"{what} needs {package}, which is not installed; `pip install {package}`"
    if extra is not None:
        # the package is in no index, so that its extras are installed from its source alone
        said += f", or in the source of this package, for its extra `{extra}`, `pip install -c constraints.txt -e '.[{extra}]'`"
    return f"{said}."


@contextmanager
def needs(what: str) -> Iterator[None]:
    """Turn the failing import of a package of [`PACKAGES`] into the sentence of [`missing`].

    Args:
        what: needs the package.

    Raises:
        ImportError: naming the package and how to install it. For other modules, whose absence is a fault, as it was.
    """
    try:
        yield
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        # a package that is there and does not hold together says best itself what is wrong with it
        if not isinstance(error, ModuleNotFoundError) or module not in PACKAGES:
            raise
        raise ImportError(missing(what, module), name=module) from error
