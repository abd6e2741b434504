"""Keeps the results of evaluations by their addresses, in a folder or in S3.

A sweep that was killed continues where it stopped, and several machines share their results. The
addresses name the build, so a result of another build is never read. A result that cannot be
decoded counts as missing.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final, Protocol

import msgspec

from reconciler.adapters.git.repository import find_tracked_path
from reconciler.adapters.writing import make_folder, write_file
from reconciler.model.decode import decode_json
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.sweep.evaluation import V

RESULT_BYTES_MAX: Final = 2**28
_REMEDY: Final = "pass a folder or s3://BUCKET/FOLDER"


_WRITABLE: Final = "pass a folder that can be written to --cache"


class _Store(Protocol):
    """A place for small files."""

    def read(self, name: str) -> bytes | None:
        """Return a file, None if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file completely or not at all."""


class ResultCache:
    """Results as JSON, by address."""

    def __init__(self, store: _Store) -> None:
        self._store = store

    def read(self, address: str, kind: type[V]) -> V | None:
        """Return the result of this type at an address, None if there is none.

        Raises:
            UnreadableError: the place cannot be read.
        """
        content = self._store.read(_file_name(address))
        if content is None:
            return None
        try:
            return decode_json(content, kind)
        except msgspec.DecodeError:
            return None

    def write(self, address: str, result: object) -> None:
        """Keep a result.

        Raises:
            UnreadableError: the place cannot be written.
        """
        self._store.write(_file_name(address), msgspec.json.encode(result, order="sorted"))


def cache_at(place: str) -> ResultCache:
    """Return the cache at a place.

    Raises:
        UsageError: it is neither a folder nor an ``s3://`` URL, or git tracks results in it: the
            author of a pull request could have written them.
    """
    if place.startswith("s3://"):
        return ResultCache(_Bucket(place))
    if not place or re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", place):
        raise UsageError(
            f"results are not kept at {quote_value(place)}", where="--cache", remedy=_REMEDY
        )
    tracked = find_tracked_path(place)
    if tracked is not None:
        raise UsageError(
            f"git tracks {quote_value(tracked)}, so a pull request could choose results",
            where="--cache",
            remedy="pass a folder that git does not track",
        )
    return ResultCache(_Folder(place))


def _file_name(address: str) -> str:
    """Return the file name of a result, which is never read as a file of a fleet."""
    return f"{address[:2]}/{address}"


class _Folder:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        path = os.path.join(self._path, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
                return file.read(RESULT_BYTES_MAX) if is_file else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _folder_error(error, path) from error

    def write(self, name: str, content: bytes) -> None:
        path = os.path.join(self._path, name)
        make_folder(os.path.dirname(path), remedy=_WRITABLE)
        write_file(path, content, remedy=_WRITABLE)


def _folder_error(error: OSError, path: str) -> UnreadableError:
    why = error.strerror or str(error)
    return UnreadableError(why, where=path, remedy=_WRITABLE)


class _Bucket:
    """A folder of S3, with the identity of the environment.

    Neither role nor endpoint of a fleet is used: its settings come partly from the repository.
    """

    def __init__(self, url: str) -> None:
        from reconciler.adapters.aws.objects import location_of
        from reconciler.assembly.account import connections
        from reconciler.model.settings import Settings

        self._url = url.rstrip("/")
        location_of(f"{self._url}/result")
        self._connect = connections().connector(Settings(region=""))

    def read(self, name: str) -> bytes | None:
        from reconciler.adapters.aws.objects import find_object

        return find_object(self._connect, f"{self._url}/{name}", RESULT_BYTES_MAX)

    def write(self, name: str, content: bytes) -> None:
        from reconciler.adapters.aws.objects import write_object

        write_object(self._connect, f"{self._url}/{name}", content)
