"""Real processes of the command line, and an EC2 on a port that outlives them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from reconciler.adapters.clock import SystemClock
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve

REPOSITORY = Path(__file__).resolve().parents[2]
AT_MOST_S = 120


@dataclass
class Site:
    """A fleet folder, a state directory, and EC2."""

    folder: Path
    state: Path | str
    cloud: EmbeddedEC2
    url: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: str, *words: str) -> subprocess.Popen[str]:
        """Start ``reconciler COMMAND`` on the fleet."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RECONCILER_"))}
        env |= {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1"}
        env |= {"PYTHONPATH": str(REPOSITORY), "AWS_EC2_METADATA_DISABLED": "true"}
        line = [sys.executable, "-m", "reconciler", command, str(self.folder)]
        line += ["--state", str(self.state), "--set", "cluster=embedded", *words]
        process = subprocess.Popen(
            line, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.started.append(process)
        return process

    def finish(self, command: str, *words: str) -> str:
        """Run a command to its end and return its output."""
        process = self.start(command, *words)
        message, _ = process.communicate(timeout=AT_MOST_S)
        assert process.returncode == 0, message
        return message

    def killed(self, after_s: float, command: str, *words: str) -> None:
        """Run a command for that many seconds."""
        process = self.start(command, *words)
        try:
            process.wait(timeout=after_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=AT_MOST_S)

    def killed_at(self, chance: random.Random, operations: int, command: str, *words: str) -> None:
        """Kill a command at one of its next EC2 calls, after the effect and before the answer."""
        process, left = self.start(command, *words), [chance.randrange(operations)]

        def count(_: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=AT_MOST_S)

        self.cloud.after_call = count
        process.communicate(timeout=AT_MOST_S)
        self.cloud.after_call = lambda _: None

    def change(self, file: str, before: str, after: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def fleet(self) -> Counter[str]:
        """Return the number of live instances by NodePool, from EC2 itself."""
        return Counter(
            tags["karpenter.sh/nodepool"] for tags in self.cloud.running_instances().values()
        )

    def twice(self) -> list[str]:
        """Return the intents that have more than one live instance."""
        intents = Counter(
            tags["reconciler/intent"] for tags in self.cloud.running_instances().values()
        )
        return [intent for intent, count in intents.items() if count > 1]


@contextmanager
def a_site(tmp_path: Path, example: str = "web") -> Iterator[Site]:
    """Serve an EC2 with the resources that the example's node classes select."""
    folder = Path(shutil.copytree(REPOSITORY / "examples" / example, tmp_path / example))
    cloud = EmbeddedEC2(SystemClock())
    files = [SourceFile(str(p.relative_to(folder)), p.read_bytes()) for p in folder.rglob("*.yaml")]
    fleet, _ = read_fleet(files)
    for node_class in node_classes(fleet):
        cloud.seed(node_class)
    with serve(cloud) as url:
        site = Site(folder, tmp_path / "state", cloud, url)
        try:
            yield site
        finally:
            for process in site.started:
                process.kill()
                process.wait(timeout=AT_MOST_S)
                if process.stdout is not None:
                    process.stdout.close()


def a_directory_of_fleets(names: Iterable[str], example: Path, folder: Path) -> Path:
    """Create a folder with copies of an example, each with another name and cluster."""
    for name in names:
        fleet = folder / name
        shutil.copytree(example, fleet, ignore=shutil.ignore_patterns(".reconciler"))
        config = fleet / "reconciler.yaml"
        settings = yaml.safe_load(config.read_text()) | {"fleet": name, "clusterName": name}
        config.write_text(yaml.safe_dump(settings))
    return folder


def wait_for(condition: object, *, at_most_s: float = AT_MOST_S) -> None:
    """Poll until ``condition()`` holds."""
    assert callable(condition)
    deadline = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
