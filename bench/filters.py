"""The cost of filter expressions per message: `python -m bench.filters`.

Also where splitting the property string begins to pay, which decides FINDS_MAX.
"""

from time import perf_counter

from bench.measure import REPEATS
from tianzhou.filter.limits import FINDS_MAX
from tianzhou.filter.sql92 import Expression, compile_sql
from tianzhou.filter.sql92 import expression as compiled

MESSAGES = 50_000
# As a Java producer sends them.
PROPERTIES = (
    b"UNIQ_KEY\x017F0000010000000000000001234567AB\x02WAIT\x01true\x02a\x0117\x02region\x01x\x02"
    b"TAGS\x01tag-3\x02KEYS\x01order-1234567\x02CLUSTER\x01DefaultCluster\x02"
)
EXPRESSIONS = (
    "a > 5",
    "a > 5 AND region = 'x'",
    "a > 5.5 AND region IN ('w', 'x', 'y')",
    "a BETWEEN 1 AND 20 AND region STARTSWITH 'x' AND missing IS NULL",
    "region > 5 OR a = 17",
)


def microseconds(expression: Expression) -> float:
    """Return the time per message, the best of several runs."""
    matches = expression.matches
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter()
        for _ in range(MESSAGES):
            matches(PROPERTIES)
        best = min(best, perf_counter() - start)
    return best / MESSAGES * 1e6


def with_finds(text: str, finds_max: int) -> float:
    before = FINDS_MAX
    setattr(compiled, "FINDS_MAX", finds_max)  # noqa: B010  a constant to everyone else
    try:
        return microseconds(compile_sql(text))
    finally:
        setattr(compiled, "FINDS_MAX", before)  # noqa: B010


def main() -> None:
    print(f"properties of {len(PROPERTIES)} bytes")
    for text in EXPRESSIONS:
        print(f"{microseconds(compile_sql(text)):6.2f} µs  {text}")
    print("conditions  searched  split")
    for count in range(1, 8):
        text = " AND ".join(("a > 5", "region = 'x'")[number % 2] for number in range(count))
        print(f"{count:10}  {with_finds(text, count):5.2f} µs  {with_finds(text, 0):5.2f} µs")


if __name__ == "__main__":
    main()
