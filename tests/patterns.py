"""Every regular expression of the package, and how its time grows with hostile text.

The hostile texts of a pattern are made of the characters that it distinguishes: one of each class
of characters that its sets and literals treat alike. A word of a few of these is repeated, behind
and before other such characters. Time is compared with the time of the same search in an
eighth of the text, so that the speed of the machine has no influence.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import random
import re
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _parser  # type: ignore[attr-defined]  # the structure of a pattern has no other source
from typing import Any, Final, NamedTuple

import reconciler

ROOT: Final = Path(reconciler.__file__).parent
FUNCTIONS: Final = frozenset(
    {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
)
ANCHORED: Final = frozenset({"match", "fullmatch"})
_ALPHABET: Final = string.printable + "éµ\u2028\u202e\x1b\x85\0"
_LENGTH: Final = 400
_SHORT: Final = 22
_SHORT_S: Final = 0.005
"""What takes this long in so short a text grows exponentially."""

_LENGTH_MAX: Final = 100_000
_MEASURABLE_S: Final = 0.0005

RATIO_MAX: Final = 32.0
"""Eight times the text may take so many times as long; quadratic growth is 64 times."""

_CERTAIN: Final = 100.0
"""What takes so many times as long grows exponentially: 64 times the text would never end."""


class Use(NamedTuple):
    """A pattern, where it is written, and the functions that are called with it."""

    where: str
    pattern: re.Pattern[Any]
    functions: frozenset[str]


def uses() -> list[Use]:
    """Return every pattern of the package: named ones, those in calls, and those of schemas."""
    found: list[Use] = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += _inline(tree, name)
        found += _of_constants(tree, name)
        if "re.compile" in path.read_text(encoding="utf-8"):
            found += _named(tree, importlib.import_module(name.removesuffix(".__init__")), name)
    return [*found, *_of_schemas()]


def _named(tree: ast.Module, module: Any, where: str) -> Iterator[Use]:
    for name, value in sorted(vars(module).items()):
        values = value if isinstance(value, tuple | list) else (value,)
        for part in itertools.chain.from_iterable(
            v if isinstance(v, tuple) else (v,) for v in values
        ):
            if isinstance(part, re.Pattern):
                yield Use(f"{where}:{name}", part, _functions_of(tree, name))


def _functions_of(tree: ast.Module, name: str) -> frozenset[str]:
    """Return what is called with a named pattern; everything if that is not evident."""
    called: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=found), attr=function) if found == name:
                called |= {function} & FUNCTIONS
    return frozenset(called) or FUNCTIONS


def _inline(tree: ast.Module, where: str) -> Iterator[Use]:
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=called), args=[text, *_]
            ) if called in FUNCTIONS or (called == "compile" and id(node) in inside):
                pattern = _text_of(text)
                if pattern is None:
                    continue
                flags = 0
                for argument in [*node.args[1:], *(k.value for k in node.keywords)]:
                    for part in ast.walk(argument):
                        if isinstance(part, ast.Attribute) and hasattr(re.RegexFlag, part.attr):
                            flags |= re.RegexFlag[part.attr]
                functions = FUNCTIONS if called == "compile" else frozenset({called})
                yield Use(f"{where}:{node.lineno}", re.compile(pattern, flags), functions)


def _of_constants(tree: ast.Module, where: str) -> Iterator[Use]:
    """Yield the patterns that calls take from a constant of their module."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=called),
                args=[ast.Name(id=name), *_],
            ) if called in FUNCTIONS:
                text = getattr(importlib.import_module(where.removesuffix(".__init__")), name, None)
                if isinstance(text, str):
                    yield Use(f"{where}:{name}", re.compile(text), frozenset({called}))


