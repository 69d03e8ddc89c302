"""What stands before the application: the name of the host, and the size of the body."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_response

__all__ = ["BodyLimit", "HostCheck"]

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
        body = b""
        read, more = 0, True
        try:
            async with asyncio.timeout(self.seconds) as timeout, _within(self.reading, timeout):
                while more and read <= max(self.max_bytes, LARGEST_DISCARDED):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    read += len(chunk)
                    body = body + chunk if read <= self.max_bytes else b""
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
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)
