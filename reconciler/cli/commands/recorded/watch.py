"""``reconciler watch``: say what a running Karpenter does next, record it, and keep score."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from reconciler import exitcode
from reconciler.assembly.inputs.folder import is_in_fleet
from reconciler.cli.parser import inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reconciler.assembly.inputs.request import FleetRequest, StateRequest
    from reconciler.model.json import JsonDict
    from reconciler.model.karpenter.prediction import Score
    from reconciler.watch.episodes.file import EpisodeFile
    from reconciler.watch.report import WatchReport
    from reconciler.watch.session import ClusterObservation

SUBCOMMANDS: Final = {
    "start": "predict what Karpenter does next until it is stopped; the default",
    "report": "show how often the predictions were right, and those that were wrong",
    "replay": "predict the actions of saved episodes again",
}
"""Name of a subcommand → its line of help."""

DEFAULT_SUBCOMMAND: Final = "start"


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """The cluster to watch, the period of a report, or the episodes to replay.

    ``interval`` is the time between two observations. ``may_write`` is whether credentials that
    could write are accepted. ``episodes`` is the folder where episodes are saved, None to save
    none; ``anonymize`` is whether without names. ``listen`` is the address for metrics, empty for
    none. ``publish`` is where snapshots are written, None for nowhere.
    """

    subcommand: str
    fleet: FleetRequest | StateRequest
    interval: timedelta = timedelta(0)
    may_write: bool = False
    episodes: str | None = None
    listen: str = ""
    since: str = ""
    files: tuple[str, ...] = ()
    output: str = "text"
    anonymize: bool = False
    publish: str | None = None
    publish_interval: timedelta = timedelta(0)


def add_subcommand(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the arguments of one subcommand."""
    add = parser.add_argument
    if name == "replay":
        add("files", metavar="FILE", nargs="+", help="episode that `reconciler watch` has saved")
        add("--anonymize", action="store_true", help="write the episodes without names to --out")
        add("--out", metavar="DIR", help="folder for the episodes without names")
        inputs.add_output(parser)
        inputs.add_flags(parser, ("catalog", "settings", "config"))
        return
    inputs.add_path(parser)
    if name == "report":
        add(
            "--since", metavar="DURATION|TIME", default="30d",
            help="when the report begins: a time, or a duration before now (default: 30d)",
        )  # fmt: skip
        inputs.add_output(parser, "html")
        inputs.add_flags(parser, inputs.RECORDED)
        return
    add("--context", metavar="NAME", help="context of the kubeconfig to use")
    add(
        "--interval", default="500ms", metavar="DURATION",
        help="time between two observations; Karpenter collects pods for a second (default: 500ms)",
    )  # fmt: skip
    add(
        "--episodes", metavar="DIR",
        help="save wrong predictions in this folder, at most 200 files that can be replayed",
    )  # fmt: skip
    add(
        "--publish", metavar="PLACE",
        help="write snapshots of the cluster to a file, s3://BUCKET/KEY, or git:BRANCH:PATH, for "
        "plans without access to it",
    )  # fmt: skip
    add(
        "--publish-interval", default="10m", metavar="DURATION",
        help="time between two published snapshots (default: 10m)",
    )  # fmt: skip
    add("--anonymize", action="store_true", help="save and publish without names")
    add(
        "--allow-write-access", action="store_true",
        help="start although the credentials could change nodes; nothing is ever written",
    )  # fmt: skip
    add("--listen", metavar="HOST:PORT", default="", help="serve metrics at this address")
    inputs.add_flags(parser, inputs.ACTING)


