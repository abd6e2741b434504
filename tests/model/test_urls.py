"""Addresses are printed without what only their owner may know."""

import pytest

from reconciler.model.urls import secret_of, without_secrets


@pytest.mark.parametrize(
    ("url", "printed", "secret"),
    [
        ("postgresql://me:pass@host/db", "postgresql://me:***@host/db", "pass"),
        ("postgresql://me:p@ss@host/db", "postgresql://me:***@host/db", "p@ss"),
        ("https://ghp_token@example.com/x.git", "https://***@example.com/x.git", "ghp_token"),
        ("ssh://git@example.com/x.git", "ssh://git@example.com/x.git", ""),
        ("git@example.com:org/x.git", "git@example.com:org/x.git", ""),
        ("https://h/x?a=1&password=p&b=2", "https://h/x?a=1&password=***&b=2", ""),
        ("/srv/fleet.git", "/srv/fleet.git", ""),
        ("fatal: cannot reach https://a:b@c/d", "fatal: cannot reach https://a:***@c/d", "b"),
    ],
)
def test_passwords_and_tokens_are_hidden(url: str, printed: str, secret: str) -> None:
    assert without_secrets(url) == printed
    assert secret_of(url) == secret
