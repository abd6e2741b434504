"""Change, add and remove fields in the text of a YAML file; all other text stays as it is.

``source/rewrite.py`` replaces single words. Here a whole value is replaced, a value is added to a
list, or a field to a mapping, in the style (block or flow) that the file has there. ruamel.yaml's
nodes give the positions. The result is parsed again, and counts only if it has the intended data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from reconciler.source.document import Document, Mark, Pointer, parse_documents
from reconciler.source.finding import field_path
from reconciler.source.rewrite import RewriteError
from reconciler.source.scalars import resolve_scalar

_BOM: Final = "\ufeff"
_PLAIN: Final = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)

Value = str | int | bool | list["Value"] | dict[str, "Value"]


class SetField(NamedTuple):
    """The field at ``pointer`` gets a value; it is added if its mapping does not have it."""

    pointer: Pointer
    value: Value


class AddItem(NamedTuple):
    """The list at ``pointer`` gets one more value at its end."""

    pointer: Pointer
    value: Value


class RemoveItem(NamedTuple):
    """The value at ``pointer``, in a list with others, is removed."""

    pointer: Pointer


FieldEdit = SetField | AddItem | RemoveItem


def apply_edits(content: bytes, document: Document, edits: Sequence[FieldEdit]) -> bytes:
    """Return the content of a file with edits of one of the documents parsed from it.

    Pointers of later edits count in the document as the earlier ones leave it.

    Raises:
        RewriteError: the text cannot be changed without changing something else.
    """
    number = _document_index(document, content)
    for edit in edits:
        content = _apply_edit(content, number, edit)
    return content


def _document_index(document: Document, content: bytes) -> int:
    documents, _ = parse_documents(document.file, content)
    marks = [one.mark[:2] for one in documents]
    if document.mark[:2] not in marks:
        raise RewriteError("it is not the file that the document was read from")
    return marks.index(document.mark[:2])


def _apply_edit(content: bytes, number: int, edit: FieldEdit) -> bytes:
    documents, findings = parse_documents("", content)
    if findings:
        raise RewriteError("it has errors")
    document = documents[number]
    expected = [one.data for one in documents]
    expected[number] = _edit_data(_deep_copy(document.data), edit)
    text = content.decode()
    bom = _BOM if text.startswith(_BOM) else ""
    if document.text != text.removeprefix(_BOM):
        raise RewriteError("it has characters beyond 16 bits as JSON escapes")
    root = _root_node(document)
    start, end, new_text = _splice(document.text, root, edit)
    result = (bom + document.text[:start] + new_text + document.text[end:]).encode()
    after, findings = parse_documents("", result)
    if findings or [one.data for one in after] != expected:
        raise RewriteError(f"{field_path(edit.pointer)} cannot be changed by itself")
    return result


def _deep_copy(data: object) -> object:
    """Return a copy that shares nothing, so that an edit changes the data in one place only."""
    if isinstance(data, dict):
        return {key: _deep_copy(value) for key, value in data.items()}
    return [_deep_copy(value) for value in data] if isinstance(data, list) else data


def _edit_data(data: object, edit: FieldEdit) -> object:
    *above, last = edit.pointer if not isinstance(edit, AddItem) else (*edit.pointer, -1)
    parent = data
    for step in above:
        parent = _get_step(parent, step)
    match edit:
        case SetField(_, value) if isinstance(parent, dict):
            parent[last] = value
        case SetField(_, value) if isinstance(parent, list) and isinstance(last, int):
            parent[last] = value
        case AddItem(_, value) if isinstance(parent, list):
            parent.append(value)
        case RemoveItem(_) if isinstance(parent, list) and isinstance(last, int):
            if len(parent) < 2:
                raise RewriteError(f"{field_path(edit.pointer)} is the only value of its list")
            del parent[last]
        case _:
            raise RewriteError(f"{field_path(edit.pointer)} is not a field of this kind")
    return data


def _get_step(data: object, step: str | int) -> object:
    if isinstance(data, dict) and step in data:
        return data[step]
    if isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data):
        return data[step]
    raise RewriteError(f"{step} does not exist")


# Positions, as ruamel.yaml's nodes have them.


class _TextMark(Protocol):
    index: int
    line: int
    column: int


class _Node(Protocol):
    """A node of the composed text: ``value`` is text, a list of nodes, or pairs of them."""

    start_mark: _TextMark
    end_mark: _TextMark
    flow_style: bool | None

    @property
    def value(self) -> str | list[_Node] | list[tuple[_Node, _Node]]: ...


def _root_node(document: Document) -> _Node:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    at: Mark = document.mark
    try:
        for root in YAML(pure=True).compose_all(document.text):
            if root is not None and (root.start_mark.line, root.start_mark.column) == (
                at[0] - 1,
                at[1] - 1,
            ):
                found: _Node = root
                return found
    except (YAMLError, ValueError) as error:
        raise RewriteError("its positions cannot be read") from error
    raise RewriteError("its positions cannot be read")


def _pairs(node: _Node) -> list[tuple[_Node, _Node]]:
    value = node.value
    return [pair for pair in value if isinstance(pair, tuple)] if isinstance(value, list) else []


def _items(node: _Node) -> list[_Node]:
    value = node.value
    return (
        [item for item in value if not isinstance(item, tuple)] if isinstance(value, list) else []
    )


def _node_at(node: _Node, pointer: Sequence[str | int]) -> _Node | None:
    """Return the node at ``pointer``, None if there is none."""
    for step in pointer:
        found: _Node | None = None
        if isinstance(step, int):
            items = _items(node)
            found = items[step] if 0 <= step < len(items) else None
        else:
            found = next((value for key, value in _pairs(node) if key.value == step), None)
        if found is None:
            return None
        node = found
    return node


def _is_block(node: _Node) -> bool:
    return isinstance(node.value, list) and not node.flow_style


def _end_offset(node: _Node) -> int:
    """Return the offset after the text of a node, without what follows a block."""
    if _is_block(node):
        last = [value for _, value in _pairs(node)] or _items(node)
        if last:
            return _end_offset(last[-1])
    if getattr(node, "style", None) in ("|", ">"):
        raise RewriteError("it ends in a block of text")
    return node.end_mark.index


def _splice(text: str, root: _Node, edit: FieldEdit) -> tuple[int, int, str]:
    """Return the text to replace: its start, its end, and the new text."""
    match edit:
        case SetField(pointer, value):
            node = _node_at(root, pointer)
            if node is not None:
                return _replacement(text, node, value)
            parent = _node_at(root, pointer[:-1])
            if parent is None:
                raise RewriteError(f"{field_path(pointer)} has nothing to be added to")
            return _new_field(text, parent, str(pointer[-1]), value)
        case AddItem(pointer, value):
            node = _node_at(root, pointer)
            if node is None or not _items(node):
                raise RewriteError(f"{field_path(pointer)} is not a list with values")
            return _new_item(text, node, value)
        case RemoveItem(pointer):
            parent, number = _node_at(root, pointer[:-1]), pointer[-1]
            if parent is None or not isinstance(number, int):
                raise RewriteError(f"{field_path(pointer)} is not in a list")
            return _item_removal(text, parent, number)


def _replacement(text: str, node: _Node, value: Value) -> tuple[int, int, str]:
    if not _is_block(node):
        start, end = node.start_mark.index, _end_offset(node)
        quote = text[start : start + 1]
        word = format_value(value)
        if isinstance(value, str) and quote in "\"'" and quote and word == value:
            word = f"{quote}{value}{quote}"
        return start, end, word
    raise RewriteError("a block cannot be replaced as a whole")


def _new_field(text: str, parent: _Node, name: str, value: Value) -> tuple[int, int, str]:
    if not _pairs(parent):
        raise RewriteError(f"{name} has nothing to stand beside")
    if parent.flow_style:
        at = _pairs(parent)[-1][1].end_mark.index
        return at, at, f", {name}: {format_value(value)}"
    at = _end_of_line(text, _end_offset(parent))
    indent = " " * _pairs(parent)[0][0].start_mark.column
    return at, at, f"{_line_break(text)}{indent}{name}: {format_value(value)}"


def _new_item(text: str, node: _Node, value: Value) -> tuple[int, int, str]:
    last = _items(node)[-1]
    if node.flow_style:
        at = last.end_mark.index
        return at, at, f", {format_value(value)}"
    at = _end_of_line(text, _end_offset(node))
    return at, at, f"{_line_break(text)}{' ' * _dash_column(text, last)}- {format_value(value)}"


def _item_removal(text: str, parent: _Node, number: int) -> tuple[int, int, str]:
    items = _items(parent)
    if not 0 <= number < len(items):
        raise RewriteError("the value does not exist")
    if parent.flow_style:
        if number:
            return _end_offset(items[number - 1]), _end_offset(items[number]), ""
        return items[0].start_mark.index, items[1].start_mark.index, ""
    start = _start_of_line(text, items[number].start_mark.index)
    end = _end_of_line(text, _end_offset(items[number])) + len(_line_break(text))
    if "\n" in text[start : items[number].start_mark.index]:
        raise RewriteError("the value begins on another line than its dash")
    return start, min(end, len(text)), ""


def _dash_column(text: str, item: _Node) -> int:
    """Return the column of the dash before an item of a block list."""
    start = _start_of_line(text, item.start_mark.index)
    before = text[start : item.start_mark.index]
    if before.strip() != "-":
        raise RewriteError("the list is not written one value a line")
    return before.index("-")


def _start_of_line(text: str, offset: int) -> int:
    return text.rfind("\n", 0, offset) + 1


def _end_of_line(text: str, offset: int) -> int:
    """Return the end of the line at ``offset``: a comment there stays with what is before it."""
    found = text.find("\n", offset)
    end = len(text) if found < 0 else found
    return end - 1 if text[:end].endswith("\r") else end


def _line_break(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def format_value(value: Value) -> str:
    """Return a value as YAML on one line; text is quoted only if it has to be."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            is_plain = _PLAIN.fullmatch(value) and isinstance(resolve_scalar(value), str)
            return value if is_plain else _quote(value)
        case list():
            return f"[{', '.join(map(format_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{k}: {format_value(v)}' for k, v in value.items())}}}"


def _quote(text: str) -> str:
    """Return text in double quotes, with escapes for all that is not plain ASCII."""
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= code < 0x7F:
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
