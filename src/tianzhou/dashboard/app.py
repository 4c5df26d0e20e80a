"""The application: routes of all pages, and error responses."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.client.errors import (
    BrokerNotFound,
    GroupNotExist,
    RemoteError,
    TopicNotExist,
    TopicNotFound,
)
from tianzhou.dashboard.access import SESSION_S, Login
from tianzhou.dashboard.guard import COOKIE, Guard
from tianzhou.dashboard.page_context import PageContext, field_of
from tianzhou.dashboard.pages import (
    brokers,
    dlq,
    groups,
    messages,
    overview,
    pipelines,
    scheduled,
    topics,
    transactions,
)

Page = Callable[[PageContext, Request], Awaitable[Response]]

PAGES: Final[tuple[tuple[str, Page], ...]] = (
    ("/", overview.show),
    ("/topics", topics.listed),
    ("/topics.csv", topics.exported),
    ("/topics/{name}", topics.show),
    ("/light-queues", topics.light_queues),
    ("/groups", groups.listed),
    ("/groups.csv", groups.exported),
    ("/groups/{name}", groups.show),
    ("/messages", messages.search),
    ("/messages.csv", messages.exported),
    ("/messages/{topic}/{id}", messages.show),
    ("/messages/{topic}/{id}/body", messages.body),
    ("/trace", messages.trace),
    ("/dlq", dlq.listed),
    ("/dlq/{group}", dlq.show),
    ("/transactions", transactions.listed),
    ("/scheduled", scheduled.listed),
    ("/pipelines", pipelines.listed),
    ("/brokers/{name}", brokers.show),
    # Forms, which say what will happen before it does.
    ("/new-topic", topics.ask_create),
    ("/topics/{name}/change", topics.ask_change),
    ("/topics/{name}/spread", topics.ask_spread),
    ("/topics/{name}/delete", topics.ask_delete),
    ("/groups/{name}/reset", groups.ask_reset),
    ("/groups/{name}/switch", groups.ask_switch),
    ("/brokers/{name}/clean", brokers.ask_clean),
    ("/brokers/{name}/drain", brokers.ask_drain),
)
CHANGES: Final[tuple[tuple[str, Page], ...]] = (
    ("/new-topic", topics.create),
    ("/topics/{name}/change", topics.change),
    ("/topics/{name}/spread", topics.spread),
    ("/topics/{name}/delete", topics.delete),
    ("/groups/{name}/reset", groups.reset),
    ("/groups/{name}/switch", groups.switch),
    ("/brokers/{name}/clean", brokers.clean),
    ("/brokers/{name}/drain", brokers.drain),
    ("/dlq/{group}/confirm", dlq.ask_replay),
    ("/dlq/{group}/replay", dlq.replay),
    ("/transactions/decide", transactions.decide),
    ("/scheduled/cancel", scheduled.cancel),
)
STATIC: Final = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def create(context: PageContext, names: Iterable[str]) -> ASGIApp:
    """`names` are those by which browsers may call this machine."""
    routes = [
        *(Route(path, _endpoint(context, page), methods=["GET"]) for path, page in PAGES),
        *(Route(path, _endpoint(context, page), methods=["POST"]) for path, page in CHANGES),
        *(Route(f"/static/{name}", _static(name, kind)) for name, kind in STATIC.items()),
        Route("/login", _endpoint(context, _ask_login), methods=["GET"]),
        Route("/login", _endpoint(context, _login), methods=["POST"]),
        Route("/logout", _endpoint(context, _logout), methods=["POST"]),
        Route("/metrics", _endpoint(context, _metrics), methods=["GET"]),
        Route("/healthz", _endpoint(context, _health), methods=["GET"]),
        Route("/readyz", _endpoint(context, _readiness), methods=["GET"]),
    ]

    async def lost(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = f"there is no page {request.url.path}" if error.status_code == 404 else error.detail
        return context.show(
            request, "error.html", status=error.status_code, nav="", title="Not found", why=said
        )

    app = Starlette(routes=routes, exception_handlers={HTTPException: lost})
    return Guard(app, context.access, names, context.clock.monotonic_s)


def _endpoint(context: PageContext, page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await page(context, request)
        except TianzhouError as error:
            return _failed(context, request, error)

    return endpoint


def _failed(context: PageContext, request: Request, error: TianzhouError) -> Response:
    """Show the error of the client or broker, which names the next step."""
    status, title = 502, "The cluster does not answer"
    if isinstance(error, TopicNotFound | TopicNotExist | GroupNotExist | BrokerNotFound):
        status, title = 404, "Not found"
    elif isinstance(error, UsageError):
        status, title = 400, "That can't be done"
    elif isinstance(error, RemoteError):
        title = "A broker refused"
    return context.show(request, "error.html", status=status, nav="", title=title, why=str(error))


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """Files are named one by one: a path never reaches the disk."""
    data = (files("tianzhou.dashboard") / "static" / name).read_bytes()

    async def endpoint(_request: Request) -> Response:
        headers = {"Cache-Control": "no-cache"}
        return Response(data, media_type=kind, headers=headers)

    return endpoint


# Login


async def _ask_login(context: PageContext, request: Request) -> Response:
    if request.scope["state"]["is_known"]:
        return RedirectResponse("/", 303)
    return context.show(request, "login.html", nav="", title="Log in", why="")


async def _login(context: PageContext, request: Request) -> Response:
    address = request.client.host if request.client else ""
    password = field_of(request, "password")
    found = context.access.login(password, address, context.clock.monotonic_s())
    if isinstance(found, Login):
        why, status = "That is not the password.", 403
        if found is Login.TOO_OFTEN:
            why, status = "Too many wrong passwords; wait a minute.", 429
        return context.show(request, "login.html", status=status, nav="", title="Log in", why=why)
    response = RedirectResponse("/", 303)
    response.set_cookie(COOKIE, found, max_age=int(SESSION_S), httponly=True, samesite="strict")
    return response


async def _logout(context: PageContext, request: Request) -> Response:
    context.access.logout(request.scope["state"]["session"])
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


# What programs ask


async def _metrics(context: PageContext, request: Request) -> Response:
    if not request.scope["state"]["is_known"] and not _has_password(context, request):
        return PlainTextResponse(
            "the password of the dashboard, as basic authentication\n",
            401,
            {"WWW-Authenticate": 'Basic realm="tianzhou"'},
        )
    if context.metrics is None:
        raise HTTPException(404)
    return Response(await context.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _has_password(context: PageContext, request: Request) -> bool:
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return False
    try:
        password = base64.b64decode(text).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return False
    address = request.client.host if request.client else ""
    found = context.access.login(password, address, context.clock.monotonic_s())
    if isinstance(found, Login):
        return False
    context.access.logout(found)
    return True


async def _health(context: PageContext, _request: Request) -> Response:
    if context.health is None:
        raise HTTPException(404)
    status, body = context.health()
    return Response(body, status, media_type="application/json")


async def _readiness(context: PageContext, _request: Request) -> Response:
    if context.readiness is None:
        raise HTTPException(404)
    status, body = context.readiness()
    return Response(body, status, media_type="application/json")
