"""The page behind HTTP: FastAPI around `answers`. Start reading at `make_app`.

Safe on a machine that others use: only our own Host and Origin are served, bodies and times are limited, nothing of the
disk is served but the page's own files, which are read once when the server starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vramcast.errors import VramcastError
from vramcast.report.timeline_html import SCRIPTS
from vramcast.units import MiB
from vramcast.web.answers import ANSWERS
from vramcast.web.given import Place
from vramcast.web.pool import Busy, Failure, Pool
from vramcast.web.recordings import MOST_BYTES, Keeper

MOST_BODY_BYTES = 10 * MiB
FILE_PATH = "/api/file"
BYTES = {"type": "string", "format": "binary"}
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

Scalar = str | bool | int | float | None
JobKeys = Annotated[dict[str, Scalar | list[str | int | float]], Field(max_length=200)]


class Body(BaseModel):
    """What every question may say."""

    model_config = ConfigDict(extra="forbid")
    lang: Annotated[str, Field(max_length=10)] = "en"


class JobBody(Body):
    job: JobKeys
    files: Annotated[dict[str, str], Field(max_length=8)] = {}
    count: Annotated[int, Field(ge=1, le=1000)] = 99


class GrowthBody(JobBody):
    axis: Annotated[str, Field(max_length=10)] = "seq"


class SomeBody(JobBody):
    skip: Annotated[int, Field(ge=0, le=1000)] = 0


class ExploreBody(JobBody):
    """`wait`: also for a run on the virtual GPU, where no formula describes the model."""

    wait: bool = True
    pinned: JobKeys | None = None


class CompareBody(JobBody):
    pinned: JobKeys


class FileBody(Body):
    name: Annotated[str, Field(max_length=300)]
    text: str
    more: Annotated[dict[str, str], Field(max_length=7)] = {}  # dropped together with it


class TimelineBody(Body):
    """A job, or a file that was sent before."""

    job: JobKeys | None = None
    files: Annotated[dict[str, str], Field(max_length=8)] = {}
    file: Annotated[str, Field(max_length=4096)] | None = None


class LogBody(Body):
    text: str = ""
    file: Annotated[str, Field(max_length=4096)] | None = None
    job: JobKeys | None = None
    files: Annotated[dict[str, str], Field(max_length=8)] = {}


class Kept(BaseModel):
    """Where a file that was sent is found again."""

    file: str


class Problem(BaseModel):
    """One line that says what is wrong and what to do."""

    error: str


_BODIES: dict[str, type[Body]] = {
    "catalog": Body,
    "explore": ExploreBody,
    "changes": SomeBody,
    "effects": SomeBody,
    "growth": GrowthBody,
    "compare": CompareBody,
    "timeline": TimelineBody,
    "read": FileBody,
    "diagnose": LogBody,
}
BODIES = {name: _BODIES.get(name, JobBody) for name in ANSWERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server listens; only requests to it, and from pages of its own, are answered."""

    host: str
    port: int

    def hosts(self) -> frozenset[str]:
        names = {self.host, "127.0.0.1", "localhost", "[::1]"}
        return frozenset(f"{name}:{self.port}" for name in names)


