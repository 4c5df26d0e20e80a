"""Bugs planted in Raft. Most of them were shipped by a real project, named in brackets."""

from typing import Final

from sabotage.planting import Bug, Edit

_CANDIDATE: Final = "tianzhou.raft.candidate:"
_CORE: Final = "tianzhou.raft.core:Core."
_FOLLOWER: Final = "tianzhou.raft.follower:"
_LEADER: Final = "tianzhou.raft.leader:"
_LOG: Final = "tianzhou.raft.log:RaftLog."
_MEMBERSHIP: Final = "tianzhou.raft.membership:"
_NODE: Final = "tianzhou.raft.node:Node."
_PROGRESS: Final = "tianzhou.raft.progress:Progress."


def _bug(name: str, *edits: tuple[str, str, str], seed: int = 0) -> Bug:
    """A bug that the simulation catches, starting with this seed."""
    return Bug(name, "simulation", seed, tuple(Edit(*edit) for edit in edits))


def _of_witness(name: str, *edits: tuple[str, str, str], seed: int = 0) -> Bug:
    """A bug that the simulation of groups with a witness catches."""
    return Bug(name, "witness", seed, tuple(Edit(*edit) for edit in edits))


def _directed(name: str, scenario: str, *edits: tuple[str, str, str]) -> Bug:
    """A bug too rare for seeds, which this scenario catches."""
    return Bug(name, scenario, 0, tuple(Edit(*edit) for edit in edits))


COMMIT: Final = (
    _bug(
        "entries of old terms committed by counting [figure 8, dledger 4]",
        (_LEADER + "commit", " or core.log.terms.at(index) != core.term", ""),
    ),
    _bug(
        "commit not capped by what the follower has [dledger 316]",
        (_FOLLOWER + "on_append", "min(message.commit, end)", "min(message.commit, log.last)"),
        seed=1,
    ),
    _bug(
        "heartbeats commit without comparing logs",
        (_FOLLOWER + "on_append", "if not log.matches(", "if message.entries and not log.matches("),
    ),
    _bug(
        "what was sent counts as stored",
        (_LEADER + "_match", "0 if peer.doubt else peer.match", "peer.next - 1"),
    ),
    _bug(
        "a leader counts what its own disk does not have",
        (_LEADER + "_match", "return core.log.stable", "return core.log.last"),
    ),
    _bug(
        "half of the voters are a majority",
        ("tianzhou.raft.quorum:_middle", "(len(numbers) - 1) // 2", "len(numbers) // 2"),
        seed=4,
    ),
    _bug(
        "learners count",
        (
            "tianzhou.raft.quorum:agreed",
            "_middle(members.voters, reached)",
            "_middle(members.voters | members.learners, reached)",
        ),
        seed=4,
    ),
)

DURABILITY: Final = (
    _bug("vote not persisted",
         (_NODE + "_save", "state = core.hard if", 'state = core.hard._replace(vote="") if')),
    _bug("term and vote not persisted",
         (_NODE + "_save", "Save(state, log.begin", "Save(None, log.begin")),
    _bug("votes leave before they are durable",
         (_NODE + "ready", "core.outbox and core.hard == self._wrote and not self._saves_state()",
          "core.outbox")),
    _bug("votes leave while they are being written",
         (_NODE + "ready", " and not self._saves_state()", ""),
         (_NODE + "has_ready", " and not self._saves_state()", "")),
    _bug("entries acknowledged before they are durable [nats 7564]",
         (_CORE + "report", "min(following.matched, self.log.stable)", "following.matched")),
    _bug("what was cut off while it was written counts as durable",
         (_LOG + "_cut", "self._saving = min(self._saving, LogIndex(first - 1))", "pass"), seed=6),
    _bug("a new beginning acknowledged before it is durable",
         (_LOG + "begin_at", "self._saving = self.stable = LogIndex(0)",
          "self._saving, self.stable = LogIndex(0), begin.start.index"), seed=4),
)  # fmt: skip

