"""Which pairs of data of two views do not belong together."""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
    from contraport.auditing.audit import audit
    from contraport.auditing.result import Audit

__all__ = ["Audit", "audit"]

make_package_lazy(__name__, audit="audit", Audit="report")
