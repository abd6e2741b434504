"""The bytes that an observation of an unchanged cluster transfers, with lists and with watches.

    python -m benchmarks.watches [NODES [PODS]]

The API server is the small one of the tests, on a port of this machine; by default it has 1,000
nodes and 10,000 pods of realistic size. Bytes are those of the answers, without HTTP headers.
The bookmarks of all watches during an observation interval of 20 seconds count as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.adapters.kubernetes.sandbox import a_claim, a_node, a_pod, a_sandbox

SHARE_MAX = 0.01


def pad_object(kind: dict[str, object], size: int) -> dict[str, object]:
    """Return an object whose JSON has ``size`` bytes, like one with managed fields and a status."""
    missing = size - len(json.dumps(kind))
    metadata = kind["metadata"]
    assert isinstance(metadata, dict)
    return {**kind, "metadata": {**metadata, "annotations": {"filled": "x" * max(missing, 0)}}}


def main(nodes: int, pods: int) -> int:
    os.environ.pop("KUBECONFIG", None)
    with (
        tempfile.TemporaryDirectory() as folder,
        a_sandbox(Path(folder), has_cache=True) as sandbox,
    ):
        cache = sandbox.cache
        assert cache is not None
        for number in range(nodes):
            name, machine = f"n{number}", f"aws:///us-east-1a/i-{number}"
            sandbox.kube.add(pad_object(a_node(name, machine), 8000))
        for number in range(pods):
            sandbox.kube.add(pad_object(a_pod(f"p{number}", f"n{number % nodes}"), 5000))

        def observe(name: str) -> int:
            before, begin = sandbox.kube.sent, time.perf_counter()
            seen = sandbox.cluster.observe([a_claim()], [])
            assert (len(seen.nodes), len(seen.pods)) == (nodes, pods)
            sent, seconds = sandbox.kube.sent - before, time.perf_counter() - begin
            print(f"{name:34} {sent:>12,} bytes  {seconds:6.2f} s")
            return sent

        observe("complete lists, first time")
        lists = observe("complete lists, unchanged")
        cache.advance()
        observe("watches, unchanged")
        before = sandbox.kube.sent
        cache.advance()
        bookmarks = sandbox.kube.sent - before
        watches = observe("watches, unchanged, again") + bookmarks
        sandbox.kube.change("pods", "p0", lambda pod: pod["status"].update(phase="Failed"))
        before = sandbox.kube.sent
        cache.advance()
        print(f"{'one pod changed':34} {sandbox.kube.sent - before - bookmarks:>12,} bytes")
        print(f"Bookmarks of all kinds in 20 s: {bookmarks:,} bytes")
        print(f"An observation without changes transfers {watches / lists:.4%} of complete lists")
        return 0 if watches <= lists * SHARE_MAX else 1


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(arguments + [1000, 10000][len(arguments) :])))
