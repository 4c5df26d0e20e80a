"""Crash a store at every point, in every way, and check that it keeps its guarantees.

`explore` takes a seeded workload, lets the disk stop at its calls, builds images of what may be
left, recovers each and checks it. Some images go on: recovered again, written to, crashed again,
or crashed while they are being recovered.
"""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record import flags, light_queues
from tianzhou.record.chunk import Entry
from tianzhou.record.chunk import build as chunk_of
from tianzhou.record.layout import CRC_PROPERTY_BYTES
from tianzhou.store.config import FlushMode
from tianzhou.store.errors import StoreLocked
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_checks import (
    Broken,
    Contents,
    History,
    all_contents,
    check,
    demand,
)
from tianzhou.testing.sim.disk_images import CrashPoint, Image, build, fingerprint, plans
from tianzhou.testing.sim.workload import HOST, QUEUES, ROOT, Guarantees, Sent, Workload

STEPS: Final = 32
IMAGES_PER_CUT: Final = 6
LIFE_EVERY: Final = 32
LIFE_AFTER_CUT_EVERY: Final = 8
NESTED_EVERY: Final = 40


class Place(NamedTuple):
    """Identifies an image: workload, cut and image; for a nested crash, its cut and image too."""

    seed: int
    cut: int
    image: int
    nested_cut: int = -1
    nested_image: int = 0

    def __str__(self) -> str:
        numbers = self if self.nested_cut >= 0 else self[:3]
        return ":".join(map(str, numbers))

    @classmethod
    def parse(cls, text: str) -> "Place":
        return cls(*map(int, text.split(":")))


class Failure(AssertionError):
    """A crash image that broke a guarantee, and how to reproduce it."""

    def __init__(self, place: Place, reason: BaseException) -> None:
        super().__init__(
            f"{reason}\n\nreplay: TIANZHOU_CRASH={place} .venv/bin/python -m pytest "
            "tests/crash/test_crash_images.py -k replay"
        )


