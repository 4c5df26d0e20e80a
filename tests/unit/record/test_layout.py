import struct

from tianzhou.record import layout

# RocketMQ's positions with IPv4 hosts, each given by hand: a change of the table is seen here.
POSITIONS = {
    "total_size": 0,
    "magic": 4,
    "body_crc": 8,
    "queue_id": 12,
    "flag": 16,
    "queue_offset": 20,
    "physical_offset": 28,
    "sys_flag": 36,
    "born_timestamp": 40,
    "born_host": 48,
    "store_timestamp": 56,
    "store_host": 64,
    "reconsume_times": 72,
    "prepared_offset": 76,
    "body_size": 84,
}


def test_layout_positions_are_as_documented() -> None:
    assert {name: layout.position_of(name) for name, _ in layout.FIELDS} == POSITIONS
    assert layout.position_of("the end") == layout.HEAD.size == 88


def test_layout_constants_match_the_table() -> None:
    for name, value in vars(layout).items():
        if name.startswith("AT_"):
            assert value == POSITIONS[name.removeprefix("AT_").lower()]


def test_layout_sizes_are_as_documented() -> None:
    assert layout.RECORD_BYTES_MIN == 91
    assert layout.HOST_BYTES_V6 - layout.HOST_BYTES_V4 == layout.HOST_BYTES_EXTRA == 12


def test_layout_magic_numbers_have_the_bytes_of_java() -> None:
    magics = (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)
    assert struct.pack(">iii", *magics) == bytes.fromhex("DAA320A7 DAA320AB CBD43194")
