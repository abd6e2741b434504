"""Expressions of Terraform, a few lines of which stand for more than a machine can hold."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.desired.terraform.expressions import evaluate
from reconciler.desired.terraform.filesets import files_below
from reconciler.desired.terraform.functions import to_text
from reconciler.desired.terraform.scope import ModuleScope
from tests.hostile.threats import Threat, attack

LONG = "a" * 100_000
DOUBLED = {f"l{n}": f"[for x in [local.{f'l{n - 1}' if n else 'a'}] : [x, x]]" for n in range(40)}
POOL = """
resource "kubectl_manifest" "pool" {
  yaml_body = <<-YAML
    apiVersion: karpenter.sh/v1
    kind: NodePool
    metadata:
      name: web
      labels:
        a: "${length(local.bomb)}"
    spec:
      template:
        spec:
          nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
          requirements: []
  YAML
}
"""
BOMBS = {
    "a text that replaces its own letters": {
        "a": '"aaaaaaaaaaaaaaaaaaaa"',
        "b": 'replace(local.a, "a", local.a)',
        "c": 'replace(local.b, "a", local.b)',
        "d": 'replace(local.c, "a", local.c)',
        "bomb": 'replace(local.d, "a", local.d)',
    },
    "a long separator of many items": {
        "long": f'"{LONG}"',
        "bomb": 'join(local.long, setproduct(range(1000), ["b"]))',
    },
    "a long pattern of many items": {
        "long": f'"{LONG}"',
        "bomb": "formatlist(local.long, range(1000))",
    },
    "a list of lists that are each there twice": {
        "a": '["b", "c"]',
        **DOUBLED,
        "bomb": "jsonencode(local.l39)",
    },
    "an equation of two lists of lists that are each there twice": {
        "a": "[1, 2]",
        **DOUBLED,
        "bomb": "local.l39 == local.l39 ? [1] : [2]",
    },
    "loops of a template within each other": {
        "bomb": '"'
        + "".join("%{ for x in range(1000) }" for _ in range(3))
        + "x"
        + "%{ endfor }" * 3
        + '"'
    },
    "sets of many items that are compared": {
        "a": "flatten([for x in range(200) : [for y in [range(1000)] : y]])",
        "bomb": "setsubtract(local.a, local.a)",
    },
    "a long list that is evaluated for each item of another": {
        "long": "[" + ", ".join('"' + "b" * 200 + '"' for _ in range(900)) + "]",
        "bomb": "[for x in range(1000) : length(local.long)]",
    },
    "a text that is read as YAML for each item of a list": {
        "long": '"' + "- a\\n" * 20_000 + '"',
        "bomb": "[for x in range(1000) : length(yamldecode(local.long))]",
    },
}


@attack(Threat.EXHAUSTION, "an expression of Terraform that stands for more than fits into memory")
@pytest.mark.parametrize("name", BOMBS)
def test_what_an_expression_takes_is_limited(name: str) -> None:
    """Guards: ``EvaluationWork``, and the sizes that functions check before they make a text."""
    scope = ModuleScope(".", lambda _: None, locals=BOMBS[name])
    tracemalloc.start()
    begin = time.process_time()
    try:
        value = evaluate("local.bomb", scope)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 60
    assert peak < 200 * 2**20
    assert "${" in to_text(value)  # the placeholder of what was not evaluated


@attack(Threat.EXHAUSTION, "modules of Terraform that each take the most that one may")
def test_all_modules_together_have_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: ``TotalWork``."""
    monkeypatch.chdir(tmp_path)
    bomb = BOMBS["a long list that is evaluated for each item of another"]
    values = "".join(f"  {name} = {text}\n" for name, text in bomb.items())
    for number in range(40):
        (tmp_path / f"given/{number}").mkdir(parents=True)
        text = POOL.replace("name: web", f"name: web-{number}")
        (tmp_path / f"given/{number}/main.tf").write_text(f"locals {{\n{values}}}\n{text}")
    begin = time.process_time()
    assert main(["init", "--from", "given", "fleet"]) in (0, 1)
    assert time.process_time() - begin < 120
    assert "internal error" not in capsys.readouterr().err


@attack(Threat.EXHAUSTION, "a pattern of Terraform for files of half a million choices or brackets")
@pytest.mark.parametrize("pattern", [f"{{{',' * 50_000}}}{'b' * 50_000}", "[" * 50_000])
def test_the_length_of_a_pattern_is_limited(pattern: str) -> None:
    """Guard: ``PATTERN_MAX``."""
    scope = ModuleScope(".", lambda _: None, list_files=lambda _: ["a" * 200])
    tracemalloc.start()
    begin = time.process_time()
    try:
        assert files_below(".", pattern, scope) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 5
    assert peak < 50 * 2**20
