"""The bounds of a server, each of which a client meets as one sentence."""

from dataclasses import dataclass

__all__ = ["ServerSettings"]


@dataclass(frozen=True)
class ServerSettings:
    """What a server allows.

    Attributes:
        api_key: that clients must give, as `Authorization: Bearer KEY` or in LibreTranslate's field `api_key`.
        cors_origins: web pages of these origins may read answers; none by default.
        allowed_hosts: names in the header `Host` that are answered; None for any. A server that listens to its own machine
            alone answers only local names, so that no web page reaches it through a name of its own (DNS rebinding).
        max_body_bytes: of a request.
        max_texts: texts or prompts of a request.
        max_waiting: items that may wait for the model; a request that would exceed it is refused with status 429.
        max_new_tokens: the largest number of tokens of an output; of a translation, of each part of a text.
        max_beams: alternatives of a translation, the best one included.
        max_batch_tokens: tokens of a batch, padding included.
        max_batch_items: items of a batch.
        batch_wait: seconds that a free model waits for further requests before it begins with the first.
        timeout: seconds until a request is given up with status 504.
        stall_after: seconds of one step of the model after which `/health` says that the model does not answer.
        shutdown_seconds: that requests in progress get to end when the server is asked to stop.
        source_language, target_language: of a translator, by their codes, where they are known.
    """

    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    max_body_bytes: int = 1 << 20
    max_texts: int = 128
    max_waiting: int = 1024
    max_new_tokens: int = 512
    max_beams: int = 10
    max_batch_tokens: int = 1024
    max_batch_items: int = 64
    batch_wait: float = 0.005
    timeout: float = 60.0
    stall_after: float = 30.0
    shutdown_seconds: float = 3.0
    source_language: str | None = None
    target_language: str | None = None
