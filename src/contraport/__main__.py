"""Entry point of `python -m contraport`."""

from contraport.cli import entry_point

if __name__ == "__main__":
    entry_point()
