"""Several observers judge candidates, blind to one another, and their answers become labels.

`serving.serve_project` starts the page, `store.AnswerStore` keeps the answers, `merging.merge_project` makes
labels of them.
"""

from metaphase.web.labelling.consensus import Merged
from metaphase.web.labelling.exchange import Imported, export_answers, import_answers
from metaphase.web.labelling.merging import merge_project
from metaphase.web.labelling.project import Answer, Item, LabellingError, Project, Settings, load_project
from metaphase.web.labelling.store import AnswerStore, Entry, Given

__all__ = [
    "Answer",
    "AnswerStore",
    "Entry",
    "Given",
    "Imported",
    "Item",
    "LabellingError",
    "Merged",
    "Project",
    "Settings",
    "export_answers",
    "import_answers",
    "load_project",
    "merge_project",
]
