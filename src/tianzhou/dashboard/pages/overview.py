"""The first page: problems, throughput, and groups with the largest lag."""

import json
from collections.abc import Iterable
from itertools import zip_longest

from starlette.requests import Request
from starlette.responses import Response

from tianzhou.client.core.findings import findings
from tianzhou.client.core.replicas import replica_set
from tianzhou.client.core.views import forecast, groups_together, topics_together
from tianzhou.dashboard.page_context import PageContext
from tianzhou.wire.view_bodies import BrokerView

ROWS = 10


async def show(context: PageContext, request: Request) -> Response:
    view = await (await context.admin()).views.cluster()
    known, looked = {place.name: place for place in view.places}, view.brokers
    brokers = [looked.found[name] for name in sorted(looked.found)]
    groups = [
        row
        for row in groups_together(row for look in brokers for row in look.troubled)
        if row.lag or row.stuck or not row.is_consistent
    ]
    topics = topics_together(row for look in brokers for row in look.busiest)
    groups.sort(key=lambda row: (row.stuck, row.lag), reverse=True)
    topics.sort(key=lambda row: -(row.put_per_second + row.get_per_second))
    return context.show(
        request,
        "overview.html",
        nav="overview",
        title="Overview",
        findings=findings(view, context.clock.now_ms()),
        copies={look.name: replica_set(look, known.get(look.name)) for look in brokers},
        masters={place.name for place in view.places if 0 in place.addresses},
        missing=looked.missing,
        vanished=view.vanished,
        over=[e for look in brokers for e in look.events if e.ended_ms][:ROWS],
        brokers=brokers,
        forecasts={look.name: forecast(look.disk) for look in brokers},
        groups=groups[:ROWS],
        topics=topics[:ROWS],
        total=_total(brokers),
        series=json.dumps(
            [
                {"name": "in", "points": _sum(look.history.puts for look in brokers)},
                {"name": "out", "points": _sum(look.history.gets for look in brokers)},
            ]
        ),
        step_s=brokers[0].history.step_s if brokers else 5,
    )


def _total(brokers: list[BrokerView]) -> dict[str, float]:
    return {
        "put_per_second": sum(look.put_per_second for look in brokers),
        "get_per_second": sum(look.get_per_second for look in brokers),
        "put_today": sum(look.put_today for look in brokers),
        "lag": sum(look.totals.lag for look in brokers),
        "dead": sum(look.totals.dead for look in brokers),
        "halves": sum(look.totals.halves for look in brokers),
        "timers": sum(look.totals.timers for look in brokers),
        # Each of them is connected to every broker.
        "producers": max((look.totals.producers for look in brokers), default=0),
        "consumers": max((look.totals.consumers for look in brokers), default=0),
        "topics": max((look.totals.topics for look in brokers), default=0),
        "groups": max((look.totals.groups for look in brokers), default=0),
        "p99_ms": max((look.put_p99_ms for look in brokers), default=0.0),
    }


def _sum(series: Iterable[tuple[float, ...]]) -> list[float]:
    """Of all brokers; each ends now, and some began later."""
    columns = zip_longest(*(reversed(one) for one in series), fillvalue=0.0)
    return [round(sum(column), 1) for column in columns][::-1]
