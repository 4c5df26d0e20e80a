from tianzhou.record import flags


def test_flag_groups_do_not_overlap() -> None:
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


def test_flag_layout_bits_are_not_client_bits() -> None:
    assert flags.LAYOUT_MASK & flags.CLIENT_MASK == 0
    assert flags.LAYOUT_MASK == flags.BORN_HOST_V6 | flags.STORE_HOST_V6


def test_flag_values_stay_inside_their_mask() -> None:
    for name, value in vars(flags).items():
        if name.startswith("TRANSACTION_"):
            assert value & ~flags.TRANSACTION_MASK == 0
        if name.startswith("COMPRESSION_"):
            assert value & ~flags.COMPRESSION_MASK == 0