def _text_of(node: ast.expr) -> str | None:
    """Return the text of a pattern; what is only known at run time is the word ``name``."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(p.value if isinstance(p, ast.Constant) else "name" for p in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text_of(left) or "name") + (_text_of(right) or "name")
    return None


def _of_schemas() -> Iterator[Use]:
    from reconciler.source.schema import _compile_pattern

    def patterns(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str):
                yield value["pattern"]
            for part in value.values():
                yield from patterns(part)
        elif isinstance(value, list):
            for part in value:
                yield from patterns(part)

    for path in sorted((ROOT.parent / "schemas").rglob("*.json")):
        texts = dict.fromkeys(patterns(json.loads(path.read_text(encoding="utf-8"))))
        for text in texts:
            yield Use(f"schemas/{path.name}: {text}", _compile_pattern(text), frozenset({"search"}))


def alphabet(pattern: re.Pattern[Any]) -> list[str]:
    """Return one character of each class that the pattern treats alike."""
    sets: list[re.Pattern[str]] = []
    flags = pattern.flags & ~re.DEBUG & ~(re.UNICODE if isinstance(pattern.pattern, bytes) else 0)
    text = (
        pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    )

    def walk(items: Any) -> None:
        for operation, argument in items:
            name = str(operation)
            if name == "IN" or name in {"LITERAL", "NOT_LITERAL", "RANGE", "ANY"}:
                sets.append(_matcher([(operation, argument)], flags))
            else:
                for part in _parts(argument):
                    walk(part)

    walk(_parser.parse(text, flags))
    known: dict[tuple[bool, ...], str] = {}
    for character in _ALPHABET:
        known.setdefault(tuple(bool(s.fullmatch(character)) for s in sets), character)
    return list(known.values())


_MATCHERS: Final[dict[str, Any]] = {}


def _matcher(items: Any, flags: int) -> Any:
    known = _MATCHERS.get(f"{flags} {items}")
    if known is None:
        known = _MATCHERS[f"{flags} {items}"] = _compiled(items, flags)
    return known


def _compiled(items: Any, flags: int) -> Any:
    from re import _compiler  # type: ignore[attr-defined]

    state = _parser.State()
    state.flags = flags & ~re.VERBOSE
    state.str = ""
    return _compiler.compile(_parser.SubPattern(state, list(items)), flags & ~re.VERBOSE)


def _parts(argument: Any) -> Iterator[Any]:
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _parts(part)


def samples(  # noqa: C901 - one case for each operation of a pattern
    pattern: re.Pattern[Any], random_source: random.Random
) -> list[str]:
    """Return texts that parts of the pattern match: its literals, classes and repeated groups."""
    text = (
        pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    )
    letters = alphabet(pattern)
    found: dict[str, None] = {}

    def sample(items: Any) -> str:
        return "".join(one(operation, argument) for operation, argument in items)

    def one(operation: Any, argument: Any) -> str:
        name = str(operation)
        if name == "LITERAL":
            return chr(argument)
        if name in {"IN", "NOT_LITERAL", "ANY"}:
            matcher = _matcher([(operation, argument)], pattern.flags)
            fitting = [c for c in letters if matcher.fullmatch(c)]
            return random_source.choice(fitting) if fitting else ""
        if name == "BRANCH":
            return sample(random_source.choice(argument[1]))
        if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            least, most, body = argument
            times = max(least, min(int(most), random_source.choice((0, 1, 2))))
            made = "".join(sample(body) for _ in range(min(times, 12)))
            found[made] = None
            return made
        if name == "SUBPATTERN":
            made = sample(argument[3])
            found[made] = None
            return made
        if name == "ATOMIC_GROUP":
            return sample(argument)
        if name == "ASSERT":
            return sample(argument[1]) if argument[0] == 1 else ""
        return ""

    tree = _parser.parse(text, pattern.flags)
    for _ in range(12):
        found[sample(tree)] = None
        made = ""
        for operation, argument in tree:
            made += one(operation, argument)
            found[made] = None
    return sorted((t for t in found if 0 < len(t) <= 24), key=lambda t: (len(t), t))[:60]


class HostileText(NamedTuple):
    """A text that is a start, a word repeated, and an end."""

    start: str
    word: str
    end: str

    def of_length(self, length: int) -> str:
        """Return the text with about ``length`` characters."""
        return self.start + self.word * (length // len(self.word)) + self.end


def hostile_texts(pattern: re.Pattern[Any], *, deep: bool) -> Iterator[HostileText]:
    """Yield the hostile texts of a pattern, each once."""
    source = random.Random(7)
    letters, parts = alphabet(pattern), samples(pattern, source)
    lengths = range(1, 4 if deep else 3)
    words = {"".join(w) for n in lengths for w in itertools.product(letters, repeat=n)}
    most = 4_000 if deep else 150
    chosen = sorted(words)
    if len(chosen) > most:
        chosen = source.sample(chosen, most)
    pieces = [*letters, *parts]
    chosen += parts
    chosen += ["".join(source.choices(pieces, k=source.choice((2, 3)))) for _ in range(most // 2)]
    pairs = ["".join(pair) for pair in itertools.product(letters, repeat=2)]
    starts, ends = ["", *parts, *letters], ["", "\0", "\n", *letters, *pairs]
    for start, word in itertools.product(letters, repeat=2):
        for end in ("\0", *source.sample(ends, 2)):
            yield HostileText(start, word, end)
    for word in dict.fromkeys(chosen):
        yield HostileText("", word, "\0")
        yield HostileText(source.choice(starts), word, source.choice(ends))


def call(function: str, pattern: re.Pattern[Any], text: str | bytes) -> None:
    """Apply the pattern to the whole text, in the manner of one of the functions of ``re``."""
    if function in {"sub", "subn"}:
        getattr(pattern, function)("" if isinstance(text, str) else b"", text)
    elif function == "finditer":
        for _ in pattern.finditer(text):
            pass
    else:
        getattr(pattern, function)(text)


def _seconds(run: Callable[[], None], times: int = 1) -> float:
    least = float("inf")
    for _ in range(times):
        begin = time.thread_time()
        run()
        least = min(least, time.thread_time() - begin)
    return least


def worst_growth(use: Use, *, deep: bool = False) -> tuple[float, HostileText | None]:
    """Return how many times as long eight times the text takes at worst, and with which text."""
    functions = sorted(
        {
            "fullmatch" if f == "fullmatch" else "match" if f == "match" else "finditer"
            for f in use.functions
        }
    )
    if "finditer" in functions and "match" in functions:
        functions.remove("match")
    is_bytes = isinstance(use.pattern.pattern, bytes)

    def run(function: str, text: HostileText, length: int) -> Callable[[], None]:
        made = text.of_length(length)
        value = made.encode("latin-1", "replace") if is_bytes else made
        return lambda: call(function, use.pattern, value)

    worst: tuple[float, HostileText | None] = (0.0, None)
    for function in functions:
        timed = []
        for text in hostile_texts(use.pattern, deep=deep):
            if (
                _seconds(run(function, text, _SHORT))
                > _SHORT_S
                < _seconds(run(function, text, _SHORT), 2)
            ):
                return float("inf"), text
            timed.append((_seconds(run(function, text, _LENGTH)), text))
        timed.sort(key=lambda row: -row[0])
        for _, text in timed[:3]:
            ratio = growth(lambda length: run(function, text, length))  # noqa: B023
            worst = max(worst, (ratio, text), key=lambda row: row[0])
    return worst


def growth(run_of: Callable[[int], Callable[[], None]]) -> float:
    """Return the ratio of the times of eight times and once the text, where it can be measured.

    Eight times, because text that outgrows a cache of the processor takes two or three times as
    long at one step.
    """
    length = _LENGTH
    while _seconds(run_of(length), 2) < _MEASURABLE_S:
        length *= 2
        if length > _LENGTH_MAX:
            return 8.0
    ratio = min(_seconds(run_of(8 * length)) / _seconds(run_of(length), 3) for _ in range(2))
    if not RATIO_MAX <= ratio < _CERTAIN:
        return ratio
    # memory that the longer text is the first to need may have taken the time
    return min(ratio, _seconds(run_of(64 * length)) / _seconds(run_of(8 * length), 3))


def has_possessive_alternatives(pattern: re.Pattern[Any]) -> bool:
    """Return whether a group with alternatives or conditions is repeated possessively."""
    text, flags = pattern.pattern, pattern.flags

    def found(items: Any, *, within: bool) -> bool:
        for operation, argument in items:
            name = str(operation)
            if within and name in ("BRANCH", "ASSERT", "ASSERT_NOT"):
                return True
            inner = within or name == "POSSESSIVE_REPEAT"
            if any(found(part, within=inner) for part in _parts(argument)):
                return True
        return False

    return found(_parser.parse(text, flags), within=False)
