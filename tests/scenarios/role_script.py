"""Scenarios of a broker's role as text: commands and what they print.

    # A comment says which rule this is about.
    start slave
    event JOIN
    ----
    Stopped -> Slave: REFUSE_WRITES
    Slave -> Slave: FOLLOW_MASTER

A block is one or more commands, a line `----`, and the expected output. The effects come from
`roles.py`; the broker here is a model that keeps only what the effects are about: what is saved,
and what the process does. The model stops with an error at an effect that is unsafe at its place.

    start standalone|master|slave|member    the first start, as the settings say
    event NAME...                events in order, each with all its effects
    kill                         the process dies between two events
    crash NAME after N           the process dies after the first N effects of an event
    crash NAME anywhere          for every N: crash there, restart, and check the role; afterwards
                                 the broker is as before
    fail NAME anywhere UNDO      for every N: the effect after the first N raises, the state stays,
                                 and the event UNDO follows; afterwards the broker is as before
    restart                      start again with what is saved
    show                         what is saved, and what the process does
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from tianzhou.broker.replica.roles import Effect, Event, State, allows, decide

STARTS = {
    "standalone": Event.START_ALONE,
    "master": Event.START_AS_MASTER,
    "slave": Event.START_AS_SLAVE,
    "member": Event.START_AS_MEMBER,
}


class Unsafe(Exception):
    """An effect came at a place where it could lose messages, or allow two masters."""


@dataclass
class Process:
    """What a crash takes away."""

    is_writing: bool = False
    is_following: bool = False
    counts_slaves: bool = False
    has_claim: bool = False
    role: str = ""
    """As handlers and NameServers see it."""


@dataclass
class BrokerModel:
    kind: str = ""
    saved: str = ""
    """The durable role; empty: as the settings say."""
    state: State = State.STOPPED
    process: Process = field(default_factory=Process)

    def start(self) -> str:
        assert self.state is State.STOPPED
        role = self.saved.lower() if self.kind in ("master", "slave") and self.saved else self.kind
        self.process.role = "MASTER" if role in ("standalone", "master") else "SLAVE"
        lines = [self.handle(STARTS[role])]
        if allows(self.state, Event.JOIN) and role == "slave":
            lines.append(self.handle(Event.JOIN))
        return "\n".join(lines)

    def handle(self, event: Event) -> str:
        if not allows(self.state, event):
            return f"{self.state.value} does not allow {event.name}"
        before, (state, effects) = self.state, decide(self.state, event)
        self.execute_all(effects)
        self.state = state
        self.check()
        names = " ".join(effect.name for effect in effects)
        return f"{before.value} -> {state.value}: {names}"

    def crash(self, event: Event, count: int) -> None:
        """Die after the first effects of an event."""
        self.execute_all(decide(self.state, event).effects[:count])
        self.die()

    def die(self) -> None:
        self.state, self.process = State.STOPPED, Process()

    def execute_all(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.execute(effect)

    def execute(self, effect: Effect) -> None:
        for is_unsafe, why in UNSAFE.get(effect, ()):
            if is_unsafe(self):
                raise Unsafe(f"{effect.name}: {why}")
        self.saved = SAVES.get(effect, self.saved)
        self.process = replace(self.process, **CHANGES.get(effect, {}))

    def check(self) -> None:
        """Every state between two events is legal."""
        process, state = self.process, self.state
        may_write = state in (State.STANDALONE, State.MASTER)
        if process.is_writing != may_write:
            raise Unsafe(f"{state.value}, and writing is {process.is_writing}")
        if (process.role == "MASTER") != may_write:
            raise Unsafe(f"{state.value}, and announced as {process.role}")
        if process.has_claim != (state is State.PROMOTING):
            raise Unsafe(f"{state.value}, and a claim is {process.has_claim}")
        if may_write and process.is_following:
            raise Unsafe(f"{state.value} follows a master")
        if process.counts_slaves and state is not State.MASTER:
            raise Unsafe(f"{state.value} waits for slaves")

    def show(self) -> str:
        process = self.process
        does = [
            process.role or "down",
            *(["writes"] if process.is_writing else []),
            *(["follows"] if process.is_following else []),
            *(["counts slaves"] if process.counts_slaves else []),
            *(["has a claim"] if process.has_claim else []),
        ]
        return f"{self.state.value}, saved {self.saved or 'nothing'}: {', '.join(does)}"


UNSAFE: dict[Effect, tuple[tuple[Callable[[BrokerModel], bool], str], ...]] = {
    Effect.BEGIN_WRITING: (
        (
            lambda model: model.kind in ("master", "slave") and model.saved != "MASTER",
            "accepts messages before its role is saved",
        ),
        (lambda model: model.process.is_following, "accepts messages and follows a master"),
    ),
    Effect.BECOME_MASTER: (
        (
            lambda model: not model.process.is_writing,
            "announces a master that does not accept messages",
        ),
    ),
    Effect.BECOME_SLAVE: (
        (lambda model: model.process.is_writing, "announces a slave that accepts messages"),
    ),
    Effect.SAVE_AS_MASTER: (
        (lambda model: not model.process.has_claim, "is the master without a claimed epoch"),
        (lambda model: model.process.is_following, "saves an end of the log that still moves"),
    ),
    Effect.FOLLOW_MASTER: (
        (
            lambda model: model.process.is_writing or model.saved == "MASTER",
            "follows a master while it is one",
        ),
    ),
    Effect.ADOPT_OFFSETS: (
        (lambda model: model.process.is_following, "adopts offsets that the master still changes"),
    ),
}
"""What must not hold when an effect is executed."""

SAVES = {
    Effect.SAVE_AS_MASTER: "MASTER",
    Effect.MARK_START: "MASTER",
    Effect.SAVE_AS_SLAVE: "SLAVE",
}
CHANGES: dict[Effect, dict[str, Any]] = {
    Effect.BEGIN_WRITING: {"is_writing": True},
    Effect.REFUSE_WRITES: {"is_writing": False},
    Effect.STOP_WRITING: {"is_writing": False},
    Effect.BECOME_MASTER: {"role": "MASTER", "has_claim": False},
    Effect.BECOME_SLAVE: {"role": "SLAVE"},
    Effect.CHOOSE_EPOCH: {"has_claim": True},
    Effect.DROP_CLAIM: {"has_claim": False},
    Effect.STOP_FOLLOWING: {"is_following": False},
    Effect.FOLLOW_MASTER: {"is_following": True},
    Effect.BEGIN_ACKS: {"counts_slaves": True},
    Effect.END_ACKS: {"counts_slaves": False},
}
"""The other effects concern the log and its tables, not the role."""


def run(model: BrokerModel, command: str) -> str:
    match command.split():
        case ["start", kind] if kind in STARTS:
            model.kind = kind
            return model.start()
        case ["event", *names]:
            return "\n".join(model.handle(Event[name]) for name in names)
        case ["kill"]:
            model.die()
            return "down"
        case ["crash", name, "after", count]:
            model.crash(Event[name], int(count))
            return "down"
        case ["crash", name, "anywhere"]:
            return crash_anywhere(model, Event[name])
        case ["fail", name, "anywhere", undo]:
            return fail_anywhere(model, Event[name], Event[undo])
        case ["restart"]:
            return model.start()
        case ["show"]:
            return model.show()
        case _:
            raise ValueError(f"unknown command {command!r}")


def crash_anywhere(model: BrokerModel, event: Event) -> str:
    lines: list[str] = []
    effects = decide(model.state, event).effects
    for count in range(len(effects) + 1):
        copy = deepcopy(model)
        copy.crash(event, count)
        copy.start()
        after = effects[count - 1].name if count else "nothing"
        lines.append(f"after {after}: {copy.show()}")
    return "\n".join(lines)


def fail_anywhere(model: BrokerModel, event: Event, undo: Event) -> str:
    lines: list[str] = []
    effects = decide(model.state, event).effects
    for count in range(len(effects)):
        copy = deepcopy(model)
        copy.execute_all(effects[:count])
        copy.handle(undo)
        lines.append(f"{effects[count].name} fails: {copy.show()}")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """The scenario with the output that it has now."""
    model, blocks = BrokerModel(), list[str]()
    for block in text.strip("\n").split("\n\n"):
        commands, ruled, _ = block.partition("\n----")
        lines = [line for line in commands.splitlines() if not line.startswith("#")]
        if not ruled:
            assert not lines, f"commands without output: {block!r}"
            blocks.append(block)
            continue
        output = "\n".join(run(model, line) for line in lines)
        blocks.append(f"{commands}\n----\n{output}")
    return "\n\n".join(blocks) + "\n"
