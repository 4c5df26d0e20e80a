from collections.abc import Iterator, Sequence

import pytest
from small_store import KEY, chunk, open_store

from tianzhou.base.kinds import Bytes, QueueKey
from tianzhou.store import append_check
from tianzhou.testing.sim.disk import SimDisk


class Objection(Exception):
    """What the check of these tests raises."""


@pytest.fixture
def seen() -> Iterator[list[tuple[bytes, int, list[QueueKey | None]]]]:
    """Chunks that a check was shown; it objects to bodies that say so."""
    found: list[tuple[bytes, int, list[QueueKey | None]]] = []

    def check(data: Bytes, offset: int, queues: Sequence[QueueKey | None] | None) -> None:
        assert queues is not None
        found.append((bytes(data), offset, list(queues)))
        if b"objectionable" in bytes(data):
            raise Objection

    append_check.install(check)
    append_check.install(check)
    try:
        yield found
    finally:
        append_check.remove(check)
        append_check.remove(check)


def test_append_check_gets_each_chunk_once_with_offset_and_queues(
    seen: list[tuple[bytes, int, list[QueueKey | None]]],
) -> None:
    store = open_store("data", files=SimDisk())
    store.append(chunk(b"one", b"two"))
    end = store.log.end
    store.append(chunk(b"three"))
    assert [(offset, queues) for _, offset, queues in seen] == [(0, [KEY, KEY]), (end, [KEY])]
    assert b"two" in seen[0][0]
    store.close()


def test_append_check_that_raises_prevents_the_write(
    seen: list[tuple[bytes, int, list[QueueKey | None]]],
) -> None:
    store = open_store("data", files=SimDisk())
    with pytest.raises(Objection):
        store.append(chunk(b"objectionable"))
    assert store.log.end == 0
    store.append(chunk(b"fine"))
    assert len(seen) == 2
    store.close()
