"""One HTML file per slide with the mitotic count and its evidence, and an index of many slides."""

from metaphase.reports.cohort import CohortRow, write_cohort_index
from metaphase.reports.slide.inputs import ReportInput
from metaphase.reports.slide.page import write_slide_report

__all__ = ["CohortRow", "ReportInput", "write_cohort_index", "write_slide_report"]
