from hypothesis import given
from hypothesis import strategies as st

from tianzhou.store.page_sums import PAGE, PageSums

FILE = bytes(range(256)) * 80  # five pages


@given(st.integers(0, 2 * PAGE), st.lists(st.integers(1, 2 * PAGE), max_size=6), st.data())
def test_page_sums_detect_changed_bytes(start: int, sizes: list[int], data: st.DataObject) -> None:
    sums, end = PageSums(start), start
    for size in sizes:
        piece = FILE[end : end + size]
        sums.wrote(end, piece)
        end += len(piece)
    first = data.draw(st.integers(0, len(FILE) - 1), label="first")
    last = data.draw(st.integers(first, len(FILE) - 1), label="last")
    is_known = first // PAGE * PAGE >= start and last < end
    around = sums.around(first, last + 1)
    assert (around is not None) == is_known
    if around is None:
        return
    assert around[0] <= first <= last < around[1] <= end
    assert sums.agree(FILE[slice(*around)], around[0])
    changed = bytearray(FILE)
    changed[data.draw(st.integers(first, last), label="changed")] ^= 1
    assert not sums.agree(changed[slice(*around)], around[0])


def test_page_sums_ignore_bytes_after_the_range() -> None:
    sums = PageSums(0)
    sums.wrote(0, FILE[:100])
    assert sums.around(0, 50) == (0, 100)
    assert sums.agree(FILE[:100], 0)
    assert sums.around(0, 101) is None, "beyond what was written"
