"""Bugs planted in the client's main paths. Each names the check that must catch it."""

from typing import Final

from planting import Bug, Edit


def _bug(name: str, check: str, *edits: tuple[str, str, str]) -> Bug:
    return Bug(name, check, 0, tuple(Edit(*edit) for edit in edits))


BUGS: Final = (
    _bug("a listener that raises is not logged", "listener",
         ("tianzhou.client.consume.listener:Listener._raised", "log.warning(", "log.debug(")),
    _bug("a listener that raises CancelledError ends its worker", "cancelled",
         ("tianzhou.client.consume.listener:Listener.call",
          "except (Exception, asyncio.CancelledError) as error", "except Exception as error")),
    _bug("a batch ignores its sharding key", "batch",
         ("tianzhou.client.core.routing:pick_of_batch",
          "return pick_of(keyed, queue)", "return None if queue is None else Fixed(queue)")),
    _bug("a missing extra ends in a traceback", "extra",
         ("tianzhou.base.extras:missing_extra", "if extra is None:", "if True:")),
    _bug("a keyed send fails while its broker is drained", "keyed",
         ("tianzhou.client.core.send:SendMachine._may_retry",
          "isinstance(error, STALE) and not isinstance(self.pick, Fixed)", "False")),
    _bug("a keyed send fails when a replica refuses it", "keyed",
         ("tianzhou.client.core.send:SendMachine._may_retry",
          "isinstance(error, ServiceNotAvailable)", "False")),
    _bug("a send overtakes the sends that wait for the route", "burst",
         ("tianzhou.client.aio.send_engine:PendingSend.start",
          "route is None or topic in engine.routes.keys", "route is None")),
    _bug("a send overtakes the sends that wait for the connection", "burst",
         ("tianzhou.client.aio.send_engine:PendingSend.start",
          " or address in engine.connections.keys", "")),
    _bug("a broadcasting consumer gets another client id at each start", "broadcast",
         ("tianzhou.client.consume.offset_files:lasting_identity",
          "return replace(options, instance_name=LASTING_INSTANCE)", "return options")),
    _bug("two consumers write one broadcast offset file", "lock",
         ("tianzhou.client.consume.offset_files:_try_lock",
          "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass")),
    _bug("the offsets of a living consumer are removed", "unused",
         ("tianzhou.client.consume.offset_files:_remove_unused",
          "are_free and all(", "all(")),
    _bug("a hook that raises fails the send", "hook",
         ("tianzhou.client.hooks:_call",
          "except Exception as error", "except ZeroDivisionError as error")),
    _bug("the group of a consumer has no namespace", "tenant",
         ("tianzhou.client.consume.context:ConsumerContext.join",
          "checked_group(names.full(group))", "group")),
)  # fmt: skip

_RUN: Final = "await self.closed_or(wanted)"

TERMINATION: Final = (
    _bug("SIGTERM kills a consumer", "process",
         ("tianzhou.client.termination:_is_handled",
          "signal.signal(signal.SIGTERM, _terminate)", "pass")),
    _bug("SIGTERM stops one of two consumers", "process",
         ("tianzhou.client.termination:_terminate", "tuple(_stops)", "tuple(_stops)[:1]")),
    _bug("SIGTERM ends a consumer that has not stopped", "process",
         ("tianzhou.client.aio.push_consumer:PushConsumer.run", _RUN,
          f"{_RUN}; __import__('os')._exit(0)")),
    _bug("in-flight messages are not waited for", "process",
         ("tianzhou.client.consume.running_consumer:RunningPushConsumer.on_revoked",
          "await wait_until_idle(assigned)", "pass")),
    _bug("offsets are not committed on the way out", "process",
         ("tianzhou.client.consume.assignments:Assignments._release",
          "await self.saved.save_surely([assigned.queue])", "pass")),
)  # fmt: skip
