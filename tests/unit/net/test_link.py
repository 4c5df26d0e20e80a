"""One connection: partial frames, the shared buffer, writes, pauses, questions."""

from typing import Any, cast

import pytest
from fake_transport import FakeLoop, Wired, shared_by

from tianzhou.base.errors import ProtocolError
from tianzhou.net.limits import NetLimits
from tianzhou.net.server_connection import ServerConnection, Turns
from tianzhou.wire.codec import RESPONSE_FLAG, Header, decode_header, decode_headers, encode_command
from tianzhou.wire.frame import FrameBatch, FrameBuffer


def frame(opaque: int, body: bytes = b"") -> bytes:
    return encode_command(Header(code=1, opaque=opaque), body)


class Noting:
    """Notes which frames came, answers each with its number, stops where it is told to."""

    def __init__(self) -> None:
        self.opaques: list[int] = []
        self.reads: list[int] = []
        self.stop_before: int | None = None
        self.failure: Exception | None = None
        self.opened_links: list[ServerConnection] = []
        self.closed_links: list[ServerConnection] = []

    def opened(self, connection: ServerConnection) -> None:
        self.opened_links.append(connection)

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        self.reads.append(batch.count)
        for index, header in enumerate(decode_headers(batch)):
            if connection.has_enough or header.opaque == self.stop_before:
                connection.leave(batch, index)
                assert connection.is_leaving
                return
            if self.failure is not None:
                raise self.failure
            self.opaques.append(header.opaque)
            connection.send(b"%d;" % header.opaque)

    def closed(self, connection: ServerConnection) -> None:
        self.closed_links.append(connection)


def test_connection_handles_frames_of_one_read_with_one_write() -> None:
    service = Noting()
    wired = Wired(service)
    wired.arrives(frame(1) + frame(2) + frame(3))
    assert service.reads == [3]
    assert wired.transport.written == [b"1;2;3;"]
    wired.connection.send_all([b"a", b"b"])
    assert wired.transport.written[1:] == [b"ab"]


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_connection_assembles_a_frame_from_pieces(size: int) -> None:
    service = Noting()
    wired = Wired(service)
    data = frame(1, bytes(100)) + frame(2)
    for at in range(0, len(data), size):
        wired.arrives(data[at : at + size])
    assert service.opaques == [1, 2]
    assert wired.connection.times.partial_since is None
    assert wired.shared.partial_bytes == 0


def test_connection_receives_a_frame_larger_than_the_buffer() -> None:
    service = Noting()
    wired = Wired(service)
    wired.arrives(frame(1, bytes(300_000)) + frame(2))
    assert service.opaques == [1, 2]


def test_connection_keeps_its_partial_frame() -> None:
    service, loop = Noting(), FakeLoop()
    shared = shared_by(service, loop)
    first = Wired(service, shared=shared, loop=loop)
    second = Wired(service, shared=shared, loop=loop)
    data = frame(1, b"first")
    first.arrives(data[:20])
    second.arrives(frame(2))
    assert service.opaques == [2]
    assert first.connection.times.partial_since == loop.now
    assert second.connection.times.partial_since is None
    assert shared.partial_bytes > 0
    first.arrives(data[20:])
    assert service.opaques == [2, 1]
    assert shared.partial_bytes == 0


def test_connection_measures_a_frame_from_its_first_byte() -> None:
    service = Noting()
    wired = Wired(service)
    data = frame(1)
    wired.arrives(data[:5])
    began = wired.loop.now
    wired.loop.now += 3
    wired.arrives(data[5:9])
    assert wired.connection.times.partial_since == began
    wired.arrives(data[9:] + data[:4])
    assert wired.connection.times.partial_since == wired.loop.now


@pytest.mark.parametrize("failure", [ProtocolError("bad"), None])
def test_connection_handles_valid_frames_before_an_invalid_one_closes_it(
    failure: Exception | None,
) -> None:
    service = Noting()
    wired = Wired(service)
    if failure is None:
        wired.arrives(frame(1) + bytes(8))
        assert wired.transport.take() == b"1;"
    else:
        service.failure = failure
        wired.arrives(frame(1))
    assert wired.transport.is_closed
    assert not wired.connection.is_open
    assert wired.connection.times.closing_since == wired.loop.now


def test_connection_failure_leaves_the_shared_buffer_empty() -> None:
    service, loop = Noting(), FakeLoop()
    shared = shared_by(service, loop)
    bad = Wired(service, shared=shared, loop=loop)
    good = Wired(service, shared=shared, loop=loop)
    service.failure = ValueError("a mistake of ours")
    with pytest.raises(ValueError, match="a mistake"):
        bad.arrives(frame(1) + frame(2)[:9])
    assert bad.transport.is_closed
    service.failure = None
    good.arrives(frame(3))
    assert service.opaques == [3]


