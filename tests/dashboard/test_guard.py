"""What stands before the pages: hosts, origins, tokens, sizes, time, logins."""

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.site import Answer, Site, ask, token_of
from tianzhou.cmd import http_protocol
from tianzhou.dashboard import guard
from tianzhou.testing.kit.stopwatch import Stopwatch

PASSWORD = "abcdef-ghjkmn-pqrstu"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


@pytest.fixture(scope="module")
def locked() -> Iterator[tuple[Site, str]]:
    with Site(password=PASSWORD) as made:
        yield made, PASSWORD


def test_s41_every_response_has_a_strict_content_security_policy(site: Site) -> None:
    for path in ("/", "/static/dashboard.js", "/nowhere", "/healthz"):
        headers = ask(site.port, path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert ask(site.port, "/").headers["cache-control"] == "no-store"


def test_s41_templates_have_no_inline_scripts_or_styles() -> None:
    templates = Path(guard.__file__).parent / "templates"
    for path in templates.iterdir():
        text = path.read_text()
        assert "style=" not in text, path.name
        assert "onclick=" not in text, path.name
        assert "|safe" not in text, path.name
        assert "autoescape" not in text, path.name
        assert "<script>" not in text, path.name


# Other sites


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "", "127.0.0.1.evil.example"]
)
def test_s43_request_with_an_unknown_host_is_rejected(site: Site, host: str) -> None:
    answer = ask(site.port, "/", headers={"Host": host})
    assert answer.status == 421
    assert "--http-name" in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:1", "dashboard.example:80"])
def test_s43_request_with_a_known_host_is_accepted(site: Site, host: str) -> None:
    assert ask(site.port, "/", headers={"Host": host}).status == 200


def change(site: Site, **more: str) -> Answer:
    token = token_of(ask(site.port, "/new-topic").text)
    form = {"token": token, "name": "from-elsewhere", "queues": "1"}
    return ask(site.port, "/new-topic", form=form, headers=more)


def test_s42_form_of_our_own_page_is_accepted(site: Site) -> None:
    assert change(site).status == 303


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "https://127.0.0.1", "http://127.0.0.1:1"]
)
def test_s42_form_from_another_origin_is_rejected(site: Site, origin: str) -> None:
    answer = change(site, Origin=origin)
    assert answer.status == 403
    assert "our own pages" in answer.text


def test_s42_form_without_the_token_is_rejected(site: Site) -> None:
    for token in ("", "0" * 64):
        answer = ask(site.port, "/new-topic", form={"token": token, "name": "x", "queues": "1"})
        assert answer.status == 403
        assert "load its page again" in answer.text


def test_s42_get_changes_nothing(site: Site) -> None:
    for path, _ in CHANGES:
        assert ask(site.port, path).status in (404, 405, 200), path
    assert ask(site.port, "/topics/orders/delete", method="DELETE").status == 405


CHANGES = (("/scheduled/cancel", 405), ("/transactions/decide", 405), ("/logout", 405))


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_s42_body_that_is_not_a_form_is_rejected(site: Site, kind: str) -> None:
    headers = {"Content-Type": kind, "Origin": f"http://127.0.0.1:{site.port}"}
    answer = ask(site.port, "/new-topic", method="POST", headers=headers, body=b"{}")
    assert answer.status == 415


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "/static/../access.py",
        "/static/%2e%2e/access.py",
        "/static/..%2f..%2faccess.py",
        "/static//etc/passwd",
        "/static/dashboard.css%00.png",
        "/static/",
    ],
)
def test_s44_path_outside_the_static_files_is_not_found(site: Site, path: str) -> None:
    answer = ask(site.port, path)
    assert answer.status == 404
    assert "SESSION_S" not in answer.text


# Sizes and time


def test_s45_large_body_is_rejected_before_it_is_sent(site: Site) -> None:
    headers = {**FORM, "Origin": f"http://127.0.0.1:{site.port}", "Content-Length": str(2 << 20)}
    assert ask(site.port, "/login", method="POST", headers=headers, body=b"x").status == 413


