"""The latest epoch of each group, remembered beyond the life of its master."""

from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.epochs import Epochs
from tianzhou.wire.registration import EPOCH_MAX
from tianzhou.wire.tables import DataVersion


def master(epoch: int, token: str, *, name: str = "broker-a", broker_id: int = 0) -> Registration:
    return Registration(
        cluster="c",
        broker_name=name,
        broker_id=broker_id,
        address="10.0.0.1:10911",
        data_version=DataVersion(state_version=epoch),
        greets=True,
        epoch_token=token,
    )


def test_epochs_reject_an_earlier_master_even_if_the_latest_is_gone() -> None:
    epochs = Epochs()
    epochs.take(master(2, "bb"))
    assert not epochs.admits(master(1, "aa"))
    assert epochs.admits(master(2, "bb")), "the latest itself, after a restart"
    assert epochs.admits(master(3, "cc"))
    assert epochs.of("broker-a") == 2
    assert epochs.of("broker-b") == 0


def test_epochs_reject_a_second_promoted_master_of_one_epoch() -> None:
    epochs = Epochs()
    epochs.take(master(2, "bb"))
    assert not epochs.admits(master(2, "cc"))
    first = Epochs()
    first.take(master(1, "aa"))
    assert first.admits(master(1, "zz")), "an empty directory begins with epoch 1 again"


def test_epochs_ignore_slaves_raft_groups_and_numbers_out_of_range() -> None:
    epochs = Epochs()
    for ignored in (
        master(9, "bb", broker_id=1),
        master(9, ""),
        master(EPOCH_MAX + 1, "bb"),
        master(-1, "bb"),
        master(0, "bb"),
    ):
        epochs.take(ignored)
        assert epochs.of("broker-a") == 0
    epochs.take(master(3, "bb"))
    for admitted in (master(1, "aa", broker_id=1), master(1, "")):
        assert epochs.admits(admitted)


def test_epochs_over_the_limit_drop_the_least_recently_seen_group() -> None:
    epochs = Epochs(groups_max=2)
    for name in ("a", "b", "a", "c"):
        epochs.take(master(2, "bb", name=name))
    assert [epochs.of(name) for name in "abc"] == [2, 0, 2]
