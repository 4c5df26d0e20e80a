"""The settings a directory was written with, read off its files: operators' tools start here."""

from tianzhou.base.settings import load
from tianzhou.store import layout
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files, list_visible


def detect(files: Files, root: str) -> StoreConfig:
    """Sizes of this directory's files; where it has none, the defaults.

    RocketMQ's own proportion of four index entries a slot is assumed.
    """
    if not list_visible(files, f"{root}/{layout.COMMIT_LOG}"):
        raise StoreDamaged(root, f"has no {layout.COMMIT_LOG} files; is it a store directory?")
    found: dict[str, object] = {}
    size = _size_of_first(files, f"{root}/{layout.COMMIT_LOG}")
    if size:
        found["commit_log_file_bytes"] = size
    queues = f"{root}/{layout.CONSUME_QUEUE}"
    directories = (
        f"{queues}/{topic}/{queue}"
        for topic in list_visible(files, queues)
        for queue in list_visible(files, f"{queues}/{topic}")
    )
    size = next(filter(None, (_size_of_first(files, directory) for directory in directories)), 0)
    if size:
        found["consume_queue_file_bytes"] = size
    index_size = _size_of_first(files, f"{root}/{layout.INDEX}")
    if index_size:
        slots, rest = divmod(index_size - 40, 4 + 4 * 20)
        if rest:
            raise StoreDamaged(f"{root}/{layout.INDEX}", f"files of {index_size} bytes are unknown")
        found |= {"index_slots": slots, "index_entries": 4 * slots}
    return load(StoreConfig, found)[0]


def _size_of_first(files: Files, directory: str) -> int:
    """The oldest file has its full size, whatever happened to the newest."""
    names = list_visible(files, directory)
    if not names:
        return 0
    file = files.open(f"{directory}/{names[0]}")
    try:
        return file.size()
    finally:
        file.close()
