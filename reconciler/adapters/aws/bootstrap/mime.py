"""Multi-part user data in the format of cloud-init."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NODE_CONFIG: Final = "application/node.eks.aws"
SHELL: Final = 'text/x-shellscript; charset="us-ascii"'


@dataclass(frozen=True, slots=True)
class MimePart:
    """One part: its content type and its text."""

    content_type: str
    body: str


def is_mime(text: str) -> bool:
    """Return whether user data is already multi-part, whichever header comes first."""
    return text.lstrip().startswith(("MIME-Version:", "Content-Type:"))


def parts_of(text: str) -> list[MimePart]:
    """Return the parts of multi-part user data, in order; nested parts are flattened."""
    import email

    parts = []
    for part in email.message_from_string(text.replace("\r", "").lstrip()).walk():
        if part.is_multipart():
            continue
        payload = part.get_payload(decode=True)
        body = payload.decode("utf-8", "replace") if isinstance(payload, bytes) else ""
        parts.append(MimePart(part.get("Content-Type", "text/plain"), body))
    return parts


def compose(parts: list[MimePart]) -> str:
    """Return the multi-part text; the boundary is ``//``, as in EKS' own tools."""
    head = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="//"\n\n'
    body = "".join(
        f"--//\nContent-Type: {part.content_type}\n\n{part.body.rstrip()}\n\n" for part in parts
    )
    return f"{head}{body}--//--\n".replace("\r", "")
