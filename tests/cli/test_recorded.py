"""Golden files of the output of read-only commands."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from reconciler._resources import resource_path
from reconciler.cli.main import main
from reconciler.disruption.command import DELETE, REBOOT, REPLACE
from reconciler.inspection.replies import ChecksReply, CostReply, TopReply
from reconciler.inspection.status import Status
from reconciler.model.text.times import format_time
from reconciler.plan.value.actions import ActionKind
from reconciler.ports.journal import Verb
from reconciler.ports.state import Unavailable
from tests.cli.recorded_fleet import NOW, NOW_ARGUMENT, record, the_plan
from tests.states import open_state

GOLDEN = Path(__file__).parent / "golden" / "recorded"
EXAMPLE = Path(__file__).parents[2] / "examples" / "web"

COMMANDS = {
    "status": ["status", "."],
    "status.json": ["status", ".", "-o", "json"],
    "top": ["top", "--sort", "cpu"],
    "top.json": ["top", "-o", "json"],
    "top-by": ["top", "--by", "workload"],
    "top-by.json": ["top", "--by", "namespace", "-o", "json"],
    "get-nodeclaims": ["get", "nodeclaims"],
    "get-nodeclaims-wide": ["get", "nodeclaim", "-o", "wide"],
    "get-nodeclaims.json": ["get", "NodeClaims", "-o", "json"],
    "get-nodeclaim-named": ["get", "nodeclaims", "web-old1"],
    "get-nodes-wide": ["get", "nodes", "-o", "wide"],
    "get-nodes.json": ["get", "nodes", "-o", "json"],
    "get-nodepools-wide": ["get", "nodepools", "-o", "wide"],
    "get-nodepools.json": ["get", "nodepools", "-o", "json"],
    "get-plans-wide": ["get", "plans", "-o", "wide"],
    "get-plans.json": ["get", "plans", "-o", "json"],
    "get-actions-wide": ["get", "actions", "-o", "wide"],
    "get-actions.json": ["get", "actions", "-o", "json"],
    "get-commands-wide": ["get", "commands", "-o", "wide"],
    "get-commands.json": ["get", "commands", "-o", "json"],
    "describe-nodeclaim": ["describe", "nodeclaim", "web-old1"],
    "describe-node": ["describe", "node", "ip-web-old2.internal"],
    "describe-nodepool": ["describe", "nodepool", "web"],
    "describe-command": ["describe", "command", "drifted-1"],
    "history": ["history"],
    "history-wide": ["history", "-o", "wide"],
    "history.json": ["history", "-o", "json", "--limit", "4"],
    "history-operations": ["history", "--by-operation"],
    "history-commands.json": ["history", "--by-command", "-o", "json"],
    "history.md": ["history", "-o", "markdown"],
    "history-target": ["history", "--target", "batch-6"],
    "report": ["report"],
    "report.md": ["report", "--since", "2d", "-o", "markdown"],
    "report.html": ["report", "-o", "html"],
    "report.json": ["report", "-o", "json"],
    "explain-pod-unschedulable": ["explain", "pod", "ml/train-0"],
    "explain-pod-launching": ["explain", "pod", "shop/api-1"],
    "explain-pod-fits": ["explain", "pod", "api-2"],
    "explain-node-going": ["explain", "node", "ip-web-old1.internal"],
    "explain-node-blocked": ["explain", "node", "ip-web-old2.internal"],
    "explain-node-blocked.json": ["explain", "node", "ip-web-old2.internal", "-o", "json"],
    "explain-nodeclaim-launched": ["explain", "nodeclaim", "web-new1"],
    "explain-nodeclaim-quiet": ["explain", "nodeclaim", "batch-7"],
    "state-check": ["state", "check"],
    "state-check.json": ["state", "check", "-o", "json"],
}


@pytest.fixture(autouse=True)
def fleet_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RECONCILER_STATE", "RECONCILER_FLEET"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(("form", "code"), [("html", "<code>{}</code>"), ("markdown", "`{}`")])
def test_every_format_of_the_status_has_what_the_text_has(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str], form: str, code: str
) -> None:
    record(fleet_folder / ".reconciler")
    assert main(["status", ".", NOW_ARGUMENT, "-o", form]) == 0
    page = capsys.readouterr().out
    for text in ("2026-01-03 07:00 UTC", "halted at", "ReservationCapacityExceeded", "47/month"):
        assert text in page
    assert code.format("reconciler resume") in page


def test_a_zone_without_capacity_is_one_row_of_the_status(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EC2 refuses hundreds of offerings one by one while a zone is full."""
    record(fleet_folder / ".reconciler")
    until = [NOW + timedelta(minutes=minutes) for minutes in range(1, 7)]
    with open_state(f"{fleet_folder}/.reconciler", "web") as state:
        state.store.put_unavailable(
            [
                Unavailable(f"c{n}.large", "eu-central-1c", "spot", at, code="Full")
                for n, at in enumerate(until, 4)
            ]
        )
    rows = [row.split() for row in run(capsys, "status", ".")[1].splitlines() if "-1c" in row]
    ends = [format_time(at).split() for at in (until[0], until[-1])]
    assert rows == [
        ["6", "instance", "types", "eu-central-1c", "spot", *ends[0], "to", *ends[1], "Full"]
    ]


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("status.v1", Status),
        ("top.v1", TopReply),
        ("costallocation.v1", CostReply),
        ("check.v1", ChecksReply),
    ],
)
def test_the_schema_of_a_reply_has_the_fields_of_its_type(
    name: str, reply: type[msgspec.Struct]
) -> None:
    schema = json.loads(Path(resource_path("schemas", f"{name}.json")).read_bytes())
    fields = {field.encode_name for field in msgspec.structs.fields(reply)}
    assert fields == schema["properties"].keys()


