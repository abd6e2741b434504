"""Files that may be compressed with gzip: their content, up to a limit while it is unpacked."""

from __future__ import annotations

import io
import zlib
from typing import Final

from reconciler.model.errors import UnreadableError

_GZIP: Final = b"\x1f\x8b"
_SIZE_REMEDY: Final = "pass a smaller file"
_STEP: Final = 2**14
"""Compressed bytes that are unpacked at once, at most to 1,032 times as many.

The content is in memory once, and what exceeds the limit never is."""


def decompress(
    content: bytes, bytes_max: int, where: str, *, size_remedy: str = _SIZE_REMEDY
) -> bytes:
    """Return the plain content of a file, compressed or not.

    Raises:
        UnreadableError: it has more than ``bytes_max`` bytes, or is damaged.
    """
    if not content.startswith(_GZIP):
        if len(content) > bytes_max:
            raise _size_error(bytes_max, where, size_remedy)
        return content
    plain, packed, position = io.BytesIO(), memoryview(content), 0
    try:
        while position < len(packed):  # a file may have several members
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                if position >= len(packed):
                    raise UnreadableError(
                        "ends within its compressed data", where=where, remedy="copy it again"
                    )
                plain.write(member.decompress(packed[position : position + _STEP]))
                position += _STEP
                if plain.tell() > bytes_max:
                    raise _size_error(bytes_max, where, size_remedy)
            position = min(position, len(packed)) - len(member.unused_data)
    except zlib.error as error:
        raise UnreadableError(
            f"cannot be decompressed: {error}", where=where, remedy="copy it again"
        ) from error
    return plain.getvalue()


def _size_error(bytes_max: int, where: str, remedy: str) -> UnreadableError:
    return UnreadableError(f"has more than {bytes_max // 2**20} MiB", where=where, remedy=remedy)
