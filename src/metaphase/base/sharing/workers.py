"""Workers of a Dask cluster that do the items of a batch, one item at a time each.

They are started on this machine (a number of them), found at a scheduler that runs already (its address), or
asked of a queueing system (a TOML file; docs/cohorts.md). The work itself is given to the workers once,
with all that it holds; of an item only what names it travels. A worker that dies is replaced, and its item
goes on elsewhere from what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal
from uuid import uuid4

from pydantic import PositiveInt

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.foreign import described
from metaphase.base.parallel import available_cores
from metaphase.base.settings import read_settings, settings
from metaphase.base.sharing.batch import Attempt, Failure, Progress, Workers
from metaphase.version import __version__

EXTRA = "pip install 'metaphase[cluster]'"
DEATHS = 3
"""Workers that an item may take with it before it is given up."""
REPORT_EVERY_S = 0.5
GREETING_S = 20
"""A scheduler that has not greeted by then is none."""
SILENT = logging.CRITICAL
FRUGAL = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
}
"""Dask watches itself for tasks of milliseconds; ours take minutes, and cores are for them. And it has the
allocator give memory back at once, which costs an engine that takes it again for each tile a fifth of its
time."""
KEEP_MEMORY = """DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON="{'MALLOC_TRIM_THRESHOLD_': None}\""""
"""The last of these for workers that are started elsewhere."""
GPU = "GPU"
"""What workers with a GPU declare (`dask worker --resources GPU=1`); where one does, items go to those."""
KINDS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "lsf": "LSFCluster",
    "sge": "SGECluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
    "htcondor": "HTCondorCluster",
}


@settings
class ClusterConfig:
    """Workers asked of a queueing system."""

    kind: Literal["slurm", "pbs", "lsf", "sge", "oar", "moab", "htcondor"] = "slurm"
    jobs: PositiveInt = 1
    """Most workers at once, one a job."""
    least_jobs: int | None = None
    """Jobs that are kept while there is little to do; by default as many as `jobs`."""
    gpu: bool = False
    """Whether each job has a GPU (ask the queueing system for it in the options)."""
    options: dict[str, Any] = field(default_factory=dict)
    """As dask-jobqueue takes them: queue, account, cores, memory, walltime, job_extra_directives, ..."""

    def __post_init__(self) -> None:
        if not 1 <= (self.least_jobs or 1) <= self.jobs:
            raise UsageError(
                f"{self.least_jobs or 1} to {self.jobs} jobs",
                next_step="give 1 or more, and at least least_jobs",
            )


class StoppedError(BaseException):
    """Raised in an item whose client is gone or has stopped; what is on the disk stays."""


# ---- on the client's side ----


@dataclass
class _Task:
    """An item that is handed out."""

    attempt: Attempt[Any]
    begin: Callable[[], Progress]
    """Called where a worker really begins."""
    future: Any
    progress: Progress | None = None
    """What `begin` gave."""


