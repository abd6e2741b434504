"""Where the files beside the package are: in a wheel, an editable install and a bare checkout.

A wheel carries ``schemas/`` and ``state/`` inside the package as ``_schemas`` and ``_state``;
a checkout has them at its top, where people expect them.
"""

from __future__ import annotations

import os.path

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


def resource_path(*parts: str) -> str:
    """Return the path of a file, such as ``resource_path("schemas", "nodepool.v1.json")``.

    Raises:
        FileNotFoundError: the installation lacks the file.
    """
    top, *rest = parts
    for root in (os.path.join(_PACKAGE, f"_{top}"), os.path.join(_PACKAGE, "..", top)):
        path = os.path.normpath(os.path.join(root, *rest))
        if os.path.exists(path):
            return path
    raise FileNotFoundError(f"the installation lacks {'/'.join(parts)}; install it again")
