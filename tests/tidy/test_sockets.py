"""One module of the client opens sockets, so TLS has one place; the Spark connector opens none."""

import ast

from sources import SRC, name_of, nodes_of, place_of, python_files

OPENER = "client/transport/connect.py"
OPENS = {
    "BlockingPeer",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "dial",
    "socket",
    "socketpair",
    "start_server",
    "urlopen",
}
"""Calls that open or accept a connection; `asyncio.open_connection` is distinguished from ours by
the module it is called on."""


def opened(node: ast.AST) -> str | None:
    """Return the name of the call if it opens a socket."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    if isinstance(called, ast.Attribute):
        is_asyncio = isinstance(called.value, ast.Name) and called.value.id == "asyncio"
        if called.attr in OPENS or (called.attr == "open_connection" and is_asyncio):
            return called.attr
    if isinstance(called, ast.Name) and called.id in OPENS:
        return called.id
    return None


def test_only_connect_opens_sockets_in_client_and_spark() -> None:
    found = {
        place_of(path)
        for path in python_files("src")
        if (SRC / "client") in path.parents or (SRC / "spark") in path.parents
        for node in nodes_of(path)
        if opened(node)
    }
    assert found == {OPENER}


def test_no_other_module_of_client_and_spark_imports_socket() -> None:
    for path in python_files("src"):
        if place_of(path) == OPENER or place_of(path).split("/")[0] not in ("client", "spark"):
            continue
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {"socket", "ssl", "socketserver"} & set(names), name_of(path)


def test_socket_check_detects_calls_that_open_sockets() -> None:
    calls = {
        "socket.create_connection(x)": "create_connection",
        "loop.create_connection(x)": "create_connection",
        "asyncio.open_connection(x)": "open_connection",
        "socket.socket()": "socket",
        "dial(host, port)": "dial",
        "open_connection(address)": None,
        "connection.send(x)": None,
    }
    for text, expected in calls.items():
        assert opened(ast.parse(text, mode="eval").body) == expected
