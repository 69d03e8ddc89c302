"""What stands before the application: the name of the host, the size of the body, and forms in place of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vanilla_transformer.serving.errors import error_response

__all__ = ["BodyLimit", "FormAsJson", "HostCheck"]

LARGEST_DISCARDED = 64 << 20
"""Bytes of a body that is too large which are read and thrown away, so that the client sees the answer."""


@asynccontextmanager
async def _within(group: set[Any], member: Any) -> AsyncIterator[None]:
    group.add(member)
    try:
        yield
    finally:
        group.discard(member)


class HostCheck:
    """Answers only requests to certain names of the host, whatever their port.

    Args:
        allowed: names in small letters; None for any.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str] | None):
        self.app, self.allowed = app, allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.allowed is not None:
            host = Headers(scope=scope).get("host", "").lower()
            name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
            if name not in self.allowed:
                sentence = (
                    f"this server answers requests to {', '.join(self.allowed)} only; start it with --allowed-host."
                )
                await error_response(scope["path"], 403, sentence)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Reads a body before the application does, up to a number of bytes and seconds.

    Args:
        reading: holds the timeouts of the bodies that are being read; they may be brought forward.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float, reading: set[asyncio.Timeout]):
        self.app, self.max_bytes, self.seconds, self.reading = app, max_bytes, seconds, reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        read, more = 0, True
        try:
            async with asyncio.timeout(self.seconds) as timeout, _within(self.reading, timeout):
                while more and read <= max(self.max_bytes, LARGEST_DISCARDED):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    read += len(chunk)
                    body += chunk if read <= self.max_bytes else b""
        except TimeoutError:
            sentence = "the body did not come in time."
            await error_response(scope["path"], 408, sentence, {"Connection": "close"})(scope, receive, send)
            return
        if read > self.max_bytes:
            sentence = (
                f"the body has more than the {self.max_bytes:,} bytes that this server takes; send less at once."
            )
            await error_response(scope["path"], 413, sentence, {"Connection": "close"})(scope, receive, send)
            return
        await self.app(scope, _first(bytes(body), receive), send)


class FormAsJson:
    """Turns a form into JSON for one path, as clients of LibreTranslate send forms, too.

    A web page can send a form to any server without asking it, which it cannot with JSON; so a form whose `Origin` is a page
    is refused, but for pages of the origins that are allowed.

    Args:
        path: of the requests that may be forms. It stands behind `BodyLimit`, so that a body is one message.
        origins: that are allowed.
        numbers: fields that are whole numbers.
    """

    def __init__(self, app: ASGIApp, path: str, origins: Sequence[str], numbers: Sequence[str]):
        self.app, self.path, self.origins, self.numbers = app, path, origins, numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        is_form = headers.get("content-type", "").partition(";")[0].strip() == "application/x-www-form-urlencoded"
        if not is_form or scope["path"] != self.path:
            await self.app(scope, receive, send)
            return
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins:
            sentence = "a web page's form is not answered; send JSON, or start the server with --cors-origin."
            await error_response(scope["path"], 403, sentence)(scope, receive, send)
            return
        try:
            fields = parse_qs((await receive()).get("body", b"").decode(), keep_blank_values=True, errors="strict")
        except ValueError:
            sentence = "the form cannot be read: it is not UTF-8."
            await error_response(scope["path"], 400, sentence)(scope, receive, send)
            return
        values: dict[str, Any] = {name: given[0] if len(given) == 1 else given for name, given in fields.items()}
        for name in self.numbers:
            if isinstance(given := values.get(name), str) and given.isascii() and given.isdigit() and len(given) < 10:
                values[name] = int(given)
        body = json.dumps(values).encode()
        kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")]
        length = str(len(body)).encode()
        scope = {**scope, "headers": [*kept, (b"content-type", b"application/json"), (b"content-length", length)]}
        await self.app(scope, _first(body, receive), send)


def _first(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body, then what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