class DaskWorkers(Workers):
    """Workers that a client can reach."""

    def __init__(self, client: Any, cores: dict[Any, set[int]] | None = None, at_most: int = 1) -> None:
        """`cores` by workers' names; `at_most` workers may come where there is enough to do."""
        self._client, self._cores, self._at_most = client, cores or {}, at_most
        self._said: SimpleQueue[tuple[str, str, Any]] = SimpleQueue()
        self._tasks: dict[str, _Task] = {}
        self._topic, self._tries = "", 0
        self._doubtful: deque[_Task] = deque()
        """Items in whose time workers died: each is tried once more, alone, when all others are done."""
        self._alone: set[str] = set()

    @property
    def size(self) -> int:
        """Number of workers at this moment."""
        return len(self._workers())

    @contextmanager
    def at(self, work: Callable[..., Any]) -> Iterator[None]:
        """Give the work to all workers, those that come later included, for the time inside."""
        for where, theirs in self._client.run(_version).items():
            if theirs != __version__:  # it would give other results, or none
                raise UsageError(
                    f"the worker {where} has metaphase {theirs or 'not installed'}, here it is {__version__}",
                    next_step="install the same version for all workers, and start them again",
                )
        self._topic = f"metaphase-{uuid4().hex}"
        plugin = _worker_plugin(self._topic, work, self._cores)
        self._client.register_plugin(plugin)
        self._client.subscribe_topic(self._topic, lambda event: self._said.put(event[1]))
        try:
            yield
        finally:
            self._client.cancel([task.future for task in self._tasks.values()])
            for kept in (self._tasks, self._doubtful, self._alone):
                kept.clear()
            with suppress(Exception):  # a cluster that is gone needs no tidying
                self._client.unsubscribe_topic(self._topic)
                self._client.unregister_worker_plugin(self._topic)

    @property
    def has_room(self) -> bool:
        """Whether a worker has nothing to do: none has a second item, which would be blamed for the first."""
        return len(self._tasks) < max(self._at_most, self.size)

    @property
    def is_busy(self) -> bool:
        """Whether anything is handed out."""
        return bool(self._tasks or self._doubtful)

    def hand_out(self, attempt: Attempt[Any], begin: Callable[[], Progress]) -> None:
        """Have a worker try an item."""
        self._tries += 1
        key = f"{self._topic}-{self._tries}"
        future = self._client.submit(
            _try, self._topic, key, attempt, key=key, pure=False, resources=self._resources(), retries=0
        )
        self._tasks[attempt.name] = _Task(attempt, begin, future)
        future.add_done_callback(lambda _done: self._said.put(("done", attempt.name, key)))

    def next_done(self, timeout_s: float | None) -> tuple[str, Any] | None:
        """The next item that was tried, and what came of it; None where nothing came in time."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._doubtful and not self._tasks:
                task = self._doubtful.popleft()
                self._alone.add(task.attempt.name)
                self.hand_out(task.attempt, task.begin)
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                what, name, value = self._said.get(timeout=left)
            except Empty:
                return None
            asked = self._tasks.get(name)
            if asked is None or (what == "done" and value != asked.future.key):
                continue
            if what != "done":
                asked.progress = asked.progress or asked.begin()
                if what == "progress":
                    asked.progress(*value)
            elif asked.future.status in ("lost", "pending"):  # with the worker that held it
                self.hand_out(asked.attempt, asked.begin)
            else:
                del self._tasks[name]
                outcome = self._outcome(name, asked.future)
                if outcome is not None:
                    return name, outcome
                self._doubtful.append(asked)

    def _outcome(self, name: str, future: Any) -> Any:
        """What came of an item; None where workers died, be it of this one or of another."""
        from distributed import KilledWorker

        if future.cancelled():
            raise MetaphaseError(
                "the cluster's scheduler is gone",
                next_step="start it again, then run the same command: finished slides are kept",
            )
        try:
            return future.result()
        except KilledWorker:
            if name not in self._alone:
                return None
            message = (
                f"{DEATHS + 1} workers died during this slide, most likely for lack of memory. "
                "Give workers more memory, or run this slide alone."
            )
            return Failure(name, message, foreseen=True)
        except Exception as error:  # noqa: BLE001 -- one item must not stop a cohort
            return Failure.of(name, error)

    def _workers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return found

    def _resources(self) -> dict[str, int] | None:
        has_gpu = any(GPU in worker.get("resources", {}) for worker in self._workers().values())
        return {GPU: 1} if has_gpu else None


# ---- on a worker's side ----


def _version() -> str:
    try:
        return version("metaphase")
    except PackageNotFoundError:
        return ""


def _worker_plugin(topic: str, work: Callable[..., Any], cores: dict[Any, set[int]]) -> Any:
    from distributed import WorkerPlugin

    class Work(WorkerPlugin):
        """The work, at every worker."""

        name = topic

        def __init__(self) -> None:
            self.work, self.cores, self.folder = work, cores, str(Path.cwd())

        def setup(self, worker: Any) -> None:
            """Begin at a worker: in the client's folder, so that relative paths mean the same."""
            self.alone = threading.Lock()
            logging.getLogger("tifffile").addHandler(logging.NullHandler())  # our errors say it, in one line
            self.mine = self.cores.get(worker.name)
            with suppress(OSError):
                os.chdir(self.folder)

    return Work()


def _try(topic: str, key: str, attempt: Attempt[Any]) -> Any:
    """An item at a worker; one that has several threads still does one after the other."""
    from distributed import get_worker

    worker = get_worker()
    plugin: Any = worker.plugins[topic]
    if plugin.mine and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plugin.mine)
    reported_s = 0.0

    def progress(done: float, total: float) -> None:
        nonlocal reported_s
        task = worker.state.tasks.get(key)
        if task is None or task.state in ("cancelled", "released", "forgotten"):
            raise StoppedError
        if time.monotonic() - reported_s > REPORT_EVERY_S:
            reported_s = time.monotonic()
            worker.log_event(topic, ("progress", attempt.name, (done, total)))

    def begin() -> Progress:
        worker.log_event(topic, ("started", attempt.name, None))
        return progress

    with plugin.alone:
        return attempt.run(plugin.work, begin)


# ---- where workers come from ----


