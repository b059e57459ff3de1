"""Run all benchmarks: ``python -m benchmarks``."""

from benchmarks import engine

if __name__ == "__main__":
    engine.main()
