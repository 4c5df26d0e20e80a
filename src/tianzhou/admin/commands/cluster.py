"""`tianzhou cluster`: all brokers registered with the NameServer."""

from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output, raft, replication
from tianzhou.admin.commands.broker_status import refusal_of, version_text
from tianzhou.admin.commands.session import Session, watched
from tianzhou.base.errors import TianzhouError
from tianzhou.wire.names import MASTER_ID

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.wire.nameserver_bodies import MissingBroker


@click.command()
@watched
def cluster(session: Session) -> None:
    """List all brokers with address, role, load and state."""
    session.show(lambda: _rows(session), _view)


def _places(session: Session) -> list[tuple[str, str, int, str]]:
    return [
        (place.cluster, place.name, broker_id, address)
        for place in session.admin.brokers.all()
        for broker_id, address in sorted(place.addresses.items())
    ]


def _rows(session: Session) -> list[dict[str, Any]]:
    places = _places(session)
    looks = {address: replication.look_at(address) for *_, address in places}
    groups = raft.cluster_facts([address for *_, address in places])
    alive = {address for *_, address in places}
    gone = [row for row in session.admin.brokers.missing() if row.address not in alive]
    masters = {name: looks[address] for _, name, broker_id, address in places if not broker_id}
    return [
        _row(session, place, responds=looks[place[3]] is not None)
        | replication.facts(looks[place[3]], masters.get(place[1]), place[2])
        | groups[place[3]]
        for place in places
    ] + [_missing(row) for row in gone]


def _unknown(cluster: str, name: str, broker_id: int, address: str) -> dict[str, Any]:
    """A row for a broker that does not report its state."""
    return {
        "cluster": cluster,
        "broker": name,
        "id": broker_id,
        "address": address,
        "version": None,
        "tianzhou_version": None,
        "sent_per_second": None,
        "read_per_second": None,
        "disk_used_ratio": None,
        "refusal": "",
        "error": "",
        "missing_since_ms": None,
        **replication.UNKNOWN,
    }


def _missing(row: "MissingBroker") -> dict[str, Any]:
    """A row for a missing broker, with the topics and groups it last reported."""
    return _unknown(row.cluster, row.name, row.broker_id, row.address) | {
        "missing_since_ms": row.since_ms,
        "topics": {topic.name: max(topic.read_queues, topic.write_queues) for topic in row.topics},
        "groups": list(row.groups),
    }


def _row(session: Session, place: tuple[str, str, int, str], *, responds: bool) -> dict[str, Any]:
    row = _unknown(*place)
    _, name, broker_id, address = place
    is_master = broker_id == MASTER_ID
    if not is_master and not responds:
        return row  # its master knows more of it
    try:
        status = session.admin.brokers.status(name, address=address)
        refusal = refusal_of(session, status) if is_master else ""
    except TianzhouError as error:
        return row | {"error": str(error)} if is_master else row
    return row | {
        "version": status.version,
        "tianzhou_version": status.facts.get("tianzhouVersion"),
        "sent_per_second": status.put_per_second,
        "read_per_second": status.get_per_second,
        "disk_used_ratio": status.disk_used_ratio,
        "refusal": refusal,
    }


def _view(rows: list[dict[str, Any]]) -> "RenderableType":
    shown = [
        row
        | {"disk": _disk(row["disk_used_ratio"]), "state": _state(row), "role": _role(row)}
        | {"version": version_text(row["version"], row["tianzhou_version"])}
        | {"lag": replication.lag_text(row), "copies": replication.copies_text(row)}
        for row in rows
    ]
    columns = {
        "cluster": "cluster",
        "broker": "broker",
        "role": "role",
        "address": "address",
        "version": "version",
        "sent_per_second": "sent/s",
        "read_per_second": "read/s",
        "disk": "disk",
    }
    if any(row["id"] for row in rows):  # these columns are about slaves
        columns |= {"epoch": "epoch", "end": "log end", "lag": "lag", "copies": "in sync"}
    columns |= raft.cluster_columns(rows) | {"state": "state"}
    none = "no broker is registered; start one with `tianzhou broker -n HOST:PORT`"
    return output.listing(shown, columns, none)


def _role(row: dict[str, Any]) -> str:
    return "master" if row["id"] == 0 else f"slave {row['id']}"


def _state(row: dict[str, Any]) -> str:
    if row["missing_since_ms"] is not None:
        return f"missing since {output.time_text(row['missing_since_ms'])}"
    if row["error"]:
        return f"unreachable: {row['error']}"
    if row["refusal"]:
        return f"rejects messages: {row['refusal']}"
    if row["following"]:
        return str(row["following"])
    return "" if row["version"] is None else "serves"


def _disk(ratio: float | None) -> str:
    return "" if ratio is None or ratio < 0 else f"{ratio:.0%}"
