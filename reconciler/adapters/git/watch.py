"""Notices changes of a fleet's working tree, and moves of its repository to another commit."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from reconciler.adapters.git.folder import is_fleet_file
from reconciler.adapters.git.repository import find_repository
from reconciler.model.errors import UnreadableError

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver

QUIET_S: Final = 0.5
PATIENCE_S: Final = 10.0
_CHANGES: Final = frozenset({"created", "deleted", "modified", "moved", "closed"})
_HEAD_FILES: Final = ("HEAD", "packed-refs")


class Watch:
    """Calls back once after each burst of changes, from a separate thread, until closed.

    A burst ends when nothing has changed for ``quiet_s``, or after ten seconds of changes: an
    editor that saves ten files, or a ``git pull``, is one change. What changes while the callback
    runs leads to another call.
    """

    def __init__(self, path: str, on_change: Callable[[], None], quiet_s: float) -> None:
        self._root = os.path.realpath(path)
        self._on_change = on_change
        self._quiet_s = quiet_s
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._git = _git_folders(self._root)
        self._observer = _start_observer(self._root, self._git, self._on_event)
        self._thread = threading.Thread(target=self._call_back, name="fleet-watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching; returns when no callback runs any more."""
        self._closed.set()
        self._changed.set()
        self._observer.stop()
        self._observer.join()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _on_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in _CHANGES or (
            event.is_directory and event.event_type == "modified"
        ):
            return  # changes in the folder have separate events
        paths = [os.fsdecode(p) for p in (event.src_path, event.dest_path) if p]
        if any(self._is_relevant(path, is_folder=event.is_directory) for path in paths):
            self._changed.set()

    def _is_relevant(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path is a fleet file, a folder that may hold some, or a ref."""
        for git in self._git:
            below = _relative_path(path, git)
            if below is not None:
                return not below.endswith(".lock") and (
                    below in _HEAD_FILES or below.startswith("refs/heads/")
                )
        below = _relative_path(path, self._root)
        if below is None:
            return False
        return is_fleet_file(f"{below}/x.yaml" if is_folder else below)

    def _call_back(self) -> None:
        while True:
            self._changed.wait()
            waited = 0.0
            while self._changed.is_set() and waited < PATIENCE_S and not self._closed.is_set():
                self._changed.clear()
                self._closed.wait(self._quiet_s)
                waited += self._quiet_s
            if self._closed.is_set():
                return
            self._on_change()


def watch(path: str, on_change: Callable[[], None], *, quiet_s: float = QUIET_S) -> Watch:
    """Watch the fleet folder ``path`` and the repository it is in.

    Raises:
        UnreadableError: the folder does not exist, or the system refuses to watch it.
    """
    if not os.path.isdir(path):
        raise UnreadableError(f'folder "{path}" does not exist')
    return Watch(path, on_change, quiet_s)


def _git_folders(root: str) -> tuple[str, ...]:
    """Return the folders that hold the repository's HEAD and refs, none outside a repository."""
    found = find_repository(root)
    if found is None:
        return ()
    return tuple(dict.fromkeys((found.git_dir, found.common_dir)))


def _start_observer(
    root: str, git: tuple[str, ...], on_event: Callable[[FileSystemEvent], None]
) -> BaseObserver:
    from watchdog.events import FileSystemEventHandler
    from watchdog.observers import Observer

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            on_event(event)

    # raised if a folder appears while it is being added: a race in watchdog, and harmless
    warnings.filterwarnings("ignore", "Callback with id .* already exists", RuntimeWarning)
    observer: BaseObserver = Observer()
    handler = Handler()
    try:
        observer.schedule(handler, root, recursive=True)
        for folder in git:
            observer.schedule(handler, folder, recursive=False)
            refs = os.path.join(folder, "refs", "heads")
            if os.path.isdir(refs):
                observer.schedule(handler, refs, recursive=True)
        observer.start()
    except OSError as error:
        observer.unschedule_all()
        remedy = "raise fs.inotify.max_user_watches, or use --repo, which polls instead"
        raise UnreadableError(str(error), where=root, remedy=remedy) from error
    return observer


def _relative_path(path: str, folder: str) -> str | None:
    """Return ``path`` relative to ``folder``, None if it is outside."""
    prefix = folder + os.sep
    return path.removeprefix(prefix).replace(os.sep, "/") if path.startswith(prefix) else None
