r"""Property strings of many records, parsed together.

A property string is `name \x01 value \x02`, repeated (`record/properties.py` has the rules and is
the reference of the tests). The strings of a chunk are concatenated; both separators are then
found in all strings at once, and every name and value is a pair of positions.
"""

from typing import Any

import numpy as np

from tianzhou.record import names
from tianzhou.spark.arrow import Array, Kind, pa, pc
from tianzhou.spark.slices import Int64s, as_text, binary_slices, parts_of

_NAME_END = 1
_VALUE_END = 2


class Entries:
    """All properties of a chunk of records.

    Invariant: `rows` is ascending; entries of one row are in the order of the string.
    """

    def __init__(self, strings: Array) -> None:
        self._count = len(strings)
        self._raw, edges = parts_of(strings)
        starts, ends, rows = self._pieces(edges)
        middles, has_middle = self._find_middles(starts, ends)
        # A piece is valid if its name and its value, around the first \x01, are not empty.
        sound = has_middle & (middles > starts) & (middles < ends - 1)
        if not sound.all():
            starts, ends, rows, middles = (a[sound] for a in (starts, ends, rows, middles))
        self.rows = rows
        self._starts, self._middles, self._ends = starts, middles, ends
        named = binary_slices(self._raw, starts, middles).dictionary_encode()
        self._codes = named.indices.to_numpy().astype(np.int64)
        self._names: dict[bytes, int] = {
            name: code for code, name in enumerate(named.dictionary.to_pylist())
        }

    def _pieces(self, edges: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the start, the end and the row of each piece."""
        raw, row_starts, row_ends = self._raw, edges[:-1], edges[1:]
        stops = np.flatnonzero(raw == _VALUE_END)
        ends, next_starts = stops, stops + 1
        filled = row_ends > row_starts
        open_ends = row_ends[filled][raw[row_ends[filled] - 1] != _VALUE_END]
        if len(open_ends):  # the last separator of a string may be missing
            ends = np.concatenate((stops, open_ends))
            next_starts = np.concatenate((stops + 1, open_ends))
            # A string may start with the separator; the end of the previous row sorts first.
            order = np.lexsort((next_starts, ends))
            ends, next_starts = ends[order], next_starts[order]
        starts = np.concatenate((np.zeros(1, np.int64), next_starts))[:-1]
        per_row = np.diff(np.searchsorted(next_starts, edges, "right"))
        return starts, ends, np.repeat(np.arange(self._count), per_row)

    def _find_middles(self, starts: Int64s, ends: Int64s) -> tuple[Int64s, Any]:
        """Return the first \x01 at or after each start, and whether it is within the piece."""
        found = np.flatnonzero(self._raw == _NAME_END)
        if len(found) == len(starts) and (found >= starts).all() and (found < ends).all():
            return found, np.ones(len(found), bool)
        # A sentinel at the end, so that every start has a next separator.
        found = np.append(found, len(self._raw))
        middles = found[np.searchsorted(found, starts)]
        return middles, middles < ends

    def text(self, name: bytes) -> Array:
        """Return one property by row, null where it is missing. The last of several wins."""
        return as_text(self.values(name))

    def values(self, name: bytes) -> Array:
        chosen = self._codes == self._names.get(name, -1)
        rows = self.rows[chosen]
        starts, ends = self._middles[chosen] + 1, self._ends[chosen]
        if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
            last = np.append(rows[1:] != rows[:-1], True)
            rows, starts, ends = rows[last], starts[last], ends[last]
        found = binary_slices(self._raw, starts, ends)
        if len(rows) == self._count:
            return found
        places = np.full(self._count, -1, np.int64)
        places[rows] = np.arange(len(rows))
        return found.take(pa.array(places, mask=places < 0))

    def maps(self, kind: Kind) -> Array:
        """Return all properties of each row, without the checksum that some brokers add."""
        keep = self._codes != self._names.get(names.RECORD_CRC, -1)
        keep &= self._is_last()
        rows = self.rows[keep]
        keys = as_text(binary_slices(self._raw, self._starts[keep], self._middles[keep]))
        items = as_text(binary_slices(self._raw, self._middles[keep] + 1, self._ends[keep]))
        edges = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(edges), keys, items, kind)

    def _is_last(self) -> Any:
        """Return False for entries whose name occurs again later in the same row."""
        places = self.rows * len(self._names) + self._codes
        counts = np.bincount(places, minlength=1)
        last = np.ones(len(places), bool)
        if len(counts) and counts.max() > 1:
            _, first_from_behind = np.unique(places[::-1], return_index=True)
            last[:] = False
            last[len(places) - 1 - first_from_behind] = True
        return last


def split_keys(texts: Array, kind: Kind) -> Array:
    """Split keys at blanks. A message without keys has an empty list."""
    filled = pc.fill_null(texts, "")
    raw, edges = parts_of(filled)
    if not (raw == ord(" ")).any():
        present = (np.diff(edges) > 0).astype(np.int32)
        offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(present, dtype=np.int32)))
        values = filled.filter(pa.array(present.astype(bool)))
        return pa.ListArray.from_arrays(pa.array(offsets), values, kind)
    lists = pc.split_pattern(filled, " ")
    values, parents = lists.flatten(), pc.list_parent_indices(lists)
    used = pc.not_equal(values, "")
    rows = parents.filter(used).to_numpy()
    offsets = np.searchsorted(rows, np.arange(len(filled) + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values.filter(used), kind)
