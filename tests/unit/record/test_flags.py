from tianzhou.record import flags


def test_groups_of_bits_do_not_overlap() -> None:
    groups = (
        flags.COMPRESSED,
        flags.MULTI_TAGS,
        flags.TRANSACTION_MASK,
        flags.BORN_HOST_V6,
        flags.STORE_HOST_V6,
        flags.NEED_UNWRAP,
        flags.INNER_BATCH,
        flags.COMPRESSION_MASK,
    )
    assert sum(groups) == 0x7FF, "each bit of the low eleven belongs to one group"


def test_layout_bits_are_not_the_clients() -> None:
    assert flags.LAYOUT_MASK & flags.CLIENT_MASK == 0
    assert flags.LAYOUT_MASK == flags.BORN_HOST_V6 | flags.STORE_HOST_V6


def test_values_stay_inside_their_mask() -> None:
    for name, value in vars(flags).items():
        if name.startswith("TRANSACTION_"):
            assert value & ~flags.TRANSACTION_MASK == 0
        if name.startswith("COMPRESSION_"):
            assert value & ~flags.COMPRESSION_MASK == 0
