"""A scenario (fault, cluster shape and mode) and how to play it.

A scenario that passes because nothing was sent proves nothing, so volumes are asserted before,
during and after the fault.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final

from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.checkers import complaints
from tianzhou.testing.chaos.cluster import Mode, wait_for
from tianzhou.testing.chaos.faults import (
    FAULTS,
    PROMOTIONS,
    RAFT_FAULTS,
    Fault,
    fault_named,
)
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import History, Kind, Outcome, Trouble
from tianzhou.testing.chaos.load import Foreigners, Load
from tianzhou.testing.chaos.producing import Pace
from tianzhou.testing.chaos.stage import Shape, Stage, set_up
from tianzhou.testing.chaos.witness_faults import PAIR_FAULTS
from tianzhou.testing.kit.patience import recent_crowding

BEFORE: Final = 300
AFTER: Final = 300
"""Minimum of acknowledged sends."""
DEFERRED: Final = 5
"""Minimum of acknowledged sends of each kind that is not visible at once."""
WITHIN_S: Final = 30.0
DELIVERED_S: Final = 40.0
"""RocketMQ's C++ client waits 30 s for the response of a dead broker."""

PASSED_S: Final = 10.0
"""A shorter wait for readers that may have passed an offset before it was reused."""
ELECTION_S: Final = 5.0
"""An election ends at most this long after the previous leader was last heard."""
WEAKER: Final = {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
"""Statuses of messages that are stored with less than the configured guarantee."""

Tell = Callable[[str], None]


class ScenarioFailed(AssertionError):
    """A guarantee was broken. The text says which, and how to reproduce it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    fault: str
    mode: Mode
    shape: Shape = shapes.pair
    pace: Pace = Pace()
    rounds: int = 0
    """How often the leader is killed, instead of one fault."""

    @property
    def is_raft(self) -> bool:
        return self.shape in (shapes.raft, shapes.raft_on_small_disks) or self.has_witness

    @property
    def has_witness(self) -> bool:
        return self.shape in (shapes.witnessed, shapes.witnessed_on_small_disks)

    @property
    def table(self) -> Mapping[str, Fault]:
        """The faults of this shape."""
        if self.has_witness:
            return PAIR_FAULTS
        return RAFT_FAULTS if self.is_raft else FAULTS

    @property
    def can_be_administered(self) -> bool:
        """Whether all brokers are members of one group and so agree on topics and groups, and
        sends are not measured. Not where damage must be found by the next start: deletions save a
        checkpoint, and damage before it is found only when the record is read."""
        may_hide = "damage-follower" in self.fault.split("+")
        return not (self.rounds or may_hide or self.shape is shapes.two)

    @property
    def name(self) -> str:
        if self.is_raft:
            return f"{self.fault}/{'witness' if self.has_witness else 'raft'}"
        shape = "" if self.shape is shapes.pair else f"/{self.shape.__name__}"
        return f"{self.fault}/{self.mode.short}{shape}"

    @property
    def what(self) -> Fault:
        """The fault; only for scenarios without rounds."""
        return fault_named(self.fault, self.table)

    @property
    def kills_masters(self) -> bool:
        return bool(self.rounds) or self.what.stops_sends

    def guarantees(self, groups: tuple[str, ...]) -> Guarantees:
        """A promotion gives up messages that only the old master had: without synchronous
        replication these may be acknowledged ones. All other faults keep all acknowledged messages,
        in all modes."""
        waits = self.mode.sync_replication and self.shape is shapes.pair
        faults = self.fault.split("+")
        keeps = waits or PROMOTIONS.isdisjoint(faults)
        return Guarantees(
            groups,
            keeps_acknowledged=keeps,
            keeps_places=keeps,
            waits_for_slave=waits,
            old_master_resumes="depose" in faults,
            # A slave requests tables periodically: a promotion may revert to slightly older ones.
            keeps_changes=self.is_raft or PROMOTIONS.isdisjoint(faults),
        )


@dataclass(slots=True)
class Report:
    name: str
    seed: int
    seconds: float = 0.0
    counts: dict[Outcome, int] = field(default_factory=dict[Outcome, int])
    kinds: dict[Kind, int] = field(default_factory=dict[Kind, int])
    """Acknowledged sends of each kind."""
    deliveries: int = 0
    silence_s: float = 0.0
    """The longest time without an acknowledged send."""
    recovery_s: float = 0.0
    """From the end of the fault until sends succeed again."""
    failovers_s: list[float] = field(default_factory=list[float])
    """From the death of a leader to the next acknowledged send, of each client and each kill."""
    level_s: float = 0.0
    """From the last send until all replicas are equal."""
    elections: int = 0
    """Leaders that were elected although no fault was injected then: the machine was too busy."""


def surprising_elections(elections: list[float], history: History) -> list[Trouble]:
    """Elections that no fault explains: on a busy machine a leader may pause for longer than its
    group waits. They have the effects that a leader change is documented to have."""
    first = min((send.began for send in history.sends), default=math.inf)
    return [
        Trouble("an election without a fault", at - ELECTION_S, at)
        for at in elections
        if at > first and not any(t.began <= at <= t.ended for t in history.troubles)
    ]


class Play:
    """One run of a scenario. Owner: the thread that runs it."""

    def __init__(
        self, scenario: Scenario, directory: Path, seed: int, foreigners: Foreigners | None = None
    ) -> None:
        self.scenario = scenario
        self.history = History()
        self.report = Report(scenario.name, seed)
        self._directory = directory
        self._foreigners = foreigners
        self._said: list[str] = []
        self.delivered_within_s = DELIVERED_S
        self.tell: Tell = lambda _: None

    def run(self) -> Report:
        began, scenario = time.monotonic(), self.scenario
        self.tell("start")
        dice = Random(f"{scenario.name} {self.report.seed}")
        with contextlib.ExitStack() as ending:
            ending.push(self._keep)
            stage = set_up(self._directory, scenario.shape, scenario.mode, dice)
            ending.callback(stage.cluster.close)
            self._play(stage)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _play(self, stage: Stage) -> None:
        load = Load(stage.cluster, self.history, self.scenario.pace, self._foreigners)
        try:
            self._suffer(stage, load)
            self.tell("settle")
            load.stop_producing()
            stage.wait_settled(max(send.due for send in self.history.sends))
            self.report.level_s = stage.wait_level()
            within_s = self.delivered_within_s
            if self._may_pass_places:
                within_s = min(within_s, PASSED_S)
            self._said = load.missing(set(stage.stored().values()), within_s)
            load.finish()
        finally:
            load.close()
        self._judge(stage, load.groups)

    @property
    def _may_pass_places(self) -> bool:
        """Whether readers may have passed an offset before it was reused."""
        guarantees = self.scenario.guarantees(())
        return guarantees.old_master_resumes or not guarantees.keeps_places

    def _suffer(self, stage: Stage, load: Load) -> None:
        fault, history = self.scenario.what, self.history
        self.tell("send")
        load.wait_acknowledged(BEFORE, WITHIN_S)
        stage.find_masters()
        self.tell(fault.what)
        began = time.monotonic()
        fault.strike(stage)
        struck = time.monotonic()
        time.sleep(fault.lasts_s)  # the duration of the fault, not a wait for a condition
        wait_for(lambda: self._goes_on(began), WITHIN_S, lambda: f"{self._answered(began)} came")
        repairing = time.monotonic()
        self.tell("repair")
        fault.repair(stage)
        repaired = time.monotonic()
        load.wait_acknowledged(AFTER, WITHIN_S)
        recovered = time.monotonic()
        if fault.what != "nothing":
            history.troubles += [Trouble(fault.what, began, recovered)] * fault.count
        if fault.severs:
            history.troubles.append(Trouble(fault.what, struck, repairing, severs=True))
        self.report.recovery_s = recovered - repaired
        self.report.silence_s = history.longest_silence(began, recovered)
        limit = fault.silence_s_max
        assert limit is None or self.report.silence_s <= limit * recent_crowding(), (
            f"silent for too long: {self.report}"
        )

    def _goes_on(self, began: float) -> bool:
        """Return whether sends are answered during the fault as they must be while a master is
        available."""
        fault, answered = self.scenario.what, self._answered(began)
        if fault.stops_sends and self.scenario.shape is not shapes.two:
            return True
        if (fault.severs or fault.weakens) and self.scenario.mode.sync_replication:
            return bool(answered.keys() & WEAKER)
        return answered.total() >= fault.answers_min

    def _answered(self, began: float) -> Counter[str]:
        """Count the statuses of sends that were answered since then."""
        with self.history.adding:
            return Counter(
                send.status
                for send in self.history.sends
                if began <= send.ended and send.place is not None
            )

    def _judge(self, stage: Stage, groups: tuple[str, ...]) -> None:
        self.tell("judge")
        history, report = self.history, self.report
        surprises = surprising_elections(stage.elections(), history)
        history.troubles += surprises
        report.elections = len(surprises)
        found = stage.gather()
        report.deliveries = len(history.deliveries)
        report.counts = {
            outcome: sum(send.outcome is outcome for send in history.sends) for outcome in Outcome
        }
        report.kinds = {
            kind: sum(send.kind is kind and send.outcome is Outcome.OK for send in history.sends)
            for kind in Kind
        }
        guarantees = self.scenario.guarantees(groups)
        # Where offsets may be reused, the rules decide which missing messages are errors.
        said = [] if self._may_pass_places else self._said
        said = said + complaints(history, found, guarantees)
        if said:
            raise ScenarioFailed("\n".join(said))
        # Rules without complaints prove something only if enough was sent. This check comes after
        # the rules, because lost messages are missing here too.
        assert report.counts[Outcome.OK] >= BEFORE + AFTER, report
        assert min(report.kinds.values()) >= DEFERRED, report
        assert report.deliveries >= len(groups) * (BEFORE + AFTER), report

    def _keep(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Keep the history of a failed run in the directory."""
        if error is None:
            return
        path = self._directory / "history.jsonl"
        self.history.write(path)
        error.add_note(
            f"scenario {self.scenario.name}, seed {self.report.seed}; its history: {path}\n"
            f"replay: make chaos ONLY={self.scenario.name} SEED={self.report.seed}"
        )


PACE: Final = Pace(producers=6, per_second=40.0)
BETWEEN: Final = 60
"""Acknowledged sends between two kills."""
MEDIAN_S_MAX: Final = 2.0
P99_S_MAX: Final = 5.0


def failovers(rank: int, rounds: int) -> Scenario:
    return Scenario(f"failovers-{rank}", Mode(), shapes.raft, PACE, rounds)


def waits(history: History, since: float) -> dict[str, float]:
    """Return how long each client waited for its next acknowledged send that started after
    `since`."""
    found: dict[str, float] = {}
    with history.adding:
        for send in reversed(history.sends):
            if send.began < since and send.ended < since:
                break
            if send.outcome is Outcome.OK and send.kind is Kind.PLAIN and send.began >= since:
                found[send.client] = send.ended - since
    return found


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class FailoverPlay(Play):
    """Kills the leaders of a Raft group and measures how long clients are without one."""

    def _suffer(self, stage: Stage, load: Load) -> None:
        for number in range(self.scenario.rounds):
            self.tell(f"kill {number + 1} of {self.scenario.rounds}")
            load.wait_acknowledged(BETWEEN, WITHIN_S)
            stage.find_masters()
            self._fail_over(stage)
        load.wait_acknowledged(BETWEEN, WITHIN_S)
        self.report.silence_s = max(self.report.failovers_s)
        median = percentile(self.report.failovers_s, 0.5)
        slowest = percentile(self.report.failovers_s, 0.99)
        busy, all_s = recent_crowding(), self.report.failovers_s
        assert median <= MEDIAN_S_MAX * busy, f"median {median:.2f} s: {all_s}"
        assert slowest <= P99_S_MAX * busy, f"99th percentile {slowest:.2f} s: {all_s}"

    def _fail_over(self, stage: Stage) -> None:
        killed, history = stage.master, self.history
        began = time.monotonic()
        killed.server.kill()
        count = self.scenario.pace.producers
        wait_for(
            lambda: len(waits(history, began)) == count,
            WITHIN_S,
            lambda: f"only {sorted(waits(history, began))} send again",
        )
        self.report.failovers_s += waits(history, began).values()
        stage.cluster.start([killed])
        stage.find_masters()
        end = stage.master.log_end()
        wait_for(
            lambda: killed.log_end() >= end, WITHIN_S, lambda: f"{killed.name} is behind {end}"
        )
        history.troubles.append(Trouble("kill -9 of the leader", began, time.monotonic()))


def play_of(
    scenario: Scenario, directory: Path, seed: int, foreigners: Foreigners | None = None
) -> Play:
    """Create the play for a scenario."""
    kind = FailoverPlay if scenario.rounds else Play
    return kind(scenario, directory, seed, foreigners)
