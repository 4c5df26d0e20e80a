"""Builds `java-client/`: the probe, and everything that RocketMQ's clients and `mqadmin` need."""

from pathlib import Path
from typing import Final

import maven

FIVE: Final = "5.3.3"
"""The last 5.3 release that is complete on Maven Central."""
FOUR: Final = "4.9.8"

JAVA: Final = (
    "java",
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def build(version: str) -> str:
    """The class path for this RocketMQ version."""
    return maven.classpath(Path(__file__).parent / "java-client", version)
