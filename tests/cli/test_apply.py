"""``apply`` shows its plan and asks; what it refuses or fails leaves nothing behind."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.test_end_to_end import Shop, shop

__all__ = ("shop",)

QUICK = ("--interval", "1ms")


class Terminal(io.StringIO):
    """A terminal on which an answer was typed."""

    def isatty(self) -> bool:
        return True


class Meddler(Terminal):
    """A terminal whose user changes the fleet before answering."""

    def __init__(self, shop: Shop) -> None:
        super().__init__("yes\n")
        self.shop = shop

    def readline(self, size: int | None = -1, /) -> str:
        self.shop.commit(3)
        return super().readline(-1 if size is None else size)


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(text))


def has_state(shop: Shop) -> bool:
    return (shop.folder / ".reconciler").exists()


def table(shop: Shop, kind: str, *more: str) -> list[str]:
    shop.capsys.readouterr()
    assert main(["get", kind, str(shop.folder), *more]) == 0
    return shop.capsys.readouterr().out.splitlines()


def listed(shop: Shop, kind: str) -> list[Any]:
    items: list[Any] = json.loads("".join(table(shop, kind, "-o", "json")))["items"]
    return items


def test_without_a_terminal_it_is_refused_before_anything_is_read(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop.folder / "fleet.yaml").write_text("not: [valid")
    before = len(shop.cloud.calls)
    assert main(shop.words("apply")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "Error: apply: cannot ask for approval, because stdin is not a terminal; pass "
        "--auto-approve, or apply a plan saved with `reconciler plan --out FILE`\n"
    )
    assert len(shop.cloud.calls) == before
    assert not has_state(shop)


def test_the_plan_is_shown_and_applied_after_yes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "yes\n")
    out = shop.run("apply", *QUICK)
    shown, requested, done = out.partition("Apply this plan? Only `yes` is accepted: ")
    assert requested
    assert "+ launch 2 × " in shown
    assert "converged" in done
    assert shop.rests(2)


@pytest.mark.parametrize("text", ["no\n", "y\n", "\n", "", "yes please\n"])
def test_any_other_answer_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    answer(monkeypatch, text)
    out = shop.run("apply", *QUICK, codes=(1,))
    assert out.endswith("Cancelled. Nothing was changed.\n")
    assert shop.cloud.running_instances() == {}
    assert not has_state(shop)


def test_a_declined_apply_keeps_the_existing_state(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.run("apply", "--auto-approve", *QUICK)
    before = shop.cloud.running_instances().keys()
    shop.commit(3)
    answer(monkeypatch, "no\n")
    assert "+ launch 1 × " in shop.run("apply", *QUICK, codes=(1,))
    assert shop.cloud.running_instances().keys() == before
    assert len(listed(shop, "nodes")) == 2


def test_changes_made_during_the_prompt_are_not_applied(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Meddler(shop))
    assert main(shop.words("apply", *QUICK)) == 4
    err = capsys.readouterr().err
    assert "the plan that was shown is stale: git changed" in err
    assert shop.cloud.running_instances() == {}


def test_there_is_no_prompt_without_actions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run("apply", "--auto-approve", *QUICK)
    answer(monkeypatch, "")
    assert "Apply this plan?" not in shop.run("apply", *QUICK)
    assert shop.rests(2)


def test_a_first_apply_lists_no_changes(shop: Shop) -> None:
    assert "Git changes" not in shop.run("apply", "--auto-approve", *QUICK)


def drift(shop: Shop) -> None:
    """Change the template of the NodePool, so that all of its nodes are replaced."""
    fleet = shop.folder / "fleet.yaml"
    fleet.write_text(fleet.read_text().replace('"expireAfter": "Never"', '"expireAfter": "720h"'))


def test_the_summary_says_what_deferred_nodes_wait_for(shop: Shop) -> None:
    shop.run("apply", "--auto-approve", *QUICK)
    drift(shop)
    suspended = ("--set", 'disruption.suspend=[{"owner": "me"}]')
    done = shop.run("apply", "--auto-approve", *QUICK, *suspended)
    assert done.endswith("  2 nodes deferred: each waits for the end of a suspension\n")
    assert "NodePool web: suspension (Drifted)" in shop.run("plan", *suspended)


def test_the_summary_names_nodes_that_cannot_be_replaced(shop: Shop) -> None:
    shop.run("apply", "--auto-approve", *QUICK)
    drift(shop)
    shop.cloud.market.refuse()
    done = shop.run("apply", "--auto-approve", *QUICK)
    assert done.endswith(
        "  2 nodes cannot be replaced now; `reconciler explain node NAME` shows why\n"
    )


def test_a_saved_plan_is_an_approval(shop: Shop, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    shop.run("plan", "--out", file)
    assert "Apply this plan?" not in shop.run("apply", "--plan", file, *QUICK)
    assert shop.rests(2)


def test_json_on_stdout_is_one_document_and_the_plan_goes_to_stderr(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shop.words("apply", "--auto-approve", "-o", "json", *QUICK)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["converged"]
    assert "+ launch 2 × " in err


@pytest.mark.parametrize(
    ("more", "code"),
    [
        pytest.param(["--set", "aws.endpointUrl=http://127.0.0.1:1"], 1, id="EC2 does not answer"),
        pytest.param(["--set", "cluster=kubeconfig"], 1, id="no kubeconfig"),
        pytest.param(["--set", "packing=x"], 1, id="a wrong setting"),
        pytest.param(["--catalog", "missing.json"], 1, id="a missing catalog"),
    ],
)
def test_a_first_apply_that_fails_leaves_no_state(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, more: list[str], code: int
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(shop.folder.parent / "missing"))
    for name in ("AWS_MAX_ATTEMPTS", "AWS_RETRY_MODE"):
        monkeypatch.delenv(name, raising=False)
    shop.run("apply", "--auto-approve", "-q", *more, codes=(code,))
    assert not has_state(shop)


def test_a_stale_plan_leaves_no_state(shop: Shop, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    shop.run("plan", "--out", file)
    shop.commit(3)
    shop.run("apply", "--plan", file, codes=(4,))
    assert not has_state(shop)


@pytest.mark.parametrize("timeout", ["--timeout", "--interval"])
def test_an_invalid_duration_is_a_usage_error(
    shop: Shop, timeout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shop.words("apply", "--auto-approve", timeout, "soon")) == 1
    err = capsys.readouterr().err
    assert err.startswith(f'Error: {timeout}: invalid duration "soon"')


def test_nodes_are_listed_with_price_utilization_and_pods(shop: Shop) -> None:
    shop.run("apply", "--auto-approve", *QUICK)
    header, *rows = table(shop, "nodes")
    titles = header.split()
    assert titles[titles.index("STATUS") + 1 :] == ["$/HOUR", "CPU", "MEMORY", "PODS", "AGE"]
    price, cpu, _, pods = rows[0].split()[titles.index("STATUS") + 1 :][:4]
    assert (len(rows), float(price) > 0, cpu.endswith("%"), pods) == (2, True, True, "1")
    usage = [item["status"]["usage"] for item in listed(shop, "nodeclaims")]
    assert {u["pods"] for u in usage} == {1}
    assert all(0 < u["requestedShare"]["cpu"] <= 1 for u in usage)
    (pool,) = listed(shop, "nodepools")
    assert pool["status"]["usage"]["pods"] == 2
    assert pool["status"]["usage"]["pricePerHour"] == sum(u["pricePerHour"] for u in usage)


@pytest.mark.exhaustive
def test_a_simulated_apply_starts_empty_and_does_not_touch_the_recorded_fleet(shop: Shop) -> None:
    shop.run("apply", "--auto-approve")
    recorded, calls = shop.query("status"), len(shop.cloud.calls)
    words = ["apply", str(shop.folder), "--simulated", "--auto-approve", "-o", "json"]
    for _ in range(2):
        shop.capsys.readouterr()
        assert main([*words, "--interval", "0s"]) == 0
        answer = json.loads(shop.capsys.readouterr().out)
        assert answer["actions"] == {"succeeded": 2}
    assert len(shop.cloud.calls) == calls
    assert shop.query("status") == recorded


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--state", "elsewhere"], "--simulated has a state of its own"),
        (["--plan", "plan.json"], "a saved plan is for the fleet that was observed"),
    ],
    ids=["state", "plan"],
)
def test_a_simulated_apply_takes_neither_a_state_nor_a_saved_plan(
    shop: Shop, more: list[str], problem: str
) -> None:
    assert main(["apply", str(shop.folder), "--simulated", "--auto-approve", *more]) == 1
    assert problem in shop.capsys.readouterr().err