ELECTIONS: Final = (
    _bug("votes for a log that is behind",
         (_CANDIDATE + "on_vote_request", "and not core.log.is_ahead_of(", "and (None,) != (")),
    _bug("longer logs win over newer ones",
         (_LOG + "is_ahead_of", "(self.terms.last_term, self.terms.last) > (last_term, last_index)",
          "self.terms.last > last_index"), seed=79),
    _bug("recency by current term [dledger 52]",
         (_CANDIDATE + "_ask", "log.last, log.terms.last_term", "log.last, core.term"), seed=32),
    _bug("two votes in a term",
         (_CANDIDATE + "_may_have", "and (free or core.hard.vote == request.sender)",
          "and bool(free or True)")),
    _bug("asking for pre-votes raises terms",
         (_NODE + "_enter_term", "if message.pre:", "if False:")),
    _bug("votes while the leader is heard",
         (_CORE + "hears_leader", "self.timer.idle < self.config.election_ticks",
          "self.timer.idle < 0"),
         seed=1),
    _bug("leads on without a majority [etcd 20418]",
         (_LEADER + "tick", "if now - quorum_heard >= core.config.election_ticks:",
          "if False:"), seed=1),
    _bug("elected by its own vote alone",
         ("tianzhou.raft.quorum:won", "== 1", ">= 0"), seed=1),
)  # fmt: skip

LOGS: Final = (
    _bug("term of the entry before not compared",
         (_LOG + "matches", "self.terms.at(index) == term", "index <= self.terms.last"), seed=1),
    _bug("any append cuts the log behind it",
         (_LOG + "merge", " and terms.at(entry.index) != entry.term", "")),
    _bug("what contradicts the leader is kept",
         (_LOG + "merge", "terms.at(entry.index) != entry.term", "entry.index > terms.last"),
         seed=1),
    _directed("what agreed with one leader is taken to agree with the next", "same_leader_again",
         (_CORE + "enter_term", 'self.follow("")', "pass")),
    _bug("goes back to where the follower says, without looking",
         (_LEADER + "_back_off",
          "core.log.terms.last_at_most(reply.hint_index, reply.hint_term)", "reply.hint_index"),
         seed=1),
    _directed("restarts the log without discarding", "far_behind_and_wrong",
         (_FOLLOWER + "on_install", "if log.terms.at(start.index) == start.term:",
          "if start.index <= log.last:")),
    _directed("logs that part in what has expired are never brought together",
         "logs_part_in_what_has_expired",
         ("tianzhou.raft.terms:Terms.last_at_most", "while rank >= 0", "while rank > 0")),
)  # fmt: skip

MEMBERS: Final = (
    _bug("second change while the first is open",
         (_NODE + "change", "history.current_index > core.log.commit", "False"), seed=4),
    _bug("change before a commit in the own term [raft-dev 2015]",
         (_NODE + "change", "if not leader.has_committed_in_term(core):", "if False:"), seed=8),
    _bug("large changes in one step",
         ("tianzhou.raft.membership:Members.towards", "<= 1", "<= 9"), seed=4),
    _bug("joint majorities of the new set alone",
         ("tianzhou.raft.quorum:agreed", "if members.outgoing else best", "if False else best"),
         seed=4),
    _directed("a change that was cut off stays in force", "change_is_cut_off",
         (_LOG + "_cut", "return self.members.cut(first)", "return False")),
    _bug("a newcomer gets a vote at once",
         (_NODE + "change", "newcomers = target.voters - history.current.voters",
          "newcomers = frozenset()"), seed=4),
    _bug("a learner gets a vote before it has caught up",
         (_LEADER + "have_caught_up",
          "_answers(core, node) and (node in witnesses or _match(core, node) >= enough)", "True"),
         seed=8),
    _directed("a change leaves voters that do not answer", "change_needs_a_majority_that_answers",
         (_NODE + "change", "if not leader.answers_majority(core, target):", "if False:")),
    _bug("a joint membership is never left",
         (_LEADER + "finish_change", "if history.current.outgoing:", "if False:"), seed=4),
)  # fmt: skip

