"""Small disks that can be filled to the last byte and freed again: file systems in memory.

Mounting one requires root. As on a real disk, the data survives the process that uses it.
"""

import subprocess
from pathlib import Path
from typing import Final

FILLER: Final = "filler"
CHUNK_BYTES: Final = 1 << 16


class CannotMount(Exception):
    """This machine or user may not mount file systems."""


class Disk:
    """Owner: a scenario, which must unmount it."""

    def __init__(self, place: Path, size: int) -> None:
        place.mkdir(parents=True, exist_ok=True)
        options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
        tried = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise CannotMount(tried.stderr.strip())
        self._place = place

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        chunk = bytes(CHUNK_BYTES)
        with (self._place / FILLER).open("ab", buffering=0) as file:
            while chunk:
                try:
                    file.write(chunk)
                except OSError:
                    chunk = chunk[: len(chunk) // 2]

    def free(self) -> None:
        (self._place / FILLER).unlink()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self._place)], check=True)
