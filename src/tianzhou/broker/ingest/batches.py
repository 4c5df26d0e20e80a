"""Splits a received batch into messages, each with the properties of the batch. Pure."""

from collections.abc import Callable
from typing import Final, cast

from tianzhou.broker.ingest.admission import MANY_KEYS_BYTES, check_keys, check_separators
from tianzhou.broker.writing.incoming import Incoming, delay_level, delivery_time, is_true
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import names as keys
from tianzhou.record import properties
from tianzhou.record.batch import BatchError, decode_batch
from tianzhou.record.chunk import CRC_PLACEHOLDER, Entry
from tianzhou.record.layout import CRC_PROPERTY
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import RETRY_PREFIX

# Creates a named tuple without calling its constructor, which takes twice as long.
new_entry: Final = cast(
    "Callable[[type[Entry], tuple[object, ...]], Entry]",
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType] - the stub leaves its items open
)


def split(message: Incoming, *, record_crc: bool) -> list[Entry]:
    """The messages of a batch. Raises RequestRejected.

    Their properties are finished: they end with the place of the checksum if there is one.
    """
    if message.topic.startswith(RETRY_PREFIX):
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "a retry topic does not accept batches")
    data = bytes(message.body)
    try:
        inner = decode_batch(data)
    except BatchError as error:
        raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    _check_ordinary(message.properties)
    if data.find(b"DEL") >= 0 or data.find(keys.TRANSACTION_PREPARED) >= 0:
        for _, _, own in inner:
            _check_ordinary(own)
    ending = CRC_PLACEHOLDER if record_crc else b""
    queue, _, outer, _, *rest = message.to_entry()
    # The batch has an id too. Behind the id of a message it would take precedence.
    without_id = message.with_properties({keys.UNIQ_KEY: b""}).properties + ending
    outer += ending
    # Checksums of other brokers are rare, so one search covers all messages.
    has_checksum = data.find(CRC_PROPERTY) >= 0
    new, kind, shared = new_entry, Entry, tuple(rest)
    entries: list[Entry] = []
    for flag, body, own in inner:
        if len(own) > MANY_KEYS_BYTES:
            check_keys(own)
        text = properties.without(own, CRC_PROPERTY) if has_checksum else own
        if text and text[-1] != 2:
            text += b"\x02"
        if text.count(b"\x01") != text.count(b"\x02"):
            check_separators(own)
        # `find` takes half the time of `in`.
        text += without_id if text.find(b"UNIQ_KEY\x01") >= 0 else outer
        entries.append(new(kind, (queue, body, text, flag, *shared)))
    return entries


def _check_ordinary(text: bytes) -> None:
    """Raises RequestRejected for properties of a delayed, timed or transactional message: consumers
    see all messages of a batch at once."""
    message = Incoming("", 0, b"", text)
    if delay_level(message) > 0 or delivery_time(message, 0) is not None:
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a message of the batch asks for a later delivery; send such messages one by one",
        )
    if is_true(message.get(keys.TRANSACTION_PREPARED)):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            "a message of the batch has TRAN_MSG; send transactional messages one by one",
        )
