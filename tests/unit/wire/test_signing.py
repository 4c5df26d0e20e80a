"""Signatures of requests: made, and looked at."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError, load
from tianzhou.broker.config import BrokerConfig
from tianzhou.wire.signing import Credentials

MINE = Credentials(access_key="me", secret_key="hush")


def test_signature_covers_values_by_name_order_and_the_body() -> None:
    # AccessKey, queueId, topic, as another program has it:
    # printf 'me1tbody' | openssl dgst -sha1 -hmac hush -binary | base64
    signed = MINE.sign({"topic": "t", "queueId": "1"}, b"body")
    assert signed["Signature"] == "S8RA7ehSMphk0kTz46Opv3nTny8="
    assert MINE.has_signed(signed, b"body")
    assert MINE.sign(signed, b"body") == signed


@pytest.mark.parametrize("field", ["AccessKey", "Signature", "topic"])
def test_signature_of_a_changed_field_is_invalid(field: str) -> None:
    signed = MINE.sign({"topic": "t"})
    assert MINE.has_signed(signed, b"")
    assert not MINE.has_signed({**signed, field: signed[field] + "x"}, b"")
    assert not MINE.has_signed({name: signed[name] for name in signed if name != field}, b"")
    assert not MINE.has_signed({**signed, "more": "x"}, b"")


def test_credentials_are_read_from_their_setting() -> None:
    assert Credentials.read('{"accessKey":"me","secretKey":"hush"}') == MINE
    assert Credentials.read("") is None
    assert "hush" not in repr(MINE)


@pytest.mark.parametrize(
    "text",
    ["me:hush", '{"accessKey":"me"}', '{"accessKey":"hush","secretKey":""}', '["hush"]', "{hush"],
)
def test_credentials_that_are_invalid_are_rejected_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Credentials.read(text)
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError) as refused:
        load(BrokerConfig, {"innerClientAuthenticationCredentials": text, "port": "x"})
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "innerClientAuthenticationCredentials = ******",
        "port = 'x'",
    ]
    assert "hush" not in str(refused.value)
