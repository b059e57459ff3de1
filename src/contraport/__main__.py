"""Entry point of `python -m contraport`."""

import sys

from contraport.cli import main

if __name__ == "__main__":
    sys.exit(main())