class Explorer:
    """The workload of one seed, and which of its crashes were checked."""

    def __init__(
        self, seed: int, steps: int = STEPS, *, sliced: bool = False, light: bool = False
    ) -> None:
        """See `Workload`."""
        self.seed = seed
        self.workload = Workload(seed, sliced=sliced, light=light)
        self.workload.run(steps)
        self.history = History(self.workload.sent)
        self.nested = 0
        self._seen: set[int] = set()

    @property
    def images(self) -> int:
        """Return how many different images were checked."""
        return len(self._seen)

    # Enumerating images

    def explore(self, images: int) -> None:
        """Check `count` different images, from cuts across the whole workload."""
        order = list(range(len(self.workload.cuts)))
        Random(self.seed).shuffle(order)
        first = 0
        while first < 10_000:
            for cut in order:
                if self.images >= images:
                    return
                self._crash_at(cut, first)
            first += IMAGES_PER_CUT
        raise Broken(f"only {self.images} images of seed {self.seed} differ")

    def _crash_at(self, cut: int, first: int) -> None:
        point = self.workload.cuts[cut].point
        chosen = islice(plans(point, _seed(self.seed, cut)), first, first + IMAGES_PER_CUT)
        for number, plan in enumerate(chosen, first):
            image = build(point, plan)
            if self._is_new(image):
                self._crash(Place(self.seed, cut, number), image)

    def _is_new(self, image: Image) -> bool:
        count = len(self._seen)
        self._seen.add(fingerprint(image))
        return len(self._seen) > count

    def _crash(self, place: Place, image: Image) -> None:
        rank, guarantees = self.images, self.workload.cuts[place.cut].guarantees
        store = self._check(place, image, guarantees)
        # Records that were cut off could reappear, so these images are tested more often.
        if rank % (LIFE_EVERY if store.recovered.cut_at is None else LIFE_AFTER_CUT_EVERY) == 0:
            with _told(place):
                self.live_on(image)
        if rank % NESTED_EVERY == 0:
            self._crash_again(place, image, guarantees)

    def crash_rebuild(self, cuts: int) -> None:
        """Rebuild all derived files after the workload, and crash during the rebuild."""
        last = (len(self.workload.cuts) - 1) // 2 * 2
        cut, place = self.workload.cuts[last], Place(self.seed, last, 1)
        image = _image(cut.point, _seed(self.seed, last), 1)
        self._crash_again(place, image, cut.guarantees, cuts=cuts, images=6)

    def _crash_again(
        self, place: Place, image: Image, guarantees: Guarantees, *, cuts: int = 8, images: int = 4
    ) -> None:
        """Crash during recovery, at some of its calls."""
        points = self._points_of_recovery(place, image)
        for nested_cut in Random(str(place)).sample(range(len(points)), min(cuts, len(points))):
            chosen = islice(plans(points[nested_cut], str(place)), images)
            for number, plan in enumerate(chosen):
                nested = build(points[nested_cut], plan)
                if self._is_new(nested):
                    at = place._replace(nested_cut=nested_cut, nested_image=number)
                    self._check(at, nested, guarantees)
                    self.nested += 1

    def _points_of_recovery(self, place: Place, image: Image) -> list[CrashPoint]:
        """Return the crash points of a recovery; half of the recoveries rebuild everything."""
        disk, points = SimDisk(image), list[CrashPoint]()
        disk.on_call = lambda: points.append(disk.crash_point())
        self.open(disk, rebuild=place.cut % 2 == 0)
        return points

    def replay(self, place: Place) -> None:
        """Check one image with all checks."""
        cut = self.workload.cuts[place.cut]
        image = _image(cut.point, _seed(self.seed, place.cut), place.image)
        if place.nested_cut >= 0:
            point = self._points_of_recovery(place, image)[place.nested_cut]
            image = _image(point, str(place._replace(nested_cut=-1)), place.nested_image)
        self._check(place, image, cut.guarantees)
        with _told(place):
            self.live_on(image)

    # One image

    def open(self, disk: SimDisk, *, rebuild: bool = False) -> MessageStore:
        config, clock = self.workload.config, self.workload.clock
        return MessageStore(disk, ROOT, config, clock, rebuild=rebuild)

    def _check(self, place: Place, image: Image, guarantees: Guarantees) -> MessageStore:
        # The first image of a cut is that of a killed process: nothing may be missing.
        killed = place.image == 0 and place.nested_cut < 0
        required = max(guarantees.flushed, guarantees.appended) if killed else guarantees.flushed
        with _told(place):
            store = self.open(SimDisk(image))
            check(store, self.history, guarantees, required)
        return store

    def live_on(self, image: Image) -> None:
        """Check that a second recovery changes nothing, that later writes stay, and that records
        that were cut off do not reappear."""
        disk = SimDisk(image)
        store = self.open(disk)
        before, end = all_contents(store), store.log.end
        store = self._reopened(disk, 1, before, end)
        sent = self._replace_lost(store)
        after = dict(before)
        for entry, record in sent:
            light = light_queues.names_of(entry.properties)
            for queue in (entry.queue, *(queue_key(name.decode(), 0) for name in light)):
                known = after.get(queue, Contents(0, 0, b""))
                after[queue] = Contents(known.first, known.end + 1, known.records + record)
        end = store.log.end
        demand(all_contents(store) == after, "messages sent after recovery cannot be read")
        disk = self._disk_of(store)
        for plan in (2, 3, 0):
            self._reopened(disk, plan, after, end)
        reopened = self._reopened(disk, 1, after, end)
        reopened.close()
        again = self._reopened(self._disk_of(reopened), 1, after, end)
        demand(again.was_clean, "an orderly stop was not found clean")

    def _reopened(
        self, disk: SimDisk, plan: int, contents: dict[QueueKey, Contents], end: int
    ) -> MessageStore:
        """Crash and recover; all contents must be unchanged, because all of it was synced."""
        store = self.open(SimDisk(_image(disk.crash_point(), str(self.seed), plan)))
        report = store.recovered
        demand(store.log.end == end, f"the log ended at {end} and now ends at {store.log.end}")
        demand(report.cut_at is None and not report.damage, f"something was cut again: {report}")
        # Only torn writes may lose the checkpoint, so that everything is rebuilt.
        demand(plan > 1 or not report.rebuilt, f"a whole checkpoint was not enough: {report}")
        found = all_contents(store)
        # After a rebuild a deleted topic reappears until its records expire, as the log has them.
        gone = {one.topic for one in self.workload.guarantees.deletions if report.rebuilt}
        for queue in {*found, *contents}:
            known = contents.get(queue)
            demand(
                found.get(queue) == known or (known is None and queue.topic in gone),
                f"recovering again changed what can be read of {queue}",
            )
        return store

    def check_foreign_record(self) -> None:
        """A record from another position after the end of the log is not a message: reused blocks
        of deleted files look like this."""
        image = _image(self.workload.disk.crash_point(), "", 1)
        store = self.open(SimDisk(image))
        before, end = all_contents(store), store.log.end
        size = store.log.file_bytes
        path = f"{ROOT}/commitlog/{end // size * size:020d}"
        image = _image(self._disk_of(store).crash_point(), "", 1)
        content = bytearray(image.get(path) or bytes(size))
        stale = min((one.record for one in self.history.sent), key=len)
        if len(stale) + end % size <= size:
            content[end % size : end % size + len(stale)] = stale
            image[path] = bytes(content)
            again = self.open(SimDisk(image))
            demand(again.log.end == end, "a record of another place was taken for the next")
            demand(all_contents(again) == before, "a record of another place is served")

    def check_halves(self) -> None:
        """A file that contains only half messages hides no later message."""
        store = self.open(SimDisk())
        body = bytes(store.log.file_bytes // 2)
        for kind in (flags.TRANSACTION_PREPARED, 0):
            entry = Entry(QUEUES[0], body, sys_flag=kind)
            store.append(chunk_of([entry], store_host=HOST, record_crc=True))
        store.flush()
        store.dispatch_all()
        demand(store.max_offset(QUEUES[0]) == 1, "a message behind a half can't be seen")

    def check_stale_units(self) -> None:
        """Units of messages that a crash removed never reappear, even when the log is as long as
        before: the queue was written and the log was not."""
        config = replace(self.workload.config, flush_mode=FlushMode.ASYNC)
        disk = SimDisk()
        store = MessageStore(disk, ROOT, config, self.workload.clock)
        _send(store, [_filler(QUEUES[0])])
        store.checkpoint()
        _send(store, [_filler(QUEUES[0])] * 3)
        store.queues.write_out()
        point = disk.crash_point()
        image, without = _image(point, "", 0), _image(point, "", 1)
        image |= {path: without.get(path) for path in image if "/commitlog/" in path}
        store = MessageStore(SimDisk(image), ROOT, config, self.workload.clock)
        _send(store, [_filler(QUEUES[1])] * 4)
        after, end = all_contents(store), store.log.end
        store.close()
        self._reopened(self._disk_of(store), 1, after, end)

    def check_lock(self) -> None:
        """Two stores never share a directory."""
        disk = SimDisk()
        self.open(disk)
        with suppress(StoreLocked):
            self.open(disk)
            raise Broken("two stores have one directory")

    def _disk_of(self, store: MessageStore) -> SimDisk:
        disk = store.files
        assert isinstance(disk, SimDisk)
        return disk

    def _replace_lost(self, store: MessageStore) -> list[tuple[Entry, bytes]]:
        """Send a message of the size of the first lost one, so that remains of the next one would
        follow directly; then send some to other queues, and flush."""
        lost = [one for one in self.history.sent if one.start == store.log.end and one.queue]
        sent: list[tuple[Entry, bytes]] = []
        others = [queue for queue in QUEUES if not lost or queue != lost[0].queue]
        fillers = [_filler(queue) for queue in others]
        for number, entry in enumerate([_alike(lost[0]), *fillers] if lost else fillers):
            chunk = chunk_of([entry], store_host=HOST, record_crc=True)
            self.workload.clock.advance(ms=number)
            store.append(chunk)
            sent.append((entry, bytes(chunk.data)))
        store.flush()
        store.dispatch_all()
        return sent


def _seed(seed: int, cut: int) -> str:
    return f"{seed}:{cut}"


def _image(point: CrashPoint, seed: str, number: int) -> Image:
    # A point without changes has only the first image.
    *_, plan = islice(plans(point, seed), number + 1)
    return build(point, plan)


def _send(store: MessageStore, entries: list[Entry]) -> None:
    store.append(chunk_of(entries, store_host=HOST, record_crc=True))
    store.dispatch_all()


@contextmanager
def _told(place: Place) -> Generator[None]:
    """Add to failures how to reproduce them."""
    try:
        yield
    except Exception as error:
        raise Failure(place, error) from error


def _alike(lost: Sent) -> Entry:
    assert lost.queue is not None
    topic_bytes = len(lost.queue.topic)
    body_end = 88 + int.from_bytes(lost.record[84:88], "big")
    properties = lost.record[body_end + 1 + topic_bytes + 2 : -CRC_PROPERTY_BYTES]
    if light := light_queues.offsets_of(properties):
        properties = light_queues.with_room(properties, [name for name, _ in light])
    body = bytes(byte ^ 0x55 for byte in lost.record[88:body_end])
    return Entry(lost.queue, body, properties)


def _filler(queue: QueueKey) -> Entry:
    return Entry(queue, b"after the crash" * 9, b"KEYS\x01after\x02")
