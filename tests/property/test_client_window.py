"""The window against a set: never past an unfinished message, and never held back needlessly."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.core.assigned_queue import Window

# A pull of some offsets, with gaps before them, or the completion of one message.
steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 500)), max_size=8),
        st.integers(0, 1000),
    ),
    max_size=60,
)


@given(st.integers(0, 1 << 40), steps)
def test_committable_offset_is_the_smallest_unfinished_one(
    first: int, steps: list[list[tuple[int, int]] | int]
) -> None:
    window, in_work = Window(first), dict[int, int]()
    for step in steps:
        if isinstance(step, int):
            if in_work:
                offset = sorted(in_work)[step % len(in_work)]
                del in_work[offset]
                assert window.finish(offset)
        else:
            at, offsets = window.next_offset, list[int]()
            for gap, _ in step:
                offsets.append(at + gap)
                at += gap + 1
            sizes = [size for _, size in step]
            window.add(offsets, sizes, at)
            in_work.update(zip(offsets, sizes, strict=True))
        assert window.committable == min(in_work, default=window.next_offset)
        assert window.count == len(in_work)
        assert window.bytes == sum(in_work.values())
