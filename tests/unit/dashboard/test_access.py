"""Who may see the pages."""

import pytest

from tianzhou.dashboard import access
from tianzhou.dashboard.access import (
    SESSION_S,
    TRIES_MAX,
    TRIES_S,
    Access,
    Login,
    hash_of,
    is_password,
    new_password,
)

PASSWORD = "abcdef-ghjkmn-pqrstu"


@pytest.fixture(scope="module")
def kept() -> str:
    return hash_of(PASSWORD)


def logged_in(door: Access, now_s: float = 0.0) -> str:
    session = door.login(PASSWORD, "10.1.1.1", now_s)
    assert isinstance(session, str)
    return session


def test_password_hash_matches_only_its_password(kept: str) -> None:
    assert PASSWORD not in kept
    assert is_password(PASSWORD, kept)
    assert not is_password(PASSWORD + "x", kept)
    assert hash_of(PASSWORD) != kept  # another salt


def test_new_passwords_are_distinct_and_ascii() -> None:
    made = {new_password() for _ in range(100)}
    assert len(made) == 100
    assert all(len(one) == 20 and one.isascii() for one in made)


def test_access_without_a_password_admits_everyone() -> None:
    door = Access(None)
    assert door.is_open
    assert door.is_known("", 0.0)
    assert door.login("", "10.1.1.1", 0.0) is Login.WRONG


def test_s40_session_expires_when_it_is_unused(kept: str) -> None:
    door = Access(kept)
    session = logged_in(door)
    assert not door.is_known("", 1.0)
    assert not door.is_known("guessed", 1.0)
    assert door.is_known(session, SESSION_S - 1)
    assert door.is_known(session, 2 * SESSION_S - 2)
    assert not door.is_known(session, 4 * SESSION_S)


def test_s40_session_is_not_kept_alive_by_automatic_refreshes(kept: str) -> None:
    door = Access(kept)
    session = logged_in(door)
    assert door.is_known(session, SESSION_S - 1, by_itself=True)
    assert not door.is_known(session, SESSION_S + 1)


def test_s40_logout_ends_the_session(kept: str) -> None:
    door = Access(kept)
    session = logged_in(door)
    door.logout(session)
    assert not door.is_known(session, 1.0)


def test_access_verifies_a_password_hash_once(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Access(kept)
    logged_in(door)

    def again(_password: str, _kept: str) -> bool:
        pytest.fail("it is worked out once more")

    monkeypatch.setattr(access, "is_password", again)
    logged_in(door)


def test_s40_login_after_many_wrong_passwords_is_throttled(kept: str) -> None:
    door = Access(kept)
    for _ in range(TRIES_MAX):
        assert door.login("wrong", "10.1.1.1", 0.0) is Login.WRONG
    # Even the right one, so that a guess tells nothing; others are not locked out.
    assert door.login(PASSWORD, "10.1.1.1", 1.0) is Login.TOO_OFTEN
    assert isinstance(door.login(PASSWORD, "10.2.2.2", 1.0), str)
    assert isinstance(door.login(PASSWORD, "10.1.1.1", TRIES_S + 1), str)


def test_s40_login_throttle_covers_many_addresses(kept: str) -> None:
    door = Access(kept)
    found = [door.login("wrong", f"10.1.1.{number}", 0.0) for number in range(5 * TRIES_MAX)]
    assert found.count(Login.WRONG) == 4 * TRIES_MAX
    assert found[-1] is Login.TOO_OFTEN


def test_access_limits_the_number_of_sessions(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "SESSIONS_MAX", 2)
    door = Access(kept)
    sessions = [logged_in(door, float(number)) for number in range(3)]
    assert [door.is_known(one, 3.0) for one in sessions] == [False, True, True]


def test_s42_token_is_valid_for_one_session() -> None:
    door = Access(None)
    assert door.is_token(door.token("a"), "a")
    assert not door.is_token(door.token("a"), "b")
    assert not door.is_token("", "a")
    assert not door.is_token("ü", "a")
    assert Access(None).token("a") != door.token("a")
