"""Power loss after every disk call: a member recovers what was on its disk, or knows that it may
have lost something."""

import json
from itertools import islice
from random import Random
from typing import NamedTuple

import pytest
from raft_logs import FILE_BYTES, KEY, MARKED, Log, barrier, members

from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, HardState
from tianzhou.replication import raft_entry
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint, build, plans

SEEDS = 12
STEPS = 14
IMAGES = 4
EVERY = 3
"""One in this many disk calls is a crash point."""


class Moment(NamedTuple):
    """What had been promised when the power went."""

    point: CrashPoint
    durable: dict[int, Entry]
    states: tuple[HardState, ...]
    """The one on disk, and the one that was being written, if any."""


class Workload:
    """A member's log in the hands of several leaders."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.disk = SimDisk()
        self.log = Log("member", files=self.disk, spacing=MARKED)
        self.moments: list[Moment] = []
        self.durable: dict[int, Entry] = {}
        self.states = (HardState(),)
        self.committed = 0
        self._calls = 0

    def run(self) -> None:
        self.disk.on_call = self._called
        self._enter_term(1)
        self.log.storage.write([barrier(1)])
        self._flush()
        for _ in range(STEPS):
            self.dice.choice(
                (self._send, self._send, self._many, self._other_leader, self._flush)
            )()
        self.disk.on_call = None

    def _called(self) -> None:
        self._calls += 1
        if self._calls % EVERY == 0:
            self.moments.append(Moment(self.disk.crash_point(), dict(self.durable), self.states))

    def _enter_term(self, term: int) -> None:
        state = HardState(Term(term), self.dice.choice(("n0", "n1")), 0)
        self.states = (self.states[-1], state)
        self.log.files.save(state)
        self.states = (state,)

    def _lead(self) -> None:
        if not self.log.store.is_writing:
            self._flush()
            self.log.lead()
            self.committed = self.log.storage.last

    def _send(self) -> None:
        self._lead()
        self.log.send(*[b"x" * self.dice.randrange(1, 600) for _ in range(3)], term=self._term())

    def _many(self) -> None:
        last = self.log.storage.last
        entries = [
            barrier(last + 1, self._term()),
            members(last + 2, "n0", "n1", term=self._term()),
        ]
        self.log.storage.write(entries)

    def _other_leader(self) -> None:
        """Cut what is not committed, and go on in a later term."""
        storage, first = self.log.storage, self.committed + 1
        self._enter_term(self._term() + 1)
        if storage.last >= first:
            # From now on these need not survive.
            cut = self.dice.randrange(first, storage.last + 1)
            self.durable = {index: entry for index, entry in self.durable.items() if index < cut}
            storage.write([barrier(cut, self._term())])

    def _flush(self) -> None:
        log = self.log
        log.store.flush()
        self.durable = {entry.index: entry for entry in log.entries()}
        if self.dice.random() < 0.5:
            log.commit(log.storage.last)
            self.committed = log.storage.last

    def _term(self) -> int:
        return self.states[-1].term


def told(log: Log) -> tuple[object, ...]:
    """All that a member knows of its log when it starts."""
    storage = log.storage
    entries = log.entries(storage.terms.start.index + 1) if storage.last else []
    return storage.terms.runs(), storage.last, storage.members.rows(), entries, log.store.log.end


def check(moment: Moment, number: int) -> None:
    """Check one disk image of this crash."""
    chosen = plans(moment.point, f"{moment.point.call}")
    plan = next(chosen)
    for _ in range(number):
        plan = next(chosen, plan)
    again = Log("member", files=SimDisk(build(moment.point, plan)), spacing=MARKED)
    # Going by marks, which were never synced, finds what a walk over the whole log finds.
    walked = Log("member", files=SimDisk(build(moment.point, plan)))
    assert told(again) == told(walked)
    found = {int(entry.index): entry for entry in again.entries()} if again.storage.last else {}
    lost = [index for index, entry in moment.durable.items() if found.get(index) != entry]
    assert not lost, f"entries {lost} of {len(moment.durable)} were durable"
    for entry in found.values():
        if entry.kind is Kind.CHUNK:
            place = again.storage.end_of(LogIndex(entry.index)) - len(entry.data)
            raft_entry.check_chunk(entry.data, place)
    assert again.state is None or again.state in moment.states, "neither the state before nor after"
    # It goes on: the same place takes another entry.
    again.storage.write([barrier(again.storage.last + 1, term=99)])
    again.store.flush()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_durable_entries_survive_a_crash(seed: int) -> None:
    workload = Workload(seed)
    workload.run()
    assert len(workload.moments) > 20
    for rank, moment in enumerate(workload.moments):
        for number in range(IMAGES):
            try:
                check(moment, number)
            except Exception as error:
                error.add_note(f"seed {seed}, crash {rank}, image {number}")
                raise


def begun_anew() -> tuple[list[CrashPoint], Begin]:
    """Every crash point of a member that restarts where its leader's log begins."""
    disk = SimDisk()
    log = Log("member", files=disk, spacing=MARKED)
    log.storage.write([barrier(1), barrier(2), barrier(3)])
    log.store.flush()
    begin = Begin(
        Start(LogIndex(40), Term(3)),
        members_of(["n0", "n1"]),
        json.dumps([5 * FILE_BYTES, [["orders", 0, 7]]]).encode(),
    )
    points: list[CrashPoint] = []
    disk.on_call = lambda: points.append(disk.crash_point())
    log.storage.begin(begin)
    disk.on_call = None
    points.append(disk.crash_point())
    return points, begin


def test_begin_again_crash_leaves_the_old_or_the_new_log() -> None:
    points, begin = begun_anew()
    starts = set[Start]()
    for point in points:
        for plan in islice(plans(point, f"{point.call}"), IMAGES):
            again = Log("member", files=SimDisk(build(point, plan)))
            storage, log = again.storage, again.store.log
            starts.add(storage.terms.start)
            if storage.terms.start.index:
                assert (storage.terms.start, storage.last) == (begin.start, begin.start.index)
                assert log.min_offset == log.end == 5 * FILE_BYTES
                assert storage.members.current == begin.members
                assert again.store.max_offset(KEY) == 7
            else:
                assert (storage.last, log.min_offset) == (3, 0)
    assert starts == {Start(LogIndex(0), Term(0)), begin.start}
