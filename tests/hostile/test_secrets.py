"""Attacks and mistakes that disclose a password or token."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import string
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reconciler.adapters.git.clone import remote_head
from reconciler.cli.main import main
from reconciler.desired.settings.keys import environment_name
from reconciler.model.errors import ReconcilerError
from reconciler.model.text.urls import without_secrets
from tests.examples import examples
from tests.hostile.test_git import POOL
from tests.hostile.threats import Threat, attack
from tests.httpserver import QuietHandler, serving_with

MARK = "Zq7"
"""In every secret at least twice, so that no half of one goes unnoticed."""

_RISKY = "/#@?:&=%+;,!$*()[]{}|^~`'\"<>. -_"
secrets = st.lists(
    st.text(st.sampled_from(_RISKY + string.ascii_letters + string.digits), max_size=4),
    min_size=1,
    max_size=3,
).map(lambda parts: MARK + MARK.join(parts) + MARK)
encoded = secrets.map(lambda secret: quote(secret, safe=""))
either = st.one_of(secrets, encoded)

DATABASE_FORMS = (
    "postgresql://user:{}@127.0.0.1:1/db",
    "postgresql+psycopg://user:{}@127.0.0.1:1/db",
    "postgres://:{}@127.0.0.1:1/db",
    "postgresql://{}@127.0.0.1:1/db",
    "postgresql://user:{}@127.0.0.1:port/db",
    "postgresql://user:{}@127.0.0.1:99999/db",
    "postgresql://user:{}@[::1/db",
    "postgresql://user:{}",
    "postgresql://user:{}@",
    "postgresql://127.0.0.1:1/db?user=u&password={}",
    "postgresql://127.0.0.1:1/db?sslpassword={}",
    "mysql://user:{}@127.0.0.1/db",
    "sqlite://user:{}@/db",
)
GIT_FORMS = (
    "https://user:{}@127.0.0.1:1/x.git",
    "https://{}@127.0.0.1:1/x.git",
    "https://user:{}@127.0.0.1:port/x.git",
    "https://user:{}@[::1/x.git",
    "https://user:{}",
    "http://user:{}@127.0.0.1:1/x.git",
    "http://user:{}@example.com/x.git",
    "ssh://user:{}@127.0.0.1:1/x.git",
    "git://{}@127.0.0.1:1/x.git",
    "ftp://user:{}@127.0.0.1/x.git",
    "https://127.0.0.1:1/x.git?access_token={}",
    "user:{}@127.0.0.1:x.git",
)
_HERE = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def output_of(*words: str) -> str:
    """Run a command and return everything that it prints; one line of error at most."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    if "--debug" not in words:
        assert len(err.getvalue().splitlines()) <= 1, err.getvalue()
        assert "internal error" not in err.getvalue(), err.getvalue()
        assert code in (0, 1, 2)
    return out.getvalue() + err.getvalue()


def fitting(form: str, secret: str) -> str:
    """Return the secret without what would end it, or make it a user's name, in this form."""
    if "@" not in form:
        secret = secret.replace("@", "")
    return secret.replace(":", "") if "://{}@" in form else secret


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_SSH_COMMAND", "false")
    for name in ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    return folder


@attack(Threat.SECRETS, "a password in the URL of the database")
@pytest.mark.parametrize("form", DATABASE_FORMS)
@given(secret=either)
@example(secret=f"{MARK}/{MARK}")
@example(secret=f"{MARK}#{MARK}?{MARK}")
@example(secret=f"{MARK}@{MARK}")
@example(secret=f"{MARK}%2F{MARK}&{MARK}")
@_HERE
def test_a_password_of_the_database_is_not_printed(form: str, secret: str, fleet: Path) -> None:
    url = form.format(fitting(form, secret))
    for words in (
        ["status", str(fleet), "--state", url],
        ["status", str(fleet), "--state", url, "--debug"],
        ["config", str(fleet), "--state", url],
        ["config", str(fleet), "--set", f"state={url}", "-o", "json"],
    ):
        assert MARK not in output_of(*words), words


