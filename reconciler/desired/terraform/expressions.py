"""Evaluates the expressions of Terraform that need nothing outside its files.

A value is a JSON value, or ``Unknown`` with the text of the expression that it depends on.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reconciler.desired.terraform.filesets import files_below
from reconciler.desired.terraform.functions import (
    FUNCTIONS,
    OPERATORS,
    PartialMap,
    Unknown,
    Value,
    decode,
    encode,
    merge,
    to_text,
)
from reconciler.desired.terraform.hcl import (
    DIRECTIVE,
    HclBlock,
    HclError,
    closing_end,
    directive_body,
    find_outside,
    heredoc_at,
    split_items,
    split_operation,
    split_steps,
    string_end,
)
from reconciler.desired.terraform.scope import ModuleCall, ModuleScope
from reconciler.model.text.paths import is_below

_FAULTS: Final = (
    *(HclError, RecursionError, ValueError, TypeError, LookupError, AttributeError),
    ArithmeticError,  # a text in a calculation, or a division by zero
)
"""What is raised by an expression that cannot be evaluated."""
_REFERENCE: Final = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_*][\w-]*|\[[^\[\]]*\])*")
_STEP: Final = re.compile(r"[A-Za-z_*][\w-]*|\[[^\[\]]*\]")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?$")
_CALL: Final = re.compile(r"([a-z_0-9]+)\(")
_LOOP: Final = re.compile(r"(\w+)(?:\s*,\s*(\w+))?\s+in\s+(.*)", re.DOTALL)
_DECIDING: Final = {"&&": False, "||": True}
"""The value of one side that decides the operation."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_WORDS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None}
_TEXT_MAX: Final = 4 * 2**20
_DECODING: Final = 4  # how much longer than that of expressions the reading of YAML takes

_COMMON_OUTPUTS: Final[Mapping[str, Sequence[str]]] = {
    "azs": ("azs",),
    "name": ("name",),
    "cluster_name": ("cluster_name", "name"),
    "cluster_version": ("cluster_version", "kubernetes_version"),
    "node_iam_role_name": ("node_iam_role_name",),
}
"""The outputs of terraform-aws-modules that repeat an argument: vpc, eks, and eks//karpenter."""
_PREFIXED: Final = {"node_iam_role_name": "node_iam_role_use_name_prefix"}
"""Outputs that get a random suffix unless the argument says otherwise."""


def evaluate(text: str, scope: ModuleScope) -> Value:
    """Return the value of an expression, ``Unknown`` if it is not known from the files."""
    text, effort = text.strip(), scope.effort
    if not effort.allows(text):
        return Unknown(text)
    effort.depth += 1
    try:
        return effort.counted(_evaluate(text, scope))
    except _FAULTS:
        return Unknown(text)
    finally:
        effort.depth -= 1


def _evaluate(text: str, scope: ModuleScope) -> Value:
    heredoc = heredoc_at(text, 0)
    if heredoc is not None and not text[heredoc.end :].strip():
        return render(heredoc.text, scope)
    if text.startswith('"') and string_end(text, 0) == len(text):
        inner = _unescape(text[1:-1])
        if inner.startswith("${") and closing_end(inner, 1) == len(inner):
            return evaluate(inner[2:-1].strip().strip("~").strip(), scope)
        return render(inner, scope)
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.match(text):
        return float(text) if "." in text else int(text)
    call = _CALL.match(text)
    if text[:1] in ("(", "[", "{") or call is not None:
        end = closing_end(text, 0 if call is None else call.end() - 1)
        steps = split_steps(text, end)
        if steps is not None:
            value = (
                _bracketed(text[:end], scope)
                if call is None
                else _call(call[1], split_items(text[call.end() : end - 1]), scope, text[:end])
            )
            return _follow(value, steps, text, scope)
    if _REFERENCE.fullmatch(text):
        return _reference(text, scope)
    return _operation(text, scope)


def _bracketed(text: str, scope: ModuleScope) -> Value:
    """Return the value of a list, an object or an expression in parentheses."""
    if text.startswith("("):
        return evaluate(text[1:-1], scope)
    if re.match(r"[\[{]\s*for\b", text):
        return _comprehension(text, scope)
    if text.startswith("["):
        return [evaluate(part, scope) for part in split_items(text[1:-1])]
    return _object(text[1:-1], scope)


def _operation(text: str, scope: ModuleScope) -> Value:
    """Return the value of a condition, a comparison or a calculation."""
    question = find_outside(text, "?")
    if question >= 0:
        return _chosen(text, question, scope)
    split = split_operation(text)
    if split is not None:
        return _calculated(text, *split, scope)
    if text.startswith("!"):
        value = evaluate(text[1:], scope)
        return (value is not True) if isinstance(value, bool) else Unknown(text)
    return Unknown(text)


