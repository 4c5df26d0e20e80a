"""Remove data that a store had made durable, and check that every start reports the loss.

A directory whose log ends too early, or is missing, must be refused without a change. An operator
may accept the loss; then the store reports it and reuses no offset of a lost message. The same
holds if the power fails at any point of such a start.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Final

from tianzhou.store.checkpoint import decode
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreRefused
from tianzhou.store.incidents import LOG_BEGINS_LATE
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_checks import demand
from tianzhou.testing.sim.disk_images import CrashPoint, Image, build, plans
from tianzhou.testing.sim.workload import QUEUES, ROOT, Workload
from tianzhou.wire.tables import TopicConfig, TopicConfigTable

_LOG: Final = f"{ROOT}/commitlog/"
IMAGES_PER_CUT: Final = 4


class Losses:
    """One seed's workload, whose log loses its end in several ways."""

    def __init__(self, seed: int, steps: int = 32) -> None:
        self.workload = Workload(seed)
        self.workload.run(steps)
        self._save_topics()
        self._dice = Random(seed)
        point = self.workload.disk.crash_point()
        self._image = build(point, next(plans(point, "")))
        self._file_bytes = self.workload.config.commit_log_file_bytes

    def _save_topics(self) -> None:
        """A broker saves a topic before its first message."""
        topics = {queue.topic: TopicConfig(topic_name=queue.topic) for queue in QUEUES}
        tables = Tables(self.workload.disk, f"{ROOT}/config")
        tables.topics.save(TopicConfigTable(topic_config_table=topics))

    def check(self, *, places: int = 3, cuts: int = 12) -> None:
        flushed = self.workload.guarantees.flushed
        begin = min((int(path[len(_LOG) :]) for path in self._log_files()), default=flushed)
        if flushed <= begin:
            return
        self._check_missing()
        self._check_begin()
        for _ in range(places):
            self._check_end(self._dice.randrange(begin, flushed), cuts)

    def _log_files(self) -> list[str]:
        return [path for path in self._image if path.startswith(_LOG)]

    def _without_end(self, end: int) -> Image:
        """Zero the log from this offset on, and remove later files."""
        image = dict(self._image)
        for path in self._log_files():
            start, content = int(path[len(_LOG) :]), image[path]
            assert content is not None
            if start > end:
                del image[path]
            else:
                image[path] = content[: end - start].ljust(len(content), b"\0")
        return image

    # A missing log

    def _check_missing(self) -> None:
        files = self._log_files()
        image = {path: found for path, found in self._image.items() if path not in files}
        for accept in (-1, 0):
            demand(self._refused(image, accept), "a store without its log was opened")

    # A log that begins late

    def _check_begin(self) -> None:
        """Without its first files a store opens, reports the missing range, and does not report it
        again once an operator acknowledged it."""
        files = sorted(self._log_files())
        recorded = decode(self._image[f"{ROOT}/checkpoint"] or b"").log_begin
        for count in range(1, len(files)):
            begin = int(files[count][len(_LOG) :])
            if begin <= recorded:
                continue  # retention had announced that it removes these files
            if begin >= self.workload.guarantees.flushed:
                break
            disk = SimDisk(
                {path: self._image[path] for path in self._image if path not in files[:count]}
            )
            store = self._open(disk, -1)
            kinds = [one.kind for one in store.incidents.open]
            demand(LOG_BEGINS_LATE in kinds, f"nothing reports that the log lacks {count} files")
            store.incidents.acknowledge(self.workload.clock.now_ms())
            disk.kill()
            kinds = [one.kind for one in self._open(disk, -1).incidents.open]
            demand(LOG_BEGINS_LATE not in kinds, "an acknowledged loss was reported again")

    # A log that ends early

    def _check_end(self, end: int, cuts: int) -> None:
        image = self._without_end(end)
        refused = self._refused(image, -1)
        if refused is None:
            flushed = self.workload.guarantees.flushed
            lost = [one for one in self.workload.sent if end < one.end <= flushed]
            demand(not lost, f"{len(lost)} messages behind {end} are lost, and the store opened")
            return
        disk, points = SimDisk(image), list[CrashPoint]()
        disk.on_call = lambda: points.append(disk.crash_point())
        self._check_told(self._open(disk, refused.loss_at))
        for point in self._dice.sample(points, min(cuts, len(points))):
            for nested in self._images(point):
                self._check_start(nested)

    def _images(self, point: CrashPoint) -> Iterator[Image]:
        for plan in islice(plans(point, str(self._dice.random())), IMAGES_PER_CUT):
            yield build(point, plan)

    def _check_start(self, image: Image) -> None:
        """A start refuses and opens only with `accept_loss_at`; or it opens and reports the
        loss."""
        refused = self._refused(image, -1)
        self._check_told(self._open(SimDisk(image), refused.loss_at if refused else -1))

    def _check_told(self, store: MessageStore) -> None:
        demand(store.incidents.open, "messages are lost, and no incident reports it")
        deleted = {one.topic for one in self.workload.guarantees.deletions}
        for one in self.workload.sent:
            if one.queue is None or one.queue.topic in deleted:
                continue
            if one.end <= self.workload.guarantees.flushed:
                end = store.max_offset(one.queue)
                text = f"offset {one.queue_offset} of {one.queue} is used again from {end} on"
                demand(one.queue_offset < end, text)

    def _refused(self, image: Image, accept: int) -> StoreRefused | None:
        disk = SimDisk(image)
        try:
            self._open(disk, accept)
        except StoreRefused as refused:
            point = disk.crash_point()
            demand(build(point, next(plans(point, ""))) == image, "a refused directory was changed")
            return refused
        return None

    def _open(self, disk: SimDisk, accept: int) -> MessageStore:
        config: StoreConfig = replace(self.workload.config, accept_loss_at=accept)
        return MessageStore(disk, ROOT, config, self.workload.clock)
