"""Run-length encoded terms against a plain list of terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.raft.messages import LogIndex, Start, Term
from tianzhou.raft.terms import UNKNOWN, Terms

ROWS = st.lists(st.integers(0, 3), max_size=30).map(
    lambda steps: [sum(steps[: i + 1]) for i in range(len(steps))]
)


def terms_of(start: int, rows: list[int]) -> Terms:
    """A log that starts after `start`, in term 0, with entries of these terms."""
    terms = Terms(Start(LogIndex(start), Term(0)), (), LogIndex(start))
    for at, term in enumerate(rows, start + 1):
        terms.extend(LogIndex(at), Term(term))
    return terms


def plain(start: int, rows: list[int]) -> dict[int, int]:
    return {start: 0} | dict(enumerate(rows, start + 1))


def same(terms: Terms, table: dict[int, int]) -> None:
    for index in range(min(table) - 2, max(table) + 3):
        assert terms.at(LogIndex(index)) == table.get(index, UNKNOWN)
    assert (terms.last, terms.last_term) == (max(table), table[max(table)])


@given(start=st.integers(0, 9), rows=ROWS)
def test_terms_know_the_term_of_every_index(start: int, rows: list[int]) -> None:
    terms = terms_of(start, rows)
    same(terms, plain(start, rows))
    again = Terms(terms.start, terms.runs()[1:], terms.last)
    assert again.runs() == terms.runs()
    same(again, plain(start, rows))


@given(start=st.integers(0, 9), rows=ROWS, data=st.data())
def test_terms_can_be_truncated_and_trimmed(
    start: int, rows: list[int], data: st.DataObject
) -> None:
    terms, table = terms_of(start, rows), plain(start, rows)
    if rows:
        first = data.draw(st.integers(start + 1, start + len(rows)))
        terms.cut(LogIndex(first))
        table = {index: term for index, term in table.items() if index < first}
        same(terms, table)
    keep = data.draw(st.integers(start, max(table)))
    terms.trim(LogIndex(keep))
    table = {index: term for index, term in table.items() if index >= keep}
    assert terms.start == (keep, table[keep])
    same(terms, table)


@given(start=st.integers(0, 9), rows=ROWS, index=st.integers(0, 45), term=st.integers(-1, 60))
def test_terms_find_the_last_index_of_at_most_a_term(
    start: int, rows: list[int], index: int, term: int
) -> None:
    terms, table = terms_of(start, rows), plain(start, rows)
    found = terms.last_at_most(LogIndex(index), Term(term))
    fits = [at for at, its in table.items() if at <= index and its <= term]
    # Before the start nothing is known, so the start is the result if no entry matches.
    assert found == (max(fits) if fits else min(index, start - 1))


def test_terms_reject_a_decreasing_term() -> None:
    terms = terms_of(0, [1, 2])
    with pytest.raises(AssertionError, match="term 1 behind term 2"):
        terms.extend(LogIndex(3), Term(1))
