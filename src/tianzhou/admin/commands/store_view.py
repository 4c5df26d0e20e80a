"""Tables and sentences of `tianzhou store`."""

from typing import TYPE_CHECKING, Final

from tianzhou.admin.commands import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.store.recovery import Report
    from tianzhou.store.verify import Findings

QUEUES_SHOWN_MAX: Final = 200


def inspection(found: "Findings") -> "RenderableType":
    rows = [
        (
            queue.topic,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.max_offset - queue.min_offset,
        )
        for queue in found.queues[:QUEUES_SHOWN_MAX]
    ]
    parts = [_summary(found), output.table(("topic", "queue", "first", "end", "messages"), rows)]
    if len(found.queues) > QUEUES_SHOWN_MAX:
        left = len(found.queues) - QUEUES_SHOWN_MAX
        parts.append(output.sentence(f"… and {left:,} more; --json shows all"))
    return output.stack(*parts, *_problems(found))


def verification(found: "Findings") -> "RenderableType":
    parts = [_summary(found), output.sentence(f"{found.records:,} records read")]
    if found.pending_units:
        said = (
            f"{found.pending_units:,} messages are not in their queues yet: "
            "the last stop was a crash; the next start adds them"
        )
        parts.append(output.sentence(said))
    if found.deleted_units:
        said = f"{found.deleted_units:,} messages belong to deleted topics"
        parts.append(output.sentence(said))
    parts += _problems(found)
    if found.is_sound:
        parts.append(output.sentence("no problems found", "green"))
    return output.stack(*parts)


def rebuilt(report: "Report", *, queues: int) -> "RenderableType":
    from rich.filesize import decimal

    said = f"{report.records:,} records ({decimal(report.scanned_bytes)}) rebuilt {queues:,} queues"
    parts = [output.sentence(said)]
    if report.cut_at is not None:
        parts.append(output.sentence(f"a torn tail was cut at offset {report.cut_at}"))
    if report.quarantine:
        said = f"data after the damage is kept in {report.quarantine}"
        parts.append(output.sentence(said, "yellow"))
    for start, end, reason in report.damage:
        parts.append(output.sentence(f"damaged: {start} to {end}: {reason}", "red"))
    return output.stack(*parts)


def _summary(found: "Findings") -> "RenderableType":
    facts = {
        "last stop": "clean" if found.clean else "a crash, or a broker runs now",
        "commit log": f"{found.log_files} files, offsets {found.log_start} to {found.log_end}",
        "flushed": f"up to {found.flushed}",
        "derived": f"up to {found.derived}",
        "index": f"{found.index_files} files, {found.index_entries:,} entries",
    }
    if found.light_queues:
        facts["light queues"] = f"{found.light_queues:,}, with {found.light_units:,} messages"
    return output.pairs(facts)


def _problems(found: "Findings") -> "list[RenderableType]":
    parts: list[RenderableType] = [
        output.sentence(f"damaged: log offsets {start} to {end}: {reason}", "red")
        for start, end, reason in found.damage
    ]
    parts += [output.sentence(problem, "red") for problem in found.problems]
    if found.problems and not found.damage:
        said = "rebuild queues and index with: tianzhou store rebuild DIR"
        parts.append(output.sentence(said))
    return parts


def acknowledged(texts: list[str]) -> "RenderableType":
    if not texts:
        return output.sentence("no incidents to acknowledge")
    return output.stack(*(output.sentence(f"acknowledged: {text}") for text in texts))