@pytest.mark.parametrize("form", ["html", "markdown"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["top"], "eu-central-1a"),
        (["top", "--by", "workload"], "of which idle"),
        (["get", "nodeclaims"], "web-old1"),
        (["get", "commands"], "drifted-1"),
        (["history"], "launch"),
        (["history", "--by-operation"], "outcome"),
        (["describe", "nodeclaim", "web-old1"], "Allocatable"),
        (["describe", "nodepool", "web"], "Spec"),
        (["describe", "command", "drifted-1"], "Operations, newest first"),
        (["state", "check"], "State of fleet web"),
        (["state", "prune", "--keep", "30d", "--dry-run"], "gone 0"),
        (["explain", "unknown-field"], "often because of a typo"),
    ],
)
def test_every_list_has_a_page(
    fleet_folder: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    words: list[str],
    text: str,
) -> None:
    record(fleet_folder / ".reconciler")
    assert main([*words, NOW_ARGUMENT, "-o", form]) == 0
    page = capsys.readouterr().out
    assert text in page
    assert page.startswith("<!doctype html>" if form == "html" else "### ")


def test_a_command_of_the_history_is_complete_however_few_are_listed(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    listed = [
        json.loads(run(capsys, "history", "--by-command", "-o", "json", *limit)[1])["items"]
        for limit in ((), ("--limit", "1"))
    ]
    assert listed[1] == listed[0][:1]
    assert [item["spec"]["operations"] for item in listed[0]] == [
        {"launch": 2},
        {"launch": 1, "taint": 1},
    ]
    assert listed[0][1]["status"]["savingsPerHour"] == 0.0639


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    at = () if words[0] == "state" and words[1] != "check" else (NOW_ARGUMENT,)
    code = main([*words, *at])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_equals_the_golden_files(
    name: str,
    fleet_folder: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    record(fleet_folder / ".reconciler")
    code, out, err = run(capsys, *COMMANDS[name])
    assert (code, err) == (0, "")
    out = out.replace(str(fleet_folder), "/fleets/web")
    golden = GOLDEN / (name if "." in name else f"{name}.txt")
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(out, encoding="utf-8")
    assert out == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["nodeclaims", "nodes", "nodepools", "plans", "actions"])
def test_a_list_is_a_kubernetes_list(
    kind: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    listed = json.loads(run(capsys, "get", kind, "-o", "json")[1])
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert listed["items"]
    for item in listed["items"]:
        assert item["apiVersion"]
        assert item["kind"]
        assert item["metadata"]["name"]
        one = json.loads(run(capsys, "get", kind, item["metadata"]["name"], "-o", "json")[1])
        assert one["metadata"] == item["metadata"]


def test_a_claim_shows_its_instance_conditions_and_labels(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    claim = json.loads(run(capsys, "get", "nodeclaims", "web-old1", "-o", "json")[1])
    assert claim["kind"] == "NodeClaim"
    assert claim["status"]["providerID"] == "aws:///eu-central-1a/i-web-old1"
    assert claim["metadata"]["labels"]["karpenter.sh/nodepool"] == "web"
    conditions = {c["type"]: c["status"] for c in claim["status"]["conditions"]}
    assert conditions == dict.fromkeys(("Launched", "Registered", "Initialized", "Ready"), "True")


def test_a_single_plan_is_shown_completely(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    shown = json.loads(run(capsys, "get", "plans", "3b0fa1c2d4e5", "-o", "json")[1])
    assert shown["plan"]["kind"] == "Plan"
    assert run(capsys, "describe", "plan", "3b0fa1c2d4e5")[1].startswith("web at 4f2c9e1a\n")
    for form, start in (("json", "{"), ("yaml", "{"), ("markdown", "### Plan"), ("html", "<!")):
        code, out, err = run(capsys, "describe", "plan", "3b0fa1c2d4e5", "-o", form)
        assert (code, err) == (0, "")
        assert out.startswith(start) or (form == "yaml" and "3b0fa1c2d4e5" in out)


SCHEMAS = {
    "status.json": "status.v1",
    "top.json": "top.v1",
    "report.json": "report.v1",
    "top-by.json": "costallocation.v1",
    "explain-node-blocked.json": "explanation.v1",
    "get-plans.json": "recorded.v1",
    "get-actions.json": "recorded.v1",
    "get-commands.json": "recorded.v1",
    "history.json": "recorded.v1",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_machine_readable_output_has_a_schema(
    name: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads(Path(resource_path("schemas", f"{SCHEMAS[name]}.json")).read_bytes())
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    record(fleet_folder / ".reconciler")
    printed = json.loads(run(capsys, *COMMANDS[name])[1])
    for item in printed.get("items", [printed]):
        validator.validate(item)
        with pytest.raises(ValidationError):
            validator.validate({**item, "novelty": 1})


def test_a_single_plan_has_a_schema_too(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    shown = json.loads(run(capsys, "get", "plans", "3b0fa1c2d4e5", "-o", "json")[1])
    for name, item in (("recorded.v1", shown), ("plan.v1", shown["plan"])):
        schema = json.loads(Path(resource_path("schemas", f"{name}.json")).read_bytes())
        Draft202012Validator(schema).validate(item)


REFUSALS = {
    "no-state": (
        ["status", "{folder}"],
        1,
        "no recorded state in this folder yet; it is created",
    ),
    "no-folder": (["get", "nodes", "./nowhere"], 1, 'nowhere" does not exist'),
    "no-kind": (["get", "pods"], 1, 'unknown kind "pods" (use one of nodeclaims'),
    "no-time": (["status", "--now", "noon"], 1, 'invalid time "noon"'),
    "two-forms": (["history", "--by-command", "--by-operation"], 1, "--by-command"),
    "no-count": (["history", "--limit", "0"], 1, '"0" is not a count'),
    "no-setting": (["status", "--set", "fleeet=x"], 1, "did you mean fleet?"),
    "too-many": (["get", "nodes", "a", "b", "c"], 1, 'unexpected argument "c"'),
    "bad-url": (["status", "--state", "mysql://h/d"], 1, "unsupported database mysql"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_unreadable_state_is_a_one_line_error(
    name: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected, message = REFUSALS[name]
    code = main([word.format(folder=fleet_folder) for word in words])
    captured = capsys.readouterr()
    assert (code, captured.out) == (expected, "")
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert list(fleet_folder.iterdir()) == []


UNKNOWN = {
    "gone": (
        ["get", "nodeclaims", "batch-6"],
        "was terminated 60s ago: InsufficientInstanceCapacity",
    ),
    "near": (["get", "nodes", "ip-web-old3.internal"], "did you mean ip-web-old2.internal?"),
    "far": (["describe", "nodepool", "x"], "`reconciler get nodepools` lists all"),
    "plan": (["describe", "plan", "000000000000"], "no plan 000000000000 is recorded"),
    "pod": (["explain", "pod", "shop/nosuch"], "pod shop/nosuch is not in plan"),
    "node": (["explain", "node", "zzz"], "`reconciler get nodes` lists"),
    "fleet": (
        ["status", "--set", "fleet=other"],
        "fleet other has no recorded state here; recorded fleets: web",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_an_error(
    name: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    words, message = UNKNOWN[name]
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_saved_plan_is_explained_without_any_state(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reconciler.plan.value.plan import to_json

    (fleet_folder / "plan.json").write_bytes(to_json(the_plan()))
    code, out, _ = run(capsys, "explain", "pod", "train-0", "--plan", "plan.json")
    assert code == 0
    assert "no type has 12 TiB" in out
    assert run(capsys, "explain", "nodeclaim", "web-new1", "--plan", "plan.json")[1].startswith(
        "NodeClaim web-new1: to be launched"
    )


def test_a_workload_stands_for_its_pods(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    assert run(capsys, "explain", "pod", "train")[1].startswith(
        "Pod ml/train-0: no existing node fits it"
    )
    code, _, err = run(capsys, "explain", "pod", "shop/api")
    assert code == 1
    assert "pod name shop/api is ambiguous: shop/api-1, shop/api-2; use one of these names" in err


def test_a_file_that_is_not_a_plan_is_an_error(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet_folder / "plan.json").write_text("[]")
    code, _, err = run(capsys, "explain", "pod", "a", "--plan", "plan.json")
    assert code == 1
    assert "not a plan" in err


def test_without_a_plan_explain_names_the_command_to_run(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.cli.recorded_fleet import a_claim, ago
    from tests.states import open_state

    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        state.store.put_node_claims([a_claim("web-1", ago(days=1))])
    code, _, err = run(capsys, "explain", "pod", "a")
    assert code == 1
    assert "run `reconciler plan --out plan.json`, then explain with --plan plan.json" in err


def test_without_recorded_state_explain_plans_as_plan_does(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``apply --simulated`` keeps its state below the folder of that of the real fleet."""
    shutil.copytree(EXAMPLE, fleet_folder, dirs_exist_ok=True)
    record(fleet_folder / ".reconciler" / "simulated")
    code, out, _ = run(capsys, "explain", "pod", "shop/api-00000")
    assert code == 0
    assert "it waits for general-" in out
    code, _, err = run(capsys, "explain", "pod", "shop/api-00000", "--state", ".reconciler")
    assert code == 1
    assert "no recorded state in this folder yet" in err


def test_without_recorded_state_that_of_a_simulation_is_named(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler" / "simulated")
    code, _, err = run(capsys, "status", ".")
    assert code == 1
    option = err.partition("that of --simulated is read with ")[2].split()
    assert run(capsys, "status", ".", *option)[0] == 0


@pytest.mark.parametrize("option", [["--replicas", "max"], ["-f", "../api.yaml"]])
def test_explain_plans_again_if_its_pods_are_named(
    option: list[str], fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest plan knows nothing of these pods."""
    shutil.copytree(EXAMPLE, fleet_folder, dirs_exist_ok=True)
    api = fleet_folder / "workloads" / "api.yaml"
    if "-f" in option:
        api.rename(fleet_folder.parent / "api.yaml")
    record(fleet_folder / ".reconciler")
    words = ["explain", "pod", "shop/api-00000", ".", "--set", "cluster=none"]
    assert run(capsys, *words)[0] == 1
    code, out, _ = run(capsys, *words, *option)
    assert code == 0
    assert "it waits for general-" in out


def test_an_empty_list_is_reported_on_stderr_only(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    from tests.states import open_state

    with open_state(str(fleet_folder / ".reconciler"), "empty") as state:
        state.shelf.write("x", b"")
    code, out, err = run(capsys, "get", "plans", "--set", "fleet=empty")
    assert (code, out, err) == (0, "", "No plans are recorded for fleet empty.\n")


def test_the_location_of_the_state_can_be_set_in_three_ways(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(fleet_folder / "elsewhere")
    assert run(capsys, "get", "nodes", "--state", "elsewhere")[0] == 0
    assert run(capsys, "get", "nodes")[0] == 1
    with monkeypatch.context() as patch:
        patch.setenv("RECONCILER_STATE", str(fleet_folder / "elsewhere"))
        assert run(capsys, "get", "nodes")[0] == 0
    (fleet_folder / "reconciler.yaml").write_text("state: elsewhere\n")
    monkeypatch.chdir(fleet_folder.parent)
    assert run(capsys, "get", "nodes", "./web")[0] == 0


def test_a_folder_named_like_a_pool_is_not_treated_as_the_fleet(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    (fleet_folder / "batch").mkdir()
    assert "web  " not in run(capsys, "get", "nodepools", "batch")[1]
    record(fleet_folder / "batch" / ".reconciler")
    assert "web  " in run(capsys, "get", "nodepools", "batch")[1]
    assert "web  " not in run(capsys, "get", "nodepools", "batch", ".")[1]


def test_the_only_fleet_of_a_state_is_the_default(
    fleet_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "shared", fleet="production")
    code, out, _ = run(capsys, "status", "--state", str(tmp_path / "shared"))
    assert code == 0
    assert out.startswith("Fleet:           production\n")


def test_a_broken_fleet_folder_does_not_block_access_to_history(
    fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(fleet_folder / ".reconciler")
    (fleet_folder / "pools.yaml").write_text("kind: [")
    assert run(capsys, "get", "nodes")[0] == 0
    (fleet_folder / "reconciler.yaml").write_text("fleeet: x\n")
    code, _, err = run(capsys, "get", "nodes")
    assert code == 1
    assert "reconciler.yaml:1:1" in err


@pytest.fixture
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user may enter."""
    with TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        folder = Path(name, "web")
        folder.mkdir()
        monkeypatch.chdir(folder)
        yield folder


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make everything below ``folder`` read-only, as on a read-only file system."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.geteuid()
    if user == 0:  # whom no permission stops
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("ended", ["in order", "by a crash"])
def test_status_works_on_a_read_only_file_system(
    anywhere: Path, capsys: pytest.CaptureFixture[str], ended: str
) -> None:
    from tests.states import open_state

    record(anywhere / ".reconciler")
    kept = open_state(str(anywhere / ".reconciler"), "web") if ended == "by a crash" else None
    if kept is not None:
        kept.shelf.write("x", b"")  # the log of writes stays beside the file
    before = run(capsys, "status")
    with read_only(anywhere):
        assert run(capsys, "status") == before
        assert run(capsys, "get", "nodeclaims")[0] == 0
        code, _, err = run(capsys, "resume", "--node-pool", "web")
    assert before[0] == 0
    assert code == 1
    assert "Traceback" not in err
    if kept is not None:
        kept.close()


def test_a_running_engine_is_shown(fleet_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.states import open_state

    record(fleet_folder / ".reconciler")
    with open_state(str(fleet_folder / ".reconciler"), "web") as state:
        state.lease.acquire()
        assert "Engine:          process " in run(capsys, "status")[1]
    assert "Engine:          not running" in run(capsys, "status")[1]


def test_the_schemas_list_every_operation_and_decision() -> None:
    """A value that a schema does not list would make a valid document invalid."""
    known = {
        frozenset(Verb),
        frozenset(ActionKind),
        frozenset({DELETE, REPLACE, REBOOT}),
        frozenset({"create", "update", "delete"}),  # of an object
    }
    for path in Path(resource_path("schemas", "plan.v1.json")).parent.glob("*.json"):
        for listed in _enums(json.loads(path.read_bytes())):
            if {"terminate", "delete", "provision"} & listed:
                assert listed in known, path.name


def _enums(schema: object) -> Iterator[frozenset[object]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("enum"), list):
            yield frozenset(schema["enum"])
        for inner in schema.values():
            yield from _enums(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _enums(inner)
