"""A folder is read without following links out of it, and without endless loops."""

import os
import sys
from pathlib import Path

import pytest

from reconciler.adapters.git import folder
from reconciler.adapters.git.folder import read_folder
from reconciler.model.errors import UnreadableError


def codes(path: Path) -> list[tuple[str, str]]:
    _, findings = read_folder(path)
    return [(d.code, d.place.file) for d in findings if d.place]


def test_files_are_selected_by_name_and_read_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "sub/c.json", "README.md", ".git/x.yaml", ".hidden.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    files, findings = read_folder(tmp_path)

    assert [(f.path, f.content) for f in files] == [
        ("a.yml", b"a.yml"),
        ("b.yaml", b"b.yaml"),
        ("sub/c.json", b"sub/c.json"),
    ]
    assert findings == []


def test_symbolic_links_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("x")
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "out.yaml").symlink_to(tmp_path / "secret.yaml")
    (fleet / "up").symlink_to(tmp_path)
    (fleet / "gone.yaml").symlink_to("nowhere")
    (fleet / "in.yaml").write_text("a")
    (fleet / "again.yaml").symlink_to("in.yaml")

    assert codes(fleet) == [
        ("broken-link", "gone.yaml"),
        ("outside-link", "out.yaml"),
        ("outside-link", "up"),
    ]
    assert [f.path for f in read_folder(fleet)[0]] == ["again.yaml", "in.yaml"]


def test_a_loop_of_folders_ends(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "self.yaml").symlink_to("self.yaml")

    assert codes(tmp_path) == [("broken-link", "self.yaml"), ("directory-loop", "a/b/up")]


def test_a_folder_that_links_share_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "web.yaml").write_text("a: 1")
    for name in ("blue", "green"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shared").symlink_to(tmp_path / "shared")
    files, findings = read_folder(tmp_path)
    assert [f.path for f in files] == ["shared/web.yaml"]
    assert [(f.severity.value, f.place and f.place.file) for f in findings] == [
        ("warning", "blue/shared"),
        ("warning", "green/shared"),
    ]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()

    assert codes(tmp_path) == [("not-a-file", "pipe.yaml")]


def test_sizes_and_counts_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        (tmp_path / f"{i}.yaml").write_text("x" * 10)
    monkeypatch.setattr(folder, "FILES_MAX", 3)

    assert codes(tmp_path) == [("too-large", "3.yaml")]


def test_a_missing_folder_is_an_error_and_not_an_empty_fleet(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    for path in (tmp_path / "nope", tmp_path / "a.yaml"):
        with pytest.raises(UnreadableError, match=path.name):
            read_folder(path)


@pytest.mark.skipif(
    sys.getfilesystemencoding() != "utf-8", reason="every name is text in the locale of this run"
)
def test_a_file_name_that_is_not_text_does_not_stop_reading(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.yaml")).write_text("a: [")

    files, findings = read_folder(tmp_path)

    assert [f.path for f in files] == ["\ufffd.yaml"]
    assert findings == []
