"""Experiments 1 to 7 of the paper, and what each part of the method contributes."""

from metaphase.jobs.experiments.running import Experiments, run_experiments
from metaphase.jobs.experiments.summary import Contribution, Row, Summary, markdown, summarise

__all__ = ["Contribution", "Experiments", "Row", "Summary", "markdown", "run_experiments", "summarise"]
