"""Attacks by which a repository chooses credentials, endpoints, programs or a recorded state."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from reconciler.adapters.aws.clients import connector
from reconciler.adapters.aws.facts.latest import Folder
from reconciler.adapters.git.source import Remote, read
from reconciler.adapters.kubernetes.access import access_of
from reconciler.cli.main import main
from reconciler.desired.settings.keys import environment_name
from reconciler.desired.settings.layers import resolve
from reconciler.model.errors import StateError, UsageError
from reconciler.model.settings import Settings
from tests.adapters.git.conftest import Repository
from tests.adapters.kubernetes.apiserver import write_kubeconfig
from tests.cli.recorded_fleet import NOW_ARGUMENT, record
from tests.hostile.test_git import POOL
from tests.hostile.threats import Threat, attack
from tests.states import open_state

WEB = Path(__file__).resolve().parents[2] / "examples" / "web"

COMMANDS = (
    ["validate"],
    ["plan"],
    ["simulate"],
    ["config"],
    ["status"],
    ["apply", "--auto-approve"],
    ["check"],
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "RECONCILER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/cache"))
    made = Repository(tmp_path / "shop")
    made.commit({"pool.yaml": POOL})
    return made


FORBIDDEN = {
    "kubernetes.kubeconfig": ("kubernetes:\n  kubeconfig: evil.yaml\n", (2, 3)),
    "kubernetes.context": ("kubernetes: {context: prod}\n", (1, 14)),
    "aws.endpointUrl": ("packing: default\naws:\n  endpointUrl: https://evil.example\n", (3, 3)),
    "aws.roleArn": ("aws: {roleArn: 'arn:aws:iam::111122223333:role/evil'}\n", (1, 7)),
    "aws.externalId": ("aws: {externalId: abc}\n", (1, 7)),
    "notifications.webhooks": (
        "notifications:\n  webhooks: [{urlVariable: AWS_SECRET_ACCESS_KEY}]\n",
        (2, 3),
    ),
    "state as a URL": ("state: postgresql://evil.example/db\n", (1, 1)),
    "state as an absolute path": ("state: /var/lib/other\n", (1, 1)),
    "state that leads out": ("state: a/../../other\n", (1, 1)),
    "state in the user's home": ("state: ~/other\n", (1, 1)),
}


@attack(Threat.SETTINGS, "an operator setting in reconciler.yaml")
@pytest.mark.parametrize(("text", "place"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_operator_settings_are_rejected_in_the_repository(
    text: str, place: tuple[int, int], repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write({"reconciler.yaml": text})
    for words in COMMANDS:
        assert main([*words, str(repository.path)]) in (1, 3), words
        shown = capsys.readouterr()
        output = shown.out + shown.err
        assert f"reconciler.yaml:{place[0]}:{place[1]}" in output, words
        assert "RECONCILER_CONFIG" in output, "it tells where to put the setting"
    assert not (repository.path / ".reconciler").exists()
    assert not list(repository.path.parent.glob("other"))


@attack(Threat.SETTINGS, "an operator setting under the second file name")
def test_the_alternative_file_name_is_no_bypass(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write({"reconciler.yml": "aws: {endpointUrl: https://evil.example}\n"})
    assert main(["plan", str(repository.path)]) == 1
    assert "reconciler.yml:1:7" in capsys.readouterr().err


@attack(Threat.SETTINGS, "an operator setting under merge keys and aliases")
def test_a_yaml_alias_is_no_bypass(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "aws: &a {<<: {endpointUrl: https://evil.example}}\n"
    repository.write({"reconciler.yaml": text})
    assert main(["validate", str(repository.path)]) == 3
    assert "aws.endpointUrl" in capsys.readouterr().out


def test_settings_set_in_code_follow_the_same_rule() -> None:
    for config in ({"aws": {"roleArn": "x"}}, {"state": "postgresql://x"}, {"state": "../x"}):
        with pytest.raises(UsageError, match="RECONCILER_CONFIG"):
            resolve(config, {})


def test_the_operator_can_use_a_flag_a_variable_or_a_file(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository.write({"reconciler.yaml": "packing: cheapest\nstate: records\n"})
    operators = tmp_path / "etc/operator.yaml"
    operators.parent.mkdir()
    operators.write_text(
        "apiVersion: reconciler/v1\nkind: Configuration\npacking: default\n"
        "kubernetes: {kubeconfig: kube/config, context: prod}\nstate: state\n"
        "aws: {endpointUrl: 'https://ec2.example.com', externalId: abcd}\n"
    )

    def shown(*words: str) -> dict[str, tuple[object, ...]]:
        assert main(["config", str(repository.path), "-o", "json", *words]) == 0
        found = json.loads(capsys.readouterr().out)
        return {key: tuple(found[key].values()) for key in found}

    assert shown()["state"] == ("records", "file", "reconciler.yaml")
    for words in (["--config", str(operators)], []):
        if not words:
            monkeypatch.setenv("RECONCILER_CONFIG", str(operators))
        found = shown(*words)
        assert found["packing"] == ("default", "operator", str(operators))
        assert found["kubernetes.kubeconfig"][0] == str(operators.parent / "kube/config")
        assert found["state"] == (str(operators.parent / "state"), "operator", str(operators))
        assert found["aws.endpointUrl"][0] == "https://ec2.example.com"
    monkeypatch.setenv(environment_name("kubernetes.context"), "other")
    found = shown("--set", "aws.externalId=efgh")
    assert found["kubernetes.context"][:2] == ("other", "environment")
    assert found["aws.externalId"][:2] == ("efgh", "flag")


@attack(Threat.SETTINGS, "an operator's file inside the repository")
@pytest.mark.parametrize("form", ["file", "link in", "link out", "variable"])
def test_the_operators_file_is_outside_the_repository(
    form: str,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository.write({"fleet/pool.yaml": POOL, "operator.yaml": "packing: cheapest\n"})
    inside, outside = repository.path / "operator.yaml", tmp_path / "operator.yaml"
    if form == "link in":
        outside.symlink_to(inside)
        inside = outside
    elif form == "link out":
        outside.write_text("packing: cheapest\n")
        inside.unlink()
        inside.symlink_to(outside)
    words = [] if form == "variable" else ["--config", str(inside)]
    if form == "variable":
        monkeypatch.setenv("RECONCILER_CONFIG", str(inside))
    assert main(["config", str(repository.path / "fleet"), *words]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "is inside the fleet's repository" in line


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("packin: cheapest\n", "operator.yaml:1:1"),
        ("packing: [\n", "operator.yaml"),
        ("packing: default\n---\npacking: default\n", "exactly one document"),
        ("aws: {endpointUrl: 'http://10.0.0.1'}\n", "aws.endpointUrl"),
    ],
)
def test_an_error_in_the_operator_file_has_a_position(
    text: str,
    output: str,
    repository: Repository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "operator.yaml").write_text(text)
    words = ["--config", str(tmp_path / "operator.yaml")]
    assert main(["plan", str(repository.path), *words]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert output in line
    assert main(["plan", str(repository.path), "--config", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


# -- credentials in the clear ---------------------------------------------------------------------


@attack(Threat.SETTINGS, "an endpoint with plain http")
@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:4566", "http://127.0.0.1.evil.example", "HTTP://evil.example",
     "http://localhost@evil.example", "ftp://127.0.0.1", "file:///etc"],
)  # fmt: skip
@pytest.mark.parametrize("key", ["aws.endpointUrl", "clusterEndpoint"])
def test_plain_http_is_refused(key: str, url: str) -> None:
    with pytest.raises(UsageError, match="http"):
        resolve({}, {}, [f"{key}={url}"])
    with pytest.raises(UsageError, match="http"):
        resolve({}, {environment_name(key): url})


def test_plain_http_on_this_machine_and_https_are_allowed() -> None:
    for url in ("http://127.0.0.1:4566", "http://localhost:1/x", "http://[::1]:1", "https://x.y"):
        assert resolve({}, {}, [f"aws.endpointUrl={url}"]).settings.endpoint_url == url


@attack(Threat.SETTINGS, "an endpoint by plain http in the variables of boto3")
def test_the_rule_applies_to_the_variables_of_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://10.0.0.1:4566")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://10.0.0.1:4566")
    with pytest.raises(UsageError, match="plain http"):
        connector(Settings())("ec2", 1)


@attack(Threat.SETTINGS, "an API server that is reached by plain http")
def test_an_api_server_over_plain_http_is_rejected(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "http://10.0.0.1:8080")
    with pytest.raises(UsageError, match="plain http"):
        access_of(Settings(kubeconfig=str(path)))


@attack(Threat.SETTINGS, "a repository that is fetched without encryption")
@pytest.mark.parametrize("url", ["http://example.com/x.git", "git://example.com/x.git"])
def test_unencrypted_remotes_are_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--repo", url, "--state", str(tmp_path)]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "not encrypted" in line


# -- a recorded state that comes with the repository ----------------------------------------------


def recorded(folder: Path) -> None:
    with open_state(str(folder), "shop") as state:
        state.shelf.write("x", b"y")
    (folder / ".gitignore").unlink(missing_ok=True)


STATEFUL: Sequence[Sequence[str]] = (
    ["status"], ["history"], ["get", "plans"],
    ["apply", "--auto-approve", "--set", "clusterName=shop"],
    ["plan", "--set", "cluster=embedded"], ["state", "check"],
)  # fmt: skip


@attack(Threat.SETTINGS, "a recorded state that git tracks")
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "in the index"])
def test_a_tracked_state_is_never_opened(
    committed: bool, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(repository.path / ".reconciler")
    repository.git("add", "--force", ".reconciler")
    if committed:
        repository.git("commit", "--quiet", "--message", "state")
        repository.git("rm", "-r", "--quiet", "--cached", ".reconciler")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in repository.path.glob(".reconciler/*"))
    for words in STATEFUL:
        command, *rest = words
        if command in ("get", "state"):
            line = [command, rest[0], str(repository.path)]
        else:
            line = [command, str(repository.path), *rest]
        assert main(line) == 1, words
        (output,) = capsys.readouterr().err.splitlines()
        assert "git tracks .reconciler" in output
    now = sorted((p.name, p.stat().st_mtime_ns) for p in repository.path.glob(".reconciler/*"))
    assert now == before
    assert main(["plan", str(repository.path)]) == 0
    assert main(["validate", str(repository.path)]) == 0
    assert main(["simulate", str(repository.path)]) == 0


@attack(Threat.SETTINGS, "a link in place of the recorded state")
@pytest.mark.parametrize("name", [".reconciler", "state.db", "state.db-wal", "state.db-shm",
    "state.db-journal", "lock", ".gitignore"])  # fmt: skip
def test_a_link_is_not_followed(
    name: str, repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    place = repository.path / ".reconciler"
    if name == ".reconciler":
        recorded(victim)
        place.symlink_to(victim)
    else:
        recorded(place)
        for old in (place / name, *place.glob(f"{name}-*")):
            old.unlink(missing_ok=True)
        (place / name).symlink_to(victim)
    content = sorted(p.name for p in victim.glob("*"))
    words = ["apply", "--auto-approve", str(repository.path), "--set", "clusterName=shop"]
    words += [
        "--timeout",
        "1s",
        "--set",
        "cluster=embedded",
        "--set",
        "aws.endpointUrl=http://127.0.0.1:1",
    ]
    assert main(words) == 1
    (output,) = capsys.readouterr().err.splitlines()
    assert "symbolic link" in output
    assert sorted(p.name for p in victim.glob("*")) == content
    assert name == ".reconciler" or not victim.exists()


@attack(Threat.SETTINGS, "a link in place of the state that a simulated apply removes")
@pytest.mark.parametrize("level", [".reconciler", ".reconciler/simulated"])
def test_nothing_behind_a_symbolic_link_is_removed(
    level: str, repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    (victim / "simulated").mkdir(parents=True)
    (victim / "simulated" / "precious").write_text("kept")
    place = repository.path / level
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(victim)
    assert main(["apply", str(repository.path), "--simulated", "--auto-approve"]) == 1
    assert "symbolic link" in capsys.readouterr().err
    assert (victim / "simulated" / "precious").read_text() == "kept"


@attack(Threat.SETTINGS, "a link in place of the cache of AWS's responses")
@pytest.mark.parametrize("level", ["cache", "cache/shop", "cache/shop/market"])
def test_a_symbolic_link_in_the_cache_is_not_followed(level: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    below = Path("cache/shop/market").relative_to(level)
    (victim / below).mkdir(parents=True, exist_ok=True)
    (victim / below / "types.1").write_bytes(b"forged")
    place = tmp_path / ".reconciler" / level
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    folder = Folder(tmp_path / ".reconciler/cache/shop/market")
    assert folder.read("types.1") is None
    folder.write("types.2", b"ours")
    assert not list(victim.rglob("types.2"))


@attack(Threat.SETTINGS, "a link in place of a cached response of AWS")
def test_a_linked_answer_is_neither_read_nor_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"secret")
    folder = Folder(tmp_path / "a/b/c")
    folder.write("one", b"1")
    assert folder.read("one") == b"1"
    (folder.path / "two").symlink_to(victim)
    assert folder.read("two") is None
    (folder.path / ".gitignore").unlink()
    (folder.path / ".gitignore").symlink_to(victim)
    folder.write("three", b"3")
    assert victim.read_bytes() == b"secret"


@attack(Threat.SETTINGS, "a link in place of a clone or its lock")
@pytest.mark.parametrize("what", ["clone", "lock", "folder"])
def test_a_linked_clone_is_refused(what: str, repository: Repository, tmp_path: Path) -> None:
    cache, victim = tmp_path / "c", tmp_path / "victim"
    source = Remote(str(repository.path), str(cache))
    read(source)
    (clone,) = (path for path in cache.iterdir() if path.is_dir())
    if what == "clone":
        clone.rename(victim)
        clone.symlink_to(victim)
    elif what == "lock":
        lock = clone.with_suffix(".lock")
        lock.unlink()
        lock.symlink_to(victim)
    else:
        cache.rename(victim)
        cache.symlink_to(victim)
    with pytest.raises(StateError, match="symbolic link"):
        read(source)
    assert what != "lock" or not victim.exists()


def test_a_state_that_git_ignores_is_used(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_state(str(repository.path / ".reconciler"), "shop") as state:
        state.shelf.write("x", b"y")
    assert main(["state", "check", str(repository.path)]) == 0, capsys.readouterr().err
    with closing(sqlite3.connect(repository.path / ".reconciler/state.db")) as connection:
        assert connection.execute("SELECT count(*) FROM shelf").fetchone() == (1,)
    assert (repository.path / ".reconciler").stat().st_mode & 0o777 == 0o700


@attack(Threat.SETTINGS, "a reconciler.yaml of another user above the fleet")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_the_upward_search_ignores_a_configuration_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, planted = tmp_path / "fleet", tmp_path / "reconciler.yaml"
    fleet.mkdir()
    planted.write_text("packing: cheapest\n")
    monkeypatch.chdir(fleet)
    assert main(["config"]) == 0
    assert "cheapest" in capsys.readouterr().out
    os.chown(planted, 12345, 12345)
    assert main(["config"]) == 0
    assert "cheapest" not in capsys.readouterr().out
    assert main(["config", str(fleet)]) == 0


def a_state(folder: Path) -> Path:
    recorded(folder)
    return folder / "state.db"


@attack(Threat.SETTINGS, "a journal beside a recorded state that has SQLite delete another file")
def test_no_journal_of_a_state_deletes_a_file(
    repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file = a_state(repository.path / ".reconciler")
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        (page_size,) = database.execute("PRAGMA page_size").fetchone()
        (pages,) = database.execute("PRAGMA page_count").fetchone()
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    header = magic + struct.pack(">5I", 0, 0, pages, 512, page_size)
    tail = struct.pack(">I", 0x40000000 // page_size + 1) + name
    tail += struct.pack(">2I", len(name), sum(name)) + magic
    file.with_name("state.db-journal").write_bytes(header.ljust(512, b"\0") + tail)
    assert main(["status", str(repository.path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "names a file" in line
    assert victim.read_text() == "precious"


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t"
COMPUTED = {
    "view": ["DROP TABLE plan", f"CREATE VIEW plan AS SELECT ({ENDLESS}) AS digest"],
    "version": [
        "DROP TABLE schema_revision",
        f"CREATE VIEW schema_revision AS SELECT ({ENDLESS}) AS version_num",
    ],
    "trigger": ["CREATE TRIGGER t AFTER UPDATE ON fleet BEGIN DELETE FROM node_claim; END"],
    "column": ["ALTER TABLE fleet ADD COLUMN x TEXT AS (hex(zeroblob(1000000000)))"],
    "virtual": ["CREATE VIRTUAL TABLE x USING fts5(y)"],
}


@attack(Threat.EXHAUSTION, "a recorded state that computes without end when it is read")
@pytest.mark.parametrize("statements", COMPUTED.values(), ids=list(COMPUTED))
def test_nothing_in_a_state_is_computed(
    statements: Sequence[str], repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_state(repository.path / ".reconciler")
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        for statement in ("PRAGMA foreign_keys = OFF", *statements):
            database.execute(statement)
    for words in (["status"], ["history"], ["plan", "--set", "cluster=embedded"]):
        command, *rest = words
        assert main([command, str(repository.path), *rest]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "not a state of reconciler" in line


FOREIGN_STATES = {
    "a newer release": ("UPDATE schema_revision SET version_num = '9999'", "supports at most"),
    "an older release": ("UPDATE schema_revision SET version_num = '0001'", "state migrate"),
    "a release that never was": (
        "UPDATE schema_revision SET version_num = 'x\x1b[2J; DROP TABLE plan'",
        "state.db",
    ),
    "a number that is no release": (
        "UPDATE schema_revision SET version_num = '0'",
        "supports at most",
    ),
    "a number of a hundred thousand digits": (
        "UPDATE schema_revision SET version_num = printf('%.100000c', '1')",
        "supports at most",
    ),
    "no release": ("DELETE FROM schema_revision", "no recorded state"),
}


@attack(Threat.SETTINGS, "a recorded state of another release, or of none")
@pytest.mark.parametrize(("statement", "words"), FOREIGN_STATES.values(), ids=FOREIGN_STATES)
def test_a_state_of_another_release_is_neither_read_nor_changed(
    statement: str, words: str, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the migration that ``current_migration`` finds."""
    state = repository.path / ".reconciler"
    shutil.rmtree(state, ignore_errors=True)
    record(state, repository.path.name)
    with closing(sqlite3.connect(state / "state.db", isolation_level=None)) as database:
        database.execute(statement)
    before = (state / "state.db").read_bytes()
    for command in (["status"], ["get", "nodes"], ["report"], ["state", "export", "-"]):
        assert main([*command, str(repository.path), NOW_ARGUMENT]) == 1
        out, err = capsys.readouterr()
        assert words in err
        assert "\x1b" not in out + err
        assert err.count("\n") == 1
        assert len(err) < 600
    assert (state / "state.db").read_bytes() == before
    assert main(["state", "migrate", str(repository.path), NOW_ARGUMENT]) == 1
    assert "internal error" not in capsys.readouterr().err


