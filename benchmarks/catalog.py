"""The time to load a catalog: ``python -m benchmarks.catalog [FILE ...]``.

Prints CPU milliseconds, the minimum of five runs in fresh processes. Nothing is asserted.
"""

import json
import subprocess
import sys

_BUNDLED = """
import json, time
start = time.process_time()
from reconciler.catalog.catalog import bundled_catalog
imported = time.process_time()
catalog = bundled_catalog("us-east-1")
loaded = time.process_time()
catalog.columns
columns = time.process_time()
list(catalog.types)
objects = time.process_time()
print(json.dumps([imported - start, loaded - imported, columns - loaded, objects - columns]))
"""
_FILE = _BUNDLED.replace(
    "catalog.catalog import bundled_catalog", "catalog.file import read_catalog"
).replace('bundled_catalog("us-east-1")', 'read_catalog(open({path!r}, "rb").read(), "file")')


def minimum_milliseconds(program: str) -> list[float]:
    """Return the minimum CPU milliseconds of each part of ``program``."""
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
        for _ in range(5)
    ]
    return [min(parts) * 1000 for parts in zip(*runs, strict=True)]


def main() -> None:
    print(f"{'ms of CPU':40} {'import':>8} {'load':>8} {'columns':>8} {'objects':>8}")
    programs = {"bundled us-east-1": _BUNDLED}
    programs.update((path, _FILE.replace("{path!r}", repr(path))) for path in sys.argv[1:])
    for name, program in programs.items():
        print(
            f"{name[-40:]:40} " + " ".join(f"{part:8.1f}" for part in minimum_milliseconds(program))
        )


if __name__ == "__main__":
    main()
