"""Databases for tests of the jdbc sink: PostgreSQL and SQLite from Debian's packages, Derby from
Spark's own JARs."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tianzhou.net.acceptor import spare_ports

JARS: Final = tuple(
    Path("/usr/share/java") / name for name in ("postgresql.jar", "sqlite-jdbc.jar")
)
"""What libpostgresql-jdbc-java and libxerial-sqlite-jdbc-java install."""
_USER: Final = "postgres"
_WHAT_TO_INSTALL: Final = (
    "apt-get install postgresql libpostgresql-jdbc-java libxerial-sqlite-jdbc-java"
)


def class_path() -> str:
    """The drivers of this machine, for the driver of a Spark session."""
    return os.pathsep.join(str(jar) for jar in JARS if jar.exists())


def need(jar: str) -> None:
    if not any(one.name == jar and one.exists() for one in JARS):
        pytest.skip(f"no {jar} on this machine: {_WHAT_TO_INSTALL}")


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgresql() -> Generator[str]:
    """A PostgreSQL server of its own; yields the JDBC URL. Skips the test without one."""
    need("postgresql.jar")
    programs = _programs()
    if programs is None:
        pytest.skip(f"no PostgreSQL on this machine: {_WHAT_TO_INSTALL}")
    # The server refuses to run as root.
    user = _USER if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    place = Path(tempfile.mkdtemp(prefix="tianzhou-pg-"))
    try:
        if os.getuid() == 0:
            shutil.chown(place, user, user)
        data, port = place / "data", spare_ports("127.0.0.1", 1)
        options = {"user": user, "cwd": place, "check": True, "stdout": subprocess.DEVNULL}
        if os.getuid() != 0:
            options.pop("user")
        subprocess.run(  # pyright: ignore[reportCallIssue] - the options are a mapping
            [programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8"],
            **options,  # pyright: ignore[reportArgumentType]
        )
        settings = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={place}"
        control = [programs / "pg_ctl", "-D", data, "-w", "-t", "300", "-l", place / "log"]
        subprocess.run([*control, "-o", settings, "start"], **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
        try:
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=tests"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **options)  # pyright: ignore[reportCallIssue, reportArgumentType]
    finally:
        shutil.rmtree(place)
