"""Routes frames to the slices. Consecutive sends of one kind stay together; the rest goes one by
one. Every request passes the access gate here first. It is the service of the broker's port: once
all connections of a round of the loop are read, what they sent is appended and dispatched."""

from collections.abc import Sequence
from typing import Final

from tianzhou.broker.access.gate import AccessGate
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups.heartbeats import Clients
from tianzhou.broker.ingest.send import Send
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import RequestRouter, RunLater, encode_reply
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import decode_header
from tianzhou.wire.frame import FrameBatch

# Clients write the keys of a header in alphabetical order, so the code comes first. A header with
# another order is decoded to find its code, which is slower.
_SEND_V2: Final = b'{"code":310,'
_SEND_V1: Final = b'{"code":10,"'
_SEND_BATCH: Final = b'{"code":320,'
_ROWS: Final = {
    _SEND_V2: int(RequestCode.SEND_MESSAGE_V2),
    _SEND_V1: int(RequestCode.SEND_MESSAGE),
    _SEND_BATCH: int(RequestCode.SEND_BATCH_MESSAGE),
}
_PULL: Final = b'{"code":11,"'
_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
FAST_PATH: Final = frozenset((*_SENDS, *_PULLS))
"""Requests that never reach the router."""


class FrameRouter:
    """Maps frames to sends, pulls and other requests. Owner: the broker loop."""

    def __init__(
        self,
        send: Send,
        pull: Pull,
        router: RequestRouter,
        *,
        writer: Writer,
        clients: Clients,
        access: AccessGate,
        run_later: RunLater | None = None,
    ) -> None:
        """`run_later` schedules a call at the end of the loop's round; without it, the caller
        settles the writer."""
        self._send = send
        self._pull = pull
        self.router = router
        self._writer = writer
        self._clients = clients
        self.access = access
        self._run_later = run_later
        self._settling = -1
        """The count of `Writer.settled` after which the writer is settled again."""

    # Service

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        try:
            self._route(connection, batch)
        finally:
            # Once for all connections that are read in this round: large slices dispatch faster.
            settled = self._writer.settled
            if self._settling != settled and self._run_later is not None:
                self._run_later(self._writer.settle)
                self._settling = settled  # set last: scheduling the call may raise MemoryError

    def closed(self, connection: ServerConnection) -> None:
        self._clients.remove_client(connection)

    # Frames

    def _route(self, connection: ServerConnection, batch: FrameBatch) -> None:
        """Handle the frames of one read, in order; all, or as many as the connection has room
        for."""
        data, starts, types = batch.data, batch.headers, batch.serialise_types
        row: list[int] = []
        kind = b""
        for index, at in enumerate(starts):
            # A binary header starts with two bytes that no JSON header starts with.
            if row and data.startswith(kind, at):
                row.append(index)
                continue
            head = bytes(data[at : at + 12]) if types[index] == 0 else b""
            if head in _ROWS:
                if kind != head and row:
                    self._run(connection, batch, row, kind)
                    row = []
                    if connection.is_leaving:
                        return
                kind = head
                row.append(index)
                continue
            if row:
                self._run(connection, batch, row, kind)
                row = []
                if connection.is_leaving:
                    return
            if connection.has_enough:
                connection.leave(batch, index)
                return
            if head == _PULL:
                if self._admits(connection, batch, (index,), RequestCode.PULL_MESSAGE):
                    self._pull.handle_pull(connection, batch, index)
            else:
                self._other(connection, batch, index)
        if row:
            self._run(connection, batch, row, kind)

    def _run(
        self, connection: ServerConnection, batch: FrameBatch, row: list[int], kind: bytes
    ) -> None:
        if not self._admits(connection, batch, row, _ROWS[kind]):
            return
        if kind == _SEND_BATCH:
            self._send.handle_batches(connection, batch, row)
        else:
            self._send.handle_sends(connection, batch, row, is_v2=kind == _SEND_V2)

    def _other(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        header = decode_header(batch.header(index), batch.serialise_types[index])
        if header.is_response:
            connection.answered(header, bytes(batch.body(index)))
        elif not self._admits(connection, batch, (index,), header.code):
            return
        elif header.code in _SENDS:
            self._send.handle_send(connection, batch, index)
        elif header.code in _PULLS:
            self._pull.handle_pull(connection, batch, index)
        else:
            self._writer.catch_up()
            self.router.request(Request(header, bytes(batch.body(index)), connection))

    def _admits(
        self, connection: ServerConnection, batch: FrameBatch, indexes: Sequence[int], code: int
    ) -> bool:
        """Whether the gate admits these frames, which all have this code; if not, each gets its
        error response."""
        try:
            self.access.check(connection, code)
        except RequestRejected as rejected:
            reply = Reply(rejected.code, rejected.ext, remark=rejected.remark)
            for index in indexes:
                header = decode_header(batch.header(index), batch.serialise_types[index])
                if not header.is_oneway:
                    connection.send(encode_reply(header, reply))
            return False
        return True
