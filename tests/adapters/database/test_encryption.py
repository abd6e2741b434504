"""Which connections to PostgreSQL require TLS: all that leave this machine, unless it is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from reconciler.adapters.database.connection import required_encryption

REQUIRED = {"sslmode": "require"}


@pytest.fixture(autouse=True)
def _no_settings_of_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGSSLMODE", "PGHOST", "PGHOSTADDR", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("postgresql://u@db.example.com/state", REQUIRED),
        ("postgresql://u@10.0.0.7/state", REQUIRED),
        ("postgresql://u@[2001:db8::1]/state", REQUIRED),
        ("postgresql:///state?host=/run/postgresql,db.example.com", REQUIRED),
        ("postgresql://u@localhost/state?hostaddr=10.0.0.7", REQUIRED),
        ("postgresql:///state?service=production", REQUIRED),
        ("postgresql://u@localhost/state", {}),
        ("postgresql://u@127.0.0.1:5433/state", {}),
        ("postgresql://u@[::1]/state", {}),
        ("postgresql:///state?host=/run/postgresql", {}),
        ("postgresql:///state", {}),
        ("postgresql://u@db.example.com/state?sslmode=disable", {}),
        ("postgresql://u@db.example.com/state?sslmode=verify-full", {}),
    ],
)
def test_tls_is_required_away_from_this_machine(location: str, expected: dict[str, str]) -> None:
    assert required_encryption(make_url(location)) == expected


@pytest.mark.parametrize(
    ("variable", "value", "location", "expected"),
    [
        ("PGHOST", "db.example.com", "postgresql:///state", REQUIRED),
        ("PGHOSTADDR", "10.0.0.7", "postgresql://u@localhost/state", REQUIRED),
        ("PGSERVICE", "production", "postgresql:///state", REQUIRED),
        ("PGSSLMODE", "disable", "postgresql://u@db.example.com/state", {}),
        ("PGHOST", "/run/postgresql", "postgresql:///state", {}),
    ],
)
def test_the_environment_of_libpq_counts(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    location: str,
    expected: dict[str, str],
) -> None:
    monkeypatch.setenv(variable, value)

    assert required_encryption(make_url(location)) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("", REQUIRED),
        ("disable", REQUIRED),
        ("prefer", REQUIRED),
        ("require", REQUIRED),
        ("verify-ca", {}),
        ("verify-full", {}),
    ],
)
@pytest.mark.parametrize("place", ["the URL", "the environment"])
def test_a_service_that_verifies_the_server_keeps_its_mode(
    place: str,
    mode: str,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "services").write_text(
        f"[production]\nhost=db.example.com\n{f'sslmode={mode}' if mode else ''}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    if place == "the environment":
        monkeypatch.setenv("PGSERVICE", "production")
        url = make_url("postgresql:///state")
    else:
        url = make_url("postgresql:///state?service=production")
    assert required_encryption(url) == expected
