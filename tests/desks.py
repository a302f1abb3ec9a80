"""A desk with Windows, acted out on Linux: what POSIX alone has is hidden, and open files are in the way.

`sit_down` changes the process for good: call it in one of your own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import pkgutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIDDEN_MODULES = ("resource", "fcntl", "pwd", "grp", "termios")
HIDDEN_NAMES = (
    "O_NONBLOCK", "chown", "fchmod", "fork", "geteuid", "getuid", "getgid", "killpg", "memfd_create",
    "mkfifo", "nice", "posix_fallocate", "pread", "sched_getaffinity", "sched_setaffinity", "setsid", "wait4",
)  # fmt: skip
NEED_A_GPU = ("cell_gpu", "cell_kernels", "gpu", "kernels", "launching")


class _Hook:
    """Refuses to import what Windows does not have."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in HIDDEN_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_modules() -> None:
    for name in HIDDEN_MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Hook())  # type: ignore[arg-type]


def import_everything() -> int:
    """Import all modules of ours."""
    import metaphase

    names = [one.name for one in pkgutil.walk_packages(metaphase.__path__, "metaphase.")]
    names = [name for name in names if not name.endswith(("__main__", *NEED_A_GPU))]
    for name in names:
        importlib.import_module(name)
    return len(names)


class _Kernel:
    """Of Windows' kernel what leases ask for."""

    OpenProcess: Any = None

    def __init__(self, *_: object, **__: object) -> None:
        class Opens:
            def __call__(self, _rights: int, _inherit: bool, process: ctypes.c_ulong) -> int:
                return process.value if Path(f"/proc/{process.value}").exists() else 0

        self.OpenProcess = Opens()

    def GetExitCodeProcess(self, _handle: object, code: Any) -> None:
        code._obj.value = 259

    def GetProcessTimes(self, handle: ctypes.c_void_p, started: Any, *_: object) -> None:
        fields = Path(f"/proc/{handle.value}/stat").read_text().rpartition(")")[2].split()
        started._obj.value = int(fields[19])

    def CloseHandle(self, _handle: object) -> None:
        pass


def sit_down() -> None:
    """From here on, modules of ours see Windows."""
    os.kill = _killed  # type: ignore[assignment]
    _refuse_open_files()
    _fold_case()
    hide_modules()
    for name in HIDDEN_NAMES:
        if hasattr(os, name):
            delattr(os, name)
    ctypes.WinDLL = _Kernel  # type: ignore[attr-defined]
    ctypes.get_last_error = lambda: 87  # type: ignore[attr-defined]
    windows = types.SimpleNamespace(**{name: getattr(sys, name) for name in dir(sys)} | {"platform": "win32"})
    for name, module in list(sys.modules.items()):
        if name.startswith("metaphase.") and getattr(module, "sys", None) is sys:
            module.sys = windows  # type: ignore[attr-defined]


def _killed(process: int, _signal: int) -> None:
    os.write(2, f"os.kill({process}) would have ended it\n".encode())
    os._exit(99)


def _open_files() -> set[str]:
    """Files that this process has open, or mapped."""
    found = set[str]()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(one.readlink()))
    maps = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return found | {parts[5] for parts in maps if len(parts) == 6}


def _refuse_open_files() -> None:
    """Nobody renames or removes what is open, or a folder of it; what is only read is not synced."""
    import fcntl

    flags, get_flags, access = fcntl.fcntl, fcntl.F_GETFL, os.O_ACCMODE
    for name in ("replace", "rename", "unlink", "remove", "rmdir"):
        real: Callable[..., None] = getattr(os, name)

        def refusing(path: Any, *more: Any, real: Callable[..., None] = real, **options: Any) -> None:
            inside = options.get("dir_fd")
            base = "" if inside is None else str(Path(f"/proc/self/fd/{inside}").readlink())
            for one in (path, *(more if real.__name__ in ("replace", "rename") else ())):
                there = os.path.realpath(Path(base, os.fsdecode(one)))
                folder = inside is None and Path(there).is_dir()
                held = [file for file in _open_files() if Path(file).is_file() or folder]
                in_use = any(file == there or (folder and file.startswith(f"{there}/")) for file in held)
                if in_use and real.__name__ != "rmdir":
                    raise PermissionError(errno.EACCES, "is open", os.fsdecode(one))
            real(path, *more, **options)

        setattr(os, name, refusing)
    sync = os.fsync

    def synced(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        if flags(number, get_flags) & access == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        sync(number)

    os.fsync = synced


def _fold_case() -> None:
    """A folder of the same name but for case is the same folder."""
    real = os.mkdir

    def folded(path: Any, *more: Any, **options: Any) -> None:
        target = Path(os.fsdecode(path))
        alike = target.parent.iterdir() if target.parent.is_dir() else ()
        if any(one.name.casefold() == target.name.casefold() for one in alike):
            raise FileExistsError(errno.EEXIST, "exists", str(target))
        real(path, *more, **options)

    os.mkdir = folded