def request_of(args: argparse.Namespace) -> WatchRequest:
    """Return the request in the arguments."""
    name = args.subcommand
    if name == "replay":
        from reconciler.assembly.inputs.request import FleetRequest

        fleet = FleetRequest(
            settings=tuple(args.settings),
            config=args.config,
            catalog=args.catalog,
            is_of_cluster=True,
        )
        if args.anonymize != (args.out is not None):
            from reconciler.model.errors import UsageError

            raise UsageError(
                "--anonymize and --out go together",
                where="watch replay",
                remedy="pass both, as in `reconciler watch replay FILE --anonymize --out shared`",
            )
        return WatchRequest(
            name, fleet, files=tuple(args.files), output=args.output, episodes=args.out,
            anonymize=args.anonymize,
        )  # fmt: skip
    if name == "report":
        known = inputs.state_request(args, args.path)
        return WatchRequest(name, known, since=args.since, output=args.output)
    fleet = inputs.fleet_request(args, args.path)
    settings = (*fleet.settings, "decide=karpenter")
    if args.context:
        settings = (*settings, f"kubernetes.context={args.context}")
    is_of_cluster = not (args.path or args.repo or args.below or is_in_fleet())
    fleet = replace(fleet, settings=settings, is_of_cluster=is_of_cluster)
    interval = inputs.read_duration(args.interval, "--interval")
    return WatchRequest(
        name, fleet, interval, args.allow_write_access, args.episodes, args.listen,
        anonymize=args.anonymize, publish=args.publish,
        publish_interval=inputs.read_duration(args.publish_interval, "--publish-interval"),
    )  # fmt: skip


def run(request: WatchRequest) -> int:
    """Watch until SIGTERM or SIGINT, print the report, or replay episodes.

    Raises:
        ReconcilerError: the cluster, the record or an episode cannot be read.
    """
    if request.subcommand == "report":
        return _print(_recorded_report(request), request.output)
    if request.subcommand == "replay":
        return _replay(request)
    return _watch(request)


def _print(report: WatchReport, output: str) -> int:
    if output == "text":
        from reconciler.watch.report import render_report

        sys.stdout.write(render_report(report))
        return exitcode.DONE
    if output == "html":
        from reconciler.watch.page import render_html

        sys.stdout.write(render_html(report))
        return exitcode.DONE
    import msgspec

    from reconciler.render.listing import format_document

    sys.stdout.write(format_document(msgspec.to_builtins(report), output))
    return exitcode.DONE


def _recorded_report(request: WatchRequest) -> WatchReport:
    from reconciler.adapters.database.state import open_state
    from reconciler.assembly.inputs.records import settings_of, state_location
    from reconciler.assembly.inputs.timings import current_time, read_time_or_span
    from reconciler.watch.report import report_of

    begin = read_time_or_span(request.since, "--since")
    now = current_time(request.fleet.now)
    since = now - begin if isinstance(begin, timedelta) else begin
    resolved = settings_of(request.fleet)
    location = state_location(request.fleet.path, resolved)
    # a fleet that is only watched has no other records, and does not count as one that is run
    with open_state(location, resolved.settings.fleet, create=False) as state:
        return report_of(state.predictions.scores(since), since)


def _replay(request: WatchRequest) -> int:
    """Replay the episodes; 1 if any action is predicted wrong."""
    from pathlib import Path

    from reconciler.assembly.inputs.files import read_bytes
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.model.karpenter.prediction import PredictionVerdict
    from reconciler.model.text.visible import one_line
    from reconciler.watch.episodes.file import decode_episode
    from reconciler.watch.episodes.replay import replay
    from reconciler.watch.planning import planner_of
    from reconciler.watch.report import describe_score, report_of

    assert isinstance(request.fleet, FleetRequest)
    predict = planner_of(request.fleet)
    scores: list[Score] = []
    for file in request.files:
        episode, name = decode_episode(read_bytes(file), file), Path(file).name
        found = list(replay(episode, predict))
        scores += found
        if request.output == "text":
            for score in found:
                cause = f" ({score.cause})" if score.cause else ""
                print(one_line(f"{name}: {describe_score(score)}{cause}"), flush=True)
        if request.episodes is not None:
            shared = _share(episode, request.fleet, os.path.join(request.episodes, name))
            verdicts = [score.verdict for score in replay(shared, predict)]
            if verdicts != [score.verdict for score in found]:
                warning = f"Warning: without names, {name} has other verdicts"
                print(one_line(warning), file=sys.stderr)
    _print(report_of(scores), request.output)
    wrong = any(score.verdict is PredictionVerdict.WRONG for score in scores)
    return exitcode.FAILED if wrong else exitcode.DONE


