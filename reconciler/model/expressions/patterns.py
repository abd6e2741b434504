"""Regular expressions in time that grows with the text, whatever the pattern.

Patterns come from repositories and from whoever may create a ResourceClaim, and Python's ``re``
tries alternatives one after the other: ``a?a?a?…`` and ``(a|a)(a|a)…`` take exponential time, and
``a*a*a*b`` time with the fourth power of the text. Here, as in RE2, which CEL prescribes, all
alternatives are followed at once, so each character is compared at most once with each part of the
pattern. The syntax is that of RE2 without flags, named groups and Unicode classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

LENGTH_MAX: Final = 500
PARTS_MAX: Final = 1_000
_DEPTH_MAX: Final = 30
_REPETITIONS_MAX: Final = 1_000

_Ranges = tuple[tuple[str, str], ...]
_DIGIT: Final[_Ranges] = (("0", "9"),)
_WORD: Final[_Ranges] = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Final[_Ranges] = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class PatternError(ValueError):
    """The pattern is invalid, or uses what is not supported."""


class _Characters(NamedTuple):
    """The characters of a class, or all others."""

    ranges: _Ranges
    is_negated: bool = False

    def has(self, character: str) -> bool:
        found = any(low <= character <= high for low, high in self.ranges)
        return found is not self.is_negated


class _Split(NamedTuple):
    """Goes on at several places."""

    targets: tuple[int, ...]


class _Position(NamedTuple):
    """Goes on only at a position of the text: its start, its end, or the edge of a word."""

    kind: str


_Part = _Characters | _Split | _Position
_Node = Callable[[int], list[_Part]]
"""Returns the parts of a piece of the pattern that begins at a position of the program."""


class Pattern:
    """A compiled pattern.

    Raises:
        PatternError: it is invalid.
    """

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError(f"a pattern has at most {LENGTH_MAX} characters")
        self._program = tuple(_Parser(text).program())

    def cost(self, text: str) -> int:
        """Return the most steps that a search in a text takes."""
        return (len(self._program) + 1) * (len(text) + 1)

    def search(self, text: str) -> bool:
        """Return whether a part of the text matches."""
        program, end = self._program, len(self._program)
        current: set[int] = set()
        for at in range(len(text) + 1):
            current = self._closure({*current, 0}, text, at)
            if end in current:
                return True
            if at == len(text):
                return False
            following = set()
            for number in current:
                part = program[number]
                if isinstance(part, _Characters) and part.has(text[at]):
                    following.add(number + 1)
            current = following
        return False

    def _closure(self, starts: set[int], text: str, at: int) -> set[int]:
        """Return all places that are reached without reading a character."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            if number == len(self._program):
                continue
            part = self._program[number]
            if isinstance(part, _Split):
                waiting += (number + target for target in part.targets)
            elif isinstance(part, _Position) and _is_at(part.kind, text, at):
                waiting.append(number + 1)
        return found


def _is_at(kind: str, text: str, at: int) -> bool:
    match kind:
        case "^" | "A":
            return at == 0
        case "$" | "z":
            return at == len(text)
    word = _Characters(_WORD)
    before = at > 0 and word.has(text[at - 1])
    after = at < len(text) and word.has(text[at])
    return (before is not after) is (kind == "b")


class _Parser:
    """Reads a pattern by recursive descent. A part refers to others by their distance."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def program(self) -> Sequence[_Part]:
        found = self._alternatives()
        if self._at < len(self._text):
            raise PatternError("a closing parenthesis without an opening one")
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> list[_Part]:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise PatternError("it is nested too deeply")
        found = self._sequence()
        while self._accept("|"):
            other = self._sequence()
            jump = _Split((len(other) + 1,))
            found = _limited([_Split((1, len(found) + 2)), *found, jump, *other])
        self._depth -= 1
        return found

    def _sequence(self) -> list[_Part]:
        found: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            found = _limited([*found, *self._repeated(self._atom())])
        return found

    def _repeated(self, atom: list[_Part]) -> list[_Part]:
        if not (bounds := self._bounds()):
            return atom
        self._accept("?")  # a lazy repetition matches where a greedy one does
        if (self._peek() and self._peek() in "*+?") or self._bounds():
            raise PatternError("a repetition of a repetition")
        least, most = bounds
        size = max(least, most or least + 1) * (len(atom) + 2)
        if size > PARTS_MAX:
            raise PatternError("it is too large")
        found = atom * least
        if most is None:
            return [*found, _Split((1, len(atom) + 2)), *atom, _Split((-len(atom) - 1,))]
        for number in range(most - least):
            left = (most - least - number) * (len(atom) + 1)
            found = [*found, _Split((1, left)), *atom]
        return found

    def _bounds(self) -> tuple[int, int | None] | None:
        """Return the least and the largest number of repetitions, None if there is no mark."""
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(mark):
                return bounds
        end = self._text.find("}", self._at)
        first, comma, last = self._text[self._at + 1 : max(end, 0)].partition(",")
        is_count = first.isascii() and first.isdigit() and (not last or last.isdigit())
        if self._peek() != "{" or end < 0 or not is_count or len(first) + len(last) > 8:
            return None  # a brace that is no count stands for itself
        least = int(first)
        most = (int(last) if last else None) if comma else least
        if least > _REPETITIONS_MAX or (most is not None and not least <= most <= _REPETITIONS_MAX):
            raise PatternError("an invalid number of repetitions")
        self._at = end + 1
        return least, most

    def _atom(self) -> list[_Part]:
        character = self._next()
        match character:
            case "(":
                if self._accept("?") and not self._accept(":"):
                    raise PatternError("flags and named groups are not supported")
                found = self._alternatives()
                if not self._accept(")"):
                    raise PatternError("a parenthesis is not closed")
                return found
            case "[":
                return [self._class()]
            case ".":
                return [_Characters((("\n", "\n"),), is_negated=True)]
            case "^" | "$":
                return [_Position(character)]
            case "*" | "+" | "?":
                raise PatternError("a repetition of nothing")
            case "\\":
                return [self._escape()]
        return [_Characters(((character, character),))]

    def _escape(self) -> _Part:
        character = self._next()
        if character in "AzbB":
            return _Position(character)
        if character.lower() in _CLASSES:
            return _Characters(_CLASSES[character.lower()], is_negated=character.isupper())
        return _Characters((self._literal(character),))

    def _literal(self, character: str) -> tuple[str, str]:
        """Return the range of an escaped character that stands for itself, or for a control."""
        if character in _CONTROLS:
            return _CONTROLS[character], _CONTROLS[character]
        if character.isalnum():
            raise PatternError(f"\\{character} is not supported")
        return character, character

    def _class(self) -> _Characters:
        is_negated = self._accept("^")
        ranges = tuple(self._ranges())
        return _Characters(ranges, is_negated=is_negated)

    def _ranges(self) -> Iterator[tuple[str, str]]:
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._accept("[:"):
                raise PatternError("named classes are not supported")
            low = self._next()
            if low == "\\":
                low = self._next()
                if low.lower() in _CLASSES:
                    if low.isupper():
                        raise PatternError(f"\\{low} in a class is not supported")
                    yield from _CLASSES[low]
                    continue
                low = self._literal(low)[0]
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                high = self._next()
                if high == "\\":
                    high = self._literal(self._next())[0]
                if high < low:
                    raise PatternError(f"the range {low}-{high} is empty")
            yield low, high
        self._next()


def _limited(parts: list[_Part]) -> list[_Part]:
    if len(parts) > PARTS_MAX:
        raise PatternError("it is too large")
    return parts
