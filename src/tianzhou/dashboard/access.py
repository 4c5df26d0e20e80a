"""Access to the pages: all users of this machine, or clients with the password.

On a loopback address there is no login, as for the broker itself. On any other address a password
is required; the first start creates it and prints it once, and only its hash is stored.
"""

import enum
import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import Final

SESSION_S: Final = 30 * 60.0
"""A session expires this long after its last request."""
SESSIONS_MAX: Final = 1_000
TRIES_MAX: Final = 5
"""Wrong passwords of one address in a minute; of all addresses together four times as many."""
TRIES_S: Final = 60.0
ADDRESSES_MAX: Final = 1_000

_COST: Final = 2**13
"""Of scrypt: 8 MiB and some 20 ms for each try. The password is random, this is a second door."""


def new_password() -> str:
    """Three groups that a person can copy: 90 bits."""
    letters = "abcdefghjkmnpqrstuvwxyz23456789"
    groups = ("".join(secrets.choice(letters) for _ in range(6)) for _ in range(3))
    return "-".join(groups)


def hash_of(password: str, salt: bytes | None = None) -> str:
    """What is kept of a password: salt and hash, as text."""
    salt = salt or secrets.token_bytes(16)
    found = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=8, p=1, maxmem=64 << 20)
    return f"{salt.hex()}:{found.hex()}"


def is_password(password: str, kept: str) -> bool:
    salt = bytes.fromhex(kept.partition(":")[0])
    return hmac.compare_digest(hash_of(password, salt), kept)


class Login(enum.Enum):
    WRONG = "wrong"
    TOO_OFTEN = "too often"


@dataclass(slots=True)
class Access:
    """Owner: the event loop. Time is an argument: monotonic seconds."""

    password_hash: str | None
    """None: no login."""
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _sessions: dict[str, float] = field(default_factory=dict[str, float])
    _right: bytes | None = None
    """A password that was right, made unreadable."""
    _tries: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])

    @property
    def is_open(self) -> bool:
        return self.password_hash is None

    def login(self, password: str, address: str, now_s: float) -> str | Login:
        """The id of a new session, or why there is none."""
        if self._is_too_often(address, now_s):
            return Login.TOO_OFTEN
        if not self._is_right(password):
            self._tries.setdefault(address, deque(maxlen=TRIES_MAX)).append(now_s)
            return Login.WRONG
        self._tries.pop(address, None)
        self._forget_old(now_s)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now_s + SESSION_S
        return session

    def _is_right(self, password: str) -> bool:
        """Programs that ask for metrics say it every few seconds; it is worked out once."""
        if self.password_hash is None:
            return False
        known = hmac.new(self._secret, password.encode(), hashlib.sha256).digest()
        if self._right is not None and hmac.compare_digest(known, self._right):
            return True
        if not is_password(password, self.password_hash):
            return False
        self._right = known
        return True

    def _is_too_often(self, address: str, now_s: float) -> bool:
        recent = {
            known: deque((at for at in tries if now_s - at < TRIES_S), maxlen=TRIES_MAX)
            for known, tries in self._tries.items()
        }
        self._tries = {known: tries for known, tries in recent.items() if tries}
        if len(self._tries) >= ADDRESSES_MAX:
            return True
        together = sum(map(len, self._tries.values()))
        return len(self._tries.get(address, ())) >= TRIES_MAX or together >= 4 * TRIES_MAX

    def _forget_old(self, now_s: float) -> None:
        living = {one: end for one, end in self._sessions.items() if end > now_s}
        if len(living) >= SESSIONS_MAX:
            del living[min(living, key=living.__getitem__)]
        self._sessions = living

    def is_known(self, session: str, now_s: float, *, by_itself: bool = False) -> bool:
        """Whether a request may pass; its session lives on from now, unless a page that nobody
        touches asks by itself."""
        if self.is_open:
            return True
        if self._sessions.get(session, 0.0) <= now_s:
            return False
        if not by_itself:
            self._sessions[session] = now_s + SESSION_S
        return True

    def logout(self, session: str) -> None:
        self._sessions.pop(session, None)

    def token(self, session: str) -> str:
        """What every form carries: another site can make a browser send one, but not read this."""
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()

    def is_token(self, token: str, session: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token(session).encode())
