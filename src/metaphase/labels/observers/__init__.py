"""Several observers judge candidates, blind to one another, and their answers become labels.

`project` is the folder of what to judge, `store` keeps the answers, `consensus` makes labels of them.
"""

from metaphase.labels.observers.consensus import Merged
from metaphase.labels.observers.project import LabellingError, Project, load_project
from metaphase.labels.observers.store import AnswerStore, Entry, Given

__all__ = ["AnswerStore", "Entry", "Given", "LabellingError", "Merged", "Project", "load_project"]
