"""Which pairs of data of two views do not belong together."""

from contraport.auditing.audit import audit
from contraport.auditing.report import Audit

__all__ = ["Audit", "audit"]
