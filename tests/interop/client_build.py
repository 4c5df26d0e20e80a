"""Building `java-client/`: the probe and all that RocketMQ's clients and `mqadmin` need."""

from pathlib import Path
from typing import Final

import maven

FIVE: Final = "5.3.3"
"""The last of 5.3 that Maven Central has all parts of."""
FOUR: Final = "4.9.8"

JAVA: Final = (
    "java", "-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)  # fmt: skip


def build(version: str) -> str:
    """The class path with this RocketMQ."""
    return maven.classpath(Path(__file__).parent / "java-client", version)
