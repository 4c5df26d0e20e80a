"""END_TRANSACTION: a producer says what becomes of its half message."""

from dataclasses import dataclass

from tianzhou.broker.transactions.decisions import COMMIT, ROLLBACK, Transactions
from tianzhou.broker.writing.durable_reply import reply_when_durable
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.flags import TRANSACTION_NONE as UNDECIDED
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import EndTransactionRequest


@dataclass(slots=True)
class EndTransaction:
    transactions: Transactions
    writer: Writer

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.END_TRANSACTION: self.end}

    def end(self, request: Request) -> Reply | None:
        asked = EndTransactionRequest.from_ext(request.header.ext)
        if asked.commit_or_rollback == UNDECIDED:
            return None  # the producer does not know yet; the next check asks again
        if asked.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"commitOrRollback {asked.commit_or_rollback} is not a valid decision; "
                f"{COMMIT} commits, {ROLLBACK} rolls back, {UNDECIDED} leaves the transaction open",
            )
        end = self.transactions.decide(asked)
        if end is None:
            return Reply(remark="this transaction was decided before; nothing changed")
        reply_when_durable(self.writer, request, end, Reply())
        return None
