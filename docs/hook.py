"""What the documentation site needs beyond MkDocs; MkDocs calls these functions.

Pages are written for GitHub first: their links may lead to files outside ``docs/``, which the site
does not have. Those become links to the repository. Diagrams are drawn in the browser by Mermaid,
which is part of the site: the theme would load it from another host.
"""

from __future__ import annotations

import importlib.util
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MERMAID = "assets/mermaid.js"
DIAGRAM = re.compile(r'(?s)<pre class="mermaid">.*?</pre>')
FENCE = re.compile(r"(?ms)^```.*?^```")
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Expand the patterns of the navigation, so that new pages need no entries."""
    config.nav = _expand_patterns(config.nav)
    return config


def _expand_patterns(entries: list[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            found += [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.glob(entry))]
        elif isinstance(entry, dict):
            found.append(
                {k: _expand_patterns(v) if isinstance(v, list) else v for k, v in entry.items()}
            )
        else:
            found.append(entry)
    return found


def on_files(files: Files, config: Any) -> Files:
    """Add the script of the package mermaidx that draws diagrams.

    Raises:
        PluginError: the package is not installed.
    """
    package = importlib.util.find_spec("mermaidx")
    if package is None or package.origin is None:
        raise PluginError("mermaidx is not installed; run `pip install --group docs`")
    script = Path(package.origin).parent / "assets" / "mermaid.js"
    files.append(File.generated(config, MERMAID, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with links to files outside the site as links to the repository."""
    folder = posixpath.dirname(page.file.src_uri)
    parts, last = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_replace_links(markdown[last : fence.start()], folder, config.repo_url), fence[0]]
        last = fence.end()
    return "".join([*parts, _replace_links(markdown[last:], folder, config.repo_url)])


def _replace_links(text: str, folder: str, repository: str) -> str:
    def replaced(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        path = (DOCS / folder / target).resolve()
        if not path.exists() or (path.is_file() and path.is_relative_to(DOCS)):
            return link[0]  # a page, a file of the site, or an error that MkDocs reports
        if path.is_relative_to(DOCS) and (path / "README.md").exists():
            return f"]({target.rstrip('/')}/README.md{link['anchor'] or ''})"
        kind = "tree" if path.is_dir() else "blob"
        where = path.relative_to(ROOT).as_posix()
        return f"]({repository}/{kind}/main/{where}{link['anchor'] or ''})"

    return LINK.sub(replaced, text)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Remove requests to other hosts, and load the large script only on pages with diagrams."""
    output = output.replace('data-md-component="source"', "")  # it asks GitHub for stars
    if not DIAGRAM.search(output):
        return output
    output = DIAGRAM.sub(r'<div class="diagram">\g<0></div>', output)
    script = f'<script src="{"../" * page.url.count("/")}{MERMAID}"></script>'
    return output.replace("<script src=", f"{script}\n<script src=", 1)
