"""What the README tells people to do works, in both languages."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from doc_tables import read, tables_of
from sources import ROOT

from tianzhou.store.files import RealFiles

ENGLISH, CHINESE = (read(ROOT / name) for name in ("README.md", "README.zh-CN.md"))
MAKEFILE = read(ROOT / "Makefile")


def blocks(text: str, *languages: str) -> list[str]:
    """Code blocks in one of these languages, in order; all of them if none is named."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for language, code in found if not languages or language in languages]


def commands() -> list[str]:
    lines = "".join(blocks(ENGLISH, "sh", "console", "bash", "shell")).splitlines()
    return [line for line in lines if line]


def targets() -> list[str]:
    return [line.removeprefix("make ") for line in commands() if line.startswith("make ")]


def tianzhou_commands() -> list[list[str]]:
    prefix = ".venv/bin/tianzhou "
    return [line.removeprefix(prefix).split() for line in commands() if line.startswith(prefix)]


def store_commands() -> list[list[str]]:
    return [words for words in tianzhou_commands() if words[0] == "store"]


def server_commands() -> list[list[str]]:
    return [words for words in tianzhou_commands() if words[0] != "store"]


def tianzhou(arguments: list[str], cwd: Path) -> str:
    """Run the command of this environment; what it printed."""
    script = Path(sys.prefix) / "bin" / "tianzhou"
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "120", "TMPDIR": str(cwd)}
    done = subprocess.run(
        [script, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def test_every_command_is_of_a_kind_that_is_tried() -> None:
    assert len(commands()) == len(targets()) + len(tianzhou_commands())
    assert server_commands() == [*SERVERS, DRAIN]
    assert {"demo", "test", "setup", "check", "bench"} <= set(targets())


@pytest.mark.parametrize("target", targets())
def test_make_knows_the_target(target: str) -> None:
    assert re.search(rf"^{target}:.*  ## \S", MAKEFILE, re.MULTILINE), f"no help for {target}"
    # Without the flags of a `make test` that may be running us.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_demo_is_what_make_runs() -> None:
    """What it shows is held against the README where it is run: tests/pipelines/test_demo.py."""
    assert re.search(r"^demo:.*\n\t@\$\(BIN\)/tianzhou demo$", MAKEFILE, re.MULTILINE)


@pytest.fixture(scope="module")
def example_output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory that the example in the README makes, and what it prints."""
    (code,) = blocks(ENGLISH, "python")
    place = tmp_path_factory.mktemp("readme")
    printed = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    return place / "tianzhou-data", printed.getvalue()


def test_the_example_works(example_output: tuple[Path, str]) -> None:
    directory, printed = example_output
    assert printed == "[(0, 'fruit', b'two apples')]\n"
    assert not RealFiles().exists(f"{directory}/abort")
    (code,) = blocks(ENGLISH, "python")
    statements = code.partition("\n\n")[2].splitlines()
    assert len(statements) <= 15


@pytest.mark.parametrize("arguments", store_commands(), ids=" ".join)
def test_operators_commands(arguments: list[str], example_output: tuple[Path, str]) -> None:
    directory, _ = example_output
    given = [str(directory) if word == "DIR" else word for word in arguments]
    printed = tianzhou(given, directory.parent)
    if "--json" in arguments:
        found = json.loads(printed)
        assert found["damage"] == []
        assert found.get("records") == (0 if "inspect" in arguments else 1)
    else:
        assert {"inspect": "orders", "verify": "1 record", "rebuild": "1 record"}[
            arguments[1]
        ] in printed


SERVERS = [
    ["up"],
    ["nameserver"],
    ["broker", "-n", "127.0.0.1:9876"],
    ["broker", "-n", "127.0.0.1:9876", "-c", "FILE"],
]
DRAIN = ["broker", "drain", "broker-a"]


@contextlib.contextmanager
def running(arguments: list[str], place: Path) -> Generator[None]:
    """A server, from the moment it says that it serves until it has stopped in order."""
    settings = place / "broker.conf"
    settings.write_text("brokerName=broker-a\ndeleteWhen=04\n")
    given = [str(settings) if word == "FILE" else word for word in arguments]
    script = Path(sys.prefix) / "bin" / "tianzhou"
    process = subprocess.Popen(
        [script, *given], cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process, process.stderr as said:
        lines: list[str] = []
        for line in said:
            lines.append(line)
            if "Ctrl-C stops" in line:
                break
        assert "Ctrl-C stops" in lines[-1], f"{arguments}: {lines}"
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_servers_start_and_a_broker_is_drained(tmp_path: Path) -> None:
    up, nameserver, broker, configured = SERVERS
    with running(up, tmp_path):
        assert "safe to stop broker-a" in tianzhou(DRAIN, tmp_path)
    with running(nameserver, tmp_path):
        for arguments in (broker, configured):
            with running(arguments, tmp_path):
                assert "safe to stop broker-a" in tianzhou(DRAIN, tmp_path)


def test_verify_fails_on_damage(example_output: tuple[Path, str]) -> None:
    """The README promises an exit code."""
    directory, _ = example_output
    log = directory / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(100)
        before = file.read(1)
        file.seek(100)
        file.write(bytes([before[0] ^ 1]))
    with pytest.raises(AssertionError, match="damage"):
        tianzhou(["store", "verify", str(directory)], directory.parent)
    with log.open("r+b") as file:
        file.seek(100)
        file.write(before)


def test_both_languages_say_the_same() -> None:
    def shape(text: str) -> list[int]:
        return [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)]

    def links(text: str) -> list[str]:
        return re.findall(r"\]\(([^)]+)\)", text)[1:]  # the first leads to the other language

    def sizes(text: str) -> list[int]:
        return [len(rows) for rows in tables_of(text)]

    def first_words(text: str) -> list[str]:
        return re.findall(r"^\| (`[^`|]+`)", text, re.MULTILINE)

    assert shape(ENGLISH) == shape(CHINESE)
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert links(ENGLISH) == links(CHINESE)
    assert sizes(ENGLISH) == sizes(CHINESE)
    assert first_words(ENGLISH) == first_words(CHINESE)
    assert "](README.zh-CN.md)" in ENGLISH
    assert "](README.md)" in CHINESE
