"""Crash a broker at every call to its disk, while it runs transactions, delays, timers and recalls.

A seeded story runs on a simulated disk. At each call to the disk the broker may be killed (written
bytes are kept) or lose power (bytes that were not synced may be lost or torn; then with synchronous
flush, where a response is a guarantee). From each such crash the broker restarts and runs on: the
producer responds to checks, time passes. Then every guarantee given before the crash must hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

import pytest

from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.transactions import checks as transaction_checks
from tianzhou.record.message import MessageView
from tianzhou.store.config import FlushMode
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint, Image, build, plans
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode

GROUP = "buyers"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
CONFIG = BrokerConfig(
    fail_fast=False,  # messages wait for the disk as long as the dice say
    transaction_timeout_ms=2000,
    transaction_check_ms=2000,
    transaction_checks_max=3,
    delay_progress_save_interval_ms=1000,
    offsets_save_ms=1000,
)
# Files are so small that the two records of a commit are often in different files.
SMALL = replace(STORE, commit_log_file_bytes=4096, consume_queue_file_bytes=20 * 16)
STEPS = 60
LIFE_S = 40


@dataclass(frozen=True)
class Half:
    """A transactional message, and its outcome as far as the producer knows."""

    body: bytes
    truth: int
    is_delayed: bool
    offset: int
    physical_offset: int


@dataclass
class Story:
    """The guarantees so far. Lists only grow, so a point of the story is a list of lengths."""

    halves: list[Half] = field(default_factory=list[Half])
    decided: list[Half] = field(default_factory=list[Half])
    waiting: list[bytes] = field(default_factory=list[bytes])
    recalled: list[bytes] = field(default_factory=list[bytes])
    truths: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """Every half message, acknowledged or not."""

    def lengths(self) -> tuple[int, int, int, int]:
        return len(self.halves), len(self.decided), len(self.waiting), len(self.recalled)

    def until(self, lengths: tuple[int, int, int, int]) -> "Story":
        halves, decided, waiting, recalled = lengths
        return Story(
            self.halves[:halves],
            self.decided[:decided],
            self.waiting[:waiting],
            self.recalled[:recalled],
            self.truths,
        )


@dataclass(frozen=True)
class Cut:
    point: CrashPoint
    guaranteed: tuple[int, int, int, int]
    now_ms: int


def decision(half: Half, what: int, *, checked: bool = False) -> dict[str, str]:
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(what),
        "fromTransactionCheck": str(checked).lower(),
        "msgId": "",
    }


class Play:
    """One run of a broker, drawn from a seed, with all points at which it may crash."""

    def __init__(self, seed: int, mode: FlushMode) -> None:
        self._dice = Random(seed)
        self.config = replace(SMALL, flush_mode=mode)
        self.story = Story()
        self.cuts: list[Cut] = []
        self.broker = SmallBroker(config=CONFIG, store_config=self.config)
        self._producer = RecordingPeer("10.2.2.2", 1)
        self.broker.heartbeat(self._producer, "producer", producers=(GROUP,))
        self._asked: list[tuple[RecordingPeer, object]] = []
        self._handles: dict[bytes, str] = {}
        self._names = iter(range(1 << 30))
        self.broker.disk.on_call = self._note

    def _note(self) -> None:
        cut = Cut(self.broker.disk.crash_point(), self.story.lengths(), self.broker.clock.now_ms())
        self.cuts.append(cut)

    def run(self) -> None:
        actions = (
            self.send_half,
            self.send_half,
            self.decide,
            self.decide,
            self.decide_again,
            self.delay,
            self.time,
            self.recall,
            self.pass_time,
            self.pass_time,
            self.flush,
        )
        for _ in range(STEPS):
            self._dice.choice(actions)()
            self._read_responses()

    def _read_responses(self) -> None:
        """Read responses: only acknowledged requests are guaranteed."""
        still: list[tuple[RecordingPeer, object]] = []
        for peer, what in self._asked:
            answers = peer.answers()
            if not answers:
                still.append((peer, what))
            elif answers[0].code == 0:
                if isinstance(what, Half):
                    self.story.decided.append(what)
                elif isinstance(what, bytes):
                    self.story.recalled.append(what)
        self._asked = still

    def _ask(self, code: int, ext: dict[str, str], what: object) -> None:
        peer = RecordingPeer()
        answer = self.broker.ask(code, ext, peer=peer)
        if answer is None:
            self._asked.append((peer, what))
        elif answer.code == 0 and isinstance(what, Half):
            self.story.decided.append(what)
        elif answer.code == 0 and isinstance(what, bytes):
            self.story.recalled.append(what)

    def _name(self, kind: str) -> bytes:
        return f"{kind}{next(self._names)}".encode() + b"." * self._dice.choice((0, 40, 300))

    # Actions

    def send_half(self) -> None:
        is_delayed = self._dice.random() < 0.2
        body = self._name("half")
        truth = self._dice.choice((COMMIT, COMMIT, ROLLBACK, UNKNOWN))
        self.story.truths[body] = truth
        named = {"TRAN_MSG": "true", "PGROUP": GROUP} | ({"DELAY": "1"} if is_delayed else {})
        answer = self.broker.send("orders", body, named, queue_id=2)
        self.story.halves.append(
            Half(
                body,
                truth,
                is_delayed,
                int(answer.ext["queueOffset"]),
                int(answer.ext["msgId"][-16:], 16),
            )
        )

    def decide(self) -> None:
        undecided = [
            half
            for half in self.story.halves
            if half.truth != UNKNOWN and half not in self.story.decided
        ]
        if undecided:
            half = self._dice.choice(undecided)
            self._ask(RequestCode.END_TRANSACTION, decision(half, half.truth), half)

    def decide_again(self) -> None:
        """Contradict a decision that was acknowledged."""
        if self.story.decided:
            half = self._dice.choice(self.story.decided)
            what = ROLLBACK if half.truth == COMMIT else COMMIT
            self._ask(RequestCode.END_TRANSACTION, decision(half, what), None)

    def delay(self) -> None:
        body = self._name("delayed")
        self.broker.send("later", body, {"DELAY": str(self._dice.choice((1, 2)))})
        self.story.waiting.append(body)

    def time(self) -> None:
        body = self._name("timed")
        wait_ms = self._dice.choice((700, 3000, 9000))
        answer = self.broker.send("later", body, {"TIMER_DELAY_MS": str(wait_ms)})
        self._handles[body] = answer.ext["recallHandle"]
        self.story.waiting.append(body)

    def recall(self) -> None:
        if self._handles:
            body = self._dice.choice(sorted(self._handles))
            ext = {"topic": "later", "recallHandle": self._handles.pop(body)}
            self._ask(RequestCode.RECALL_MESSAGE, ext, body)

    def pass_time(self) -> None:
        self.broker.clock.advance(ms=self._dice.choice((100, 600, 2500)))
        self.broker.tick(flush=self._dice.random() < 0.5)
        self.broker.save_offsets()
        answer_checks(self.broker, self._producer, self.story)

    def flush(self) -> None:
        self.broker.flush()


def live_on(image: Image, cut: Cut, play: Play) -> SmallBroker:
    """Restart from what the crash left, let the producer respond, and time pass."""
    clock = ManualClock(cut.now_ms)
    broker = SmallBroker(SimDisk(image), config=CONFIG, store_config=play.config, clock=clock)
    producer = RecordingPeer("10.2.2.2", 2)
    broker.heartbeat(producer, "producer", producers=(GROUP,))
    for _ in range(LIFE_S):
        broker.clock.advance(seconds=1)
        broker.tick()
        answer_checks(broker, producer, play.story)
    broker.flush()
    return broker


def answer_checks(broker: SmallBroker, producer: RecordingPeer, story: Story) -> None:
    for check in producer.take_told():
        body = MessageView(check.body).body
        place = (int(check.ext["tranStateTableOffset"]), int(check.ext["commitLogOffset"]))
        half = Half(body, story.truths[body], False, *place)
        ext = decision(half, half.truth, checked=True)
        broker.ask(RequestCode.END_TRANSACTION, ext, oneway=True)


def check(broker: SmallBroker, story: Story) -> None:
    seen = broker.bodies("orders", 2)
    parked = broker.bodies(names.CHECKED_OUT_TOPIC)
    delayed = {half.body for half in story.halves if half.is_delayed}
    for body, truth in story.truths.items():
        if body not in delayed:
            assert seen.count(body) <= 1, f"{body!r} was committed twice"
        assert parked.count(body) <= 1, f"{body!r} was parked twice"
        if truth != COMMIT:
            assert body not in seen, f"{body!r} was not committed"
    for half in story.halves:
        if half.truth == COMMIT:
            assert half.body in seen, f"{half.body!r} was lost"
            assert half.body not in parked, f"{half.body!r} is decided and parked"
        if half.truth == UNKNOWN:
            assert half.body in parked, f"{half.body!r} was dropped"
    came = broker.bodies("later")
    for body in story.waiting:
        if body not in story.recalled:
            # A recall without a response may or may not have succeeded.
            assert body in came or _may_be_recalled(broker, body), f"{body!r} was never delivered"
    for body in story.recalled:
        assert body not in came, f"{body!r} was recalled"


def _may_be_recalled(broker: SmallBroker, body: bytes) -> bool:
    records = broker.messages(names.TIMER_TOPIC)
    (unique_id, *_) = [one.unique_id for one in records if one.body == body] or [None]
    return any(one.properties.get("TIMER_DEL_UNIQKEY") == f"later+{unique_id}" for one in records)


def contradict(broker: SmallBroker, story: Story) -> None:
    """A much later, contradicting decision of a producer changes nothing."""
    for half in story.halves:
        for what in (ROLLBACK, COMMIT) if half.truth != COMMIT else (ROLLBACK,):
            broker.ask(RequestCode.END_TRANSACTION, decision(half, what))
    broker.flush()


@pytest.fixture(autouse=True)
def copies_come_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half messages are copied early, so that crashes happen around that too."""
    monkeypatch.setattr(transaction_checks, "SPREAD_MAX", 4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(FlushMode))
@pytest.mark.parametrize("seed", range(4))
def test_broker_killed_at_any_disk_call_keeps_its_guarantees(seed: int, mode: FlushMode) -> None:
    play = Play(seed, mode)
    play.run()
    assert len(play.cuts) > 100
    assert play.story.decided
    assert play.story.waiting
    for cut in play.cuts[seed % 2 :: 2]:
        image = next(_images(cut, "kept"))
        broker = live_on(image, cut, play)
        story = play.story.until(cut.guaranteed)
        check(broker, story)
        contradict(broker, story)
        check(broker, story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_broker_losing_power_at_any_disk_call_keeps_its_guarantees(seed: int) -> None:
    play = Play(seed, FlushMode.SYNC)
    play.run()
    for rank, cut in enumerate(play.cuts[seed % 3 :: 3]):
        for image in islice(_images(cut, f"{seed} {rank}"), 1, 3):
            broker = live_on(image, cut, play)
            check(broker, play.story.until(cut.guaranteed))


def _images(cut: Cut, seed: str) -> Iterator[Image]:
    for plan in plans(cut.point, seed):
        yield build(cut.point, plan)
