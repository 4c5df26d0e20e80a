"""Detect the settings of a directory from its files, for the tools of operators."""

from dataclasses import replace

from tianzhou.base.settings import check
from tianzhou.store import layout
from tianzhou.store.config import StoreConfig
from tianzhou.store.derivation import Derivation
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files, list_visible


def detect(files: Files, root: str) -> StoreConfig:
    """Detect the file sizes, paths and delay levels of this directory, with defaults for missing
    ones.

    RocketMQ's own proportion of four index entries a slot is assumed.
    """
    config = layout.with_recorded_paths(files, root, StoreConfig())
    paths = layout.paths_of(root, config)
    if not list_visible(files, paths.commit_log):
        raise StoreDamaged(
            root, f"has no commit log files in {paths.commit_log}; is it a store directory?"
        )
    found: dict[str, int] = {}
    size = _size_of_first(files, paths.commit_log)
    if size:
        found["commit_log_file_bytes"] = size
    queues = paths.consume_queue
    directories = (
        f"{queues}/{topic}/{queue}"
        for topic in list_visible(files, queues)
        for queue in list_visible(files, f"{queues}/{topic}")
    )
    size = next(filter(None, (_size_of_first(files, directory) for directory in directories)), 0)
    if size:
        found["consume_queue_file_bytes"] = size
    index_size = _size_of_first(files, paths.index)
    if index_size:
        slots, rest = divmod(index_size - 40, 4 + 4 * 20)
        if rest:
            raise StoreDamaged(paths.index, f"files of {index_size} bytes are unknown")
        found |= {"index_slots": slots, "index_entries": 4 * slots}
    levels = Derivation(files, paths.tables, config.delay_levels_ms).delays_ms
    detected = replace(config, **found, delay_levels_ms=levels)
    check(detected)
    return detected


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
