"""The Java example of the README, compiled and run unchanged, with both clients."""

import subprocess
from pathlib import Path

import pytest
from client_build import FIVE, FOUR, JAVA, build
from client_servers import up

from clients.waiting import wait_until
from docs.pages import NAMESERVER, Page


@pytest.mark.parametrize("version", [FOUR, FIVE])
def test_readme_java_example_sends_and_receives(version: str, tmp_path: Path) -> None:
    classpath = build(version)
    (code,) = Page("README.md").blocks("java")
    source, said = tmp_path / "Orders.java", tmp_path / "said.txt"
    with up(tmp_path / "up") as server, said.open("wb") as out:
        source.write_text(code.replace(NAMESERVER, server.nameserver))
        command = [*JAVA, "-cp", classpath, str(source)]
        # Its consumer runs until it is stopped.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path
        )
        try:
            wait_until(
                lambda: "two pears" in said.read_text(), within_s=60, what="the message is consumed"
            )
        finally:
            process.kill()
            process.wait()
