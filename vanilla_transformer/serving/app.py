"""The application: which requests there are, how they become items for the model, and how its outputs become answers."""

import asyncio
import hmac
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vanilla_transformer.serving.engine import BusyError, Engine, Item, StoppedError
from vanilla_transformer.serving.errors import ApiError, error_response, validation_sentence
from vanilla_transformer.serving.metrics import ServerMetrics
from vanilla_transformer.serving.middleware import BodyLimit, FormAsJson, HostCheck
from vanilla_transformer.serving.models import Generation, Output, Passage, Predictor, ServedGenerator, TooLongError
from vanilla_transformer.serving.schemas import ChatRequest, CompletionRequest, PredictRequest, TranslateRequest
from vanilla_transformer.serving.settings import ServerSettings
from vanilla_transformer.utils.languages import language_name

__all__ = ["Server", "create_app"]

DEFAULT_COMPLETION = 16
"""Tokens of a completion whose request does not say how many, as in OpenAI's interface."""

PATHS = {"translation": "POST /translate", "text-generation": "POST /v1/completions or /v1/chat/completions"}


class Server:
    """A model with the engine that computes with it, and the requests it answers.

    Args:
        model: of [`backends.load`].
        name: of the model, for clients.
        settings: bounds.
    """

    def __init__(self, model: ServedGenerator | Predictor, name: str, settings: ServerSettings | None = None):
        self.model, self.name = model, name
        self.settings = settings or ServerSettings()
        self.metrics = ServerMetrics(lambda: self.engine.waiting)
        self.engine = Engine(
            model,
            max_waiting=self.settings.max_waiting,
            max_batch_tokens=self.settings.max_batch_tokens,
            max_batch_items=self.settings.max_batch_items,
            batch_wait=self.settings.batch_wait,
            stall_after=self.settings.stall_after,
            on_batch=self.metrics.count_batch,
        )
        self.started = int(time.time())
        self.reading: set[asyncio.Timeout] = set()

    def give_up(self) -> None:
        """Answer all requests that are in progress at once, that the server is stopping."""
        self.engine.cancel_all()
        for timeout in self.reading:
            timeout.reschedule(asyncio.get_running_loop().time())

    # Checks ----------------------------------------------------------------------------------------------------------

    def check_key(self, request: Request, in_body: str | None = None) -> None:
        """Refuse a request without the key, where there is one."""
        wanted = self.settings.api_key
        if wanted is None:
            return
        scheme, _, in_header = request.headers.get("authorization", "").partition(" ")
        given = in_header.strip() if scheme.lower() == "bearer" else in_body or ""
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise ApiError(
                401, "an API key is needed: send Authorization: Bearer KEY.", {"WWW-Authenticate": "Bearer"}
            )

    def generator(self, kind: str) -> ServedGenerator:
        """Return the model where it is of this kind."""
        if isinstance(self.model, ServedGenerator) and self.model.kind == kind:
            return self.model
        path = PATHS.get(self.model.kind, "POST /predict")
        raise ApiError(400, f"the model here is for {self.model.kind}; use {path}.")

    def check_model(self, name: str | None) -> None:
        """Refuse the name of another model: requests load none."""
        if name is not None and name != self.name:
            raise ApiError(404, f"there is no such model here, only {self.name!r}; leave the field model out.")

    def new_tokens(self, asked: int | None, default: int, prompt: int) -> int:
        """Return how many tokens may be generated after a prompt."""
        most = self.settings.max_new_tokens
        if asked is not None and asked > most:
            raise ApiError(422, f"max_tokens={asked} is more than the {most} that this server allows; ask for fewer.")
        room = self.generator("text-generation").limit - prompt
        wanted = default if asked is None else asked
        if room < 1 or (asked is not None and asked > room):
            raise ApiError(
                422,
                f"the prompt has {prompt} tokens, so that {max(0, int(room)) if room > 0 else 0} are left of the "
                f"{prompt + int(room)} that the model can hold, not {wanted}; shorten the prompt or lower max_tokens.",
            )
        return int(min(wanted, room, most))

    # Computing -------------------------------------------------------------------------------------------------------

    def submit(self, items: Sequence[Item]) -> None:
        if len(items) > self.settings.max_waiting:
            most = self.settings.max_waiting
            raise ApiError(
                413, f"the texts are {len(items)} parts, more than the {most} that may wait; send fewer at once."
            )
        try:
            self.engine.submit(items)
        except BusyError as error:
            raise ApiError(429, str(error), {"Retry-After": "1"}) from error
        except StoppedError as error:
            raise ApiError(503, str(error)) from error

    async def compute(self, request: Request, items: Sequence[Item]) -> list[Any]:
        """Return the results of items, in order.

        Raises:
            ApiError: where they do not come in time, or fail.
            ClientLeft: where nobody waits for them any longer.
        """
        loop = asyncio.get_running_loop()
        results: list[asyncio.Future] = [loop.create_future() for _ in items]
        for item, result in zip(items, results, strict=True):
            item.deliver = _deliver_to(loop, result)
        self.submit(items)
        all_results = asyncio.ensure_future(asyncio.gather(*results))
        left = asyncio.ensure_future(_client_leaves(request))
        try:
            await asyncio.wait({all_results, left}, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if all_results.done():
                found = all_results.result()
                self.metrics.tokens.inc(sum(output.tokens for output in found if isinstance(output, Output)))
                return found
            if left.done():
                raise ClientLeft
            raise ApiError(504, f"there was no answer within {self.settings.timeout:g} seconds; ask for less at once.")
        except StoppedError as error:
            raise ApiError(503, str(error)) from error
        finally:
            for item in items:
                item.cancelled = True
            for task in (all_results, left):
                task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await all_results

    # Answers ---------------------------------------------------------------------------------------------------------

    async def translate(self, request: Request, body: TranslateRequest) -> dict[str, Any]:
        generator, settings = self.generator("translation"), self.settings
        self._check_languages(body)
        if body.alternatives >= settings.max_beams:
            raise ApiError(422, f"alternatives={body.alternatives} is more than the {settings.max_beams - 1} allowed.")
        texts = [body.q] if isinstance(body.q, str) else body.q
        self._check_count(texts)
        split = await run_in_threadpool(_each, generator.split, texts)
        n_best = body.alternatives + 1
        own_beams = generator.generation_config.num_beams or 1
        items = []
        for parts, _ in split:
            # the best outputs of each of several parts do not tell the best ones of the whole
            count = n_best if len(parts) == 1 else 1
            options = Generation(num_beams=max(own_beams, count), n_best=count)
            for _, ids in parts:
                items.append(Item(Passage(ids, settings.max_new_tokens), len(ids), options))
        outputs = iter(await self.compute(request, items) if items else [])
        answers = [_document(parts, end, [next(outputs).texts for _ in parts]) for parts, end in split]
        translated = [best for best, _ in answers]
        answer: dict[str, Any] = {"translatedText": translated[0] if isinstance(body.q, str) else translated}
        if body.alternatives:
            others = [rest for _, rest in answers]
            answer["alternatives"] = others[0] if isinstance(body.q, str) else others
        return answer

    def _check_count(self, texts: Sequence[Any]) -> None:
        if len(texts) > self.settings.max_texts:
            most = self.settings.max_texts
            raise ApiError(
                413, f"{len(texts)} texts are more than the {most} that this server takes at once; send fewer."
            )

    def _check_languages(self, body: TranslateRequest) -> None:
        for name, asked, own in (
            ("source", body.source, self.settings.source_language),
            ("target", body.target, self.settings.target_language),
        ):
            if own is not None and asked not in ("", "auto", own):
                raise ApiError(400, f"{name}={asked!r:.40} is not a language of this model; its {name} is {own!r}.")

    def languages(self) -> list[dict[str, Any]]:
        self.generator("translation")
        source, target = self.settings.source_language, self.settings.target_language
        if source is None or target is None:
            return []
        languages = [{"code": source, "name": language_name(source), "targets": [target]}]
        if target != source:
            languages.append({"code": target, "name": language_name(target), "targets": []})
        return languages

    async def complete(self, request: Request, body: CompletionRequest) -> Any:
        generator = self.generator("text-generation")
        self.check_model(body.model)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        self._check_count(prompts)
        if not prompts:
            raise ApiError(422, "prompt is an empty list; give a text.")
        encoded = await run_in_threadpool(_each, generator.encode, prompts)
        jobs = []
        for ids in encoded:
            ids = ids or [token for token in [generator.config.bos_token_id] if token is not None]
            if not ids:
                raise ApiError(422, "the prompt is empty, and the model has no token that begins a text; give a text.")
            jobs.append((ids, self.new_tokens(body.max_tokens, DEFAULT_COMPLETION, len(ids))))
        form = _Completion(self.name, [prompt if body.echo else "" for prompt in prompts])
        return await self._generate(request, body, jobs, form)

    async def chat(self, request: Request, body: ChatRequest) -> Any:
        generator = self.generator("text-generation")
        self.check_model(body.model)
        if not generator.has_chat_template:
            raise ApiError(400, "the tokenizer of this model has no chat template; use POST /v1/completions.")
        messages = [{"role": message.role, "content": message.content} for message in body.messages]
        try:
            ids = await run_in_threadpool(generator.encode_chat, messages)
        except ValueError as error:
            raise ApiError(422, str(error)) from error
        asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        job = (ids, self.new_tokens(asked, self.settings.max_new_tokens, len(ids)))
        return await self._generate(request, body, [job], _Chat(self.name, [""]))

    async def _generate(
        self, request: Request, body: CompletionRequest | ChatRequest, jobs: list[tuple[list[int], int]], form: Any
    ) -> Any:
        temperature = 1.0 if body.temperature is None else body.temperature
        if body.seed is not None and temperature and not self.generator("text-generation").takes_seed:
            raise ApiError(422, "seed has no effect with --backend ctranslate2; leave it out.")
        stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
        if "" in stop:
            raise ApiError(422, "stop holds an empty text, at which every output would end; leave it out.")
        items = []
        for ids, most in jobs:
            options = Generation.sampled(temperature, 1.0 if body.top_p is None else body.top_p, body.seed)
            items.append(Item(Passage(ids, most, stop), len(ids), options))
        if body.stream:
            return self._stream(request, items, form, bool((body.stream_options or {}).get("include_usage")))
        outputs = await self.compute(request, items)
        return form.whole(outputs, sum(len(ids) for ids, _ in jobs))

    def _stream(self, request: Request, items: list[Item], form: Any, usage: bool) -> StreamingResponse:
        """Return an answer of server-sent events: what each output has grown by, then how it ended."""
        loop = asyncio.get_running_loop()
        news: asyncio.Queue = asyncio.Queue()

        def tell(number: int) -> Callable[[Any], None]:
            return lambda news_of_item: _call(loop, news.put_nowait, (number, news_of_item))

        for number, item in enumerate(items):
            item.deliver = tell(number)
            passage: Passage = item.payload
            item.payload = Passage(passage.ids, passage.max_new_tokens, passage.stop, tell(number))
        self.submit(items)
        return StreamingResponse(self._events(request, items, news, form, usage), media_type="text/event-stream")

    async def _events(
        self, request: Request, items: list[Item], news: asyncio.Queue, form: Any, usage: bool
    ) -> AsyncIterator[str]:
        until = time.monotonic() + self.settings.timeout
        left = asyncio.ensure_future(_client_leaves(request))
        shown = [""] * len(items)
        outputs: dict[int, Output] = {}
        try:
            for number, prefix in enumerate(form.prefixes):
                yield _event(form.chunk(number, prefix, first=True))
            while len(outputs) < len(items):
                get = asyncio.ensure_future(news.get())
                await asyncio.wait({get, left}, timeout=until - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
                if not get.done():
                    get.cancel()
                    if not left.done():
                        yield _event(
                            {"error": {"message": f"there was no end within {self.settings.timeout:g} seconds."}}
                        )
                    return
                number, told = get.result()
                if isinstance(told, BaseException):
                    sentence = (
                        str(told) if isinstance(told, StoppedError) else "the model failed; the server's log says how."
                    )
                    yield _event({"error": {"message": sentence}})
                    return
                text = told.texts[0] if isinstance(told, Output) else told
                if text.startswith(shown[number]) and text != shown[number]:
                    yield _event(form.chunk(number, text[len(shown[number]) :]))
                    shown[number] = text
                if isinstance(told, Output):
                    outputs[number] = told
                    self.metrics.tokens.inc(told.tokens)
                    yield _event(form.chunk(number, "", finish_reason=told.finish_reason))
            if usage:
                yield _event(form.usage_chunk(list(outputs.values()), sum(item.size for item in items)))
            yield "data: [DONE]\n\n"
        finally:
            left.cancel()
            for item in items:
                item.cancelled = True

    async def predict(self, request: Request, body: PredictRequest) -> list[Any]:
        if not isinstance(self.model, Predictor):
            self.generator("")  # refuses, with the path to use
        predictor: Predictor = self.model  # type: ignore[assignment]
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        self._check_count(inputs)
        reads_pairs = predictor.kind == "question-answering"
        for each in inputs:
            if reads_pairs and (isinstance(each, str) or set(each) != {"question", "context"}):
                raise ApiError(422, 'inputs of this model are objects {"question": ..., "context": ...}.')
            if not reads_pairs and not isinstance(each, str):
                raise ApiError(422, "inputs of this model are texts.")
            if not all(text.strip() for text in ([each] if isinstance(each, str) else each.values())):
                raise ApiError(422, "an input is empty; give a text.")
        if body.top_k is not None and predictor.kind not in predictor.takes_top_k:
            raise ApiError(422, f"top_k has no effect for {predictor.kind}; leave it out.")
        texts = [each if isinstance(each, str) else f"{each['question']} {each['context']}" for each in inputs]
        try:
            sizes = await run_in_threadpool(_each, predictor.size, texts)
        except ValueError as error:
            raise ApiError(422, str(error)) from error
        options = () if body.top_k is None else (("top_k", body.top_k),)
        items = [Item(each, size, options) for each, size in zip(inputs, sizes, strict=True)]
        found = await self.compute(request, items) if items else []
        return found if isinstance(body.inputs, list) else found[0]


class ClientLeft(Exception):
    """Nobody waits for the answer any longer."""


class _Completion:
    """Answers in the form of OpenAI's completions."""

    kind, chunk_kind, prefix = "text_completion", "text_completion", "cmpl"

    def __init__(self, model: str, prefixes: list[str]):
        self.prefixes = prefixes
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, outputs: list[Output], prompt_tokens: int) -> dict[str, Any]:
        choices = [
            {
                **self.choice(prefix + output.texts[0]),
                "index": i,
                "logprobs": None,
                "finish_reason": output.finish_reason,
            }
            for i, (prefix, output) in enumerate(zip(self.prefixes, outputs, strict=True))
        ]
        return {**self.head, "object": self.kind, "choices": choices, "usage": _usage(outputs, prompt_tokens)}

    def chunk(self, number: int, text: str, *, first: bool = False, finish_reason: str | None = None) -> Any:
        choice = {**self.delta(text, first), "index": number, "logprobs": None, "finish_reason": finish_reason}
        return {**self.head, "object": self.chunk_kind, "choices": [choice]}

    def usage_chunk(self, outputs: list[Output], prompt_tokens: int) -> dict[str, Any]:
        return {**self.head, "object": self.chunk_kind, "choices": [], "usage": _usage(outputs, prompt_tokens)}

    def choice(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        return {"text": text}


class _Chat(_Completion):
    """Answers in the form of OpenAI's chats."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def choice(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        return {"delta": ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})}


def _usage(outputs: Sequence[Output], prompt_tokens: int) -> dict[str, int]:
    written = sum(output.tokens for output in outputs)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written}


def _document(
    parts: Sequence[tuple[str, list[int]]], end: str, outputs: Sequence[Sequence[str]]
) -> tuple[str, list[str]]:
    """Return the translation of a text from those of its parts, and the alternatives where there is one part."""
    gaps = [gap for gap, _ in parts]
    best = "".join(gap + texts[0] for gap, texts in zip(gaps, outputs, strict=True)) + end
    others = [gaps[0] + text + end for text in outputs[0][1:]] if len(parts) == 1 else []
    return best, others


def _each(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [function(value) for value in values]


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in the loop, from another thread; where the loop has ended, nobody waits for it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


def _deliver_to(loop: asyncio.AbstractEventLoop, future: asyncio.Future) -> Callable[[Any], None]:
    def settle(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    return lambda result: _call(loop, settle, result)


async def _client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# The application -----------------------------------------------------------------------------------------------------


class _Counted:
    """Counts requests by path and status, and how long they take."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, paths: frozenset[str]):
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        started, status = time.monotonic(), "499"  # of a client that left before there was an answer

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, counted)
        finally:
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.monotonic() - started)


