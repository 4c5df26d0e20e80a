"""The SQL of docs/getting-started.md, in the shared session."""

import shlex

from docs.pages import Page
from docs.terminal import accept, joined
from pipelines.conftest import Place
from tianzhou.spark.tables.query import query_once


def test_getting_started_sql_gives_the_result_of_the_page(place: Place) -> None:
    (line,) = (
        line
        for line in joined("".join(Page("docs/getting-started.md").blocks("sh")))
        if line.startswith("tianzhou sql ")
    )
    _, *words = shlex.split(line)
    accept(words)
    topic = place.topic("orders")
    place.send(topic, [{"order": "T9", "amount": 5}], tags="draft")
    place.send(topic, [{"order": f"T{n}", "amount": 10 * n} for n in range(3)], tags="order")
    select = words[1].replace("FROM orders", f"FROM `{topic}`")
    rows = query_once(place.spark, select, place.cluster()).collect()
    assert {(row.tags, row.orders, row.amount) for row in rows} == {
        ("draft", 1, 5),
        ("order", 3, 30),
    }
