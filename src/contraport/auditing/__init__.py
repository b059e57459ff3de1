"""Audit of paired data: scores of pairs, share of mismatches, better partners.

The subpackage `contraport.auditing.pairs` scores pairs and filters those of a training run, which may import it. The
other modules run audits, and import training.
"""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.auditing.audit import audit
    from contraport.auditing.multi_view_audit_result import ViewAudit
    from contraport.auditing.result import Audit

__all__ = ["Audit", "ViewAudit", "audit"]

make_package_lazy(__name__, audit="audit", Audit="result", ViewAudit="multi_view_audit_result")