LARGE_CELLS = [("plan", "body"), ("node_claim", "body"), ("journal_intent", "body")]


@attack(Threat.EXHAUSTION, "a recorded state with a value of hundreds of mebibytes")
@pytest.mark.parametrize(("table", "column"), LARGE_CELLS)
def test_a_huge_value_in_a_state_is_not_read(
    table: str,
    column: str,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``VALUE_BYTES_MAX``, here with a thousandth of its value."""
    state = repository.path / ".reconciler"
    shutil.rmtree(state, ignore_errors=True)
    record(state, repository.path.name)
    with closing(sqlite3.connect(state / "state.db", isolation_level=None)) as database:
        database.execute(
            f"UPDATE {table} SET {column} = zeroblob(4194304)"
            if table == "plan"
            else f"UPDATE {table} SET {column} = printf('%.4194304c', 'x')"
        )
    monkeypatch.setattr("reconciler.adapters.database.connection.VALUE_BYTES_MAX", 2**20)
    for words in (["status"], ["get", "nodes"], ["get", "plans"], ["history"]):
        code = main([*words, str(repository.path), NOW_ARGUMENT])
        out, err = capsys.readouterr()
        assert code in (0, 1)
        assert err.count("\n") <= 1
        assert "too big" in err or code == 0
        assert len(out + err) < 10_000
    assert main(["status", str(repository.path), NOW_ARGUMENT]) == 1


ODD_CELLS = {
    "a time": ("revision", "at", "9" * 30),
    "a time without a zone": ("revision", "at", "2026-03-01T00:00:00"),
    "a time of history": ("journal_outcome", "at", "soon"),
    "an outcome": ("journal_outcome", "outcome", "\x1b[2J"),
    "a body": ("journal_intent", "body", "[" * 100_000),
    "text": ("journal_outcome", "message", b"\xff\xfe"),
    "a plan": ("plan", "body", b"\x1f\x8b"),
    "a claim": ("node_claim", "body", "{}"),
}


@attack(Threat.EXHAUSTION, "a recorded state with values that no release has written")
@pytest.mark.parametrize(("table", "column", "value"), ODD_CELLS.values(), ids=list(ODD_CELLS))
def test_an_odd_value_in_a_state_is_an_error_of_one_line(
    table: str, column: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(shutil.copytree(WEB, tmp_path / "fleet"))
    assert main(["apply", folder, "--simulated", "--auto-approve", "--timeout", "60s"]) == 0
    state = tmp_path / "fleet/.reconciler/simulated"
    with closing(sqlite3.connect(state / "state.db", isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        cell = "CAST(? AS TEXT)" if column == "message" else "?"
        database.execute(f"UPDATE {table} SET {column} = {cell}", (value,))
        assert database.execute("SELECT changes()").fetchone() != (0,)
    capsys.readouterr()
    for words in (["status"], ["history"], ["report"], ["get", "plans"], ["get", "actions"]):
        code = main([*words, folder, "--state", str(state)])
        shown = capsys.readouterr()
        assert code in (0, 1)
        assert shown.err.count("\n") <= 1
        assert "internal error" not in shown.err
        assert "\x1b" not in shown.out + shown.err
