"""The cost of idle connections and waiting pulls for a running broker."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from live import Witness, allow_many_files, running, wait_for
from raw_client import RawClient, pull_of, request, send_v2

IDLE = 2_000
HELD = 5_000
HELD_CONNECTIONS = 10
READERS = 300
MIB = 2**20


@pytest.mark.slow
def test_broker_with_two_thousand_idle_connections_uses_bounded_memory(tmp_path: Path) -> None:
    if allow_many_files() < IDLE + 500:
        pytest.skip("this process may not open enough files")
    with running(tmp_path) as live, ExitStack() as stack:
        witness = Witness(live)
        witness.check()
        before, files, sockets = live.rss_bytes(), live.fd_count(), live.socket_count()
        for _ in range(IDLE):  # each proves itself at once: silent connections have a deadline
            assert stack.enter_context(live.to_broker()).ask(31_999).code == 3
        cost = live.rss_bytes() - before
        assert live.socket_count() >= sockets + IDLE
        assert cost < 60 * MIB, f"{cost / IDLE:.0f} bytes each"
        witness.check()
        stack.close()
        wait_for(lambda: live.fd_count() <= files)
        witness.check()
        witness.stop()


@pytest.mark.slow
def test_broker_with_five_thousand_waiting_pulls_uses_bounded_memory(tmp_path: Path) -> None:
    with running(tmp_path) as live, ExitStack() as stack:
        witness = Witness(live)
        with live.to_broker() as client:
            client.send_message("Held")
        clients: list[RawClient] = []
        for _ in range(HELD_CONNECTIONS):
            clients.append(stack.enter_context(live.to_broker()))
            assert clients[-1].ask(31_999).code == 3
        witness.check()
        before = live.rss_bytes()
        opaques: dict[RawClient, set[int]] = {}
        for client in clients:
            pulls = [request(11, pull_fields(number)) for number in range(HELD // HELD_CONNECTIONS)]
            opaques[client] = {opaque for opaque, _ in pulls}
            client.send(b"".join(data for _, data in pulls))
        for client in clients:  # the response follows after all earlier pulls were accepted
            assert client.ask(31_999).code == 3
        cost = live.rss_bytes() - before
        assert cost < 40 * MIB, f"{cost / HELD:.0f} bytes each"
        witness.check()
        # All pulls wait for the same queue; one message wakes them all.
        with live.to_broker() as client:
            assert client.ask(310, send_v2("Held"), b"wake").code == 0
        for client in clients:
            found = {client.receive().header.opaque for _ in opaques[client]}
            assert found == opaques[client]
        witness.stop()


@pytest.mark.slow
def test_s08_many_clients_that_never_read_do_not_stall_others(tmp_path: Path) -> None:
    with running(tmp_path) as live, ExitStack() as stack:
        with live.to_broker() as client:
            for _ in range(16):
                assert client.ask(310, send_v2("LargePulls"), bytes(MIB)).code == 0
        witness = Witness(live)
        witness.check()
        before = live.heap_bytes()
        readers = [
            stack.enter_context(RawClient(live.broker, receive_buffer=65_536))
            for _ in range(READERS)
        ]
        pulls = b"".join(
            request(11, pull_of("LargePulls", maxMsgBytes=str(4 * MIB)))[1] for _ in range(50)
        )
        for reader in readers:
            reader.send(pulls)
        # Wait until every reader has used its share of memory: then the witness would have stalled.
        wait_for(lambda: live.heap_bytes() - before > 200 * MIB, 30)
        for _ in range(5):
            witness.check()
        assert live.heap_bytes() - before < 1_200 * MIB
        witness.stop()


def pull_fields(number: int) -> dict[str, str]:
    return pull_of(
        "Held",
        offset=1,
        consumerGroup=f"held{number % 50}",
        sysFlag="6",
        suspendTimeoutMillis="60000",
    )
