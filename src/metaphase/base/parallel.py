"""Work spread over threads and processes, in order and with bounded memory, and what threads keep of it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from multiprocessing.connection import wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores granted to this process (a container or a cluster job may have fewer than the machine)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_processes(wanted: int) -> int:
    """The number of processes wanted, or the most that Windows can wait for."""
    return min(wanted, 61) if sys.platform == "win32" else wanted


@cache
def has_nvidia_driver() -> bool:
    """Whether NVIDIA's driver is here: without it, PyTorch need not be imported to know of no GPU."""
    try:
        ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return False
    return True


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[Result]:
    """Results of `function` in the order of `items`, at most `ahead` of them made before they are taken.

    An error is raised where its result would have come. A consumer that stops early cancels the rest.
    """
    with ThreadPoolExecutor(threads) as pool:
        yield from in_order(pool, function, items, ahead)


def end_with_parent() -> None:
    """For the start of a worker process: it ends when its parent does, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="watch-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


@contextlib.contextmanager
def worker_processes(
    count: int, initializer: Callable[[], None] = end_with_parent
) -> Iterator[ProcessPoolExecutor]:
    """A pool of freshly started processes, which end at once when the work is interrupted."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(most_processes(count), mp_context=spawn, initializer=initializer) as pool:
        try:
            yield pool
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """As `ordered_map`, on threads or processes that the caller keeps."""
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class KeptBytes:
    """A cache of at most so many bytes; what has been unused longest is dropped first."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        """What is kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, data: bytes) -> None:
        """Store a value under its key."""
        with self._lock:
            self._size += len(data) - len(self._kept.get(key, b""))
            self._kept[key] = data
            while self._size > self._most:
                self._size -= len(self._kept.popitem(last=False)[1])
