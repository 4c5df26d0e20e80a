"""Real files whose disk is never full, so that this machine's disk does not decide a test."""

from tianzhou.store.files import RealFiles, Usage


class CalmFiles(RealFiles):
    """Reports a disk that is nearly empty."""

    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=90)
