"""A job as a table of stages: what each reads and writes, whether it is done, and running what is left."""

from metaphase.pipeline.stages.running import StageState, States, run_stages, stage_states
from metaphase.pipeline.stages.stage import Facts, Report, Stage, silent

__all__ = ["Facts", "Report", "Stage", "StageState", "States", "run_stages", "silent", "stage_states"]
