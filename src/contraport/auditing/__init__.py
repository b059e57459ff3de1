"""Which pairs of data of two views do not belong together."""

from typing import TYPE_CHECKING

from contraport.lazy import lazy_package

if TYPE_CHECKING:
    from contraport.auditing.audit import audit
    from contraport.auditing.report import Audit

__all__ = ["Audit", "audit"]

lazy_package(__name__, audit="audit", Audit="report")
