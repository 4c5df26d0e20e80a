"""The epoch of a new master."""

import pytest

from tianzhou.broker.replica.role_change import next_epoch
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire.registration import EPOCH_MAX


@pytest.mark.parametrize(
    ("known", "above", "epoch"),
    [(0, 0, 1), (1, 0, 2), (1, 5, 6), (7, 5, 8), (1, 1_000_001, 1_000_002)],
)
def test_next_epoch_is_above_all_known_epochs(known: int, above: int, epoch: int) -> None:
    assert next_epoch(known, above=above) == epoch


@pytest.mark.parametrize("above", [-1, 1_000_002, 2**53, 2**63 - 1])
def test_next_epoch_rejects_an_epoch_near_the_maximum(above: int) -> None:
    with pytest.raises(
        RequestRejected, match=f"invalid aboveEpoch {above}; it must be from 0 to 1000001"
    ):
        next_epoch(1, above=above)


def test_next_epoch_never_exceeds_what_can_be_stored() -> None:
    assert next_epoch(EPOCH_MAX - 1) == EPOCH_MAX
    with pytest.raises(RequestRejected, match="is the highest possible"):
        next_epoch(EPOCH_MAX)
