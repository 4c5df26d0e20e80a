"""Statements of our own about the code: those that were false once must not return, the others are
compared with the code."""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from doc_tables import read
from sources import ROOT, SRC, all_files, name_of, nodes_of, place_of, python_files, tree_of

from tianzhou.broker.rejections import REFUSED
from tianzhou.nameserver.handlers import HANDLERS

WITHOUT_WALL_CLOCK = (
    "base",
    "record",
    "wire",
    "raft",
    "filter",
    "net",
    "store",
    "replication",
    "nameserver",
    "broker",
)
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
FALSE = {
    "the only async file": "several files are asynchronous; test_layers.py lists them",
    "nothing holds everything": "wiring.py knows every slice",
    "pulls copy nothing": "a pull copies twice: STYLE.md",
    "pull copies nothing": "a pull copies twice: STYLE.md",
    "the only place that reads the clock": "shells of every layer read clocks",
    "handlers do not import each other": "import contracts speak of slices",
}


@pytest.mark.parametrize("claim", FALSE)
def test_docs_do_not_repeat_a_false_claim(claim: str) -> None:
    words = re.compile(r"\s+".join(map(re.escape, claim.split())), re.IGNORECASE)
    found = [
        name_of(path)
        for path in all_files()
        if path.suffix in (".md", ".py", ".toml")
        and path.name != "test_statements.py"
        and words.search(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"{found}: {FALSE[claim]}"


def test_style_page_has_the_number_of_copies_of_a_pull() -> None:
    assert "A pull makes two: the `pread`" in read(ROOT / "STYLE.md")


def requests() -> dict[str, dict[str, object]]:
    spec = tomllib.loads((ROOT / "spec" / "requests.toml").read_text(encoding="utf-8"))
    return spec["request"]


def codes(key: str, process: str) -> set[int]:
    """The codes of the requests that name this process under `served_by` or `rejected_by`."""
    found: set[int] = set()
    for row in requests().values():
        processes = row.get(key, ())
        assert isinstance(processes, list | tuple)
        if process in processes:
            found.add(int(str(row["code"])))
    return found


def test_rejected_by_broker_names_exactly_the_codes_with_a_reason() -> None:
    assert codes("rejected_by", "broker") == {int(code) for code in REFUSED}
    assert not codes("rejected_by", "broker") & codes("served_by", "broker")


def test_served_by_nameserver_names_exactly_the_codes_with_a_handler() -> None:
    assert codes("served_by", "nameserver") == {int(code) for code in HANDLERS}


def test_limits_each_have_a_reason_and_a_user() -> None:
    body = tree_of(SRC / "base" / "limits.py").body
    texts = [path.read_text(encoding="utf-8") for path in python_files("src")]
    for node, after in pairwise(body):
        if not isinstance(node, ast.AnnAssign):
            continue
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        assert isinstance(after, ast.Expr), f"{name} has no reason"
        assert isinstance(after.value, ast.Constant), f"{name} has no reason"
        users = sum(bool(re.search(rf"\b{name}\b", text)) for text in texts)
        assert users > 1, f"{name} is used only where it is defined"


def wall_clocks_in(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if any(called == clock or called.endswith(f".{clock}") for clock in WALL_CLOCKS):
                yield f"{name_of(path)}:{node.lineno}: {called}"


def test_servers_get_the_wall_time_from_their_clock() -> None:
    """`base/clock.py`: time is passed in, so that a test can move it."""
    found = [
        call
        for path in python_files("src")
        if place_of(path).split("/")[0] in WITHOUT_WALL_CLOCK
        for call in wall_clocks_in(path)
    ]
    assert not found, "use the Clock that was passed in: " + ", ".join(found)


def test_wall_clock_of_a_process_is_read_in_cmd() -> None:
    assert list(wall_clocks_in(SRC / "cmd" / "clock.py"))
