"""Builds the slice of transactional messages."""

from dataclasses import dataclass

from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.metrics import gauge
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.transactions.checks import AdminTransactions, TransactionChecks
from tianzhou.broker.transactions.decisions import EndTransaction, Redirects, Transactions
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.broker.transactions.parked import ParkedTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSlice:
    halves: HalfQueue
    checks: TransactionChecks
    slice: Slice


def build(
    base: Foundation, tables: GroupTables, admission: Redirects, halves: HalfQueue
) -> TransactionSlice:
    """`admission` applies the delay rules to messages that a commit makes visible; `halves` is
    built before it, because it rejects messages while there are too many halves."""
    store, clock, writer = base.store, base.clock, base.writer
    transactions = Transactions(store, writer, admission=admission, halves=halves, clock=clock)
    parked = ParkedTransactions(store, writer, clock)
    base.alarms.add(parked.alarms)
    checks = TransactionChecks(
        base.config,
        store,
        writer,
        sessions=tables.sessions,
        halves=halves,
        transactions=transactions,
        parked=parked,
        clock=clock,
    )
    contribution = Slice(
        serves=(
            EndTransaction(transactions, writer),
            AdminTransactions(store=store, writer=writer, halves=halves, checks=checks),
        ),
        services=(checks,),
        metrics=(
            gauge(
                "pending_transactions",
                "Transactions that are not decided yet",
                halves.pending.__len__,
            ),
            gauge(
                "parked_transactions",
                "Transactions that no producer decided and that are no longer checked",
                checks.parked.__len__,
            ),
        ),
        adopts=(checks.adopt,),
    )
    return TransactionSlice(halves=halves, checks=checks, slice=contribution)
