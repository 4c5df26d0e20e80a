"""Sockets of servers, replication and commands have one home, so that TLS has one, too: only
`net/acceptor.py` binds and accepts, and only `net/connect.py` connects. The client library and the
test kit have their own modules for this."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import SRC, place_of, python_files

HOMES = {"net/acceptor.py", "net/connect.py"}
OTHER_FOLDERS = {"client", "testing"}
OPENERS = {
    "connect_accepted_socket",
    "connect_ex",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "fromfd",
    "open_connection",
    "open_unix_connection",
    "sock_accept",
    "sock_connect",
    "socketpair",
    "start_server",
    "start_unix_server",
}
ON_SOCKETS = {"bind", "connect"}
"""Methods of sockets with common names: a socket's own take one argument, an address."""


def opened_in(tree: ast.AST) -> Iterator[str]:
    """Calls that create, bind, connect or accept sockets, as `line: call`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "socket":
            yield f"{node.lineno}: from socket import, which hides the calls of its functions"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        is_address = len(node.args) == 1 and isinstance(node.args[0], ast.Tuple)
        if (
            called == "socket.socket"
            or name in OPENERS
            or (name == "accept" and not node.args)
            or (name in ON_SOCKETS and is_address)
        ):
            yield f"{node.lineno}: {called}"


def test_only_the_acceptor_and_the_dialler_open_sockets() -> None:
    found: list[str] = []
    for path in python_files("src"):
        place = place_of(path)
        if place in HOMES or place.split("/")[0] in OTHER_FOLDERS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{place}:{call}" for call in opened_in(tree)]
    assert not found, "open sockets with net/acceptor.py or net/connect.py: " + ", ".join(found)


@pytest.mark.parametrize("home", sorted(HOMES))
def test_listed_socket_modules_open_sockets(home: str) -> None:
    tree = ast.parse(Path(SRC / home).read_text(encoding="utf-8"))
    assert list(opened_in(tree)), f"{home} opens no socket: it is no longer a home of sockets"


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("socket.socket()", True),
        ("loop.create_connection(P, host, port)", True),
        ("await asyncio.start_server(f, host, port)", True),
        ("made.bind((host, port))", True),
        ("made.connect((host, port))", True),
        ("bound.accept()", True),
        ("from socket import create_connection", True),
        ("options.cluster.connect()", False),
        ("def f(bound: socket.socket): ...", False),
        ("bind(host, port)", False),
    ],
)
def test_server_socket_check_detects_exactly_the_socket_calls(code: str, is_found: bool) -> None:
    assert bool(list(opened_in(ast.parse(code)))) is is_found
