"""Rendering in several processes, in order and with bounded memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import cv2

from metaphase.errors import MetaphaseError
from metaphase.parallel import in_order

Job = TypeVar("Job")
Result = TypeVar("Result")
AHEAD = 7
"""Results that may wait to be taken."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextlib.contextmanager
def rendering_processes(workers: int) -> Iterator[Executor | None]:
    """An executor of single-threaded processes, or None where one process is enough.

    Matrix libraries read their thread count from the environment when they are loaded, so the
    children's environment is set while they start; the caller's is as before afterwards.
    """
    if workers == 1:
        yield None
        return
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_single_thread) as executor:
            yield executor
    except BrokenProcessPool as error:
        raise MetaphaseError(
            "a rendering process died", next_step="check the memory, or run with workers = 1"
        ) from error
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _single_thread() -> None:
    cv2.setNumThreads(1)


def rendered_in_order(
    executor: Executor | None, function: Callable[[Job], Result], jobs: Iterable[Job]
) -> Iterator[Result]:
    """Results of `function` over `jobs` in their order, here where there is no executor."""
    return map(function, jobs) if executor is None else in_order(executor, function, jobs, AHEAD)
