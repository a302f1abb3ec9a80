"""Pages about training: what a run made and how good it is, and the experiments of the paper."""

from metaphase.web.run_page.experiments_page import write_experiments_page
from metaphase.web.run_page.page import write_run_page

__all__ = ["write_experiments_page", "write_run_page"]
