import pytest

from tianzhou.base.settings import SettingsError, declarations, load
from tianzhou.store.config import FlushMode, StoreConfig, delay_levels


def test_store_config_defaults_are_within_bounds() -> None:
    load(StoreConfig, {})


def test_store_config_accepts_rocketmq_names() -> None:
    config, unknown = load(
        StoreConfig,
        {
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "410",
            "flushDiskType": "SYNC_FLUSH",
            "messageIndexEnable": "false",
            "deleteWhen": "04;16",
            "diskMaxUsedSpaceRatio": "60",
            "fileReservedTime": "48",
            "messageDelayLevel": "1s 2m 3h 4d",
            "brokerName": "a",
        },
    )
    assert unknown == ["brokerName"]
    assert config.commit_log_file_bytes == 65536
    assert config.consume_queue_file_units == 20  # whole units only
    assert config.flush_mode is FlushMode.SYNC
    assert not config.index_enabled
    assert config.retention_at_hours == (4, 16)
    assert config.disk_clean_ratio == 0.6
    assert config.retention_hours == 48
    assert config.delay_levels_ms == (1_000, 120_000, 10_800_000, 345_600_000)


def test_store_config_settings_have_a_description_and_unique_names() -> None:
    declared = declarations(StoreConfig)
    assert all(declaration.help for declaration in declared.values())
    names = [*declared, *(d.alias for d in declared.values() if d.alias)]
    assert len(set(names)) == len(names)


def test_store_config_reports_all_problems_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(
            StoreConfig,
            {"deleteWhen": "25", "messageDelayLevel": "1x", "flushDiskType": "NEVER"},
        )
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commit_log_file_bytes", 4095),
        ("index_entries", 1),
        ("retention_hours", -1),
        ("disk_refuse_ratio", 1.5),
        ("flush_interval_ms", 0),
    ],
)
def test_store_config_rejects_values_out_of_bounds(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"{value}: must be from"):
        load(StoreConfig, {name: value})


def test_delay_levels_are_parsed_with_units() -> None:
    assert delay_levels("1s 2m") == (1_000, 120_000)
    for wrong in ("", "s", "1", "1.5s", "-1s"):
        with pytest.raises(ValueError, match=r"is not a number|at least one"):
            delay_levels(wrong)
