"""``python -m reconciler``."""

import sys

from reconciler.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
