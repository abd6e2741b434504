"""A self-contained page: a small builder of elements, one style sheet and one script.

Nothing is fetched. The page's Content-Security-Policy allows its style sheet and its script, each
known by its hash, and nothing else: no handler, no style of an element, no form and no base.
Without the script everything can be read; the script adds a filter and sorting.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from reconciler.model.text.visible import html_text

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#fff;
--wash:#f6f8fa;--go:#1a7f37;--gone:#cf222e;--swap:#8a5a00;--link:#0969da;--bar:#0969da}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;
--paper:#0d1117;--wash:#151b23;--go:#3fb950;--gone:#ff7b72;--swap:#d29922;--link:#4493f8;
--bar:#4493f8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.5rem 4rem;max-width:76rem;background:var(--paper);
color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif;
overflow-wrap:break-word}
code,pre,.mono{overflow-wrap:anywhere}td,td code{overflow-wrap:break-word}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .2rem}
h2{font-size:1.1rem;margin:2.2rem 0 .6rem}h1 small,h2 small{font-weight:400;color:var(--soft)}
h2 small{margin-left:.5rem}h2.bad{color:var(--gone)}
p{margin:.3rem 0}ul{margin:.3rem 0;padding-left:1.2rem}li{margin:.2rem 0}.soft{color:var(--soft)}
.sum{font-size:1.05rem;margin:1.2rem 0;padding:.8rem 1.1rem;background:var(--wash);
border:1px solid var(--line);border-left:4px solid var(--link);border-radius:8px}
.sum p:first-child{font-weight:600}.sum.alarm p:first-child{color:var(--gone)}
.sum.alarm{border-left-color:var(--gone)}
code,pre,.mono{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.85rem}
th,td{padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:last-child,th:last-child{padding-right:0}
td.t{white-space:nowrap}td.name{color:var(--soft);white-space:nowrap}
.facts td.name{width:12rem}section+section>.wide:first-child{margin-top:1.8rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tbody.with>tr:first-child>td{border-bottom:0;padding-bottom:.1rem}
td details{margin:0 0 .3rem}td div+details{margin-top:.1rem}
td details td,td details th{font-size:.92em}
.good{color:var(--go)}.bad{color:var(--gone)}.warn{color:var(--swap)}
.verb{font-weight:600;white-space:nowrap}
.tag{border:1px solid currentColor;border-radius:1em;padding:0 .5em;font-size:.8rem;
white-space:nowrap}
summary{cursor:pointer;color:var(--link)}section>details>summary{font-size:1.1rem;font-weight:600}
section>details{margin-top:1.6rem}section>details>summary small{font-weight:400;color:var(--soft)}
.find{display:flex;gap:.8rem;align-items:center;flex-wrap:wrap;margin:1rem 0 0}
.find[hidden],tbody[hidden],section[hidden]{display:none}
input{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--soft);
border-radius:6px;padding:.35rem .6rem;width:100%;max-width:24rem}
th button{all:unset;cursor:pointer;text-decoration:underline dotted;text-underline-offset:3px}
th button:focus-visible,input:focus-visible,summary:focus-visible{outline:2px solid var(--link);
outline-offset:2px}
th[aria-sort=ascending] button::after{content:" ↑"}
th[aria-sort=descending] button::after{content:" ↓"}
.wide{overflow-x:auto}svg{display:block;height:auto}svg.fill{width:100%;min-width:44rem}
svg text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:var(--ink)}svg .soft{fill:var(--soft)}
svg .grid{stroke:var(--line);stroke-width:1}
svg .box{fill:var(--wash);stroke:var(--line)}svg .edge{fill:none;stroke:var(--soft)}
svg .provision{stroke:var(--go)}svg .replace{stroke:var(--swap)}svg .terminate{stroke:var(--gone)}
svg .b-launch{fill:var(--go)}svg .b-remove,svg .b-drain{fill:var(--gone)}
svg .b-wait{fill:var(--bar);opacity:.45}svg .b-closed{fill:var(--soft);opacity:.5}
svg .b-limited{fill:none;stroke:var(--swap);stroke-dasharray:4 3}
svg .b-start{opacity:.4}.h0{--hue:#4493f8}.h1{--hue:#a371f7}.h2{--hue:#2da7b3}.h3{--hue:#c69026}
.h4{--hue:#d0679d}.h5{--hue:#57a75a}.h6{--hue:#8b949e}.h7{--hue:#e0823d}
svg .b-run,svg .b-start{fill:var(--hue,var(--soft))}.k-hue{background:var(--hue)}
.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin:0 .35em 0 1em;
vertical-align:-.08em}.key:first-child{margin-left:0}.k-launch{background:var(--go)}
.k-remove,.k-drain{background:var(--gone)}.k-wait{background:var(--bar);opacity:.45}
.k-start{background:var(--soft);opacity:.4}.k-run{background:var(--soft)}
.k-closed{background:var(--soft);opacity:.5}
.k-limited{border:1.5px dashed var(--swap)}
svg .area{fill:var(--go);opacity:.12}svg .cost{fill:none;stroke:var(--go);stroke-width:2}
svg .dot{fill:var(--paper);stroke:var(--soft);stroke-width:2}svg .on{fill:var(--go);
stroke:var(--go)}svg .front{fill:none;stroke:var(--go);stroke-width:1.5}
svg.curves{width:100%;max-width:60rem}svg .curve{fill:none;stroke-width:2}
svg .s0{stroke:var(--link);stroke-width:4}svg .s1{stroke:var(--ink);stroke-dasharray:9 5}
svg .s2{stroke:var(--swap);stroke-width:3;stroke-dasharray:3 6}.samples span{margin-right:1.4em;
white-space:nowrap}svg.sample{display:inline-block;margin-right:.5em;vertical-align:middle}
@media(max-width:640px){svg.curves text{font-size:20px}body{padding:1.2rem 1rem 3rem}
table.cards>thead{display:none}table.cards,table.cards>tbody,table.cards>tbody>tr,
table.cards>tbody>tr>td{display:block;width:100%;border:0;padding:0;text-align:left}
table.cards>tbody{border:1px solid var(--line);border-radius:8px;padding:.5rem .8rem;
margin:0 0 .6rem}
table.cards>tbody>tr>td.n{white-space:normal}td,td code{overflow-wrap:anywhere}
td.t,td.name{white-space:normal}
table.cards>tbody>tr>td:empty{display:none}
table.cards>tbody>tr>td[data-label]:not([data-label=""])::before{content:attr(data-label)": ";
color:var(--soft);font-size:.85rem}}
"""
SCRIPT: Final = """
"use strict";
const text=e=>e.textContent.toLowerCase();
const find=document.querySelector(".find");
if(find){
const input=find.querySelector("input"),said=find.querySelector("output");
const rows=[...document.querySelectorAll("table.cards>tbody")]
.filter(b=>!b.parentElement.closest("tbody"));
find.hidden=false;
input.addEventListener("input",()=>{
const words=input.value.toLowerCase().split(/\\s+/).filter(Boolean);let shown=0;
for(const b of rows){const has=words.every(w=>text(b).includes(w));b.hidden=!has;shown+=has;
const holds=d=>words.length>0&&has&&words.some(w=>text(d).includes(w));
for(const d of b.querySelectorAll("details"))d.open=holds(d);
const outer=b.closest("details");if(outer&&words.length&&has)outer.open=true;}
said.textContent=words.length?shown+" of "+rows.length+" rows":"";});
}
for(const table of document.querySelectorAll("table.cards")){
if(table.tBodies.length<2)continue;
table.querySelectorAll(":scope>thead th").forEach((th,n)=>{
if(!th.textContent.trim())return;
const button=document.createElement("button");button.type="button";
button.append(...th.childNodes);th.append(button);
button.addEventListener("click",()=>{
const up=th.getAttribute("aria-sort")!=="ascending";
for(const other of th.parentElement.children)other.removeAttribute("aria-sort");
th.setAttribute("aria-sort",up?"ascending":"descending");
const key=b=>{const td=b.rows[0].cells[n];return td?td.dataset.sort||text(td):"";};
const sorted=[...table.tBodies].sort((a,b)=>{const x=key(a),y=key(b);
const d=x!==""&&y!==""&&!isNaN(x)&&!isNaN(y)?x-y:x.localeCompare(y,undefined,{numeric:true});
return up?d:-d;});
table.append(...sorted);});});
}
"""
_VOID: Final = frozenset({"meta", "input"})
_SHAPES: Final = frozenset({"rect", "path", "line"})


