"""The process of a server: its socket, its model, its end."""

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from vanilla_transformer.serving.app import Server, create_app
from vanilla_transformer.serving.backends import load
from vanilla_transformer.serving.settings import ServerSettings
from vanilla_transformer.utils.schema import read_values
from vanilla_transformer.utils.yaml_text import coerce_scalars

__all__ = ["open_socket", "run_languages", "serve"]

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def serve(
    model: str,
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    log: Callable[[str], None],
    **load_options: Any,
) -> None:
    """Load a model and answer requests until the process is asked to stop (Ctrl-C, SIGTERM).

    Args:
        model: a folder or Hub id.
        host, port: where to listen; port 0 for a free one.
        load_options: of [`backends.load`].

    Raises:
        ValueError, OSError: where the model cannot be loaded or the port is taken, with one clear sentence.
    """
    with open_socket(host, port) as listener:
        address = listener.getsockname()
        is_local = ipaddress.ip_address(address[0].partition("%")[0]).is_loopback
        if not is_local and settings.api_key is None:
            log(
                f"anyone who can reach {host} may use this server; --api-key restricts it to clients that have the key"
            )
        if is_local and settings.allowed_hosts is None:
            settings = replace(settings, allowed_hosts=tuple(dict.fromkeys((*LOCAL_NAMES, host.lower()))))
        source, target = run_languages(model)
        settings = replace(
            settings,
            source_language=settings.source_language or source,
            target_language=settings.target_language or target,
        )
        loaded = load(model, **load_options)
        name = Path(model).resolve().name if Path(model).exists() else model
        server = Server(loaded, name, settings)
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        log(f"{name} ({loaded.kind}) answers at http://{shown}:{address[1]}; Ctrl-C stops it")
        _run(server, listener)
    log("stopped")


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which is not yet answered.

    Raises:
        OSError: where it is taken, or not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError, OverflowError) as error:
        raise OSError(
            f"--host {host!r} is not an address of this machine ({error}); give one, such as 127.0.0.1."
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)  # whoever comes while the model loads waits, and a second server is refused
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"cannot listen to port {port} of {host} ({reason}); choose another with --port.") from error
    return listener


def run_languages(model: str) -> tuple[str | None, str | None]:
    """Return the languages that the recipe of a run names, as far as it does."""
    try:
        data = read_values(Path(model).expanduser() / "recipe.yaml")["data"]
        languages = data.get("source_language"), data.get("target_language")
    except (OSError, ValueError, KeyError, AttributeError):
        return None, None
    source, target = (coerce_scalars(given, str | None) if isinstance(given, str) else None for given in languages)
    return source, target


def _run(server: Server, listener: socket.socket) -> None:
    seconds = server.settings.shutdown_seconds
    config = uvicorn.Config(
        create_app(server),
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(seconds) + 5,
    )
    # uvicorn stops on these signals, then hands them on to whoever had them before: having stopped is the right end
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        asyncio.run(_serve(uvicorn.Server(config), server, listener))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _serve(process: uvicorn.Server, server: Server, listener: socket.socket) -> None:
    """Serve until a signal comes; then requests in progress have some seconds to end."""

    async def give_up() -> None:
        while not process.should_exit:
            await asyncio.sleep(0.1)
        await asyncio.sleep(server.settings.shutdown_seconds)
        server.give_up()

    watch = asyncio.create_task(give_up())
    try:
        await process.serve(sockets=[listener])
    finally:
        watch.cancel()
