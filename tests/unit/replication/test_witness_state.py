"""What a witness keeps: its vote and the terms of its log survive every crash, and it knows when
they may not have."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, HardState, Save
from tianzhou.raft.terms import Terms
from tianzhou.replication.raft_member import open_member
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.witness_state import (
    SLOTS,
    WitnessFiles,
    WitnessState,
    decode_slot,
    encode_slot,
)
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreLocked
from tianzhou.store.files import RealFiles
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint, build, plans

SETTINGS = RaftSettings(
    raft_group="g",
    raft_id="w",
    raft_witness="w",
    raft_peers="n0=127.0.0.1:1;n1=127.0.0.1:2;w=127.0.0.1:3",
    raft_new=True,
)
START = Start(LogIndex(0), Term(0))
SEEDS = 20
STEPS = 40
IMAGES = 6


class Log:
    """The log of a member as a plain dictionary, and the saves that a node would ask for."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.terms = {0: 0}
        self.committed = 0
        self.hard = HardState()

    @property
    def last(self) -> int:
        return max(self.terms)

    def save(self) -> Save:
        dice = self._dice
        if dice.random() < 0.3:
            vote = dice.choice(("", "n0", "n1"))
            self.hard = HardState(Term(self.hard.term + dice.randrange(1, 3)), vote)
        if dice.random() < 0.2:
            return self._begin()
        first = dice.randrange(self.committed, self.last + 1) + 1
        self.terms = {index: term for index, term in self.terms.items() if index < first}
        floor = self.terms[first - 1]
        entries: list[Entry] = []
        for index in range(first, first + dice.randrange(1, 6)):
            floor = dice.randrange(floor, self.hard.term + 1)
            self.terms[index] = floor
            entries.append(Entry(LogIndex(index), Term(floor), Kind.OMITTED, b""))
        return Save(self.hard, None, tuple(entries))

    def _begin(self) -> Save:
        index, term = self.last + self._dice.randrange(1, 9), self.hard.term
        self.terms, self.committed = {index: term}, index
        members = members_of(["n0", "n1", "w"])
        return Save(self.hard, Begin(Start(LogIndex(index), term), members, b""), ())

    def commit(self) -> Start:
        """Commit some more; older entries are then as good as gone."""
        self.committed = self._dice.randrange(self.committed, self.last + 1)
        return Start(LogIndex(self.committed), Term(self.terms[self.committed]))


def terms_of(state: WitnessState) -> Terms:
    return Terms(state.start, state.runs, state.last)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_witness_state_follows_the_log_of_its_node(seed: int) -> None:
    dice = Random(seed)
    log, state, settled = Log(dice), WitnessState(), START
    for _ in range(STEPS):
        save = log.save()
        # What is committed may already be known of a log that this save does not have yet.
        state = state.after(save, settled)
        settled = log.commit()
        terms = terms_of(state)
        assert (state.hard, terms.last) == (log.hard, log.last)
        for index in range(terms.start.index, log.last + 1):
            assert terms.at(LogIndex(index)) == log.terms[index]
        assert decode_slot(encode_slot(7, state)) == (7, state)


def test_committed_entries_are_not_listed() -> None:
    state = WitnessState()
    for index in range(1, 200):
        entry = Entry(LogIndex(index), Term(index), Kind.OMITTED, b"")
        state = state.after(Save(None, None, (entry,)), Start(LogIndex(index - 1), Term(index - 1)))
    assert state.runs == ((199, 199),)
    assert state.start == (198, 198)


def test_committed_entry_that_the_save_has_in_another_term_is_kept() -> None:
    """The node may have replaced it while the save was on its way to the disk."""
    entry = Entry(LogIndex(1), Term(1), Kind.OMITTED, b"")
    state = WitnessState().after(Save(None, None, (entry,)), Start(LogIndex(1), Term(2)))
    assert (state.start, state.last, state.runs) == (START, 1, ((1, 1),))


def test_more_uncommitted_terms_than_a_slot_has_room_for_are_rejected() -> None:
    runs = tuple((LogIndex(index), Term(index)) for index in range(1, 40))
    with pytest.raises(ValueError, match="39 terms without a committed entry do not fit"):
        encode_slot(1, WitnessState(last=LogIndex(39), runs=runs))


# Crashes


class Moment(NamedTuple):
    point: CrashPoint
    states: tuple[WitnessState, ...]
    """The one that was confirmed, and the one that was being written."""


