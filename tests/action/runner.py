"""A small imitation of GitHub's runner: the steps of a composite action, in a job of a repository.

It evaluates the expressions that `action.yml` uses, writes the files that a runner writes, and runs
the `run` steps with bash. Steps that use other actions are left to the caller.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_COMPARISON = re.compile(r"([\w.-]+) (==|!=) '([^']*)'")


@dataclass
class Job:
    """A job in a checkout. ``uses`` imitates a step that uses another action, and its outputs."""

    checkout: Path
    temp: Path
    environment: dict[str, str]
    event: dict[str, Any]
    skipped: frozenset[str] = frozenset({"install"})
    uses: Callable[[str, dict[str, str]], dict[str, str]] = lambda _action, _inputs: {}
    steps: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""
    summary: str = ""
    failed: str = ""

    def run(self, inputs: dict[str, str]) -> dict[str, str]:
        """Run the action and return its outputs; ``failed`` names the step that failed."""
        action = YAML(typ="safe").load(ROOT / "action.yml")
        self.inputs = {
            name: inputs.get(name, self._filled(str(given.get("default", ""))))
            for name, given in action["inputs"].items()
        }
        for step in action["runs"]["steps"]:
            name = step.get("id", step.get("uses", ""))
            if name in self.skipped or self.failed or not self._allowed(step.get("if", "")):
                continue
            if "uses" in step:
                given = {k: self._filled(str(v)) for k, v in step.get("with", {}).items()}
                self.steps[name] = self.uses(step["uses"], given)
            else:
                self._bash(name, step)
        return {name: self._filled(o["value"]) for name, o in action["outputs"].items()}

    def _allowed(self, condition: str) -> bool:
        if not condition:
            return True
        found = _COMPARISON.fullmatch(condition)
        assert found is not None, condition
        return (self._value(found[1]) == found[3]) == (found[2] == "==")

    def _filled(self, text: str) -> str:
        return _EXPRESSION.sub(lambda found: self._value(found[1]), text)

    def _value(self, name: str) -> str:
        match name.split("."):
            case ["inputs", key]:
                return self.inputs[key]
            case ["steps", key, "outputs", output]:
                return self.steps.get(key, {}).get(output, "")
            case ["github", "token"]:
                return self.environment.get("TOKEN", "")
            case ["github", "action_path"]:
                return str(ROOT)
            case ["runner", "temp"]:
                return str(self.temp)
            case ["github", "event", *path]:
                value: Any = self.event
                for key in path:
                    value = value.get(key, {})
                return str(value or "")
        raise AssertionError(f"the imitation does not know {name}")

    def _bash(self, name: str, step: dict[str, Any]) -> None:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an expression in a script could run what an input holds"
        files = {v: self.temp / f"{name}-{v}" for v in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.touch()
        event = self.temp / "event.json"
        event.write_text(json.dumps(self.event))
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.checkout,
            env={
                "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.temp),
                "GITHUB_ACTIONS": "true",
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_EVENT_PATH": str(event),
                "GITHUB_REPOSITORY": "acme/fleet",
                "GITHUB_RUN_ID": "1",
                "GITHUB_SERVER_URL": "https://github.example",
                "RUNNER_TEMP": str(self.temp),
                **{k: v for k, v in self.environment.items() if k != "TOKEN"},
                **{k: str(v) for k, v in files.items()},
                **{k: self._filled(str(v)) for k, v in step.get("env", {}).items()},
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.log += done.stdout + done.stderr
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        self.steps[name] = dict(line.split("=", 1) for line in lines)
        if done.returncode and not step.get("continue-on-error"):
            self.failed = name
