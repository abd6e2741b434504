"""A simulation as one self-contained page: a Gantt of its nodes and a curve of its cost.

Nothing is fetched; the pictures are inline SVG, and it reads well by day and night.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from reconciler.cli.simulation.curve import cost_curve
from reconciler.cli.simulation.gantt import KEYS, gantt
from reconciler.cli.simulation.report import Report
from reconciler.cli.simulation.timeline import hourly, merge_of, outcome_of, span, story_of
from reconciler.model.visible import html_text
from reconciler.plan.html import page_head
from reconciler.plan.wording import dollars

ROWS_MAX: Final = 2000

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#fff;
--wash:#f6f8fa;--go:#1a7f37;--gone:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;
--paper:#0d1117;--wash:#151b23;--go:#3fb950;--gone:#f85149}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.5rem 4rem;max-width:76rem;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.sum{margin:1rem 0;padding:.8rem 1rem;background:var(--wash);border:1px solid var(--line);
border-radius:8px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.85rem}
th,td{padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
svg{width:100%;height:auto;display:block}
svg text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--ink)}
svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}
svg .cost{fill:none;stroke:var(--go);stroke-width:2}svg .area{fill:var(--go);opacity:.12}
svg .wait{opacity:.35}svg .drain{fill:var(--gone);opacity:.75}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 1em}
summary{cursor:pointer}pre{font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto}
"""


def render_html(report: Report) -> str:
    """Return the page."""
    begin, end = report.started_at, report.at
    cost = report.cost
    parts = [
        page_head("Rollout timeline", f"{_STYLE}{KEYS}"),
        "\n<h1>Rollout timeline</h1>\n",
        (
            f'<p class="soft">{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, '
            "simulated by the engine in virtual time</p>\n"
        ),
        (
            f'<div class="sum"><p>{html_text(outcome_of(report))}</p>'
            f"<p>{hourly(cost.before)} → <b>{hourly(cost.after)}</b>; "
            f"peak {hourly(cost.peak)}; spent {dollars(cost.spent)}</p></div>\n"
        ),
        "<h2>Cost</h2>\n<p class=soft>$/hour</p>\n",
        cost_curve(report.curve, begin, end, cost.before),
        "<h2>Nodes</h2>\n",
        gantt(report.nodes, begin, end),
        _merge(report),
        _pools(report),
        _stuck(report),
        _story(report),
        "</body></html>\n",
    ]
    return "".join(parts)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: int) -> str:
    """Return a table whose last ``numbers`` columns are numbers."""
    names = list(head)
    first = len(names) - numbers

    def cells(tag: str, row: Iterable[str]) -> str:
        kinds = ("" if i < first else ' class="n"' for i in range(len(names)))
        return "".join(
            f"<{tag}{kind}>{html_text(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", names)}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _merge(report: Report) -> str:
    merge, begin = report.merge, report.started_at
    if merge is None:
        return ""
    rows = [
        (
            node.node_claim,
            node.node_pool,
            node.reason,
            ", ".join(node.replacements),
            span(node.started_at - begin),
            span(node.gone_at - begin) if node.gone_at is not None else "not yet",
        )
        for node in merge.replaced[:ROWS_MAX]
    ]
    head = ("NodeClaim", "NodePool", "reason", "replaced by", "starts", "terminated")
    text = f"Merging {merge.head} into {merge.base}: {merge_of(merge)}"
    return f"<h2>Effect of the merge</h2>\n<p>{html_text(text)}</p>\n{_table(head, rows, 2)}"


def _pools(report: Report) -> str:
    rows = [
        (
            name or "(none)",
            f"{pool.nodes_before} → {pool.nodes_after}",
            f"${pool.before:.4f}",
            f"${pool.after:.4f}",
            f"${pool.spent:.2f}",
        )
        for name, pool in report.cost.by_node_pool.items()
    ]
    head = ("NodePool", "nodes", "before, $/hour", "after, $/hour", "spent")
    return f"<h2>Cost by NodePool</h2>\n{_table(head, rows, 4)}" if rows else ""


def _stuck(report: Report) -> str:
    if not report.stuck:
        return ""
    rows = [(s.kind, s.name, s.reason, s.message) for s in report.stuck[:ROWS_MAX]]
    return f"<h2>Stuck</h2>\n{_table(('kind', 'name', 'reason', 'message'), rows, 0)}"


def _story(report: Report) -> str:
    lines = "\n".join(html_text(line) for line in story_of(report)[:ROWS_MAX])
    return (
        "<h2>Events</h2>\n<details open><summary>"
        f"{len(report.events)} events</summary><pre>{lines}</pre></details>\n"
    )
