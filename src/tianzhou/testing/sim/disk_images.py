"""Every state in which a loss of power may leave a disk.

A crash point holds what was on the medium at one time, and the changes that were not synced. An
image is one legal outcome: each change was kept, lost, or torn. What was synced is always there;
names are lost or come back unless their directory was synced; a file may have its new length and
not its bytes.

Disks write a sector whole or not at all, and the store's checkpoint relies on it; still we tear at
any byte and put noise into a torn sector, but only where old and new bytes differ: a write that
changes nothing can damage nothing.
"""

import enum
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

from tianzhou.testing.sim.disk_nodes import (
    SECTOR,
    Change,
    Directory,
    Inode,
    Write,
    put,
    set_length,
)

Image = dict[str, bytes | None]
"""Path to contents; None for a directory."""


class Fate(enum.Enum):
    """What became of a change that was not synced."""

    KEPT = enum.auto()
    LOST = enum.auto()
    TORN_AT_BYTE = enum.auto()
    TORN_AT_SECTOR = enum.auto()
    SCATTERED = enum.auto()
    """Only some of the sectors were written."""
    ZEROED = enum.auto()
    """The length was written, the bytes were not."""
    GARBAGE = enum.auto()
    """Torn, with noise in the rest of the torn sector."""


_TEARS: Final = (
    Fate.TORN_AT_BYTE,
    Fate.TORN_AT_SECTOR,
    Fate.SCATTERED,
    Fate.ZEROED,
    Fate.GARBAGE,
)

Plan = Sequence[tuple[Fate, int]]
"""The fate of every change, and a number that determines the position of a tear."""


class FrozenFile(NamedTuple):
    durable: bytes
    pending: tuple[Change, ...]
    first: int
    """The rank of the first change among all changes of the crash point."""


class FrozenDirectory(NamedTuple):
    durable: "dict[str, FrozenFile | FrozenDirectory]"
    pending: "list[tuple[tuple[str, FrozenFile | FrozenDirectory | None], ...]]"
    first: int


class CrashPoint(NamedTuple):
    root: FrozenDirectory
    numbers: list[int]
    """When each change was made, by rank."""
    writes: list[int]
    """Ranks of the changes that are writes, and so can be torn."""
    call: int
    """How many calls the disk had seen."""


def crash_point(root: Directory, call: int) -> CrashPoint:
    """Freeze the content of the medium and the pending changes."""
    point = CrashPoint(FrozenDirectory({}, [], 0), [], [], call)
    return point._replace(root=_freeze_directory(root, point, {}))


_Frozen = dict[int, FrozenFile | FrozenDirectory]


def _freeze(
    node: Inode | Directory, point: CrashPoint, seen: _Frozen
) -> FrozenFile | FrozenDirectory:
    known = seen.get(id(node))
    if known is not None:
        return known
    if isinstance(node, Inode):
        pending = tuple(node.pending)
        frozen = FrozenFile(node.durable, pending, len(point.numbers))
        for change in pending:
            if isinstance(change, Write):
                point.writes.append(len(point.numbers))
            point.numbers.append(change.number)
    else:
        frozen = _freeze_directory(node, point, seen)
    seen[id(node)] = frozen
    return frozen


def _freeze_directory(node: Directory, point: CrashPoint, seen: _Frozen) -> FrozenDirectory:
    first = len(point.numbers)
    point.numbers.extend(naming.number for naming in node.pending)
    durable = {name: _freeze(child, point, seen) for name, child in node.durable.items()}
    pending = [
        tuple(
            (name, None if child is None else _freeze(child, point, seen))
            for name, child in naming.names
        )
        for naming in node.pending
    ]
    return FrozenDirectory(durable, pending, first)


def build(point: CrashPoint, plan: Plan) -> Image:
    """Return the image in which every change meets its planned fate."""
    image: Image = {}
    _build_directory(point.root, plan, "", image)
    return image


def _build_directory(directory: FrozenDirectory, plan: Plan, path: str, image: Image) -> None:
    names = directory.durable
    if directory.pending:
        names = dict(names)
        for rank, naming in enumerate(directory.pending, directory.first):
            if plan[rank][0] is not Fate.KEPT:
                continue
            for name, node in naming:
                if node is None:
                    names.pop(name, None)
                else:
                    names[name] = node
    for name, node in names.items():
        if isinstance(node, FrozenFile):
            image[path + name] = _build_file(node, plan) if node.pending else node.durable
        else:
            image[path + name] = None
            _build_directory(node, plan, f"{path}{name}/", image)


