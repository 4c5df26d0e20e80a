"""Builds the slice of transactional messages."""

from dataclasses import dataclass

from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.transactions.decisions import Redirects, Transactions
from tianzhou.broker.transactions.end_transaction import EndTransaction
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.broker.transactions.parked import ParkedTransactions


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSlice:
    halves: HalfQueue
    checks: TransactionChecks
    slice: Slice


def build(base: Foundation, tables: GroupTables, admission: Redirects) -> TransactionSlice:
    """`admission` applies the delay rules to messages that a commit makes visible."""
    store, clock, writer = base.store, base.clock, base.writer
    halves = HalfQueue(store, tables.offsets)
    transactions = Transactions(store, writer, admission, halves, clock)
    parked = ParkedTransactions(store, writer, clock)
    base.alarms.add(parked.alarms)
    checks = TransactionChecks(
        base.config,
        store,
        writer,
        tables.sessions,
        tables.offsets,
        halves,
        transactions,
        parked,
        clock,
    )
    contribution = Slice(
        serves=(EndTransaction(transactions, writer),),
        services=(checks,),
        counts={
            "pending_transactions": halves.pending.__len__,
            "parked_transactions": checks.parked.__len__,
        },
        adopts=(checks.adopt,),
    )
    return TransactionSlice(halves=halves, checks=checks, slice=contribution)