class Markup(str):
    """Text that is already HTML. Its creator has escaped text from others."""

    __slots__ = ()


def el(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element; children that are no markup, and all attributes, are escaped.

    An attribute that is None is omitted, and one that is empty has no value. ``cls`` is the class,
    and an underscore in a name is a hyphen.
    """
    words = [tag]
    for name, value in attributes.items():
        if value is not None:
            written = "class" if name == "cls" else name.replace("_", "-")
            words.append(f'{written}="{html_text(str(value))}"' if value != "" else written)
    if tag in _VOID or tag in _SHAPES:
        return Markup(f"<{' '.join(words)}{'/' if tag in _SHAPES else ''}>")
    return Markup(f"<{' '.join(words)}>{join_markup(*children)}</{tag}>")


def join_markup(*children: str) -> Markup:
    """Return children in order; those that are not markup are escaped."""
    return Markup("".join(c if isinstance(c, Markup) else html_text(c) for c in children))


def page(title: str, *body: str) -> str:
    """Return a page."""
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(STYLE)}'; "
        f"script-src 'sha256-{_hash(SCRIPT)}'; base-uri 'none'; form-action 'none'"
    )
    head = join_markup(
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width,initial-scale=1"),
        el("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    shown = join_markup(Markup("\n".join(join_markup(part) for part in body)))
    script = Markup(f"<script>{SCRIPT}</script>")
    body_of = f"<body>{shown}\n{script}</body>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n{body_of}</html>\n'


def report_page(
    title: str, period: str, summary: Iterable[str], *body: str, is_alarming: bool = False
) -> str:
    """Return a page that begins with its title, its period and a box of sentences."""
    return page(
        title,
        el("h1", title),
        el("p", period, cls="soft") if period else "",
        el("div", *(el("p", line) for line in summary), cls="sum alarm" if is_alarming else "sum"),
        *body,
    )


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


def filter_field() -> Markup:
    """Return the field that filters the rows of all tables; the script shows it."""
    field = el("input", type="search", placeholder="Filter rows", aria_label="Filter rows")
    return el("div", field, el("output", cls="soft", aria_live="polite"), cls="find", hidden="")