def make_app(pool: Pool, address: Address) -> FastAPI:
    @asynccontextmanager
    async def living(app: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    app = FastAPI(
        title="vramcast",
        version="1",
        lifespan=living,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    for name, body in BODIES.items():
        app.add_api_route(
            f"/api/{name}", _endpoint(pool, name, body), methods=["POST"], name=name, response_class=Response,
            responses={
                200: {"content": {"application/json": {"schema": {"type": "object"}}}},
                400: {"model": Problem}, 403: {"model": Problem}, 413: {"model": Problem},
                422: {"model": Problem}, 500: {"model": Problem}, 503: {"model": Problem},
            },
        )  # fmt: skip
    app.add_api_route(
        FILE_PATH, _taker(pool.place), methods=["POST"], name="file",
        responses={status: {"model": Problem} for status in (400, 403, 413, 422)},
        openapi_extra={"requestBody": {"content": {"application/octet-stream": {"schema": BYTES}}}},
    )  # fmt: skip
    for path, (content, kind) in page_files().items():
        app.add_api_route(
            path, _file(content, kind), methods=["GET", "HEAD"], include_in_schema=False
        )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_middleware(Guard, hosts=address.hosts())
    return app


def _endpoint(pool: Pool, name: str, body: type[Body]) -> Callable[..., Awaitable[Response]]:
    async def ask(request: Any, http: Request) -> Response:
        asked = request.model_dump()
        try:
            text = pool.known(name, asked) or await _while_wanted(http, pool.ask(name, asked))
        except Gone:
            return problem(499, "nobody waits for this answer any longer")
        except VramcastError as error:
            return problem(422, str(error))
        except Busy as error:
            return problem(503, str(error))
        except Failure as error:
            return problem(500, f"a mistake of vramcast's own: {error}")
        return Response(text, media_type="application/json")

    ask.__annotations__["request"] = body
    return ask


class Gone(Exception):
    """Whoever asked has hung up."""


async def _while_wanted(http: Request, asked: Coroutine[Any, Any, str]) -> str:
    """The answer, unless the client hangs up before: then nobody computes it any longer."""
    answer = asyncio.create_task(asked)
    watch = asyncio.create_task(_hung_up(http))
    try:
        await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Gone
    finally:
        watch.cancel()
        answer.cancel()


async def _hung_up(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _taker(place: Place) -> Callable[..., Awaitable[Kept]]:
    async def take(
        request: Request, name: Annotated[str, Query(min_length=1, max_length=300)]
    ) -> Kept:
        """Keeps a trace or a memory snapshot, to be asked about by the name that is answered."""
        keeper = Keeper(place, name)
        try:
            async for part in request.stream():
                await run_in_threadpool(keeper.add, part)
            return Kept(file=await run_in_threadpool(keeper.close))
        except VramcastError as error:
            raise HTTPException(413, str(error)) from None
        finally:
            keeper.discard()

    return take


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def read() -> Response:
        return Response(content, media_type=kind)

    return read


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
    return problem(422, f"{where}: {first.get('msg', 'not understood')}".removeprefix(": ")[:500])


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail))


def problem(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status)


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page's own files by address, and what tells it that a server answers."""
    page = files("vramcast.web").joinpath("page")
    found = {f"/{item.name}": _content(item) for item in page.iterdir() if item.is_file()}
    report = files("vramcast.report")
    for name in ("style.css", *SCRIPTS):
        found[f"/{name}"] = _content(report.joinpath(name))
    found["/engine.json"] = (b'{"engine": "server"}', TYPES[".json"])
    found["/"] = found["/index.html"]
    return found


def _content(item: Traversable) -> tuple[bytes, str]:
    suffix = "." + item.name.rpartition(".")[2]
    return item.read_bytes(), TYPES.get(suffix, "application/octet-stream")


class Guard:
    """Around everything: foreign hosts and origins are refused, bodies are bounded, headers are strict."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        refused = self._refused(headers, scope["path"])
        if refused is not None:
            await refused(scope, receive, sent)
            return
        if scope["path"] == FILE_PATH:  # written to the disk part by part, and bounded there
            await self._app(scope, receive, sent)
            return
        body = await _whole_body(receive)
        if body is None:
            await problem(413, f"more than {MOST_BODY_BYTES:,} B")(scope, receive, sent)
            return

        async def replayed() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message: Message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self._app(scope, replayed, sent)

    def _refused(self, headers: dict[str, str], path: str) -> JSONResponse | None:
        if headers.get("host", "").lower() not in self._hosts:
            return problem(403, "this server answers only under its own name")
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] not in self._hosts:
            return problem(403, "pages of other origins are not answered")
        length = headers.get("content-length", "0")
        most = MOST_BYTES if path == FILE_PATH else MOST_BODY_BYTES
        if not length.isdigit() or int(length) > most:
            return problem(413, f"more than {most:,} B")
        return None


async def _whole_body(receive: Receive) -> bytes | None:
    """None where it is longer than allowed."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > MOST_BODY_BYTES:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
