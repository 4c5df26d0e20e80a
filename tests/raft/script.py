"""Scenarios as text: commands and what they print.

    # A comment states the rule that the scenario covers.
    group n0 n1 n2
    ----
    ok

A block is one or more commands, a line `----`, and the expected output. Nothing happens by itself:
messages wait until they are delivered or dropped, and disks until a `sync`.

    group ID... [learners=ID,..] [absent=ID,..] [witness=ID]
                             members; absent ones run but are not members
    tick ID [COUNT]          time passes for one node
    forget-leader ID...      these start an election at their next tick
    elect ID                 forget-leader for all, then a tick for ID, and everything settles
    propose ID TEXT...       clients send chunks
    read ID NAME             a client reads
    change ID voters=.. [learners=..] [witness=ID]     hand-over ID to=ID     trim ID to=INDEX
    deliver [FROM->TO]       deliver waiting messages (all, or those of one link)
    drop [FROM->TO]          lose them
    repeat FROM->TO          keep a copy of the waiting messages for `repeated`
    sync ID...               written bytes become durable
    settle                   sync and deliver until nothing is left to do
    crash ID [keep]          the process dies; unsynced bytes are lost, or kept
    restart ID               wipe ID     damage ID at=INDEX
    cut ID...  heal          these and the others cannot reach each other
    log [ID...]              state and log of each
    peers ID                 what a leader knows about the others
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tianzhou.raft.config import RaftConfig
from tianzhou.raft.membership import Members, decode, members_of
from tianzhou.raft.messages import (
    NOT_REJECTED,
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    Message,
    NodeId,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tianzhou.raft.node import Node, Refusal
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_disk import RaftDisk

CONFIG = RaftConfig(
    election_ticks=10, heartbeat_ticks=2, inflight_max=4, append_bytes_max=8, learner_lag_max=1
)


class NoChance:
    """Randomness that always returns the minimum, so that scenarios are deterministic."""

    def randrange(self, start: int, stop: int) -> int:
        assert start < stop
        return start


class Group:
    """The members of a scenario, and the messages between them."""

    def __init__(self) -> None:
        self.disks: dict[NodeId, RaftDisk] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.roles: dict[NodeId, tuple[Role, int]] = {}
        self.commits: dict[NodeId, int] = {}
        self.wire: list[Message] = []
        self.apart: set[NodeId] = set()
        self.out: list[str] = []
        self.twice: list[Message] = []
        self.doubts = 0
        self.witness: NodeId = ""

    # Nodes and disks

    def start(self, name: NodeId) -> None:
        disk = self.disks[name]
        config = replace(CONFIG, is_witness=name == self.witness)
        self.nodes[name] = Node(name, config, NoChance(), storage=disk, saved=disk.saved())
        node = self.nodes[name]
        self.roles[name] = node.role, node.hard.term
        self.commits[name] = node.core.log.commit

    def forget_leader(self, names: list[NodeId]) -> None:
        """Let the election timeout of these nodes pass: they campaign at their next tick."""
        for name in names:
            core = self.nodes[name].core
            if core.role is not Role.LEADER:
                core.timer.idle, core.leader = CONFIG.election_ticks - 1, ""

    def drain(self, name: NodeId) -> None:
        """Write, send, and print what has changed."""
        node = self.nodes[name]
        while node.has_ready():
            ready = node.ready()
            if ready.save is not None:
                self.disks[name].write(ready.save)
            self.wire += ready.messages
            self._print_changes(name)
            for read in ready.reads:
                self.out.append(f"{name} answers {read.token} as of {read.index}")

    def _print_changes(self, name: NodeId) -> None:
        node = self.nodes[name]
        now = node.role, int(node.hard.term)
        if now != self.roles[name]:
            self.roles[name] = now
            self.out.append(f"{name} is {node.role.value} in term {node.hard.term}")
        commit = node.core.log.commit
        if commit != self.commits[name]:
            self.commits[name] = commit
            self.out.append(f"{name} commits {commit}")

    def sync(self, name: NodeId) -> bool:
        disk = self.disks[name]
        if name not in self.nodes or disk.pending is None:
            return False
        disk.sync(LogIndex(self.commits[name]))
        self.nodes[name].advance()
        self.drain(name)
        return True

    def take(self, link: str) -> list[Message]:
        """Remove the waiting messages of this link, or all of them."""
        chosen = [m for m in self.wire if link in ("", f"{m.sender}->{m.to}", f"->{m.to}")]
        self.wire = [m for m in self.wire if m not in chosen]
        return chosen

    def deliver(self, messages: list[Message], *, tell: bool) -> None:
        for message in messages:
            if (message.sender in self.apart) != (message.to in self.apart):
                continue
            if tell:
                self.out.append(describe(message))
            if message.to in self.nodes:
                self.nodes[message.to].step(message)
                self.drain(message.to)

    def settle(self) -> None:
        for _ in range(200):
            for name in sorted(self.disks):
                self.sync(name)
            self.deliver(self.take(""), tell=False)
            if not self.wire and not any(disk.pending for disk in self.disks.values()):
                return
        raise AssertionError("this never ends")

    def show(self, name: NodeId) -> str:
        if name not in self.nodes:
            disk = self.disks[name]
            return f"{name} is down: {_rows(disk.entries_all())} term {disk.state.term}"
        node, core = self.nodes[name], self.nodes[name].core
        stable = [e for e in self.disks[name].entries_all() if e.index <= core.log.stable]
        rows = _rows([*stable, *core.log.unsaved()])
        start = f" from {core.log.start.index}" if core.log.start.index else ""
        doubt = " in doubt" if node.hard.doubt else ""
        facts = f"term {node.hard.term} vote {node.hard.vote or '-'} commit {core.log.commit}"
        return f"{name} {node.role.value}{doubt} {facts}{start}: {rows}"


def _rows(entries: list[Entry]) -> str:
    return " ".join(f"{e.index}/{e.term}{_text(e)}" for e in entries) or "nothing"


def _text(entry: Entry) -> str:
    match entry.kind:
        case Kind.BARRIER:
            return "|"
        case Kind.CHUNK:
            return entry.data.decode()
        case Kind.MEMBERS:
            members = decode(entry.data)
            said = [",".join(sorted(names)) for names in (members.outgoing, members.learners)]
            more = f" from {said[0]}" * bool(said[0]) + f" with {said[1]}" * bool(said[1])
            return f"[{','.join(sorted(members.voters))}{more}]"
        case Kind.PLAIN:
            return "plain"
        case Kind.OMITTED:
            return "-"


def describe(message: Message) -> str:
    head = f"{message.sender}->{message.to} t{message.term}"
    match message:
        case Append():
            rows = f" {_rows(list(message.entries))}" if message.entries else " heartbeat"
            repaired = " repaired" if message.repaired else ""
            behind = f"behind {message.prev_index}/{message.prev_term}"
            return f"{head} append {behind}{rows} commit {message.commit}{repaired}"
        case AppendReply():
            doubt = " in doubt" if message.doubt else ""
            if message.rejected != NOT_REJECTED:
                hint = f"{message.hint_index}/{message.hint_term}"
                return f"{head} rejects {message.rejected}, try {hint}{doubt}"
            return f"{head} has {message.match}{doubt}"
        case Install():
            return f"{head} begin behind {message.start.index}/{message.start.term}"
        case VoteRequest():
            kind = "asks" if message.pre else "forces" if message.forced else "wants votes"
            return f"{head} {kind}, log ends {message.last_index}/{message.last_term}"
        case VoteReply():
            return f"{head} {'yes' if message.granted else 'no'}{' to asking' * message.pre}"
        case TimeoutNow():
            return f"{head} stand now"


class Script:
    """Runs the commands of one scenario."""

    def __init__(self) -> None:
        self._group = Group()
        self._commands: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def run(self, commands: str) -> str:
        """Run one block; returns what it prints."""
        self._group.out = []
        for line in commands.splitlines():
            words = line.partition("#")[0].split()
            if words:
                pairs = dict(word.split("=", 1) for word in words[1:] if "=" in word)
                self._commands[words[0]]([w for w in words[1:] if "=" not in w], pairs)
        return "\n".join(self._group.out or ["ok"])

    def do_group(self, names: list[str], options: dict[str, str]) -> None:
        absent = options["absent"].split(",") if "absent" in options else []
        learners = options["learners"].split(",") if "learners" in options else []
        self._group.witness = options.get("witness", "")
        members = _with_witness(members_of(names, learners), self._group.witness)
        for name in sorted([*names, *learners, *absent]):
            self._group.disks[name] = RaftDisk(members)
            self._group.start(name)

    def do_tick(self, words: list[str], _: dict[str, str]) -> None:
        for _count in range(int(words[1]) if len(words) > 1 else 1):
            self._group.nodes[words[0]].tick()
            self._group.drain(words[0])

    def do_elect(self, words: list[str], _: dict[str, str]) -> None:
        group = self._group
        apart = words[0] in group.apart
        group.forget_leader([name for name in group.nodes if (name in group.apart) == apart])
        group.nodes[words[0]].tick()
        group.drain(words[0])
        group.settle()

    def do_propose(self, words: list[str], _: dict[str, str]) -> None:
        for text in words[1:]:
            self._describe_reply(self._group.nodes[words[0]].propose(text.encode()))
        self._group.drain(words[0])

    def do_read(self, words: list[str], _: dict[str, str]) -> None:
        self._describe_reply(self._group.nodes[words[0]].read(words[1]))
        self._group.drain(words[0])

    def do_change(self, words: list[str], options: dict[str, str]) -> None:
        learners = options["learners"].split(",") if options.get("learners") else []
        target = members_of(options["voters"].split(","), learners)
        target = _with_witness(target, options.get("witness", self._group.witness))
        self._describe_reply(self._group.nodes[words[0]].change(target))
        self._group.drain(words[0])

    def do_hand_over(self, words: list[str], options: dict[str, str]) -> None:
        self._describe_reply(self._group.nodes[words[0]].hand_over(options["to"]))
        self._group.drain(words[0])

    def do_trim(self, words: list[str], options: dict[str, str]) -> None:
        index = LogIndex(int(options["to"]))
        self._group.disks[words[0]].trim(index)
        self._group.nodes[words[0]].trimmed(index)

    def do_deliver(self, words: list[str], _: dict[str, str]) -> None:
        for link in words or [""]:
            self._group.deliver(self._group.take(link), tell=True)

    def do_drop(self, words: list[str], _: dict[str, str]) -> None:
        for link in words or [""]:
            self._group.out += [f"lost: {describe(message)}" for message in self._group.take(link)]

    def do_repeat(self, words: list[str], _: dict[str, str]) -> None:
        """Keep the messages of this link for a second delivery."""
        link = words[0]
        self._group.twice = [m for m in self._group.wire if f"{m.sender}->{m.to}" == link]

    def do_repeated(self, _: list[str], __: dict[str, str]) -> None:
        self._group.deliver(self._group.twice, tell=True)

    def do_peers(self, words: list[str], _: dict[str, str]) -> None:
        for name, peer in self._group.nodes[words[0]].core.leading.peers.items():
            doubt = " in doubt" if peer.doubt else ""
            self._group.out.append(f"{name} has {peer.match}, {peer.state.name.lower()}{doubt}")

    def do_forget_leader(self, words: list[str], _: dict[str, str]) -> None:
        self._group.forget_leader(words)

    def do_sync(self, words: list[str], _: dict[str, str]) -> None:
        for name in words:
            self._group.sync(name)

    def do_settle(self, _: list[str], __: dict[str, str]) -> None:
        self._group.settle()

    def do_lost(self, words: list[str], _: dict[str, str]) -> None:
        """The first node notices that the connection from the second ended."""
        self._group.nodes[words[0]].lost(words[1])
        self._group.drain(words[0])

    def do_resign(self, words: list[str], _: dict[str, str]) -> None:
        self._group.nodes[words[0]].resign()
        self._group.drain(words[0])

    def do_crash(self, words: list[str], _: dict[str, str]) -> None:
        del self._group.nodes[words[0]]
        disk = self._group.disks[words[0]]
        if "keep" in words and disk.pending is not None:
            disk.sync(LogIndex(0))
        disk.crash(Random(0), lose_all=1.0)

    def do_restart(self, words: list[str], _: dict[str, str]) -> None:
        self._group.start(words[0])

    def do_wipe(self, words: list[str], _: dict[str, str]) -> None:
        self._group.doubts += 1
        self._group.disks[words[0]].wipe(self._group.doubts)

    def do_damage(self, words: list[str], options: dict[str, str]) -> None:
        self._group.doubts += 1
        self._group.disks[words[0]].damage(LogIndex(int(options["at"])), self._group.doubts)

    def do_cut(self, words: list[str], _: dict[str, str]) -> None:
        self._group.apart = set(words)

    def do_heal(self, _: list[str], __: dict[str, str]) -> None:
        self._group.apart = set()

    def do_log(self, words: list[str], _: dict[str, str]) -> None:
        for name in words or sorted(self._group.disks):
            self._group.out.append(self._group.show(name))

    def _describe_reply(self, answer: object) -> None:
        if isinstance(answer, Refusal):
            self._group.out.append(f"refused: {answer.name}")


def _with_witness(members: Members, witness: NodeId) -> Members:
    return members._replace(witnesses=members.everyone() & {witness})


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Commands and expected output of each block."""
    found: list[tuple[str, str]] = []
    for block in text.strip().split("\n\n"):
        commands, _, expected = block.partition("\n----\n")
        found.append((commands, expected))
    return found


def rewritten(text: str) -> str:
    """The same scenario with its actual output."""
    script = Script()
    done: list[str] = []
    for commands, _ in blocks_of(text):
        needs_output = any(line and not line.startswith("#") for line in commands.splitlines())
        done.append(f"{commands}\n----\n{script.run(commands)}" if needs_output else commands)
    return "\n\n".join(done) + "\n"
