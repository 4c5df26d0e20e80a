"""Which row of which query a message was, so that doubles can be told.

Every message that the sink writes carries the property `SPARK_MARK`:

    query id : batch id : partition : rank [: digest]

The rank counts the rows of a task. The digest, with `idempotent` alone, is of the message's body
and properties: a repeated task may get its rows in another order, but not other rows.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

NAME: Final = b"SPARK_MARK"
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Task:
    """The task that writes: one partition of one batch of one query."""

    query: str
    batch: int
    partition: int

    @property
    def prefix(self) -> bytes:
        return b"%s:%d:%d:" % (self.query.encode(), self.batch, self.partition)


def digest_of(body: bytes, properties: bytes) -> bytes:
    # The length tells where one ends and the other begins.
    made = hashlib.blake2b(b"%d:" % len(body), digest_size=_DIGEST_BYTES)
    made.update(body)
    made.update(properties)
    return made.hexdigest().encode()


class Written:
    """What a task wrote in an earlier life: ranks that are taken, and digests with their counts."""

    def __init__(self, task: Task) -> None:
        self._prefix = task.prefix
        self._ranks: set[int] = set()
        self._digests: Counter[bytes] = Counter()
        self._next_rank = 0

    def saw(self, mark: bytes) -> None:
        """Take note of a mark found in the topic, if it is one of ours."""
        if not mark.startswith(self._prefix):
            return
        rank, _, digest = mark[len(self._prefix) :].partition(b":")
        if int(rank) not in self._ranks:  # a double that was there already counts once
            self._ranks.add(int(rank))
            self._digests[digest] += 1

    def takes_away(self, digest: bytes) -> bool:
        """Whether such a row was written; each written one answers for one row."""
        if self._digests[digest] == 0:
            return False
        self._digests[digest] -= 1
        return True

    def next_rank(self) -> int:
        while self._next_rank in self._ranks:
            self._next_rank += 1
        rank = self._next_rank
        self._next_rank += 1
        return rank
