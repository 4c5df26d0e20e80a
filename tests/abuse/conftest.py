"""One process serves all abuse tests of a worker; after each test it must work as before."""

from collections.abc import Iterator

import pytest
from live import Live, Witness, allow_many_files, running


@pytest.fixture(scope="session")
def _stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Witness]]:
    allow_many_files()
    with running(tmp_path_factory.mktemp("abuse")) as live:
        witness = Witness(live)
        try:
            yield live, witness
        finally:
            witness.stop()


@pytest.fixture
def live(_stage: tuple[Live, Witness]) -> Iterator[Live]:
    """The running process. The witness checks it before and after each test."""
    live, witness = _stage
    witness.check()
    yield live
    witness.check()
