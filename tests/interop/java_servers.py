"""RocketMQ's own NameServer and broker, from Maven, for our clients."""

import asyncio
import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import maven

from clients.server_process import spare_port
from clients.waiting import wait_until
from tianzhou.client.errors import ClientError
from tianzhou.client.session.shared_client import SharedClient

FIVE: Final = "5.3.3"
FOUR: Final = "4.9.7"
"""The last 4.9 whose NameServer and broker are on Maven Central."""

START_SECONDS_MAX: Final = 60

OPTIONS: Final = (
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=512m",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    # 4.9 unmaps the files of a deleted topic.
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
LOG_SETTINGS: Final = ("logback_namesrv.xml", "logback_broker.xml")
SETTINGS: Final = """
brokerClusterName = DefaultCluster
brokerName = broker-java
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
listenPort = {port}
namesrvAddr = {nameserver}
storePathRootDir = {directory}/store
storePathCommitLog = {directory}/store/commitlog
mappedFileSizeCommitLog = 16777216
autoCreateTopicEnable = true
traceTopicEnable = true
recallMessageEnable = true
transactionTimeOut = 4000
transactionCheckInterval = 1000
diskMaxUsedSpaceRatio = 95
"""


def classpath(version: str) -> str:
    return maven.classpath(Path(__file__).parent / "java-server", version)


def _start(
    version: str, main: str, heap: str, directory: Path, settings: Path
) -> "subprocess.Popen[bytes]":
    (directory / "conf").mkdir(parents=True, exist_ok=True)
    for name in LOG_SETTINGS:
        (directory / "conf" / name).write_text("<configuration/>")  # 4.9 does not start without it
    with (directory / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [
                "java",
                f"-Xmx{heap}",
                *OPTIONS,
                f"-Duser.home={directory}",
                "-Drmq.logback.configurationFile=rmq.broker.logback.xml",
                "-cp",
                classpath(version),
                main,
                "-c",
                str(settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env={**os.environ, "ROCKETMQ_HOME": str(directory), "HOME": str(directory)},
        )


@contextmanager
def broker(version: str, directory: Path, **settings: str) -> Generator["subprocess.Popen[bytes]"]:
    """Start a broker with these settings besides the usual ones. The caller checks whether it
    serves."""
    directory.mkdir(parents=True, exist_ok=True)
    port = settings.pop("listenPort", None) or str(spare_port())
    lines = SETTINGS.format(port=port, nameserver=settings.pop("namesrvAddr"), directory=directory)
    lines += "".join(f"{name} = {value}\n" for name, value in settings.items())
    (directory / "broker.conf").write_text(lines)
    process = _start(
        version,
        "org.apache.rocketmq.broker.BrokerStartup",
        "1g",
        directory,
        directory / "broker.conf",
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def rocketmq(version: str, directory: Path, **settings: str) -> Generator[str]:
    """Run a NameServer and a broker; yields the address of the NameServer. `settings` of the broker
    replace the usual ones."""
    names_port, broker_port = spare_port(), spare_port()
    nameserver = f"127.0.0.1:{names_port}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "namesrv.properties").write_text(f"listenPort = {names_port}\n")
    lines = SETTINGS.format(port=broker_port, nameserver=nameserver, directory=directory)
    lines += "".join(f"{name} = {value}\n" for name, value in settings.items())
    (directory / "broker.conf").write_text(lines)
    started = [
        _start(
            version,
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            "256m",
            directory / "names",
            directory / "namesrv.properties",
        ),
        _start(
            version,
            "org.apache.rocketmq.broker.BrokerStartup",
            "1g",
            directory / "broker",
            directory / "broker.conf",
        ),
    ]
    try:
        wait_until(
            lambda: _is_ready(nameserver, started),
            within_s=START_SECONDS_MAX,
            what=f"RocketMQ {version} serves; see {directory}",
        )
        yield nameserver
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def _is_ready(nameserver: str, started: list["subprocess.Popen[bytes]"]) -> bool:
    assert all(process.poll() is None for process in started), "a process ended"

    async def look() -> bool:
        cluster = SharedClient.join(nameserver)
        try:
            route = await cluster.route("TBW102")
        except ClientError:
            return False
        else:
            return bool(route.write_queues)
        finally:
            await cluster.leave()

    return asyncio.run(look())