def create_app(server: Server) -> FastAPI:
    """Return the application of a server; its engine starts and stops with the application."""
    settings = server.settings

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        server.engine.start()
        yield
        await run_in_threadpool(server.engine.stop, settings.shutdown_seconds)

    # the pages of the documentation would load code from elsewhere
    app = FastAPI(title=f"vanilla-transformer: {server.name}", lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_routes(app, server)
    _add_error_handlers(app)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    # the last one added is the first that a request meets
    app.add_middleware(FormAsJson, path="/translate", origins=settings.cors_origins, numbers=("alternatives",))
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.timeout, reading=server.reading)
    if settings.cors_origins:
        origins = list(settings.cors_origins)
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(HostCheck, allowed=settings.allowed_hosts)
    app.add_middleware(_Counted, metrics=server.metrics, paths=paths)
    return app


def _add_routes(app: FastAPI, server: Server) -> None:
    @app.post("/translate")
    async def translate(request: Request, body: TranslateRequest) -> Any:
        server.check_key(request, body.api_key)
        return await server.translate(request, body)

    @app.get("/languages")
    async def languages(request: Request) -> Any:
        server.check_key(request)
        return server.languages()

    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Any:
        server.check_key(request)
        return await server.complete(request, body)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request, body: ChatRequest) -> Any:
        server.check_key(request)
        return await server.chat(request, body)

    @app.get("/v1/models")
    async def models(request: Request) -> Any:
        server.check_key(request)
        entry = {"id": server.name, "object": "model", "created": server.started, "owned_by": "vanilla-transformer"}
        return {"object": "list", "data": [entry]}

    @app.post("/predict")
    async def predict(request: Request, body: PredictRequest) -> Any:
        server.check_key(request)
        return await server.predict(request, body)

    @app.get("/health")
    async def health() -> Any:
        problem = server.engine.problem()
        if problem is not None:
            raise ApiError(503, problem)
        return {"status": "ok", "model": server.name, "task": server.model.kind, "waiting": server.engine.waiting}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        server.check_key(request)
        return Response(server.metrics.to_text(), media_type="text/plain; version=0.0.4")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> JSONResponse:
        return error_response(request.url.path, error.status, error.sentence, error.headers)

    @app.exception_handler(TooLongError)
    async def too_long(request: Request, error: TooLongError) -> JSONResponse:
        return error_response(request.url.path, 422, str(error))

    @app.exception_handler(ClientLeft)
    async def client_left(request: Request, error: ClientLeft) -> Response:
        return Response(status_code=499)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        status, sentence = validation_sentence(list(error.errors()))
        return error_response(request.url.path, status, sentence)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        sentences = {
            400: "the body cannot be read: it is not UTF-8, or its JSON is nested too deeply or holds too long a number.",
            404: f"there is no {request.method} {request.url.path} here.",
            405: f"{request.url.path} does not take {request.method}.",
        }
        sentence = sentences.get(error.status_code, f"{error.detail}.")
        return error_response(request.url.path, error.status_code, sentence, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return error_response(request.url.path, 500, "the model failed; the server's log says how.")