DOUBT: Final = (
    _bug("votes although it may have forgotten",
         (_CANDIDATE + "may_listen", "if core.hard.doubt:", "if False:"), seed=5),
    _bug("leads although it may have forgotten",
         (_CORE + "take_seat", "not self.hard.doubt and ", ""), seed=5),
    _bug("counted although it may have forgotten",
         (_LEADER + "_match", "0 if peer.doubt else peer.match", "peer.match"), seed=12),
    _bug("repaired before it has everything",
         (_LEADER + "_is_repaired",
          "peer.doubt != 0 and min(core.log.commit, peer.match) >= peer.barrier",
          "peer.doubt != 0"), seed=5),
    _directed("still believed to have what it lost", "damaged_member",
         (_PROGRESS + "forgot", "self.match = LogIndex(0)", "pass")),
    _directed("answers from before it forgot are believed", "old_answers_of_a_wiped_member",
         (_LEADER + "_believe", "if reply.round <= peer.doubt_round:", "if False:")),
)  # fmt: skip

READS_AND_BOUNDS: Final = (
    _bug(
        "reads without asking the others [etcd 20418]",
        (_LEADER + "_round", "0 if peer.doubt else peer.round", "core.leading.round"),
        seed=18,
    ),
    _bug(
        "reads before a commit in the own term",
        (_NODE + "read", "if not leader.has_committed_in_term(self._core):", "if False:"),
        seed=36,
    ),
    _bug(
        "messages without end to one that is silent",
        (_PROGRESS + "may_send", "len(self._inflight) < inflight_max", "True"),
    ),
    _bug(
        "takes more than it can hold",
        (_NODE + "may_propose", "waiting + size > core.config.uncommitted_bytes_max", "False"),
        seed=5,
    ),
)

_FORGET: Final = (
    "saved._replace(last=saved.commit, "
    "terms=tuple(run for run in saved.terms if run[0] <= saved.commit))"
)
WITNESS: Final = (
    _of_witness("a witness votes for anybody",
                (_CANDIDATE + "on_vote_request", "and not core.log.is_ahead_of(",
                 "and not (not core.config.is_witness) * core.log.is_ahead_of(")),
    _of_witness("a witness forgets at a restart what it acknowledged",
                (_NODE + "__init__", "saved=saved",
                 f"saved={_FORGET} if config.is_witness else saved")),
    _of_witness("a witness is told what only the leader's memory has",
                (_LEADER + "_end", "else _match(core, peer)", "else log.last")),
    _of_witness("a witness is told what is not committed when it has it",
                (_LEADER + "_end", "match if log.terms.at(LogIndex(match)) == core.term else 0",
                 "log.stable")),
    _directed("a witness is ahead of copies that keep up", "witness_lets_a_copy_take_over",
                (_LEADER + "_end", "if copies_suffice(core):", "if False:")),
    _of_witness("a witness never counts",
                (_LEADER + "commit", "if idle and not copies_suffice(core):", "if False:")),
    _of_witness("a copy that is away keeps up",
                (_LEADER + "_keeps_up",
                 "_answers(core, node) and _match(core, node) >= core.leading.ends[0]", "True")),
    _of_witness("a witness begins behind what is not committed",
                (_LEADER + "_floor", "return core.log.commit if", "return core.log.stable if")),
    _of_witness("a witness stands for election",
                (_MEMBERSHIP + "Members.may_lead", " and node not in self.witnesses", "")),
    _of_witness("a witness gets data",
                (_LEADER + "_entries", "if core.log.members.is_witness(node):", "if False:")),
    _directed("a witness never hears that it is repaired", "witness_is_replaced",
                (_LEADER + "_must_restart", " and not _is_repaired(core, peer)", "")),
    _directed("leadership is transferred to a witness", "witness_never_leads",
              (_NODE + "hand_over", ".may_lead(target)", ".may_vote(target)")),
    _directed("a witness waits for a leader that died", "witness_lets_a_copy_take_over",
              (_NODE + "lost", "core.role in (Role.FOLLOWER, Role.LEARNER)",
               "core.role is Role.FOLLOWER")),
)  # fmt: skip

BUGS: Final = (
    *COMMIT,
    *DURABILITY,
    *ELECTIONS,
    *LOGS,
    *MEMBERS,
    *DOUBT,
    *READS_AND_BOUNDS,
    *WITNESS,
)
