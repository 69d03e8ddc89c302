"""Errors that clients see: one sentence as JSON, in the form that the clients of each interface read."""

from typing import Any

from fastapi.responses import JSONResponse

__all__ = ["ApiError", "error_response", "validation_sentence"]


class ApiError(Exception):
    """An answer other than the one asked for.

    Args:
        status: of HTTP.
        sentence: what is wrong and what to do.
        headers: of the answer.
    """

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, headers


def error_response(path: str, status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as OpenAI's clients read it below /v1, and elsewhere as those of LibreTranslate do."""
    error: Any = sentence
    if path.startswith("/v1/"):
        kind = "server_error" if status >= 500 else "invalid_request_error"
        error = {"message": sentence, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": error}, status, headers)


def validation_sentence(errors: list[Any]) -> tuple[int, str]:
    """Return the status of a body that is not as it should be, and a sentence about one of its faults.

    What the client sent is not repeated: it may be large, or not be text that JSON can hold.
    """
    # of the alternatives of a type, the one that fits best fails deepest
    first = max(errors, key=lambda error: (error["type"] == "string_unicode", len(error["loc"])))
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return 400, f"the body is not valid JSON (character {first['loc'][-1]}: {reason.lower()})."
    if first["type"] == "string_unicode":
        return 422, "a text holds half a character (a lone surrogate such as \\ud83d); send whole characters."
    # places in the body; names of alternatives of a type are not
    place = [str(part) for part in first["loc"][1:] if isinstance(part, int) or str(part).isidentifier()]
    place = [part for part in place if part not in ("str", "dict", "constrained", "nullable")]
    if first["type"] == "extra_forbidden":
        return 422, f"{'.'.join(place)} is not a field that this server knows; leave it out."
    message = first["msg"][:1].lower() + first["msg"][1:]
    if not place:
        return 422, f"the body must be a JSON object, sent as Content-Type: application/json ({message})."
    return 422, f"{'.'.join(place)}: {message}."