def _calculated(text: str, left: str, operator: str, right: str, scope: ModuleScope) -> Value:
    first, second = (evaluate(part, scope) for part in (left, right))
    if operator in ("==", "!="):
        first, second = (_compared(side, scope) for side in (first, second))
    if operator in _DECIDING and _DECIDING[operator] in (first, second):
        return _DECIDING[operator]  # whatever the other side is
    if isinstance(first, Unknown) or isinstance(second, Unknown):
        return Unknown(text)
    return OPERATORS[operator](first, second)


def _chosen(text: str, question: int, scope: ModuleScope) -> Value:
    """Return the value of ``condition ? one : other``, whose question mark is at ``question``."""
    colon = find_outside(text, ":", question + 1)
    condition = evaluate(text[:question], scope)
    if isinstance(condition, Unknown) or colon < 0:
        return Unknown(text)
    chosen = text[question + 1 : colon] if condition is True else text[colon + 1 :]
    return evaluate(chosen, scope)


def _compared(value: Value, scope: ModuleScope) -> Value:
    """Return a side of a comparison: a variable that nothing sets has its default."""
    name = value.text.removeprefix("var.") if isinstance(value, Unknown) else ""
    return scope.unset.get(name, value)


def _comprehension(text: str, scope: ModuleScope) -> Value:
    """Return ``[for x in list : value if condition]`` or ``{for … : key => value}``."""
    inner = text[1:-1].strip()
    colon = find_outside(inner, ":")
    header = _LOOP.fullmatch(inner[:colon].strip().removeprefix("for").strip())
    if colon < 0 or header is None:
        return Unknown(text)
    items = evaluate(header[3], scope)
    rest: Sequence[Unknown] = ()
    if isinstance(items, PartialMap) and text.startswith("{"):
        rest, items = items.rest, items.known
    if isinstance(items, Unknown) and text.startswith("["):
        return _one_of_unknown(items, header, inner[colon + 1 :], scope)
    if not isinstance(items, list | Mapping):
        return Unknown(text)
    body, condition = inner[colon + 1 :], ""
    at = find_outside(body, " if ")
    if at >= 0:
        body, condition = body[:at], body[at + 4 :]
    scopes = _scopes_of_items(items, header, condition, scope)
    arrow = find_outside(body, "=>")
    if arrow < 0:
        return [evaluate(body, here) for here in scopes]
    made = {
        to_text(evaluate(body[:arrow], here)): evaluate(body[arrow + 2 :], here) for here in scopes
    }
    return PartialMap(text, made, rest) if rest else made


def _scopes_of_items(
    items: list[Value] | Mapping[str, Value],
    header: re.Match[str],
    condition: str,
    scope: ModuleScope,
) -> Iterator[ModuleScope]:
    """Yield the scope of each item that meets the condition, in which it has its names."""
    pairs = items.items() if isinstance(items, Mapping) else enumerate(items)
    for key, value in pairs:
        names = {header[1]: value} if header[2] is None else {header[1]: key, header[2]: value}
        here = scope.with_names(names)
        if not condition or evaluate(condition, here) is True:
            yield here


def _one_of_unknown(items: Unknown, header: re.Match[str], body: str, scope: ModuleScope) -> Value:
    """Return what a loop makes of one item that is not known, in place of all of them."""
    at = find_outside(body, " if ")
    one = Unknown(f"{items.text}[*]")
    names: dict[str, Value] = {name: one for name in (header[1], header[2]) if name is not None}
    made = evaluate(body if at < 0 else body[:at], scope.with_names(names))
    return [made]


def _object(text: str, scope: ModuleScope) -> Value:
    found: dict[str, Value] = {}
    for item in split_items(text):
        at = _separator(item)
        key, value = item[:at].strip(), item[at + 1 :].strip()
        name: Value = key
        if key.startswith(('"', "(")):
            name = evaluate(key, scope)
        found[str(name)] = evaluate(value, scope)
    return found


def _separator(item: str) -> int:
    """Return the offset of the ``=`` or ``:`` of an entry of an object."""
    at = find_outside(item, ("=", ":"))
    if at < 0:
        raise HclError("an entry of an object has no value")
    return at


def _reference(text: str, scope: ModuleScope) -> Value:
    if text in ("path.module", "path.root"):
        return scope.folder
    value, rest = _named(text, _STEP.findall(text), scope)
    return _follow(value, rest, text, scope)


def _follow(value: Value, steps: Sequence[str], text: str, scope: ModuleScope) -> Value:
    """Return what steps, ``.name`` or ``[index]``, lead to from a value."""
    if not steps:
        return value
    if isinstance(value, PartialMap):
        value = value.known
    if isinstance(value, Unknown):
        return Unknown(text)
    for step in steps:
        key: Value = evaluate(step[1:-1], scope) if step.startswith("[") else step
        if isinstance(value, Mapping) and key in value:
            value = value[str(key)]
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key]
        else:
            return Unknown(text)
    return value


