"""Bugs planted in administration: changes at replicas, before a commit, without a signature."""

from typing import Final

from planting import Bug, Edit

_GATE: Final = "tianzhou.broker.replica.gate:RoleGate."
_METADATA: Final = "tianzhou.broker.replica.raft_metadata:RaftMetadata."


def _bug(name: str, suite: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, suite, 0, tuple(Edit(*edit) for edit in edits))


BUGS: Final = (
    _bug(
        "replica executes every change",
        "replica",
        ("tianzhou.broker.role:RoleState.check_master", "if not self.is_master:", "if False:"),
    ),
    _bug(
        "gate forgets a kind of change",
        "replica",
        (_GATE + "check", "if effect is not None:", "if effect is Effect.MESSAGES:"),
    ),
    _bug(
        "replica creates groups for heartbeats",
        "clients",
        ("tianzhou.broker.groups.groups:Groups.obtain", "if not self._is_replica():", "if True:"),
    ),
    _bug(
        "replica creates retry topics for heartbeats",
        "clients",
        ("tianzhou.broker.topics.topics:Topics.ensure_all", "if self._is_replica():", "if False:"),
    ),
    _bug(
        "change acknowledged before its commit",
        "commit",
        (_GATE + "holds", "if self._mode.commit(on_committed):", "if False:"),
    ),
    _bug(
        "unknown outcome reported as success",
        "commit",
        (_GATE + "holds", "reply if outcome is Outcome.DURABLE else unknown(outcome)", "reply"),
    ),
    _bug(
        "nothing written, so nothing confirmed",
        "barrier",
        (_METADATA + "write_changes", "if changes or always:", "if changes:"),
    ),
    _bug(
        "queues removed before the deletion is committed",
        "deletion",
        (
            "tianzhou.broker.topics.admin:TopicRemoval.request",
            "if self.is_replicated:",
            "if False:",
        ),
    ),
    _bug(
        "followers keep the queues of a deleted topic",
        "followers",
        (_METADATA + "_take", 'if table == "topics":', "if False:"),
    ),
    _bug(
        "deletion removes the queues of the next topic of its name",
        "reborn",
        ("tianzhou.store.consume_queue:Queues._ending", "if before is None:", "if True:"),
    ),
    _bug(
        "what was never committed stays at a deposed leader",
        "deposed",
        (_METADATA + "_take", "self._tables.names(table) | known.keys()", "set(known)"),
    ),
    _bug(
        "reset does not reach the offsets of a follower",
        "reset",
        ("tianzhou.broker.groups.accepted_offsets:AcceptedOffsets.settle", " or was_reset", ""),
    ),
    _bug(
        "offset that a follower accepted lost with its restart",
        "restart",
        (
            "tianzhou.broker.groups.consumer_offsets:ConsumerOffsets._note_deleted",
            "if self.accepted is None:",
            "if True:",
        ),
    ),
    _bug(
        "late offset at a follower moves the group back",
        "late",
        (_METADATA + "lead", "self.settle_offsets()", "pass"),
    ),
    _bug(
        "follower drops what the leader lacks",
        "ahead",
        (
            "tianzhou.broker.groups.accepted_offsets:AcceptedOffsets.settle",
            "known >= offset",
            "True",
        ),
    ),
    _bug(
        "members changed without a signature",
        "signature",
        (
            "tianzhou.broker.access.cluster_proof:ClusterProof.check_members",
            "not _is_loopback(request.peer.remote)",
            "False",
        ),
    ),
)
