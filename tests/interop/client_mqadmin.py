"""`mqadmin`, one process per command, as operators use it."""

import os
import subprocess
from pathlib import Path
from typing import Final

from client_build import JAVA

COMMAND_SECONDS_MAX: Final = 90

_MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"


class Mqadmin:
    """Its exit code is always 0, so tests check the text."""

    def __init__(self, classpath: str, nameserver: str, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home = home
        self._command = [*JAVA, f"-Duser.home={home}", "-cp", classpath, _MAIN]
        self._environment = os.environ | {"NAMESRV_ADDR": nameserver, "ROCKETMQ_HOME": str(home)}
        (home / "conf").mkdir(exist_ok=True)  # 4.9 prints an exception without it
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")

    def run(self, *arguments: str) -> str:
        """Run a command; returns its output. An exception in the output is a failure."""
        text = self.run_anyway(*arguments)
        assert "Exception" not in text, text
        return text

    def run_anyway(self, *arguments: str) -> str:
        ran = subprocess.run(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            env=self._environment,
            cwd=self._home,
        )
        return ran.stdout

    def table(self, *arguments: str) -> list[list[str]]:
        """Run a command; returns its output as rows of words."""
        return [row.split() for row in self.run(*arguments).splitlines() if row.strip()]
