"""What stands before every page: limits, the host, where a request comes from, headers.

GET changes nothing. Whatever does comes as a form from one of our own pages: with our host in
`Origin`, and with a token that other sites can't read.
"""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tianzhou.dashboard.access import Access

HEADER_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 1024 * 1024
BODY_S: Final = 10.0
"""For the whole body: forms are small."""
FIELDS_MAX: Final = 2_000
COOKIE: Final = "tianzhou_session"
LIVE: Final = "x-live"
"""Sent with what a page asks for by itself, every few seconds."""
FORM: Final = "application/x-www-form-urlencoded"
OPEN_PATHS: Final = ("/login", "/static/", "/healthz", "/readyz")
"""Without a login. Health says nothing that a stranger may not know."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # With "no-referrer" browsers would leave out the origin of our own forms, too.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refusal(Exception):
    """The answer to a request that goes no further."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.said = said


class Guard:
    """Owner: the event loop."""

    def __init__(
        self, app: ASGIApp, access: Access, names: Iterable[str], monotonic_s: Callable[[], float]
    ) -> None:
        """`names` are those by which browsers may call this machine, beside addresses."""
        self._app = app
        self._access = access
        self._names = frozenset(name.lower() for name in names)
        self._monotonic_s = monotonic_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = _with_headers(send)
        try:
            through = await self._checked(scope, receive)
        except Refusal as refusal:
            response = PlainTextResponse(refusal.said + "\n", refusal.status)
            if refusal.status in (408, 413, 431):
                response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        if isinstance(through, Response):
            await through(scope, receive, send)
        else:
            await self._app(scope, through, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive | Response:
        headers, path, method = Headers(scope=scope), str(scope["path"]), str(scope["method"])
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES_MAX:
            raise Refusal(431, f"the headers have more than {HEADER_BYTES_MAX} bytes")
        self._check_host(headers.get("host", ""))
        session = _cookie(headers.get("cookie", ""))
        state = scope.setdefault("state", {})
        state["session"], state["token"] = session, self._access.token(session)
        by_itself = LIVE in headers
        is_known = self._access.is_known(session, self._monotonic_s(), by_itself=by_itself)
        state["is_known"] = is_known
        if method in ("GET", "HEAD"):
            # Metrics ask for the password in their own way: scrapers have no sessions.
            if is_known or path.startswith(OPEN_PATHS) or path == "/metrics":
                return receive
            return RedirectResponse("/login", 303)
        if method != "POST":
            raise Refusal(405, f"{method} is not used here")
        _check_origin(headers)
        body = await _body(headers, receive)
        state["form"] = form = _form(headers, body)
        if not self._access.is_token(form.get("token", [""])[0], session):
            raise Refusal(403, "this form is too old, or not ours; load its page again")
        if not is_known and path != "/login":
            raise Refusal(403, "log in first")
        return _replay(body)

    def _check_host(self, host: str) -> None:
        """A page of another site could give its own name our address, and read everything. It
        can't give that name an address for a name."""
        name = urlsplit(f"//{host}").hostname or ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            if name not in self._names:
                raise Refusal(
                    421,
                    f"this is not {name[:128]!r}; start the server with --http-name to allow it",
                ) from None


def _check_origin(headers: Headers) -> None:
    origin = headers.get("origin", "")
    if urlsplit(origin).netloc != headers.get("host", "") or not origin:
        raise Refusal(403, f"changes are made from our own pages, not from {origin[:128]!r}")


async def _body(headers: Headers, receive: Receive) -> bytes:
    size = headers.get("content-length", "0")
    if not size.isdecimal() or int(size) > BODY_BYTES_MAX:
        raise Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > BODY_BYTES_MAX:
                    raise Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {BODY_S:.0f} s") from None


def _form(headers: Headers, body: bytes) -> dict[str, list[str]]:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Refusal(415, f"changes come as {FORM}")
    try:
        return parse_qs(
            body.decode("utf-8", "strict"), keep_blank_values=True, max_num_fields=FIELDS_MAX
        )
    except ValueError:
        raise Refusal(400, "the form can't be read") from None


def _cookie(text: str) -> str:
    try:
        found = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _replay(body: bytes) -> Receive:
    """The body was read already; whoever asks gets it again."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _with_headers(send: Send) -> Send:
    added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), *added]
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return sending
