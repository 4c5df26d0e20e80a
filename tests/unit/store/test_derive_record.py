from tianzhou.base.java import string_hash
from tianzhou.base.kinds import queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.store.derive_record import Facts, facts_of, store_time_of
from tianzhou.wire.names import SCHEDULE_TOPIC

NOW = 1_700_000_000_000
DELAYS = (1000, 5000, 10_000)


def facts(entry: Entry, delays: tuple[int, ...] = DELAYS) -> Facts:
    chunk = build([entry], store_host=bytes(8), record_crc=True)
    stamp(chunk, 0, 1, queue_offsets=[7], physical_offset=0, store_timestamp=NOW)
    assert store_time_of(chunk.data, 0) == NOW
    return facts_of(chunk.data, 0, len(chunk.data), delays)


def delayed(text: bytes, delays: tuple[int, ...] = DELAYS) -> int:
    properties = b"TAGS\x01t\x02DELAY\x01" + text + b"\x02"
    return facts(Entry(queue_key(SCHEDULE_TOPIC, 1), b"", properties), delays).tags_code


def test_derive_record_delayed_message_has_its_delivery_time() -> None:
    assert delayed(b"1") == NOW + 1000
    assert delayed(b"3") == NOW + 10_000
    assert delayed(b"99") == NOW + 10_000, "a level too high is the highest"


def test_derive_record_invalid_delay_level_keeps_the_tag_hash() -> None:
    for text in (b"0", b"-1", b"x", "٣".encode(), b"9" * 5000):
        assert delayed(text) == string_hash("t")
    assert delayed(b"1", ()) == string_hash("t")


def test_derive_record_of_transactions_follows_their_state() -> None:
    def entry(kind: int) -> Entry:
        return Entry(queue_key("orders", 2), b"", b"UNIQ_KEY\x01u\x02", sys_flag=kind)

    prepared = facts(entry(flags.TRANSACTION_PREPARED))
    assert (prepared.queue, len(prepared.key_hashes)) == (None, 1)
    committed = facts(entry(flags.TRANSACTION_COMMIT))
    assert (committed.queue, len(committed.key_hashes)) == (("orders", 2), 1)
    rolled_back = facts(entry(flags.TRANSACTION_ROLLBACK))
    assert (rolled_back.queue, len(rolled_back.key_hashes)) == (None, 0)


def test_derive_record_skips_long_hosts_and_topics() -> None:
    entry = Entry(
        queue_key("t" * 200, 3),
        b"body",
        b"TAGS\x01x\x02",
        sys_flag=flags.BORN_HOST_V6,
        born_host=bytes(20),
    )
    found = facts(entry)
    assert found.queue == ("t" * 200, 3)
    assert (found.queue_offset, found.tags_code) == (7, string_hash("x"))
    assert found.store_timestamp == NOW


def test_derive_record_without_keys_omits_only_key_hashes() -> None:
    made = build(
        [Entry(queue_key("orders", 0), b"body", b"TAGS\x01red\x02KEYS\x01order-1\x02")],
        store_host=bytes(8),
        record_crc=True,
    )
    whole = facts_of(made.data, 0, len(made.data), ())
    assert whole.key_hashes
    found = facts_of(made.data, 0, len(made.data), (), with_keys=False)
    assert found == whole._replace(key_hashes=[])
