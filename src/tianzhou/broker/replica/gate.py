"""The gate: where a request may be executed, and when its response may leave.

Every request that a broker serves has an effect (`spec/requests.toml`). Only the master of a group,
or the leader of a Raft group, executes a request that stores messages or changes topics, groups,
resets, locks or members; every other member responds with the address to ask and changes nothing.
In a Raft group the response to such a change leaves when the change is committed: until then a new
leader may not know of it. If leadership is lost before that, the response says that the outcome is
unknown, never that the request succeeded.

Sends and pulls take the fast path around the router; `Permission.check_write` applies the same rule
to sends, and pulls are served by every member.
"""

from collections.abc import Callable, Collection
from typing import Final

from tianzhou.broker.access.cluster_proof import PROVEN, ClusterProof
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.writing.durable_reply import CODES
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Reply, Request
from tianzhou.replication.durability import Outcome
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_effects import BROKER_EFFECTS, Effect

MASTER_ONLY: Final = frozenset({Effect.MESSAGES, Effect.TABLES, Effect.LOCKS, Effect.MEMBERS})
"""Effects of requests that only the master of a group, or the leader of a Raft group, executes."""

_UNKNOWN: Final = (
    "whether the change was made is unknown: {reason} before a majority confirmed it; check the "
    "current state at the master, or send the request again"
)
_REASONS: Final = {
    Outcome.NOT_MASTER: "this broker lost the leadership",
    Outcome.NO_QUORUM: "the time limit (raft_ack_timeout_ms) passed",
}


class RoleGate:
    """Owner: the broker loop."""

    def __init__(
        self,
        mode: Mode,
        *,
        rejected: Collection[int] = (),
        proof: ClusterProof,
        hold_deletion: Callable[[Callable[[str], None]], bool],
    ) -> None:
        """`rejected` are codes that no member serves; each member rejects them itself.
        `hold_deletion` returns whether a deletion of a topic is not durable yet; it then calls back
        once all are, with an empty string, or with the reason why they never will be."""
        self._mode = mode
        self._proof = proof
        self._hold_deletion = hold_deletion
        self._effects = {
            int(code): effect
            for code, effect in BROKER_EFFECTS.items()
            if effect in MASTER_ONLY and code not in rejected
        }
        self.codes: frozenset[int] = PROVEN | self._effects.keys()

    def check(self, request: Request) -> None:
        code = request.header.code
        effect = self._effects.get(code)
        if code in PROVEN:
            self._proof.check(request)
        if effect is not None:
            self._mode.may_administer(RequestCode(code).name)
        if effect is Effect.MEMBERS:
            self._proof.check_members(request)
        if effect is Effect.TABLES:
            self._mode.check_commit()

    def holds(self, request: Request, reply: Reply) -> bool:
        if self._effects.get(request.header.code) is not Effect.TABLES:
            return False

        def send(response: Reply) -> None:
            if not request.header.is_oneway:
                request.peer.send(encode_reply(request.header, response))

        def on_committed(outcome: Outcome) -> None:
            send(reply if outcome is Outcome.DURABLE else unknown(outcome))

        if self._mode.commit(on_committed):
            return True
        return self._hold_deletion(lambda why: send(_undurable(why) if why else reply))


def unknown(outcome: Outcome) -> Reply:
    """The response to a change whose outcome is not known."""
    reason = _REASONS.get(outcome, "the log failed")
    return Reply(CODES[outcome], remark=_UNKNOWN.format(reason=reason))


def _undurable(reason: str) -> Reply:
    return Reply(
        ResponseCode.SYSTEM_ERROR,
        remark=f"the topic is deleted, but a restart may restore its messages: {reason}; delete "
        "the topic again after the restart",
    )