@attack(Threat.SECRETS, "a password in a variable or in the operator's file")
@given(secret=either)
@_HERE
def test_a_password_from_any_source_is_not_printed(secret: str, fleet: Path) -> None:
    url = f"postgresql://user:{secret}@127.0.0.1:1/db"
    operators = fleet.parent / "operator.yaml"
    operators.write_text(json.dumps({"state": url}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECONCILER_CONFIG", str(operators))
        for words in (["status", str(fleet)], ["config", str(fleet)]):
            assert MARK not in output_of(*words)
        patch.setenv(environment_name("state"), url)
        for words in (["status", str(fleet), "--debug"], ["config", str(fleet), "-o", "json"]):
            assert MARK not in output_of(*words)


@attack(Threat.SECRETS, "a database URL committed in reconciler.yaml")
def test_a_url_in_the_repository_is_refused_without_being_printed(fleet: Path) -> None:
    url = f"postgresql://user:{MARK}@127.0.0.1/db"
    (fleet / "reconciler.yaml").write_text(f"state: {url}\n")
    for words in (["plan"], ["validate"], ["validate", "-o", "json"], ["config"]):
        command, *rest = words
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            assert main([command, str(fleet), *rest]) in (1, 3)
        shown = out.getvalue() + err.getvalue()
        assert "reconciler.yaml" in shown
        assert "operator" in shown
        assert MARK not in shown


@attack(Threat.SECRETS, "a password or token in the URL of a repository")
@pytest.mark.parametrize("form", GIT_FORMS)
@given(secret=either)
@example(secret=f"{MARK}/{MARK}")
@example(secret=f"{MARK}#{MARK}?{MARK}")
@example(secret=f"{MARK}@{MARK}")
@example(secret=f"{MARK}%2F{MARK}")
@example(secret=f"{MARK} {MARK}")
@_HERE
def test_a_password_of_git_is_not_printed(form: str, secret: str, fleet: Path) -> None:
    url = form.format(fitting(form, secret))
    words = ["plan", "--repo", url, "--state", str(fleet / "state"), "--debug"]
    assert MARK not in output_of(*words)
    assert not [path for path in (fleet / "state").rglob("*") if MARK in str(path)]
    with pytest.raises(ReconcilerError) as caught:
        remote_head(url, "main")
    error: BaseException | None = caught.value
    while error is not None:
        assert MARK not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@attack(Threat.SECRETS, "a password in the arguments and files of git")
def test_git_gets_the_password_from_its_environment_alone(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    spy = tmp_path / "bin/git"
    spy.parent.mkdir()
    real = shutil.which("git")
    # what the system shows of every process of this user, while git talks to the server
    spy.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {real} "$@"\n')
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    password = f"{MARK}/p#w?d:{MARK}%"
    with served(log) as (server, seen):
        url = f"http://me:{quote(password, safe='')}@{server}/x.git"
        assert remote_head(url, "main") == "1" * 40
        with pytest.raises(ReconcilerError) as caught:
            remote_head(f"http://me:{MARK}wrong@{server}/x.git", "main")
    assert f"me:{password}" in seen, "the server was given the password"
    assert MARK not in log.read_text()
    assert "ls-remote" in log.read_text()
    assert MARK not in str(caught.value)


@attack(Threat.SECRETS, "a server that redirects git to another one")
def test_a_redirect_does_not_receive_the_password(fleet: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        served(log, password="other") as (thief, stolen),
        served(log, redirect=f"http://{thief}") as (server, _),
        pytest.raises(ReconcilerError),
    ):
        remote_head(f"http://me:{MARK}@{server}/x.git", "main")
    assert stolen == []


@contextmanager
def served(
    log: Path, *, password: str = f"{MARK}/p#w?d:{MARK}%", redirect: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """Serve a repository over plain HTTP to those who know the password; note what is given."""
    seen: list[str] = []

    class Handler(QuietHandler):
        def answer(self) -> None:
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = process.read_bytes()
                except OSError:
                    continue
                if b"git" in line and b"pytest" not in line:
                    with log.open("a") as file:
                        file.write(line.replace(b"\0", b" ").decode("utf-8", "replace") + "\n")
            if redirect:
                self.send_response(302)
                self.send_header("Location", redirect + self.path)
                self.end_headers()
                return
            given = self.headers.get("Authorization", "")
            credentials = base64.b64decode(given.removeprefix("Basic ")).decode()
            seen.extend([credentials] if credentials else [])
            if credentials == f"me:{password}":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"1" * 40 + b"\trefs/heads/main\n")
            else:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.end_headers()

    with serving_with(Handler) as url:
        yield url.removeprefix("http://"), seen


@attack(Threat.SECRETS, "a password in a message of another program")
@given(secret=either.filter(lambda s: not re.search(r"\s", s)), host=st.sampled_from(["h", "h:1"]))
@settings(max_examples=examples(500), deadline=None)
def test_addresses_in_messages_are_printed_without_secrets(secret: str, host: str) -> None:
    for form in (
        "fatal: unable to access 'https://user:{}@{}/x/': Could not resolve host",
        "fatal: could not read from https://{}@{}/x",
        "connection to postgresql://user:{}@{}/db failed",
        "remote: user:{}@{}:x.git",
    ):
        token = secret if "user" in form else secret.replace(":", "")
        assert MARK not in without_secrets(form.format(token, host)), form


@attack(Threat.SECRETS, "a malformed port")
@pytest.mark.parametrize("port", ["port", "99999999", "-1", "0", "5432x", " "])
def test_a_malformed_port_is_a_usage_error(port: str, fleet: Path) -> None:
    shown = output_of("status", str(fleet), "--state", f"postgresql://u:{MARK}@127.0.0.1:{port}/db")
    assert shown.startswith("Error: ")
    assert MARK not in shown
    shown = output_of("plan", "--repo", f"https://u:{MARK}@127.0.0.1:{port}/x.git")
    assert MARK not in shown
