"""``python -m reconciler``."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder; `-m` has found the package, and nothing else is there

from reconciler.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
