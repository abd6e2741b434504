"""An AWS account and a cluster in this process only, for the demo and for ``--simulated``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from reconciler.adapters.database.location import SIMULATED
from reconciler.assembly.inputs import sources
from reconciler.assembly.inputs.records import FOLDER, state_location
from reconciler.assembly.inputs.request import FleetRequest, clock_of
from reconciler.desired.objects import node_classes
from reconciler.model.errors import UnreadableError, UsageError

_FOREIGN: Final = ("AWS_", "BOTO_", "MOTO_", "RECONCILER_")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def expect_installed(feature: str) -> None:
    """Raise UsageError if the packages that simulate EC2 are missing; ``feature`` needs them."""
    missing = [name for name in ("boto3", "moto") if find_spec(name) is None]
    if missing:
        from reconciler.installation import install_remedy

        raise UsageError(
            f"{feature} needs {' and '.join(missing)}",
            remedy=install_remedy("embedded"),
        )


@contextmanager
def isolated_environment() -> Iterator[None]:
    """Ignore the environment variables of AWS, proxies and this program.

    With no profile, no credentials and no metadata service to ask, boto3 can reach nothing but
    the endpoint it is given, which is on this machine.
    """
    before = dict(os.environ)
    for name in before:
        if name.startswith(_FOREIGN) or name.lower() in _PROXIES:
            del os.environ[name]
    os.environ.update(
        AWS_EC2_METADATA_DISABLED="true",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        NO_PROXY="127.0.0.1",
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def simulated_account(request: FleetRequest) -> Iterator[FleetRequest]:
    """Yield the request for a separate account with the resources that the fleet selects.

    Its state is new. It is kept in ``.reconciler/simulated`` of the fleet folder until the next
    run, separate from the recorded state of the fleet, which has real instances.

    Raises:
        UsageError: a package is missing, or a state is named.
        StateError: git tracks the state, or a link leads to it.
        UnreadableError: the state of the last run cannot be removed.
    """
    from reconciler_embedded.ec2 import EmbeddedEC2
    from reconciler_embedded.server import serve

    expect_installed("--simulated")
    if request.state is not None:
        raise UsageError(
            "--simulated has a state of its own, which begins empty",
            where="--state",
            remedy="leave out --state",
        )
    with isolated_environment(), _state_folder(request) as folder:
        own = replace(request, state=str(folder))
        fleet = sources.desired_fleet(own)
        resolved = sources.settings_of(own, fleet)
        _remove_state(state_location(own.path, resolved))
        ec2 = EmbeddedEC2(clock_of(own), region=resolved.settings.region or "us-east-1")
        for node_class in node_classes(fleet):
            ec2.seed(node_class)
        with serve(ec2) as url:
            there = ("cluster=embedded", f"aws.endpointUrl={url}", "interruptionQueue=")
            yield replace(own, settings=(*own.settings, *there))


@contextmanager
def _state_folder(request: FleetRequest) -> Iterator[Path]:
    """Yield a folder below the fleet's own, or a temporary one for a remote repository."""
    if request.repo is None:
        yield Path(request.path or ".") / FOLDER / SIMULATED
        return
    with tempfile.TemporaryDirectory(prefix="reconciler-simulated-") as temporary:
        yield Path(temporary)


def _remove_state(folder: str) -> None:
    """Remove the state of the last run; that it is not behind a symbolic link was checked."""
    try:
        if os.path.lexists(folder):
            shutil.rmtree(folder)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=folder) from error
