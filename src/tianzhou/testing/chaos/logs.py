"""The logs of brokers that have stopped: checked record by record, and summed up file by file."""

import hashlib
from pathlib import Path

from tianzhou.store.detect import detect
from tianzhou.store.files import RealFiles
from tianzhou.store.verify import Directory
from tianzhou.testing.chaos.evidence import LogSum


def sum_up(name: str, root: Path) -> LogSum:
    """Reads everything; changes nothing."""
    files = RealFiles()
    directory = Directory(files, str(root), detect(files, str(root)))
    try:
        found = directory.verify(lambda _done, _total: None)
        digests = {
            int(segment.start): hashlib.sha256(
                segment.view[: max(0, found.log_end - segment.start)]
            ).hexdigest()
            for segment in directory.segments
            if segment.start < found.log_end
        }
    finally:
        directory.close()
    problems = [*found.problems, *(f"damaged: {damage}" for damage in found.damage)]
    queues = {(row.topic, row.queue_id): (row.min_offset, row.max_offset) for row in found.queues}
    return LogSum(name, found.log_start, found.log_end, digests, queues, tuple(problems))
