"""Sizes and names of files and functions, and what may not stand in them."""

import ast
import re
from collections import Counter
from pathlib import Path

from sources import (
    ROOT,
    all_files,
    comments_of,
    name_of,
    nodes_of,
    place_of,
    python_files,
    tree_of,
)

FILE_LINES_MAX = 800
FILE_LINES_FREE = 500
FUNCTION_LINES_MAX = 70
SHELL_LINES_MAX = 300
REASON = "one file because"
"""A file with more than 500 lines says in its docstring: this is in one file because …"""

CODE = ("src", "tests", "tools", "bench")
DRAWERS = {"util", "utils", "helper", "helpers", "manager", "common", "impl", "misc", "base"}

# Broad handlers, each with what makes it right. Everywhere else an error has a name.
BROAD_HANDLERS = {
    "src/tianzhou/client/consume/listener_threads.py": "the consumer or the waiting call gets it",
    "src/tianzhou/client/consume/listener.py": "a user's code may raise anything; it is logged",
    "src/tianzhou/client/consume/offsets.py": "a user's store may raise anything; it is logged",
    "src/tianzhou/client/hooks.py": "a user's hook may raise anything; a failed send raises on",
    "src/tianzhou/client/aio/send_engine.py": "a selector may raise anything; the sender gets it",
    "src/tianzhou/net/router.py": "one request must not take the others with it; it is logged",
    "src/tianzhou/store/files.py": "removes a file that was not completed, then raises on",
    "src/tianzhou/store/store.py": "gives the lock back, then raises on",
    "src/tianzhou/testing/sim/disk_crashes.py": "adds which crash image it was, then raises on",
}

# Modules without a test file of their own: the file that covers them, or why there is nothing.
COVERED_BY = {
    "base/clock": "a protocol",
    "base/errors": "declarations only",
    "base/kinds": "declarations only",
    "base/limits": "tests/unit/base/test_protocol_limits.py",
    "record/errors": "declarations only",
    "wire/errors": "declarations only",
    "wire/queues": "tests/unit/wire/test_wire_bodies.py",
    "wire/routes": "tests/unit/wire/test_wire_bodies.py",
    "wire/tables": "tests/unit/wire/test_wire_bodies.py",
    "store/errors": "declarations only",
    "wire/replication_bodies": "declarations only",
}


def test_files_are_within_the_line_limit() -> None:
    for path in python_files(*CODE):
        count = path.read_text(encoding="utf-8").count("\n")
        assert count <= FILE_LINES_MAX, f"{name_of(path)} has {count} lines"
        about = ast.get_docstring(tree_of(path)) or ""
        assert count <= FILE_LINES_FREE or REASON in about, (
            f"{name_of(path)} has {count} lines and does not say why it is {REASON} …"
        )


def test_asyncio_shells_of_the_client_are_thin() -> None:
    """Decisions are in client/core, where they are tested without an event loop."""
    shells = ("client/aio/", "client/consume/", "client/session/", "client/transport/")
    for path in python_files("src"):
        if place_of(path).startswith(shells):
            count = path.read_text(encoding="utf-8").count("\n")
            assert count <= SHELL_LINES_MAX, f"{name_of(path)} has {count} lines"


def test_functions_are_within_the_line_limit() -> None:
    for path in python_files(*CODE):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                assert count <= FUNCTION_LINES_MAX, f"{name_of(path)}: {node.name} has {count}"


def test_file_names_contain_no_generic_words() -> None:
    for path in python_files(*CODE):
        words = set(path.stem.split("_"))
        assert not words & DRAWERS, f"{name_of(path)} is named after nothing in particular"


