"""Run all benchmarks: ``python -m benchmarks``."""

from benchmarks import cuda, engine

if __name__ == "__main__":
    engine.main()
    cuda.main()