def test_connection_handles_postponed_frames_before_new_ones() -> None:
    service = Noting()
    service.stop_before = 2
    wired = Wired(service)
    wired.arrives(frame(1) + frame(2) + frame(3) + frame(4)[:10])
    assert service.opaques == [1]
    assert not wired.transport.is_reading
    assert wired.connection.times.partial_since is None
    service.stop_before = None
    wired.loop.run()
    assert service.opaques == [1, 2, 3]
    assert wired.transport.is_reading
    assert wired.connection.times.partial_since is not None
    wired.arrives(frame(4)[10:])
    assert service.opaques == [1, 2, 3, 4]


def test_connection_with_postponed_frames_closes_at_invalid_bytes_later() -> None:
    service = Noting()
    service.stop_before = 2
    wired = Wired(service)
    wired.arrives(frame(1) + frame(2) + bytes(8))
    assert not wired.transport.is_closed
    service.stop_before = None
    wired.loop.run()
    assert service.opaques == [1, 2]
    assert wired.transport.is_closed


def test_connection_pauses_reading_for_a_peer_that_does_not_read() -> None:
    service = Noting()
    wired = Wired(service, limits=NetLimits(write_bytes_max=100))
    assert wired.transport.high == 100
    wired.transport.unsent = 101
    wired.connection.pause_writing()
    assert wired.connection.times.blocked_since == wired.loop.now
    assert not wired.transport.is_reading
    wired.loop.run()
    assert not wired.transport.is_reading
    wired.transport.unsent = 20
    wired.connection.resume_writing()
    wired.loop.run()
    assert wired.transport.is_reading
    assert wired.connection.times.blocked_since is None


def test_connection_counts_queued_responses_before_they_are_written() -> None:
    service = Noting()
    wired = Wired(service, limits=NetLimits(write_bytes_max=3))
    wired.arrives(frame(1) + frame(2) + frame(3) + frame(4))
    assert service.opaques == [1, 2]
    assert wired.transport.take() == b"1;2;"
    wired.loop.run()
    assert service.opaques == [1, 2, 3, 4]


def test_connection_pauses_reading_while_its_requests_wait_for_the_disk() -> None:
    service = Noting()
    wired = Wired(service, limits=NetLimits(waiting_count_max=2, waiting_bytes_max=100))
    wired.connection.wait(1, 10)
    assert not wired.connection.is_full
    wired.connection.wait(1, 10)
    assert wired.connection.is_full
    wired.arrives(frame(1))
    assert not service.opaques
    assert not wired.transport.is_reading
    wired.connection.waited(1, 10)
    wired.loop.run()
    assert service.opaques == [1]
    assert wired.transport.is_reading
    wired.connection.wait(1, 100)
    assert wired.connection.is_full
    wired.connection.waited(2, 110)
    assert wired.connection._backlog.waiting_bytes == 0


@pytest.mark.parametrize(
    "limits", [NetLimits(all_waiting_count_max=2), NetLimits(all_waiting_bytes_max=19)]
)
def test_connections_share_the_limit_of_requests_that_wait_for_the_disk(limits: NetLimits) -> None:
    """A peer with requests waiting cannot add more; the other peers are still served."""
    service, loop = Noting(), FakeLoop()
    shared = shared_by(service, loop, limits)
    busy, other, idle = (Wired(service, shared=shared, loop=loop) for _ in range(3))
    busy.connection.wait(1, 10)
    other.connection.wait(1, 10)
    busy.arrives(frame(1))
    idle.arrives(frame(2))
    assert service.opaques == [2]
    assert not busy.transport.is_reading
    busy.connection.waited(1, 10)
    loop.run()
    assert service.opaques == [2, 1]
    other.connection.waited(1, 10)
    assert (shared.waiting_count, shared.waiting_bytes) == (0, 0)


def test_connection_turn_ends_at_its_time_limit() -> None:
    service = Noting()
    wired = Wired(service, limits=NetLimits(turn_s=-1))
    wired.arrives(frame(1) + frame(2))
    assert not service.opaques
    assert not wired.transport.is_reading
    wired.loop.run()  # and the next one is long enough, however slow we are
    assert service.opaques == [1, 2]
    assert wired.transport.is_reading


