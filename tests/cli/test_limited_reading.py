"""Memory is taken for what a file holds, whatever its limit is."""

from __future__ import annotations

import io
import os
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from reconciler.assembly.inputs.files import BYTES_MAX, read_bytes, read_start
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.web.server import serve_in_thread

MOST = 64 * 2**20


class Stream(io.BytesIO):
    """A file that notes the largest amount that it was asked for."""

    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size >= 0
        self.largest = max(self.largest, size)
        return super().read(size)


def test_standard_input_is_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(b"x" * 3_000_000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    assert len(read_bytes("-")) == 3_000_000
    assert stream.largest < MOST


def test_a_file_is_read_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_bytes(b"x" * 1000)
    tracemalloc.start()
    try:
        assert len(read_bytes(str(tmp_path / "s.json"), BYTES_MAX)) == 1000
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: Path(pipe).write_bytes(b"y" * 2_500_000))
    writer.start()
    assert read_bytes(pipe) == b"y" * 2_500_000
    writer.join()


def test_what_is_longer_than_its_limit_is_cut_or_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    assert len(read_start(str(tmp_path / "f"), 10)) == 11
    with pytest.raises(UnreadableError, match="more than"):
        read_bytes(str(tmp_path / "f"), 999)
    with pytest.raises(UnreadableError, match="more than"):
        read_bytes("/dev/zero", 2**20)


@pytest.mark.parametrize("command", [["config"], ["status"]])
def test_a_settings_file_without_an_end_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reconciler.yaml").symlink_to("/dev/zero")
    main([*command, str(tmp_path)])
    assert "internal error" not in capsys.readouterr().err


@pytest.mark.parametrize("label", ["a" * 64, "a..b", "a" * 300, "\udcff"])
def test_a_host_name_that_cannot_be_is_a_usage_error(label: str) -> None:
    with pytest.raises(UsageError, match="cannot listen"), serve_in_thread(f"{label}:0", None):  # type: ignore[arg-type]
        pass
