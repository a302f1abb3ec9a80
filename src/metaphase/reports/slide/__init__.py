"""One HTML file per slide with the mitotic count and its evidence."""

from metaphase.reports.slide.inputs import ReportInput
from metaphase.reports.slide.page import write_slide_report

__all__ = ["ReportInput", "write_slide_report"]