def test_connection_turn_ends_at_its_byte_limit() -> None:
    class Large(Noting):
        def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
            for index in range(batch.count):
                if connection.has_enough:
                    connection.leave(batch, index)
                    return
                self.opaques.append(decode_header(batch.header(index), 0).opaque)
                connection.send(bytes(100))

    service = Large()
    wired = Wired(service, limits=NetLimits(turn_bytes=150))
    wired.arrives(frame(1) + frame(2) + frame(3) + frame(4))
    assert service.opaques == [1, 2]
    assert not wired.transport.is_reading
    wired.loop.run()
    assert service.opaques == [1, 2, 3, 4]
    assert len(wired.transport.take()) == 400
    assert wired.transport.is_reading


def test_connection_turns_in_a_full_round_are_for_cheap_ones_only() -> None:
    service, loop = Noting(), FakeLoop()
    shared = shared_by(service, loop, turns=Turns(round_s=10.0))
    cheap, new = (Wired(service, shared=shared, loop=loop) for _ in range(2))
    cheap.connection._turn.cost_s = 0.0
    shared.turns.took(10.0, cast("Any", loop))
    new.arrives(frame(1)[:20])
    assert not new.transport.is_reading, "nothing more is read, not even the rest of a frame"
    cheap.arrives(frame(2))
    assert service.opaques == [2]
    loop.run()
    assert new.transport.is_reading
    new.arrives(frame(1)[20:] + frame(3))
    assert service.opaques == [2, 1, 3]
    assert shared.partial_bytes == 0


def test_connection_closed_while_waiting_for_its_turn_is_dropped() -> None:
    service, loop = Noting(), FakeLoop()
    shared = shared_by(service, loop, turns=Turns(round_s=10.0))
    wired = Wired(service, shared=shared, loop=loop)
    shared.turns.took(10.0, cast("Any", loop))
    wired.arrives(frame(1))
    wired.connection.connection_lost(None)
    loop.run()
    assert not service.opaques
    assert shared.partial_bytes == 0


def test_connection_request_to_the_peer_gets_one_response() -> None:
    service = Noting()
    wired = Wired(service)
    answers: list[tuple[Header | None, bytes]] = []
    for _ in range(4):
        wired.connection.ask(
            7, {}, b"?", lambda header, body: answers.append((header, body)), timeout_s=5.0
        )
    asked = decode(wired.transport.take())
    reply = Header(code=0, opaque=asked[0], flag=RESPONSE_FLAG)
    wired.connection.answered(reply, b"!")
    wired.connection.answered(reply, b"!")
    assert answers == [(reply, b"!")]
    wired.connection.expire(wired.loop.now + 4)
    assert len(answers) == 1
    wired.connection.expire(wired.loop.now + 6)
    assert answers[1:] == 3 * [(None, b"")]
    wired.connection.ask(
        7, {}, b"?", lambda header, body: answers.append((header, body)), timeout_s=5.0
    )
    wired.connection.connection_lost(None)
    assert answers[4:] == [(None, b"")]
    assert service.closed_links == [wired.connection]
    wired.connection.ask(
        7, {}, b"?", lambda header, body: answers.append((header, body)), timeout_s=5.0
    )
    assert len(answers) == 6


def test_connection_closed_writes_nothing() -> None:
    wired = Wired(Noting())
    wired.connection.tell(40, {"a": "b"})
    assert decode(wired.transport.take())
    wired.connection.close()
    wired.connection.send(b"late")
    wired.connection.connection_lost(None)
    wired.connection.send(b"later")
    assert wired.transport.written == []
    wired.connection.close()
    wired.connection.abort()
    assert not wired.connection.is_full


def test_connection_gives_handlers_the_peer() -> None:
    wired = Wired(Noting())
    assert wired.connection.remote == "10.1.1.1:4711"
    assert wired.connection.local == "10.0.0.1:10911"
    assert wired.connection.remote_host == bytes([10, 1, 1, 1, 0, 0, 0x12, 0x67])


def test_connection_buffers_are_counted_and_released() -> None:
    relieved: list[bool] = []
    service, loop = Noting(), FakeLoop()
    limits = NetLimits(partial_bytes_max=1, unsent_bytes_max=10)
    shared = shared_by(service, loop, limits, relieve=lambda: relieved.append(True))
    wired = Wired(service, shared=shared, loop=loop)
    wired.arrives(frame(1)[:10])
    assert relieved == [True]
    wired.transport.unsent = 11
    wired.connection.send(b"x")
    assert shared.unsent_bytes == 11
    assert relieved == [True, True]
    wired.connection.abort()
    assert (shared.partial_bytes, shared.unsent_bytes) == (0, 0)
    assert wired.transport.is_aborted


def decode(data: bytes) -> list[int]:
    buffer = FrameBuffer()
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    batch = buffer.take()
    return [
        decode_header(batch.header(index), batch.serialise_types[index]).opaque
        for index in range(batch.count)
    ]
