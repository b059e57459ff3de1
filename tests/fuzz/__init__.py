"""Hostile input by the thousand: random configurations of every verb, corrupt run folders, corrupt data, full disks.

``python -m tests.fuzz`` runs all and writes what came of it for ``docs/reliability.md``; a case is a function of the
seed, its kind and its number, and ``python -m tests.fuzz --kind data --only 17`` runs one of them again.
"""
