"""The plan of `tianzhou topic spread`: which brokers get which topics."""

from typing import TYPE_CHECKING, Any

from tianzhou.admin.commands import output
from tianzhou.admin.commands.topic import settings_of, settings_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.core.admin_results import Spread


def facts(plan: "Spread") -> dict[str, Any]:
    """The plan of one topic, for --json."""
    return {
        "topic": plan.topic,
        "ordered": plan.is_ordered,
        "added": list(plan.added),
        "groups": list(plan.groups),
        "brokers": [
            {
                "broker": place.broker,
                "now": None if place.now is None else settings_of(place.now),
                "then": None if place.then is None else settings_of(place.then),
            }
            for place in plan.placements
        ],
    }


def view(plans: "list[Spread]", left_out: list[str]) -> "RenderableType":
    """A table of brokers for each topic, and what else will happen."""
    rows = [
        (
            plan.topic,
            place.broker,
            "no queue" if place.now is None else settings_text(place.now),
            "no master; run this again" if place.then is None else settings_text(place.then),
        )
        for plan in plans
        for place in plan.placements
        if len(plans) == 1 or not plan.is_complete
    ]
    said = list[str]()
    groups = sorted({group for plan in plans for group in plan.groups})
    if groups:
        said.append(f"new brokers also get these groups with their settings: {', '.join(groups)}")
    unlisted = sorted({broker for plan in plans for broker in plan.unlisted})
    if unlisted:
        said.append(f"added to the order configuration: {', '.join(unlisted)}")
    if all(plan.is_complete for plan in plans):
        said.append("nothing to do: every broker that has a master has queues")
    if left_out:
        said.append(f"ordered topics, left out without --reorder: {', '.join(left_out)}")
    table = output.table(("topic", "broker", "now", "then"), rows)
    return output.stack(table, *map(output.sentence, said))