def _named(text: str, steps: Sequence[str], scope: ModuleScope) -> tuple[Value, Sequence[str]]:
    """Return what the first steps of a reference name, and the steps after them."""
    match steps:
        case [name, *rest] if name in scope.names:
            return scope.names[name], rest
        case ["var", name, *rest] if name in scope.variables:
            return scope.variables[name], rest
        case ["local", name, *rest] if name in scope.locals and name not in scope.resolving:
            inner = replace(scope, resolving=(*scope.resolving, name))
            return evaluate(scope.locals[name], inner), rest
        case [kind, name, *_] if (kind, name) in scope.manifests and text not in scope.resolving:
            return _of_manifest(text, steps, replace(scope, resolving=(*scope.resolving, text)))
        case ["module", name, *_] if name in scope.calls:
            return _of_call(text, steps, scope)
        case ["data", *rest]:
            return _of_data(text, rest, scope)
    return Unknown(text), ()


def _of_data(text: str, steps: Sequence[str], scope: ModuleScope) -> tuple[Value, Sequence[str]]:
    """Return what the first steps after ``data`` name, and the steps after them."""
    match steps:
        case ["aws_availability_zones", _, "names", *rest] if zones := list(scope.zones()):
            return zones, rest
        case ["template_file", name, "rendered"]:
            return _rendered_template(text, name, scope), ()
    return Unknown(text), ()


def _of_manifest(
    text: str, steps: Sequence[str], scope: ModuleScope
) -> tuple[Value, Sequence[str]]:
    """Return what a reference to a resource with an object names, and the steps after it."""
    rest = [step for step in steps[2:] if not step.startswith("[")]
    value = evaluate(scope.manifests[steps[0], steps[1]], scope)
    if rest[:1] == ["name"]:
        rest = ["object", "metadata", "name"]
    if isinstance(value, str) and rest[:1] != ["yaml_body"]:
        value = decode(value, text)
    return value, rest[1:]


def _of_call(text: str, steps: Sequence[str], scope: ModuleScope) -> tuple[Value, Sequence[str]]:
    """Return what an output of a module is, and the steps after it."""
    call = scope.calls[steps[1]]
    rest = steps[3:] if steps[2:3] and steps[2].startswith("[") else steps[2:]
    name = rest[0] if rest else ""
    key = f"{scope.folder}:module.{steps[1]}.{name}"
    if key in scope.resolving:
        return Unknown(text), ()
    resolving = (*scope.resolving, key)
    if call.target is not None and name in call.target.outputs:
        inner = replace(call.target, resolving=resolving, effort=scope.effort)
        value = evaluate(call.target.outputs[name], inner)
    else:
        value = _common_output(call, name, replace(scope, resolving=resolving), text)
    return (Unknown(text), ()) if _is_open(value) else (value, rest[1:])


def _common_output(call: ModuleCall, name: str, scope: ModuleScope, text: str) -> Value:
    """Return an output of one of Terraform's common modules that is one of its arguments."""
    if not call.is_common:
        return Unknown(text)
    condition = _PREFIXED.get(name)
    if condition and evaluate(call.arguments.get(condition, ""), scope) is not False:
        return Unknown(text)
    argument = next((a for a in _COMMON_OUTPUTS.get(name, ()) if a in call.arguments), None)
    return Unknown(text) if argument is None else evaluate(call.arguments[argument], scope)


def _is_open(value: Value) -> bool:
    """Return whether a value depends on names of another module that are not known."""
    return isinstance(value, Unknown) or (isinstance(value, str) and "${" in value)


def _rendered_template(text: str, name: str, scope: ModuleScope) -> Value:
    """Return what the data source ``template_file`` of a name renders to."""
    if name not in scope.templates:
        return Unknown(text)
    template, names = (evaluate(part, scope) for part in scope.templates[name])
    if not isinstance(template, str) or not isinstance(names, Mapping):
        return Unknown(text)
    return render(template, scope.with_names({str(k): v for k, v in names.items()}))


def _call(name: str, arguments: Sequence[str], scope: ModuleScope, text: str) -> Value:
    if name in ("try", "coalesce", "coalescelist"):
        return _first_known(arguments, scope, text)
    values = [evaluate(argument, scope) for argument in arguments]
    if name in ("file", "templatefile", "fileset"):
        return _file(name, values, scope, text)
    if name == "replace" and len(values) == 3 and str(values[1]).startswith("/"):
        return values[0]  # a regular expression that only changes how YAML is quoted
    if name == "merge":
        return merge(values, text)
    if name in ("yamlencode", "jsonencode"):
        return encode(name, values[0], text)
    if name == "yamldecode":
        scope.effort.spend(to_text(values[0]), _DECODING)
        return decode(values[0], text)
    return _apply(name, values, text)