@contextmanager
def dask_workers(workers: str, *, gpus: int = 0) -> Iterator[DaskWorkers | None]:
    """The workers that are asked for; none where nothing is (or 0), and this process does the work."""
    if not workers.strip("0"):
        yield None
        return
    here = int(workers) if workers.isdecimal() else 1
    try:
        import dask
        import distributed
    except ImportError as error:
        raise UsageError("workers need dask.distributed", next_step=EXTRA) from error
    share = max(1, available_cores() // here)
    quiet = FRUGAL | {
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": share,
        "distributed.logging.distributed": "critical",
        "distributed.comm.timeouts.connect": f"{GREETING_S}s",
    }
    with dask.config.set(quiet):
        cores, at_most = None, here
        with warnings.catch_warnings(action="ignore"):  # that the port of a dashboard is taken
            if workers.isdecimal():
                made, cores = _local(here, share, gpus)
            elif workers.endswith(".toml"):
                config = read_settings(ClusterConfig, Path(workers))
                made, at_most = _queued(config), config.jobs
            else:
                made = nullcontext(workers)
        with made as where, _client(distributed, where) as client:
            yield DaskWorkers(client, cores, at_most)


def _client(distributed: Any, where: Any) -> Any:
    async def greet() -> None:
        """Exchange greetings, for which a client would wait for ever where a web server listens."""
        keys = distributed.Security().get_connection_args("client")
        (await asyncio.wait_for(distributed.comm.connect(where, **keys), GREETING_S)).abort()

    try:
        if isinstance(where, str):
            asyncio.run(greet())
        return distributed.Client(where, set_as_default=False)
    except Exception as error:  # whatever a server that is none may say
        foreseen = isinstance(error, OSError | TypeError | ValueError) and str(error)
        why = described(error) if foreseen else "another kind of server answers"
        raise UsageError(
            f"no Dask scheduler answers at {where} ({why})",
            next_step="give the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786, "
            "a number of processes, or a .toml file",
        ) from error


def _local(workers: int, share: int, gpus: int) -> tuple[Any, dict[Any, set[int]]]:
    """Workers of this machine, with a share of the cores each, and of the GPUs where there are any."""
    import distributed
    from distributed.system import MEMORY_LIMIT

    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores = {
        number: {available[(number * share + more) % len(available)] for more in range(share)}
        for number in range(workers if available else 0)
    }
    specs = {}
    for number in range(workers):
        options: dict[str, Any] = {"nthreads": 1, "memory_limit": MEMORY_LIMIT // workers, "dashboard": False}
        options["silence_logs"] = SILENT
        if gpus:
            options |= {"env": {"CUDA_VISIBLE_DEVICES": str(number % gpus)}, "resources": {GPU: 1}}
        specs[number] = {"cls": distributed.Nanny, "options": options}
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "dashboard_address": "127.0.0.1:0", "host": "127.0.0.1", "port": 0},
    }
    made: Any = distributed.SpecCluster
    return made(workers=specs, scheduler=scheduler, silence_logs=SILENT), cores


def _queued(config: ClusterConfig) -> Any:
    """Workers that a queueing system starts."""
    try:
        import dask_jobqueue
    except ImportError as error:
        raise UsageError("a queueing system needs dask-jobqueue", next_step=EXTRA) from error

    options = {"cores": 1, "memory": "4GB", **config.options, "processes": 1}
    extra = ["--nthreads", "1", *(("--resources", f"{GPU}=1") if config.gpu else ())]
    options["worker_extra_args"] = [*options.get("worker_extra_args", ()), *extra]
    exports = [f"export OMP_NUM_THREADS={options['cores']}", f"export {KEEP_MEMORY}"]
    options["job_script_prologue"] = [*exports, *options.get("job_script_prologue", ())]
    chosen = getattr(dask_jobqueue, KINDS[config.kind])
    commands = (chosen.job_cls.submit_command, chosen.job_cls.cancel_command)
    programs = [command.split()[0] for command in commands if command]
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:  # jobs that nobody can submit would be waited for for ever
        raise UsageError(
            f"a cluster of kind {config.kind!r} needs the command {missing[0]}, which is not on this machine",
            next_step="run this where jobs are submitted (a login node), or use --workers",
        )
    try:
        cluster = chosen(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the options of the cluster make no sense ({error})",
            next_step=f"see dask-jobqueue's {KINDS[config.kind]}",
        ) from error
    if config.least_jobs is None:
        cluster.scale(jobs=config.jobs)
    else:
        cluster.adapt(minimum_jobs=config.least_jobs, maximum_jobs=config.jobs)
    return cluster
