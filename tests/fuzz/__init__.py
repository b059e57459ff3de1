"""Fuzz tests of the command line: random options of every command, corrupt run folders, corrupt data, full disks.

``python -m tests.fuzz`` runs all cases and writes the results for ``docs/reliability.md``. A case is determined by the
seed, its kind and its number: ``python -m tests.fuzz --kind data --only 17`` runs one case again.
"""
