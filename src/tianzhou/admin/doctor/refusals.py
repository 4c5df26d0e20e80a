"""Brokers that a NameServer does not take: they do not sign with the pair of the cluster."""

from collections.abc import Collection, Iterable

from tianzhou.admin.doctor.findings import Finding, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.registration import REFUSED_BROKERS
from tianzhou.wire.tables import decode_kv_table


def refusal_findings(nameservers: Iterable[str], known: Collection[str]) -> Iterable[Finding]:
    """`known` are the brokers that some NameServer took."""
    for address in nameservers:
        for name, told in _refused(address).items():
            said = f"NameServer {address} refuses its registration at {told}"
            mend = (
                f"innerClientAuthenticationCredentials of {name} as cluster_credentials of the "
                "NameServer, and start it again"
            )
            # Perhaps somebody who only calls himself so.
            yield (warning if name in known else problem)(f"broker {name}", said, mend)


def _refused(address: str) -> dict[str, str]:
    try:
        with BlockingPeer(address) as peer:
            code = RequestCode.GET_KVLIST_BY_NAMESPACE
            answer, body = peer.call(code, {"namespace": REFUSED_BROKERS})
    except TianzhouError:
        return {}  # it answered a moment ago; what it knows is asked for below
    return decode_kv_table(body).table if answer.code == ResponseCode.SUCCESS else {}
