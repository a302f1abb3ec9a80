"""Candidates of many slides at a time; no torch here, so that the processes start fast."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from metaphase.hne import Mining, TrainingSlide
from metaphase.pipeline.stages import Report


def find_in_processes(mining: Mining, sources: Sequence[TrainingSlide], workers: int, report: Report) -> None:
    """Find candidates slide by slide in several processes; the records they leave are found afterwards."""
    alone = Mining(mining.folder, mining.train, mining.validation, mining.config, threads=1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_found, alone, source) for source in sources]
        for number, job in enumerate(as_completed(jobs), start=1):
            job.result()
            report("candidates", number, len(jobs))


def _found(mining: Mining, source: TrainingSlide) -> None:
    mining.candidates(source)