def test_s45_large_chunked_body_is_rejected_at_the_limit(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        host = f"127.0.0.1:{site.port}"
        head = f"POST /login HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
        head += f"Content-Type: {FORM['Content-Type']}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(17):
                connection.sendall(piece)
        except ConnectionError:
            pass  # it did not want to hear the rest
        assert b" 413 " in connection.recv(1000).splitlines()[0]


def test_s45_large_headers_are_rejected(site: Site) -> None:
    assert ask(site.port, "/", headers={"X-Long": "x" * 20_000}).status == 431
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 30_000)
        assert b" 431 " in connection.recv(1000)


def test_s45_slow_body_times_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        host = f"127.0.0.1:{site.port}"
        head = f"POST /login HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
        head += f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: 100\r\n\r\nslow"
        connection.sendall(head.encode())
        assert b" 408 " in connection.recv(1000)


def test_s45_slow_headers_time_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: local")
        assert b" 408 " in connection.recv(1000)
        assert connection.recv(1000) == b""
    # Also between two requests of one connection.
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'"status"' not in received:
            received += connection.recv(10_000)
        assert b" 200 " in received
        connection.sendall(b"GET /hea")
        assert b" 408 " in connection.recv(1000)


def test_s45_invalid_http_is_rejected(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(b"\x00\x00\x00\x10 what is this\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    assert ask(site.port, "/healthz").status == 200


# Login


def test_s40_page_without_a_login_redirects_to_it(locked: tuple[Site, str]) -> None:
    site, _ = locked
    for path in ("/", "/topics", "/messages/orders/00", "/topics.csv", "/nowhere"):
        answer = ask(site.port, path)
        assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert ask(site.port, "/login").status == 200
    token = token_of(ask(site.port, "/login").text)
    answer = ask(site.port, "/new-topic", form={"token": token, "name": "x", "queues": "1"})
    assert (answer.status, answer.text) == (403, "log in first\n")


def test_s40_login_sets_a_protected_cookie(locked: tuple[Site, str]) -> None:
    site, password = locked
    token = token_of(ask(site.port, "/login").text)
    answer = ask(site.port, "/login", form={"token": token, "password": password})
    assert answer.status == 303
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    session = {"Cookie": cookie.partition(";")[0]}
    page = ask(site.port, "/topics", headers=session)
    assert page.status == 200
    # The token of before the login is of no use after it.
    answer = ask(site.port, "/logout", form={"token": token}, headers=session)
    assert answer.status == 403
    answer = ask(site.port, "/logout", form={"token": token_of(page.text)}, headers=session)
    assert answer.status == 303
    assert ask(site.port, "/topics", headers=session).status == 303


def test_s46_metrics_need_the_password(locked: tuple[Site, str]) -> None:
    site, password = locked
    answer = ask(site.port, "/metrics")
    assert (answer.status, "basic" in answer.headers["www-authenticate"].lower()) == (401, True)
    right = base64.b64encode(f"any:{password}".encode()).decode()
    assert ask(site.port, "/metrics", headers={"Authorization": f"Basic {right}"}).status == 200
    wrong = base64.b64encode(b"any:wrong").decode()
    for header in (f"Basic {wrong}", "Basic !", "Bearer x"):
        assert ask(site.port, "/metrics", headers={"Authorization": header}).status == 401
    # Health says nothing that a stranger may not know.
    assert ask(site.port, "/healthz").status == ask(site.port, "/readyz").status == 200


def test_s40_wrong_passwords_are_throttled(locked: tuple[Site, str]) -> None:
    """The last one here: it locks this machine out for a minute."""
    site, password = locked
    token = token_of(ask(site.port, "/login").text)
    tries = [
        ask(site.port, "/login", form={"token": token, "password": "guess"}).status
        for _ in range(8)
    ]
    assert tries[0] == 403
    assert tries[-1] == 429
    watch = Stopwatch()
    assert ask(site.port, "/login", form={"token": token, "password": password}).status == 429
    assert watch.seconds() < 5


# Without a login


def test_health_metrics_and_readiness_are_served(site: Site) -> None:
    assert b"tianzhou_" in ask(site.port, "/metrics").body
    assert json.loads(ask(site.port, "/healthz").body) == {"reasons": [], "status": "alive"}
    assert ask(site.port, "/readyz").status == 200
