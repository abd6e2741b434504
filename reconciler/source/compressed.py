"""Files that may be compressed with gzip: their content, up to a limit while it is unpacked."""

from __future__ import annotations

import zlib
from typing import Final

from reconciler.model.errors import UnreadableError

_GZIP: Final = b"\x1f\x8b"
_SIZE_REMEDY: Final = "pass a smaller file"


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
    plain, rest = bytearray(), content
    try:
        while rest:  # a file may have several members
            member = zlib.decompressobj(wbits=31)
            plain += member.decompress(rest, bytes_max + 1 - len(plain))
            if len(plain) > bytes_max or member.unconsumed_tail:
                raise _size_error(bytes_max, where, size_remedy)
            if not member.eof:
                raise UnreadableError(
                    "ends within its compressed data", where=where, remedy="copy it again"
                )
            rest = member.unused_data
    except zlib.error as error:
        raise UnreadableError(
            f"cannot be decompressed: {error}", where=where, remedy="copy it again"
        ) from error
    return bytes(plain)


def _size_error(bytes_max: int, where: str, remedy: str) -> UnreadableError:
    return UnreadableError(f"has more than {bytes_max // 2**20} MiB", where=where, remedy=remedy)
