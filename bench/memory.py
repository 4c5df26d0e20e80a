"""The store's own heap with many queues and a long log: anonymous memory, not mapped files.

Runs in a process of its own, so that nothing else is counted: `python -m bench.memory DIRECTORY`.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Limit

TOPICS, QUEUES = 1_000, 4
LOG_BYTES = 10 * 1024**3
HEAP_BYTES_MAX = 50 * 1000 * 1000


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell RssAnon")


def limits(directory: str) -> list[Limit]:
    made = tempfile.mkdtemp(prefix="tianzhou-bench-", dir=directory)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.memory", made], check=True, capture_output=True, text=True
        )
    finally:
        shutil.rmtree(made)
    measured = json.loads(done.stdout)
    name = f"heap of a store with {TOPICS} x {QUEUES} queues and {LOG_BYTES // 1024**3} GiB of log"
    return [Limit("memory", name, measured["heap_bytes"] / 1e6, HEAP_BYTES_MAX / 1e6, "MB")]


def measure(directory: str) -> int:
    from bench.store import HOST
    from tianzhou.base.kinds import queue_key
    from tianzhou.cmd.clock import SystemClock
    from tianzhou.record.chunk import Entry, build
    from tianzhou.store.config import StoreConfig
    from tianzhou.store.files import RealFiles
    from tianzhou.store.store import MessageStore

    queues = [queue_key(f"topic-{t}", q) for t in range(TOPICS) for q in range(QUEUES)]
    before = anonymous_bytes()
    store = MessageStore(RealFiles(), directory, StoreConfig(), SystemClock())
    big = bytes(1024 * 1024)
    number = 0
    while store.log.end < LOG_BYTES:
        # Every queue gets small messages, and big ones make the log long.
        entries = [
            Entry(queue, b"x" * 100, b"UNIQ_KEY\x01%032X\x02TAGS\x01a\x02" % (number + rank))
            for rank, queue in enumerate(queues)
        ]
        number += len(entries)
        small = build(entries, store_host=HOST, record_crc=True)
        store.append(small)
        store.append(build([Entry(queues[0], big)] * 256, store_host=HOST, record_crc=True))
        del entries, small
        store.dispatch_all()
        store.maintain()
    store.checkpoint()
    heap = anonymous_bytes() - before
    store.close()
    return heap


if __name__ == "__main__":
    print(json.dumps({"heap_bytes": measure(sys.argv[1])}))
