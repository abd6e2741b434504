"""The process that evaluates expressions; ``sandbox`` starts it, and nothing else may import it.

It reads two lines from stdin: the questions, and the variable ``plan`` as JSON. It prints one line
for each question when that is answered, so that a limit that ends it names the question at fault.
It imports nothing of the package, has no environment, and lowers its own limits before it compiles
anything.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from types import ModuleType
from typing import NamedTuple, Protocol, TypeVar

MESSAGE_MAX = 500
NAMES_MAX = 5
NAME_MAX = 100
ELEMENTS_MAX = 500
"""The maximum length of a list whose violating elements are searched: CEL filters in quadratic
time."""
_NAMING = ("name", "nodeClaim", "node", "pod", "id", "buffer", "path")
"""The fields that may name an element of a list, the first one first."""
_AT = re.compile(r"<input>:(\d+):(\d+): ?")
_DATE = re.compile(r"(?<![0-9])20[0-9]{6}(?![0-9])")


T = TypeVar("T")
_TYPE_NAMES: dict[type, str] = {bool: "true or false", list: "a list"}


class Expression(Protocol):
    """A compiled expression of the package ``cel``."""

    def variables(self) -> list[str]: ...
    def execute(self, context: object) -> object: ...


class Compiled(NamedTuple):
    """A program, and which part of a policy it is."""

    part: str
    program: Expression


class ExpressionError(Exception):
    """An expression that cannot be compiled, or has no value of the right type."""

    def __init__(self, part: str, message: str, at: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.part = part
        self.at = at


def main() -> None:
    """Answer the questions on stdin."""
    header = json.loads(sys.stdin.readline())
    _set_limits(header["cpuSeconds"], header["memoryBytes"])
    sys.path[:] = header["path"]
    cel = _cel_module()
    plan = json.loads(sys.stdin.readline())
    context = None
    if plan is not None:
        now = datetime.fromisoformat(header["now"])
        context = cel.Context({"plan": plan, "now": now}, FUNCTIONS)
    for question in header["questions"]:
        quantified = question.pop("each")
        answer = _answer_question(cel, context, **question)
        if quantified is not None and answer.get("holds") is False:
            answer["violating"] = _count_violations(cel, context, plan, **quantified)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _cel_module() -> ModuleType:
    """Return the extension module of the package ``cel``.

    The package itself imports its command line, which takes twenty times as long.
    """
    from importlib import import_module
    from importlib.util import find_spec

    spec = find_spec("cel")
    assert spec is not None, "the package was there before this process was started"
    package = ModuleType("cel")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["cel"] = package
    return import_module("cel.cel")


def _set_limits(cpu_seconds: int, memory_bytes: int) -> None:
    import resource

    for kind, limit in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with suppress(ValueError, OSError):  # some systems do not limit memory
            resource.setrlimit(kind, (limit, limit))


def _answer_question(
    cel: ModuleType, context: object, expression: str, message: str, when: list[str]
) -> dict[str, object]:
    try:
        rule = _compile(cel, "expression", expression)
        text = _compile(cel, "messageExpression", message)
        exemptions = [
            _compile(cel, f"exemptions[{index}].when", condition)
            for index, condition in enumerate(when)
        ]
        if context is None or _evaluate(rule, context, bool):
            return {"holds": True, "message": "", "exempted": [False for _ in exemptions]}
        return {
            "holds": False,
            "message": _evaluate(text, context, str)[:MESSAGE_MAX] if text else "",
            "exempted": [c is None or _evaluate(c, context, bool) for c in exemptions],
        }
    except ExpressionError as error:
        return {"error": str(error)[:MESSAGE_MAX], "part": error.part, "at": error.at}


def _count_violations(
    cel: ModuleType, context: object, plan: object, steps: list[str], expression: str
) -> dict[str, object] | None:
    """Return how many elements of a list violate a rule, the total, and the first names."""
    elements = _value_at(plan, steps)
    if not isinstance(elements, list) or len(elements) > ELEMENTS_MAX:
        return None
    try:
        found = _evaluate(_compile(cel, "expression", expression), context, list)
    except ExpressionError:
        return None
    names = [_element_name(element)[:NAME_MAX] for element in found[:NAMES_MAX]]
    return {"count": len(elements), "violating": len(found), "names": names}


def _element_name(element: object) -> str:
    """Return how an element of a list is named in a message."""
    if isinstance(element, dict):
        named = (element[key] for key in _NAMING if element.get(key))
        return str(next(named, json.dumps(element, default=str)))
    return str(element)


def _compile(cel: ModuleType, part: str, text: str) -> Compiled | None:
    """Return the program of an expression, None for an empty text."""
    if not text:
        return None
    try:
        program: Expression = cel.compile(text)
        unknown = sorted(set(program.variables()) - {"plan", "now"} - _bound_names(text))
    except (RuntimeError, TypeError, ValueError) as error:
        raise _expression_error(part, error) from error
    if unknown:
        raise ExpressionError(part, f'unknown name "{unknown[0]}" (there are plan and now)')
    return Compiled(part, program)


def _bound_names(text: str) -> set[str]:
    """Return the names that macros such as ``all(x, …)`` may bind."""
    return set(re.findall(r"(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)", text))


def _evaluate(compiled: Compiled | None, context: object, kind: type[T]) -> T:
    assert compiled is not None, "a rule has an expression"
    part = compiled.part
    try:
        value = compiled.program.execute(context)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise _expression_error(part, error) from error
    if not isinstance(value, kind):
        expected = _TYPE_NAMES.get(kind, "a string")
        raise ExpressionError(part, f'must be {expected}, not "{str(value)[:60]}"')
    return value


def _expression_error(part: str, error: Exception) -> ExpressionError:
    text = str(error).partition("\n")[0].rpartition("ERROR: ")[2].partition(" expecting {")[0]
    found = _AT.match(text)
    if "Recursion limit" in text:
        return ExpressionError(part, "nested too deeply")
    if isinstance(error, KeyError):
        text = f'no such field: "{error.args[0]}"'
    if found is None:
        return ExpressionError(part, text)
    return ExpressionError(part, text[found.end() :], (int(found[1]), int(found[2])))


def _sum(numbers: list[float]) -> float:
    return float(sum(numbers))


def _money(amount: float) -> str:
    return f"{'-' if amount < 0 else ''}${abs(amount):,.2f}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}%"


def _count(objects: list[dict[str, object]], path: str, value: object) -> float:
    """Return how many objects have ``value`` in the field at ``path``, such as ``launch.zone``."""
    return float(sum(_value_at(item, path.split(".")) == value for item in objects))


def _value_at(value: object, steps: list[str]) -> object:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _family(instance_type: str) -> str:
    return instance_type.partition(".")[0]


def _image_date(image: dict[str, str]) -> datetime | None:
    """Return the date in the name of an image, such as ``al2023@v20260115``; None without one."""
    for text in (image.get("name", ""), image.get("alias", "")):
        found = _DATE.search(text)
        if found is not None:
            with suppress(ValueError):
                return datetime.strptime(found[0], "%Y%m%d").replace(tzinfo=UTC)
    return None


FUNCTIONS = {
    "sum": _sum,
    "count": _count,
    "money": _money,
    "percent": _percent,
    "family": _family,
    "imageDate": _image_date,
}


if __name__ == "__main__":
    main()