def moments(seed: int) -> Iterator[Moment]:
    """Every disk call of a witness."""
    dice, disk, found = Random(seed), SimDisk(), list[Moment]()
    files = WitnessFiles(disk, "root")
    files.open(SETTINGS)
    log, settled, states = Log(dice), START, (files.state,)
    disk.on_call = lambda: found.append(Moment(disk.crash_point(), states))
    for _ in range(STEPS):
        save = log.save()
        state = files.state.after(save, settled)
        states = files.state, state
        files.save(state)
        states = (state,)
        files.note_members(save)
        settled = log.commit()
    disk.on_call = None
    return iter(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_witness_that_crashes_knows_what_it_confirmed(seed: int) -> None:
    count = 0
    for moment in moments(seed):
        for plan in islice(plans(moment.point, f"{moment.point.call}"), IMAGES):
            files = WitnessFiles(SimDisk(build(moment.point, plan)), "root")
            saved = files.open(SETTINGS)
            assert saved.members[0][0] <= saved.start.index
            if saved.state.doubt:
                continue  # a sector was torn: it says so, and the others repair it
            assert files.state in moment.states
            assert (saved.state, saved.last) == (files.state.hard, files.state.last)
            count += 1
    assert count > 100


def test_first_start_that_crashes_is_repeated() -> None:
    disk, points = SimDisk(), list[CrashPoint]()
    disk.on_call = lambda: points.append(disk.crash_point())
    WitnessFiles(disk, "root").open(SETTINGS)
    disk.on_call = None
    for point in points:
        for plan in islice(plans(point, f"{point.call}"), IMAGES):
            files = WitnessFiles(SimDisk(build(point, plan)), "root")
            assert files.open(SETTINGS).state == HardState()


# Directories


def opened(root: Path, settings: RaftSettings = SETTINGS) -> WitnessFiles:
    files = WitnessFiles(RealFiles(), str(root))
    files.open(settings)
    return files


def written(root: Path) -> Path:
    """The file of a witness that voted twice, and was stopped."""
    files = opened(root)
    for term in (1, 2):
        files.save(WitnessState(HardState(Term(term), "n0")))
    files.close()
    return root / "raft/witness"


@pytest.mark.parametrize("slot", SLOTS)
def test_witness_with_a_damaged_slot_is_in_doubt(slot: int, tmp_path: Path) -> None:
    """It may have been the latest one, with a vote that it must not give twice."""
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[slot + 100] ^= 1
    path.write_bytes(data)
    files = opened(tmp_path)
    assert files.state.hard.doubt
    files.close()
    again = opened(tmp_path)
    assert again.state == files.state, "the doubt stays until the others have repaired it"
    again.close()


def test_witness_whose_file_is_gone_is_in_doubt(tmp_path: Path) -> None:
    written(tmp_path).unlink()
    files = opened(tmp_path)
    assert files.state.hard.doubt
    files.close()


def test_witness_with_an_empty_directory_is_in_doubt_unless_the_group_is_new(
    tmp_path: Path,
) -> None:
    files = WitnessFiles(RealFiles(), str(tmp_path))
    saved = files.open(replace(SETTINGS, raft_new=False))
    assert saved.state.doubt
    files.close()


def test_two_witnesses_in_one_directory_are_rejected(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(StoreLocked):
        opened(tmp_path)
    first.close()


def test_witness_in_the_directory_of_a_broker_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft/state").write_bytes(b"")
    with pytest.raises(UsageError, match="holds the log of a broker; give the witness an empty"):
        opened(tmp_path)


def test_broker_in_the_directory_of_a_witness_is_rejected(tmp_path: Path) -> None:
    """Its vote may be for messages that a broker with an empty log does not have."""
    written(tmp_path)
    settings = replace(SETTINGS, raft_id="n0")
    with pytest.raises(UsageError, match="belongs to a witness; start it with `tianzhou witness`"):
        open_member(settings, RealFiles(), str(tmp_path), StoreConfig(), clock=ManualClock())


def test_broker_that_is_named_as_the_witness_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="w is the witness of g; start it with"):
        open_member(SETTINGS, RealFiles(), str(tmp_path), StoreConfig(), clock=ManualClock())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"raft_group": "other"}, "belongs to w of group g, not to w of other"),
        (
            {"raft_id": "n0", "raft_witness": "n0"},
            "belongs to w of group g, not to n0 of g",
        ),
    ],
)
def test_witness_of_another_group_is_rejected(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    written(tmp_path)
    with pytest.raises(UsageError, match=complaint):
        opened(tmp_path, replace(SETTINGS, **changes))
