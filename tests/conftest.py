"""The common setup of all tests: options, the number of examples, and the use of memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from reconciler.catalog.catalog import bundled_catalog
from reconciler.catalog.table import table_of
from reconciler.cli.output import progressline
from tests.awsmodels import share_models
from tests.examples import is_exhaustive, load_profile
from tests.hostile.threats import name_attack
from tests.live.programs import offer_deploy_programs

_PEAK: Final = "peak_memory"
_peaks: dict[str, float] = {}
_GROWTH_MB: Final = 25.0
_settled: dict[str, float] = {}
"""The memory in use after the last complete collection."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the code says now into the golden files, for review",
    )


def pytest_configure(config: pytest.Config) -> None:
    if shutil.which("git") is None:
        pytest.exit("git is not installed, or not on PATH: the tests need it", returncode=1)
    load_profile(config.option.markexpr)
    offer_deploy_programs()
    # moto would create its 1,100 stock images for every mocked account, and never free them
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    # how long a command takes on a busy machine must not change what a test captures
    progressline.LINE_EVERY_S = math.inf


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the attacks, and let an exhaustive run repeat every property test with more examples."""
    for item in items:
        name_attack(item)
    if not is_exhaustive(config.option.markexpr):
        return
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if is_property or item.get_closest_marker("property"):
            item.add_marker("exhaustive")


def pytest_collection_finish() -> None:
    """Collect garbage less often, and exclude the loaded modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def pytest_runtest_setup() -> None:
    share_models()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Drop the catalogs that the tests of a module have created, with their tables.

    A complete collection takes a tenth of a second, so it waits until memory has grown.
    """
    if nextitem is not None and nextitem.path != item.path:
        bundled_catalog.cache_clear()
        table_of.cache_clear()
        if _resident_mb() > _settled.get("mb", 0.0) + _GROWTH_MB:
            gc.collect()
            _trim_memory()
            _settled["mb"] = _resident_mb()


def _resident_mb() -> float:
    """Return the memory in use, infinity if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return math.inf
    return pages * resource.getpagesize() / 2**20


def _trim_memory() -> None:
    """Return free memory of the allocator to the system, which only glibc supports."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Measure this process; a worker reports to the process that started it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    megabytes = peak / 1024 if sys.platform == "darwin" else peak
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is None:
        _peaks["main"] = megabytes
    else:
        output[_PEAK] = megabytes


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Record the peak of a worker; a crashed worker has none."""
    output = getattr(node, "workeroutput", {})
    if _PEAK in output:
        _peaks[node.gateway.id] = output[_PEAK]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    peaks = ", ".join(f"{name} {peak:.0f} MB" for name, peak in sorted(_peaks.items()))
    terminalreporter.write_line(f"peak memory: {peaks}")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the certificate of ``localhost`` and its key."""
    from tests.httpserver import write_certificate

    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def fewest_seeds() -> Iterator[None]:
    """Simulate changes with the fewest seeds.

    For modules whose tests are about what the runs say, and not about how many there are.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reconciler.simulate.seeds._WORK", 0)
        yield


@pytest.fixture
def without_retry_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the pauses of botocore's own retries, which use the machine's clock."""
    import botocore.endpoint

    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