def _first_known(arguments: Sequence[str], scope: ModuleScope, text: str) -> Value:
    """Return the first argument with a value; those after it are not evaluated."""
    for argument in arguments:
        value = evaluate(argument, scope)
        if not isinstance(value, Unknown) and value not in (None, ""):
            return value
    return Unknown(text)


def _apply(name: str, values: Sequence[Value], text: str) -> Value:
    """Return the result of a function that needs the values of all its arguments."""
    if any(isinstance(value, Unknown) for value in values):
        return Unknown(text)
    function = FUNCTIONS.get(name)
    return Unknown(text) if function is None else function(*values)


def _file(name: str, values: Sequence[Value], scope: ModuleScope, text: str) -> Value:
    if not values or not isinstance(values[0], str) or "${" in values[0]:
        return Unknown(text)
    path = path_in(values[0], scope)
    if name == "fileset":
        return list(files_below(path, str(values[1]), scope))
    content = scope.read(path)
    if content is None:
        return Unknown(text)
    scope.used_files.append(path)
    if name == "file":
        return content
    names = values[1] if len(values) > 1 and isinstance(values[1], Mapping) else {}
    inner = ModuleScope(
        scope.folder, scope.read, names={str(k): v for k, v in names.items()},
        used_files=scope.used_files, left_out=scope.left_out, effort=scope.effort,
    )  # fmt: skip
    return render(content, inner)


def path_in(named: str, scope: ModuleScope) -> str:
    """Return a path of a module as one from the top of the tree."""
    in_module = is_below(named, scope.folder)
    return posixpath.normpath(named if in_module else posixpath.join(scope.folder, named))


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text)


def render(text: str, scope: ModuleScope) -> Value:
    """Return a template with what is known filled in; unknown expressions stay as ``${...}``.

    A part whose condition is unknown is left out (``left_out``), or replaced by its ``else``. A
    part for each item of an unknown list is there once, with a placeholder for the item.
    """
    if "%{" in text:
        text = _directives(text, scope)
    parts: list[str] = []
    size = position = 0
    while position < len(text):
        found = text.find("${", position)
        if found < 0:
            break
        parts.append(text[position:found])
        end = closing_end(text, found + 1)
        if found > 0 and text[found - 1] == "$":
            parts[-1] = parts[-1][:-1]
            parts.append(text[found:end])
        else:
            inner = text[found + 2 : end - 1].strip().strip("~").strip()
            value = evaluate(inner, scope)
            parts.append(str(value) if isinstance(value, Unknown) else to_text(value))
        size += len(parts[-1])
        if size > _TEXT_MAX:
            raise HclError("a template makes too much text")
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _argument(directive: re.Match[str]) -> str:
    """Return the condition or the header of a directive."""
    return directive[2].strip().removesuffix("~").rstrip()


def _directives(text: str, scope: ModuleScope) -> str:
    """Return a text after its directives."""
    out: list[str] = []
    position = 0
    while (match := DIRECTIVE.search(text, position)) is not None:
        out.append(text[position : match.start()])
        body, other, end = directive_body(text, match)
        if match[1] == "if":
            condition = evaluate(_argument(match), scope)
            if isinstance(condition, Unknown):
                scope.left_out.append(_argument(match))
            chosen = body if condition in (True, "true") else other
            out.append(_directives(chosen, scope))
        elif match[1] == "for":
            out.append(_loop(_argument(match), body, scope))
        position = end
    out.append(text[position:])
    return "".join(out)


def _loop(header: str, body: str, scope: ModuleScope) -> str:
    """Return the text for each item of a list or map."""
    match = _LOOP.fullmatch(header)
    if match is None:
        raise HclError("the header of a loop is not known")
    items = evaluate(match[3], scope)
    pairs: list[tuple[Value, Value]]
    if isinstance(items, Mapping):
        pairs = list(items.items())
    elif isinstance(items, list):
        pairs = list(enumerate(items))
    else:
        named = items.text if isinstance(items, Unknown) else match[3].strip()
        pairs = [(Unknown(f"{named}[*]"), Unknown(f"{named}[*]"))]
    out: list[str] = []
    for key, value in pairs:
        names = {match[1]: value} if match[2] is None else {match[1]: key, match[2]: value}
        inner = scope.with_names(names)
        scope.effort.spend(body)
        made = render(_directives(body, inner), inner)
        out.append(str(made))
    return "".join(out)


def attribute_value(block: HclBlock, name: str, scope: ModuleScope) -> Value:
    """Return the value of an attribute, None if the block has no such attribute."""
    attribute = block.attributes.get(name)
    return evaluate(attribute.text, scope) if attribute is not None else None