def _share(episode: EpisodeFile, fleet: FleetRequest, path: str) -> EpisodeFile:
    """Write an episode without names, and return it.

    Raises:
        ReconcilerError: it cannot be anonymized or written.
    """
    from reconciler.adapters.writing import PRIVATE, make_folder, write_file
    from reconciler.watch.episodes.anonymizing import anonymize_episode
    from reconciler.watch.episodes.episode import encode_episode

    shared = anonymize_episode(episode, fleet)
    make_folder(os.path.dirname(path))
    write_file(path, encode_episode(shared), mode=PRIVATE)
    return shared


def _watch(request: WatchRequest) -> int:
    from reconciler.adapters.clock import SystemClock
    from reconciler.assembly.cluster import api_of
    from reconciler.assembly.decoding import prepare_decoders
    from reconciler.assembly.inputs.records import open_recorded, settings_of
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.assembly.inputs.watching import stop_on_signal
    from reconciler.model.text.visible import one_line
    from reconciler.watch.causes import read_events
    from reconciler.watch.episodes.anonymizing import encoder_without_names
    from reconciler.watch.episodes.episode import encode_episode
    from reconciler.watch.episodes.folder import episode_saver
    from reconciler.watch.livecluster import watched_cluster
    from reconciler.watch.metrics import PredictionMetrics, serve_metrics
    from reconciler.watch.planning import planner_of
    from reconciler.watch.report import describe_score
    from reconciler.watch.rights import expect_read_only
    from reconciler.watch.session import KarpenterWatch

    fleet, clock = request.fleet, SystemClock()

    def warn(problem: object) -> None:
        print(f"Warning: {one_line(str(problem))}", file=sys.stderr, flush=True)

    assert isinstance(fleet, FleetRequest)
    save = None
    if request.episodes is not None:
        encode = encoder_without_names(fleet) if request.anonymize else encode_episode
        save = episode_saver(request.episodes, warn, encode)
    publish = _publisher(request, warn)
    settings = settings_of(request.fleet).settings
    api = api_of(settings, clock)
    expect_read_only(api, may_write=request.may_write)
    metrics = PredictionMetrics()

    def show_score(score: Score) -> None:
        metrics.count(score)
        cause = f" ({one_line(score.cause)})" if score.cause else ""
        print(f"{score.action.at:%H:%M:%S} {describe_score(score)}{cause}", flush=True)

    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        recorded = stack.enter_context(open_recorded(request.fleet, create=True, needs_lease=False))
        if request.listen:
            url = stack.enter_context(serve_metrics(request.listen, metrics))
            print(f"Metrics: {url}/metrics", file=sys.stderr, flush=True)
        prepare_decoders()  # the watches run in threads
        cluster = stack.enter_context(watched_cluster(api, api_of(settings, clock), settings))
        session = KarpenterWatch(
            cluster.observe,
            planner_of(fleet),
            recorded.state.predictions,
            save,
            show_score,
            warn,
            lambda: read_events(api),
            publish,
        )
        print(f"Watching Karpenter in {one_line(str(api.access))}", file=sys.stderr, flush=True)
        session.step(clock.now())
        while not stop():
            clock.wait(request.interval.total_seconds(), stop)
            session.step(clock.now())
    return exitcode.DONE


def _publisher(
    request: WatchRequest, warn: Callable[[object], None]
) -> Callable[[ClusterObservation, datetime], None] | None:
    """Return what publishes observations as snapshots, None if nothing is to be published.

    Raises:
        UsageError: the place has a form that is not written, or a key is too short.
    """
    from reconciler.assembly.capturing import anonymize_objects, read_key
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.assembly.snapshots import destination_of
    from reconciler.model.errors import UsageError
    from reconciler.watch.publishing import SnapshotPublisher

    if request.publish is None:
        return None
    if request.publish == "-":
        raise UsageError(
            "snapshots cannot be published on standard output",
            where="--publish",
            remedy="pass a file, s3://BUCKET/KEY or git:BRANCH:PATH",
        )
    fleet = request.fleet
    assert isinstance(fleet, FleetRequest)
    destination = destination_of(request.publish, fleet, remote=None, author=None)

    def prepare(objects: Sequence[JsonDict]) -> Sequence[JsonDict]:
        if not request.anonymize:
            return objects
        return anonymize_objects(objects, fleet, has_fleet=not fleet.is_of_cluster)

    read_key()
    return SnapshotPublisher(destination.write, request.publish_interval, prepare, warn).publish
