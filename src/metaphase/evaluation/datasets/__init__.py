"""Published data sets as users have them on disk, each as one cohort manifest and one truth table."""

from metaphase.evaluation.datasets.contract import Adapter, Dataset
from metaphase.evaluation.datasets.importing import ADAPTERS, ImportedDataset, import_dataset, read_dataset

__all__ = ["ADAPTERS", "Adapter", "Dataset", "ImportedDataset", "import_dataset", "read_dataset"]
