"""A consumer as a process of its own, for tests that stop and kill it.

    python consumer_process.py NAMESERVER GROUP TOPIC OUTPUT MODE

It appends the bodies it got to a file, one a line, before it acknowledges them, and stops in order
when it gets SIGTERM. MODE is concurrent or orderly.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tianzhou.client import ConsumerOptions, PushConsumer, StartPosition


async def consume(nameserver: str, group: str, topic: str, output: str, mode: str) -> None:
    options = ConsumerOptions(start_from=StartPosition.FIRST, orderly=mode == "orderly")
    consumer = PushConsumer(group, nameserver=nameserver, subscribe={topic: "*"}, options=options)
    loop = asyncio.get_running_loop()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with consumer:
        stopping: list[asyncio.Task[None]] = []
        loop.add_signal_handler(
            signal.SIGTERM, lambda: stopping.append(loop.create_task(consumer.stop()))
        )
        os.close(os.open(f"{output}.ready", os.O_WRONLY | os.O_CREAT))
        async for batch in consumer.batches(64):
            lines = b"".join(b"%d %d %b\n" % (m.queue_id, m.queue_offset, m.body) for m in batch)
            os.write(file, lines)
        await asyncio.gather(*stopping)


class ConsumerProcess:
    """One life of such a process."""

    def __init__(
        self, nameserver: str, group: str, topic: str, output: Path, mode: str = "concurrent"
    ) -> None:
        self.output = output
        self._errors = output.with_suffix(".errors")
        self._ready = Path(f"{output}.ready")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, nameserver, group, topic, str(output), mode],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    def is_ready(self) -> bool:
        assert self._process.poll() is None, self._errors.read_text()
        return self._ready.exists()

    def rows(self) -> list[tuple[int, int, int]]:
        """Queue, offset and number of each message, in the order in which they came."""
        if not self.output.exists():
            return []
        whole = self.output.read_bytes().rpartition(b"\n")[0]
        return [tuple(map(int, line.split())) for line in whole.splitlines()]  # pyright: ignore[reportReturnType] # three in each line

    def stop(self) -> None:
        """In order."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(300) == 0, self._errors.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(300)

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()


if __name__ == "__main__":
    asyncio.run(consume(*sys.argv[1:]))
