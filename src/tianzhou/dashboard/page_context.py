"""The context of every page: the admin client, the clock, templates, and rendering."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tianzhou.base.clock import Clock
from tianzhou.client.aio.admin import Admin
from tianzhou.client.options import ClientOptions
from tianzhou.dashboard.access import Access
from tianzhou.dashboard.render import environment

SAID_MAX: Final = 100


@dataclass(slots=True)
class PageContext:
    """What all pages share. The admin client starts with the first page. Owner: the event loop."""

    nameservers: Callable[[], str]
    """Returns the current list; that of a broker can change while it runs."""
    clock: Clock
    access: Access
    version: str
    metrics: Callable[[], Awaitable[bytes]] | None = None
    health: Callable[[], tuple[int, bytes]] | None = None
    readiness: Callable[[], tuple[int, bytes]] | None = None
    client: ClientOptions = ClientOptions()
    templates: jinja2.Environment = field(default_factory=environment)
    _admin: Admin | None = None
    _followed: str = ""
    """The list that the admin client uses."""
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _said: dict[str, str] = field(default_factory=dict[str, str])
    """Messages about completed actions, by the key in the address of the page, so that a link
    cannot inject text."""

    async def admin(self) -> Admin:
        async with self._starting:
            wanted = self.nameservers()
            if self._admin is None:
                self._admin = await Admin(nameserver=wanted, client=self.client).start()
            elif wanted != self._followed:
                self._admin.update_name_servers(wanted)
            self._followed = wanted
        return self._admin

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    def show(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> Response:
        """A page; `title` and `nav` are of its frame."""
        state = request.scope["state"]
        text = self.templates.get_template(template).render(
            now_ms=self.clock.now_ms(),
            version=self.version,
            token=state["token"],
            has_login=not self.access.is_open,
            said=self._said.get(request.query_params.get("done", ""), ""),
            path=request.url.path,
            query=dict(request.query_params),
            **values,
        )
        return HTMLResponse(text, status)

    def done(self, path: str, said: str) -> Response:
        """After a change: another page, which says what was done. Loading it again changes
        nothing."""
        key = secrets.token_urlsafe(8)
        self._said[key] = said
        if len(self._said) > SAID_MAX:
            del self._said[next(iter(self._said))]
        return RedirectResponse(f"{path}?done={key}", 303)


def form_of(request: Request) -> dict[str, list[str]]:
    """The form that the guard has read."""
    return request.scope["state"]["form"]


def field_of(request: Request, name: str, default: str = "") -> str:
    return form_of(request).get(name, [default])[0].strip()