def _build_file(file: FrozenFile, plan: Plan) -> bytes:
    content = bytearray(file.durable)
    for rank, change in enumerate(file.pending, file.first):
        fate, dice = plan[rank]
        if fate is Fate.LOST:
            continue
        if isinstance(change, Write):
            _write(content, change, fate, dice)
        elif fate is Fate.KEPT:
            set_length(content, change.size)
    return bytes(content)


def _write(content: bytearray, change: Write, fate: Fate, dice: int) -> None:
    at, data = change.at, change.data
    end = at + len(data)
    match fate:
        case Fate.KEPT:
            put(content, at, data)
        case Fate.TORN_AT_BYTE:
            put(content, at, data[: dice % len(data)])
        case Fate.TORN_AT_SECTOR:
            edge = _edge(at, end, dice)
            put(content, at, data[: edge - at])
        case Fate.SCATTERED:
            for rank, (start, stop) in enumerate(_sectors(at, end)):
                if dice >> rank % 60 & 1:
                    put(content, start, data[start - at : stop - at])
        case Fate.ZEROED:
            _disturb(content, at, data, bytes(len(data)))
        case Fate.GARBAGE:
            tear = at + dice % len(data)
            put(content, at, data[: tear - at])
            stop = min(end, tear // SECTOR * SECTOR + SECTOR)
            noise = Random(dice).randbytes(stop - tear)
            _disturb(content, tear, data[tear - at : stop - at], noise)
        case Fate.LOST:
            pass


def _edge(at: int, end: int, dice: int) -> int:
    """Return the edge of a sector within a write, or its start if the write is within one
    sector."""
    first = at // SECTOR + 1
    count = (end - 1) // SECTOR - first + 1
    return (first + dice % count) * SECTOR if count > 0 else at


def _sectors(at: int, end: int) -> Iterator[tuple[int, int]]:
    while at < end:
        stop = min(end, at // SECTOR * SECTOR + SECTOR)
        yield at, stop
        at = stop


def _disturb(content: bytearray, at: int, data: bytes, noise: bytes) -> None:
    """Put noise where the write would have changed something."""
    before = bytes(content[at : at + len(data)]).ljust(len(data), b"\0")
    if before == data:
        return  # a write that changes no byte cannot be torn
    if before == bytes(len(data)):
        put(content, at, noise)  # never written before, so there are no earlier bytes to keep
        return
    mixed = bytes(
        old if old == new else other for old, new, other in zip(before, data, noise, strict=True)
    )
    put(content, at, mixed)


def plans(point: CrashPoint, seed: str) -> Iterator[Plan]:
    """Yield fates for all changes, endlessly: all kept, all lost, then alternately one change that
    differs from the rest, and random fates."""
    count = len(point.numbers)
    yield [(Fate.KEPT, 0)] * count
    if not count:
        return
    yield [(Fate.LOST, 0)] * count
    dice = Random(seed)
    while True:
        yield _one_apart(point, dice)
        yield _drawn(point, dice)


def _one_apart(point: CrashPoint, dice: Random) -> Plan:
    """One change is alone in being kept, lost or torn, or is torn with all later ones lost."""
    count = len(point.numbers)
    tear = (dice.choice(_TEARS), dice.getrandbits(60))
    kept, lost = (Fate.KEPT, 0), (Fate.LOST, 0)
    how = dice.randrange(5)
    chosen = dice.choice(point.writes) if how >= 2 and point.writes else dice.randrange(count)
    if how == 0:
        plan = [lost] * count
        plan[chosen] = kept
    elif how == 1:
        plan = [kept] * count
        plan[chosen] = lost
    elif how == 2:
        number = point.numbers[chosen]
        plan = [kept if other < number else lost for other in point.numbers]
        plan[chosen] = tear
    else:
        plan = [kept] * count
        plan[chosen] = tear
    return plan


def _drawn(point: CrashPoint, dice: Random) -> Plan:
    """Every change for itself; how bold the crash is varies from plan to plan."""
    lost, torn = dice.random(), dice.random() * 0.4
    plan: list[tuple[Fate, int]] = []
    for _ in point.numbers:
        if dice.random() < torn:
            plan.append((dice.choice(_TEARS), dice.getrandbits(60)))
        else:
            plan.append((Fate.LOST if dice.random() < lost else Fate.KEPT, 0))
    return plan


def fingerprint(image: Image) -> int:
    """Equal for equal images. Python keeps the hash of a bytes object, so this is cheap."""
    return hash(tuple(sorted(image.items(), key=_path_of)))


def _path_of(item: tuple[str, bytes | None]) -> str:
    return item[0]
