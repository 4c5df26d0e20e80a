"""A checkpoint that is asked for while the flush thread still writes the one before."""

import threading
from pathlib import Path

from small_store import CalmFiles, chunk, open_store

from tianzhou.store.files import RealFile


class GatedFiles(CalmFiles):
    """Notes what is synced; syncs of queue files wait until the gate is open."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.arrived = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: str, size: int) -> RealFile:
        return GatedFile(self, super().create(path, size))

    def open(self, path: str) -> RealFile:
        return GatedFile(self, super().open(path))


class GatedFile(RealFile):
    __slots__ = ("_files",)

    def __init__(self, files: GatedFiles, file: RealFile) -> None:
        super().__init__(file.path, file._fd)
        self._files = files

    def sync(self) -> None:
        if "consumequeue" in self.path:
            self._files.arrived.set()
            assert self._files.gate.wait(120)
        self._files.synced.append(self.path)
        super().sync()


def test_owed_checkpoint_keeps_files_that_wait_for_a_sync(tmp_path: Path) -> None:
    files = GatedFiles()
    store = open_store(tmp_path, files=files)
    saved = threading.Condition()

    def progress() -> None:
        with saved:
            saved.notify_all()

    def wait_until_saved() -> None:
        thread = store._flusher.thread
        assert thread is not None
        with saved:
            assert saved.wait_for(lambda: not thread.is_saving, 120)

    store.start(progress)
    files.gate.clear()
    store.append(chunk(b"a", keys="k"))
    store.dispatch_all()
    store.checkpoint()
    assert files.arrived.wait(120)

    store.append(chunk(b"b", keys="k"))
    store.dispatch_all()
    store.checkpoint()
    store.maintain()
    assert store._opened.parts.checkpoint.derived == 0, "the first is still being written"

    files.gate.set()
    wait_until_saved()
    first = store._opened.parts.checkpoint.derived
    assert 0 < first < store.log.end
    files.synced.clear()
    store.maintain()
    wait_until_saved()
    assert store._opened.parts.checkpoint.derived == store.log.end
    kinds = {Path(path).relative_to(tmp_path).parts[0] for path in files.synced}
    assert {"consumequeue", "index", "checkpoint"} <= kinds

    files.synced.clear()
    store.maintain()
    assert not store._upkeep._is_checkpoint_owed
    assert files.synced == [], "it is owed once"
    store.close()
