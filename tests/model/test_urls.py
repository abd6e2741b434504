"""Addresses are printed without what only their owner may know."""

from collections.abc import Callable

import pytest

from reconciler.model.text.urls import Address, is_unencrypted, split_credentials, without_secrets
from tests.patterns import RATIO_MAX, growth


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("postgresql://me:pass@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:p@ss@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:p/s#s?@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:pass", "postgresql://me:***"),
        ("postgresql://me:pa/ss", "postgresql://me:***"),
        ("https://ghp_token@example.com/x.git", "https://***@example.com/x.git"),
        ("https://tok/en@example.com/x.git", "https://***@example.com/x.git"),
        ("ssh://git@example.com/x.git", "ssh://git@example.com/x.git"),
        ("git@example.com:org/x.git", "git@example.com:org/x.git"),
        ("me:pass@example.com:org/x.git", "me:***@example.com:org/x.git"),
        ("https://h/x?a=1&password=p&b", "https://h/x?a=1&password=***"),
        ("https://h/x?access_token=p", "https://h/x?access_token=***"),
        ("host=h password=p user=u", "host=h password=*** user=u"),
        ("/srv/fleet.git", "/srv/fleet.git"),
        ("https://h:8443/x, https://[::1]:80/y", "https://h:8443/x, https://[::1]:80/y"),
        ("fatal: cannot reach https://a:b@c/d", "fatal: cannot reach https://a:***@c/d"),
    ],
)
def test_passwords_and_tokens_are_hidden(url: str, printed: str) -> None:
    assert without_secrets(url) == printed


def test_an_address_that_is_the_complete_text_ends_where_the_text_does() -> None:
    url = "postgresql://me:pa ss@host/db"
    assert without_secrets(url, is_value=True) == "postgresql://me:***@host/db"


def test_user_and_password_are_taken_from_an_address() -> None:
    taken = split_credentials("https://me:p%2Fss@host:1/x")
    assert taken == Address("https://host:1/x", "me", "p/ss")
    assert split_credentials("https://host/x") == Address("https://host/x")
    with pytest.raises(ValueError, match="several @") as caught:
        split_credentials("https://me:secret@word@host/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "unencrypted"),
    [
        ("http://example.com", True),
        ("HTTP://169.254.169.254/", True),
        ("http://127.0.0.1.example.com:80", True),
        ("http://localhost@example.com", True),
        ("http://[", True),
        ("https://example.com", False),
        ("http://127.0.0.1:4566", False),
        ("http://localhost:4566", False),
        ("http://[::1]:4566", False),
    ],
)
def test_plain_http_is_for_this_machine_only(url: str, unencrypted: bool) -> None:
    assert is_unencrypted(url) is unencrypted


ADDRESSES = {
    "a list of names": lambda n: "web" + "a:b," * n,
    "signs of addresses": lambda n: "a:b@" * n,
    "pluses": lambda n: "+" * n,
    "queries": lambda n: "://" + "?token" * n,
    "fragments": lambda n: "://" + "#" * n,
    "words for secrets": lambda n: "://?" + "pass" * n,
    "words behind spaces": lambda n: "password " * n,
    "schemes": lambda n: "a://b:" * n,
    "punctuation": lambda n: "://" + "," * n + ":x",
    "brackets": lambda n: "://[" + "]" * n + "[",
}


@pytest.mark.parametrize("is_value", [False, True])
@pytest.mark.parametrize("text", ADDRESSES.values(), ids=ADDRESSES.keys())
def test_addresses_are_hidden_in_linear_time(text: Callable[[int], str], is_value: bool) -> None:
    def run_of(length: int) -> Callable[[], None]:
        made = text(length)
        return lambda: without_secrets(made, is_value=is_value) and None

    assert growth(run_of) < RATIO_MAX
