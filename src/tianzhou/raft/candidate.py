"""Elections: requesting votes, voting and counting votes."""

from tianzhou.raft import leader
from tianzhou.raft.core import Core
from tianzhou.raft.messages import NodeId, Term, TimeoutNow, VoteReply, VoteRequest
from tianzhou.raft.quorum import won
from tianzhou.raft.roles import Event, Role


def ask_first(core: Core) -> None:
    """Start a pre-vote: ask whether an election would succeed. It changes no state anywhere."""
    core.become(Event.TIMEOUT)
    core.timer.restart()
    core.follow("")
    core.granted = {core.id}
    _ask(core, Term(core.term + 1), pre=True)
    _count(core)


def stand(core: Core, event: Event, *, forced: bool = False) -> None:
    """Start a new term as a candidate. The candidate's own vote counts once it is on disk; see
    `own_vote`."""
    assert not core.config.is_witness, "a witness has no messages and never leads"
    core.become(event)
    core.timer.restart()
    core.enter_term(Term(core.term + 1), vote=core.id)
    core.granted = set()
    _ask(core, core.term, pre=False, forced=forced)


def own_vote(core: Core) -> None:
    core.granted.add(core.id)
    _count(core)


def _ask(core: Core, term: Term, *, pre: bool, forced: bool = False) -> None:
    log = core.log
    for voter in _voters(core):
        if voter != core.id:
            request = VoteRequest(
                term, core.id, voter, log.last, log.terms.last_term, pre=pre, forced=forced
            )
            core.outbox.append(request)


def _voters(core: Core) -> list[NodeId]:
    members = core.log.members.current
    return sorted(members.voters | members.outgoing)


def on_vote_reply(core: Core, message: VoteReply) -> None:
    asking = core.role is Role.PRE_CANDIDATE if message.pre else core.role is Role.CANDIDATE
    if asking and message.granted:
        core.granted.add(message.sender)
        _count(core)


def _count(core: Core) -> None:
    if not won(core.log.members.current, core.granted):
        return
    if core.role is Role.PRE_CANDIDATE:
        stand(core, Event.PRE_VOTE_WON)
    else:
        leader.begin(core)


def on_timeout_now(core: Core, message: TimeoutNow) -> None:
    if core.role is Role.FOLLOWER and core.leader == message.sender:
        stand(core, Event.TOLD_TO_LEAD, forced=True)


def may_listen(core: Core, request: VoteRequest) -> bool:
    """Whether to consider a vote request: not while a leader is alive, and not if this member may
    have lost votes."""
    if core.hard.doubt:
        return False
    return request.forced or not core.hears_leader()


def on_vote_request(core: Core, request: VoteRequest) -> None:
    """Grant or deny a vote. The term was already adopted, unless this is a pre-vote."""
    if not may_listen(core, request):
        return
    granted = _may_have(core, request) and not core.log.is_ahead_of(
        request.last_index, request.last_term
    )
    if granted and not request.pre:
        core.hard = core.hard._replace(vote=request.sender)
        core.timer.restart()
    # A pre-vote requests the next term; a denial carries the current term, so that a member that is
    # behind learns it.
    term = request.term if granted else core.term
    core.outbox.append(VoteReply(term, core.id, request.sender, granted, request.pre))


def _may_have(core: Core, request: VoteRequest) -> bool:
    if request.pre:
        return request.term > core.term
    free = not core.hard.vote and not core.leader
    return request.term == core.term and (free or core.hard.vote == request.sender)
