"""``reconciler demo``: the complete loop on one machine, without any setup.

A story of seven chapters (``story.py``), run by the real code in a simulated environment
(``stage.py``). It changes only its folder, connects only to this machine, and removes the folder
at the end, unless one was named.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.writing import refuse_links
from reconciler.assembly.inputs.request import DASHBOARD, FleetRequest, RunRequest, ServingRequest
from reconciler.assembly.inputs.watching import stop_on_signal
from reconciler.cli.commands.acting import run as daemon
from reconciler.cli.parser import inputs
from reconciler.exitcode import DONE
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, option, switch

if TYPE_CHECKING:
    from reconciler.demo.narrator import Narrator, Pace

_LINE_S: Final = 0.05
_CHAPTER_S: Final = 0.6
_GLANCE_S: Final = 0.1
_SERVED_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """The permanent folder, None for a temporary one, and the pace of the demo.

    ``listen`` is where the dashboard is served in place of the story, empty to play the story.
    """

    folder: str | None = option(
        "--dir", "DIR", "run in this folder and keep it (default: a temporary folder)"
    )
    is_fast: bool = switch("--fast", "do not pause for reading", exclusive="pace")
    waits_for_enter: bool = switch("--pause", "wait for Enter after each chapter", exclusive="pace")
    listen: str = option(
        "--serve",
        "HOST:PORT",
        "serve the dashboard of the demo's fleet in place of the story, until Ctrl-C "
        f"(default: {DASHBOARD})",
        nargs="?",
        const=DASHBOARD,
        default="",
        exclusive="pace",
    )


add_arguments = partial(add_options, DemoRequest)
request_of = partial(inputs.request_from, DemoRequest)


def run(request: DemoRequest) -> int:
    """Play the demo."""
    from reconciler.assembly.embedded import expect_installed
    from reconciler.demo.narrator import Narrator

    expect_installed("the demo")
    if request.listen:
        return _serve(request)
    colour = has_colour(sys.stdout)
    with stop_on_signal() as stop:
        play_demo(request.folder, Narrator(sys.stdout, _pace(request, stop), stop, colour=colour))
    return DONE


def _serve(request: DemoRequest) -> int:
    """Run the daemon for the fleet of the demo, until SIGTERM or SIGINT."""
    from reconciler.assembly.embedded import isolated_environment
    from reconciler.demo.stage import create_repository

    with isolated_environment(), _fleet_folder(request.folder) as folder:
        create_repository(folder, SystemClock().now())
        sys.stderr.write(
            f"Fleet: {folder}\nTo see a rollout, change nodes/web.yaml there and commit it.\n"
        )
        fleet = FleetRequest(path=str(folder))
        return daemon.run(
            RunRequest(
                fleet=fleet,
                interval=timedelta(seconds=_SERVED_INTERVAL_S),
                serving=ServingRequest(request.listen),
                is_simulated=True,
            )
        )


def play_demo(folder: str | None, narrator: Narrator) -> None:
    """Play the demo in a permanent or a temporary folder.

    Raises:
        UsageError: the folder is not empty.
        UnreadableError: git is missing, or the folder cannot be made.
    """
    from reconciler.assembly.embedded import isolated_environment

    with isolated_environment(), _fleet_folder(folder) as stage_folder:
        _play_in(stage_folder, narrator, named_folder=folder)


def _play_in(folder: Path, narrator: Narrator, named_folder: str | None) -> None:
    from reconciler.demo import story
    from reconciler.demo.narrator import Reporter
    from reconciler.demo.stage import REGION, START, DemoStage, StageClock
    from reconciler_embedded.ec2 import EmbeddedEC2
    from reconciler_embedded.server import serve

    story.print_introduction(narrator)
    reporter = Reporter(narrator, story.POOLS)
    clock = StageClock(START, reporter)
    ec2 = EmbeddedEC2(clock, region=REGION, starting_s=10, stopping_s=20)
    with serve(ec2) as url:
        story.play_chapters(DemoStage(folder, clock, ec2, url, reporter), narrator, named_folder)


def _pace(request: DemoRequest, stop: Callable[[], bool]) -> Pace:
    """Return the pace: none without a terminal."""
    from reconciler.demo.narrator import Pace

    if request.waits_for_enter and sys.stdin.isatty() and sys.stdout.isatty():
        return Pace(turn=partial(_wait_for_enter, stop))
    if request.is_fast or not sys.stdout.isatty():
        return Pace()
    return Pace(_LINE_S, _CHAPTER_S)


def _wait_for_enter(stop: Callable[[], bool]) -> None:
    import select

    sys.stdout.write("\n   Press Enter to continue ")
    sys.stdout.flush()
    while not stop():
        if select.select([sys.stdin], [], [], _GLANCE_S)[0]:
            sys.stdin.readline()
            return


@contextmanager
def _fleet_folder(name: str | None) -> Iterator[Path]:
    """Yield the folder of the fleet: the named one, or a temporary one."""
    if name is None:
        with tempfile.TemporaryDirectory(prefix="reconciler-demo-") as temporary:
            yield _copy_fleet(Path(temporary) / "shop")
        return
    yield _copy_fleet(Path(name).absolute())


def _copy_fleet(folder: Path) -> Path:
    """Copy the fleet of the demo into a new or empty folder."""
    from importlib.resources import as_file, files

    refuse_links(str(folder))
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                "the folder is not empty",
                where=str(folder),
                remedy="pass a new folder with --dir",
            )
        with as_file(files("reconciler.demo") / "fleet") as fleet:
            shutil.copytree(fleet, folder, dirs_exist_ok=True)
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), where=str(folder)) from error
    return folder
