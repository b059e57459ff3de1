"""What `contraport doctor` is asked."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.options import Options, option
from contraport.verbs import BEGIN, Verb


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Options):
    """What `contraport.doctor` is asked; see there for each."""

    test: bool = option(True, "check, in about a minute, that what is here computes what it should.")


VERB = Verb(
    DoctorOptions,
    "contraport.cli.doctor:doctor",
    "Tell what is installed and what the machine has, and check that it works.",
    about="""
        What it prints can be pasted into a report of a fault. Values and gradients of losses are compared with a dense
        computation in double precision, by every backend and on every device that there is; where the extra `train`
        is installed a small training is run, stopped and gone on with. The exit status is 1 if a check fails.
    """,
    examples=("contraport doctor", "contraport doctor --test false"),
    show="contraport.cli.doctor:print_diagnosis",
    judge="contraport.cli.doctor:judge_diagnosis",
    group=BEGIN,
)