def test_comments_contain_no_todo_markers() -> None:
    """Unfinished work belongs in the issue tracker."""
    put_off = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
    for path in python_files(*CODE):
        for line, text in comments_of(path):
            assert not put_off.search(text), f"{name_of(path)}:{line}: {text}"
        for node in nodes_of(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                about = ast.get_docstring(node) or ""
                assert not put_off.search(about), f"{name_of(path)}: {about}"


def is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def test_broad_exception_handlers_are_listed() -> None:
    broad = {
        name_of(path)
        for path in python_files("src", "tools")
        if any(isinstance(node, ast.ExceptHandler) and is_broad(node) for node in nodes_of(path))
    }
    assert not broad - BROAD_HANDLERS.keys()
    assert not {name for name in BROAD_HANDLERS.keys() - broad if (ROOT / name).exists()}


def test_checker_suppressions_name_the_rule() -> None:
    """Silencing a checker names the rule, so that nothing else is silenced with it."""
    any_ignore = re.compile(r"#\s*(type:\s*ignore|pyright:\s*ignore|noqa)\b")
    good = re.compile(
        r"#\s*(type:\s*ignore\[[\w-]+\]|pyright:\s*ignore\[\w+(, *\w+)*\]|noqa:\s*[A-Z]+\d+)"
    )
    for path in python_files(*CODE):
        for line, text in comments_of(path):
            assert not any_ignore.search(text) or good.search(text), f"{name_of(path)}:{line}"


def test_files_contain_no_machine_paths() -> None:
    """A path of one machine is of no use on another."""
    homes = "|".join(("work", "root", "home", "Users"))
    places = re.compile(rf"(?<![\w.])/(?:{homes})(?:/|\b(?!\w))".encode())
    for path in all_files():
        if path.suffix not in (".gz", ".png"):
            found = places.search(path.read_bytes())
            assert found is None, f"{name_of(path)} names {found[0].decode()}" if found else ""


def test_test_file_names_are_unique() -> None:
    """pytest imports them by their bare names."""
    names = Counter(path.name for path in python_files("tests") if path.name != "conftest.py")
    assert not [name for name, count in names.items() if count > 1]


def modules(*packages: str) -> list[Path]:
    return [
        path
        for path in python_files("src")
        if place_of(path).split("/")[0] in packages and not path.name.startswith("_")
    ]


def own_tests(package: str, name: str) -> list[Path]:
    """Where the tests of a module may stand; the longer name is for names that occur twice."""
    folder = ROOT / "tests" / "unit" / package
    return [folder / f"test_{name}.py", folder / f"test_{package}_{name}.py"]


def has_own_tests(path: Path) -> bool:
    return any(test.exists() for test in own_tests(path.parent.name, path.stem))


def test_every_module_has_its_own_tests() -> None:
    found = modules("base", "record", "wire", "store")
    names = {f"{path.parent.name}/{path.stem}": has_own_tests(path) for path in found}
    without = {name for name, has_tests in names.items() if not has_tests}
    missing = without - COVERED_BY.keys()
    assert not missing, f"no tests of their own: {', '.join(sorted(missing))}"
    # An exception that is no longer one hides the next gap.
    for name, reason in COVERED_BY.items():
        assert names.get(name) is False, f"{name} is gone, or has tests of its own"
        assert not reason.startswith("tests/") or (ROOT / reason).exists(), f"{reason} is gone"


def test_fail_points_are_declared_and_used() -> None:
    from tianzhou.store.failpoint import POINTS

    used: set[str] = set()
    for path in python_files("src"):
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "failpoint"
            ):
                (name,) = node.args
                assert isinstance(name, ast.Constant), f"{name_of(path)}:{node.lineno}"
                used.add(str(name.value))
    assert used == set(POINTS)


FORMATTER_EXEMPTIONS_MAX = 49
"""Large tables of data that are easier to read as rows."""


def test_fmt_skip_comments_are_few() -> None:
    exempt = [
        f"{name_of(path)}:{line}"
        for path in python_files(*CODE)
        for line, comment in comments_of(path)
        if re.search(r"fmt:\s*(skip|off)", comment)
    ]
    assert len(exempt) <= FORMATTER_EXEMPTIONS_MAX, exempt
