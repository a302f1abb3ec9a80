"""People look at the points of a reference standard in both stains, side by side, and overrule it.

`serving.serve_review` starts the page for a workspace, `decisions.collect_decisions` turns what was decided
into the table that `metaphase.pipeline.reference` applies.
"""

from metaphase.web.review.decisions import collect_decisions
from metaphase.web.review.points import Review, load_review
from metaphase.web.review.serving import Running, serve_review

__all__ = ["Review", "Running", "collect_decisions", "load_review", "serve_review"]
