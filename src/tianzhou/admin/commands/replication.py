"""Masters and slaves: their columns in `tianzhou cluster`, and `tianzhou broker promote`."""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking, credentials_from_environment, force
from tianzhou.base.errors import TianzhouError, UsageError

if TYPE_CHECKING:
    from tianzhou.wire.replication_bodies import ReplicationView

ASK_S: Final = 2.0
ANSWER_S: Final = 15.0
"""A promotion waits for the old master and, twice, for NameServers that may not respond."""
CATCH_UP_S: Final = 60.0
_PAUSE_S: Final = 0.05
UNKNOWN: Final[dict[str, Any]] = {
    "epoch": None,
    "end": None,
    "confirmed": None,
    "lag_bytes": None,
    "lag_ms": None,
    "in_sync": None,
    "copies_needed": None,
    "following": "",
}
"""The columns of a broker that does not report them."""


class PromotionFailed(TianzhouError):
    """A broker rejected a step of the promotion, or did not complete it."""


def look_at(address: str) -> "ReplicationView | None":
    """The state that the broker reports; None if it does not respond or does not support this."""
    from tianzhou.net.blocking import BlockingPeer, Unreachable
    from tianzhou.wire._generated_codes import RequestCode
    from tianzhou.wire.replication_bodies import decode_replication_view

    try:
        with BlockingPeer(address, timeout_s=ASK_S) as peer:
            answer, body = peer.call(RequestCode.VIEW_REPLICATION)
    except Unreachable:
        return None
    return decode_replication_view(body) if answer.code == 0 else None


def facts(
    look: "ReplicationView | None", master: "ReplicationView | None", broker_id: int
) -> dict[str, Any]:
    """Replication columns of a broker; `master` is the master of its group."""
    seen = [slave for slave in master.slaves if slave.broker_id == broker_id] if master else []
    late = {"lag_bytes": seen[0].lag_bytes, "lag_ms": seen[0].lag_ms} if seen else {}
    if look is None:  # its master may still know its last offset
        end = {"end": seen[0].acked} if seen else {}
        return late | end | ({"following": "does not respond"} if broker_id else {})
    row = UNKNOWN | {"epoch": look.epoch, "end": look.end, "confirmed": look.confirmed}
    if look.role == "MASTER":
        in_sync = sorted(slave.broker_id for slave in look.slaves if slave.is_in_sync)
        return row | {"in_sync": [0, *in_sync], "copies_needed": look.copies_needed}
    if seen:
        return row | late | {"following": "follows"}
    return row | {"following": look.last_error or "not following a master"}


def lag_text(row: dict[str, Any]) -> str:
    if row["lag_bytes"] is None:
        return ""
    return f"{row['lag_bytes']} B, {row['lag_ms']} ms"


def copies_text(row: dict[str, Any]) -> str:
    """The brokers in sync, and how many copies an acknowledgement needs."""
    if row["in_sync"] is None:
        return ""
    ids, needed = " ".join(map(str, row["in_sync"])), row["copies_needed"]
    return f"{ids}, needs {needed}" if needed > 1 else ids


@click.command()
@click.argument("name", required=False)
@click.option(
    "--id",
    "broker_id",
    type=int,
    metavar="ID",
    help="Promote slave ID; default: the slave with the most data.",
)
@click.option(
    "--switch",
    is_flag=True,
    help="Let the running master step down first; no message is lost.",
)
@force
@asking
def promote(
    session: Session, *, name: str | None, broker_id: int | None, switch: bool, yes: bool
) -> None:
    """Promote a slave of the group NAME to master, with a new epoch.

    The slave with the most data is chosen. The old master becomes a slave when it returns; messages
    that only it had are moved to files there, with a list.
    """
    name = session.broker(name)
    places = [place for place in session.admin.brokers.all() if place.name == name]
    if not places:
        raise not_found(f"broker {name} is not registered; `tianzhou cluster` lists the brokers")
    looks = {
        address: look
        for place in places
        for address in place.addresses.values()
        if (look := look_at(address)) is not None
    }
    old = next(((a, look) for a, look in looks.items() if look.role == "MASTER"), None)
    if old is not None and not switch:
        raise UsageError(
            f"the master of {name} at {old[0]} is running; pass --switch to let it step down first"
        )
    address, chosen = _choose(name, looks, broker_id)
    if old is not None and not chosen.is_connected:
        why = f": {chosen.last_error}" if chosen.last_error else ""
        raise PromotionFailed(
            f"slave {chosen.broker_id} of {name} at {address} does not follow the master{why}, so "
            "it would not get the rest of the log; nothing was changed; retry when "
            "`tianzhou cluster` shows that it follows"
        )
    session.confirm(
        f"Promote slave {chosen.broker_id} of {name} at {address}, whose log ends at {chosen.end}, "
        "to master?",
        yes=yes,
    )
    if old is not None:
        taken = {number for place in places for number in place.addresses}
        free = next(n for n in range(1, len(taken) + 2) if n not in taken)
        with session.busy(f"until {address} has the rest of the log"):
            _step_down(old[0], address, free)
    above = max(look.epoch for look in looks.values())
    epoch = int(_ask(address, "PROMOTE_BROKER", {"aboveEpoch": str(above)})["epoch"])
    session.done(
        {"broker": name, "master": address, "epoch": epoch},
        f"{address} is now the master of {name}, epoch {epoch}",
    )


def _choose(
    name: str, looks: "dict[str, ReplicationView]", broker_id: int | None
) -> "tuple[str, ReplicationView]":
    slaves = {address: look for address, look in looks.items() if look.role == "SLAVE"}
    if not slaves:
        raise not_found(f"no slave of {name} responds")
    best = max(slaves, key=lambda address: _rank(slaves[address]))
    if broker_id is None:
        return best, slaves[best]
    wanted = [address for address, look in slaves.items() if look.broker_id == broker_id]
    if not wanted:
        raise not_found(f"slave {broker_id} of {name} does not respond")
    if _rank(slaves[wanted[0]]) < _rank(slaves[best]):
        raise UsageError(
            f"the log of slave {broker_id} ends at {slaves[wanted[0]].end}, that of slave "
            f"{slaves[best].broker_id} at {slaves[best].end}; promote the latter"
        )
    return wanted[0], slaves[wanted[0]]


def _rank(look: "ReplicationView") -> tuple[int, int, int]:
    """Order logs by age: by their last master first, then by their end."""
    return look.epoch, look.run, look.end


def _step_down(master: str, slave: str, broker_id: int) -> None:
    """Make the master reject messages, then wait until the slave has the rest of its log."""
    end = int(_ask(master, "STEP_DOWN_BROKER", {"brokerId": str(broker_id)})["end"])
    deadline = monotonic() + CATCH_UP_S
    while (look := look_at(slave)) is None or look.end < end:
        if monotonic() > deadline:
            raise PromotionFailed(
                f"{slave} did not receive the log up to {end} within {CATCH_UP_S:.0f} s; {master} "
                "is now a slave; run the command again"
            )
        sleep(_PAUSE_S)


def _ask(address: str, code: str, ext: dict[str, str]) -> dict[str, str]:
    from tianzhou.net.blocking import BlockingPeer
    from tianzhou.wire._generated_codes import RequestCode
    from tianzhou.wire.signing import Credentials

    pair = Credentials.read(credentials_from_environment())
    with BlockingPeer(address, ANSWER_S) as peer:
        answer, _ = peer.call(RequestCode[code], ext if pair is None else pair.sign(ext))
    if answer.code != 0:
        raise PromotionFailed(f"{address} rejected the request: {answer.remark}")
    return dict(answer.ext)
