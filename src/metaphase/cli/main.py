"""Entry point: the table of commands, and how errors reach the user."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import math
import os
import re
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.foreign import described
from metaphase.cli.console import complain, tell, warn
from metaphase.cli.detect import convert, data, detect, score
from metaphase.cli.evaluate import evaluate, observers
from metaphase.cli.lab import lab
from metaphase.cli.phh3 import phh3, reference, register
from metaphase.cli.run import configs, experiments, qupath, run
from metaphase.cli.slides import archive, info, simulate, stain, tissue
from metaphase.cli.train import bench, model, train
from metaphase.cli.view import calibrate, label, review, view
from metaphase.version import __version__


class Commands(TyperGroup):
    """All commands; stopped by Ctrl-C or SIGTERM, each says that nothing is lost."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            tell(STOPPED)
            raise SystemExit(INTERRUPTED) from None
        except SystemExit as end:
            if end.code == TERMINATED:
                tell(STOPPED)
            raise


class Command(TyperCommand):
    """A command whose numbers are finite, whichever option they are for."""

    def invoke(self, ctx: Any) -> Any:
        """Check what was given, then run."""
        for name, given in ctx.params.items():
            for value in given if isinstance(given, list | tuple) else (given,):
                if isinstance(value, float) and not math.isfinite(value):
                    raise UsageError(
                        f"--{name.replace('_', '-')} is {value}", next_step="give a finite number"
                    )
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options as they are called now; what an earlier version called them is taken, with a hint."""
        called = ctx.command_path
        former = next((FORMER[name] for name in FORMER if called.endswith(f" {name}")), {})
        now = [former.get(word, word) for word in args]
        if "" in former and (rest := self.make_parser(ctx).parse_args(list(now))[1]):
            now.remove(rest[0])
            now += [former[""], rest[0]]
        if now != args:
            tell(f"hint: write it as {called} {' '.join(now)}; the old form will be removed")
        return super().parse_args(ctx, now)

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, of which help says what they take in plain words, what most people need first."""
        params = [_plainly_shown(param) for param in super().get_params(ctx)]
        if any(param.name == "shard" for param in params):
            for param in params:
                param.rich_help_panel = PANELS.get(param.name)
        return params


def _plainly_shown(param: Any) -> Any:
    """The parameter; lists are shown as `<path>...`, flags take nothing, and formats are those there are."""
    if "of formats}" in (getattr(param, "help", None) or ""):
        from metaphase.detections.files import format_titles, known_formats

        names = {"{titles of formats}": format_titles(), "{names of formats}": ", ".join(known_formats())}
        for word, said in names.items():
            param.help = param.help.replace(word, said)
    if hasattr(param, "display_type_rich") and "display_type_rich" not in vars(param):
        shown = param.display_type_rich

        def plain(ctx: Any) -> str:
            kind = str(shown(ctx=ctx) or "").replace("<bool>", "")
            return LIST.sub(lambda found: f"<{found[1].lower()}>...", kind)

        param.display_type_rich = plain
    return param


_WORKERS = {"--scheduler": "--workers", "--cluster": "--workers"}
_COHORT = {"": "--manifest", "-w": "-o", "--workspace": "--output"} | _WORKERS
FORMER = {
    "phh3 candidates": _COHORT,
    "phh3 classify": _COHORT,
    "phh3 sample": {"": "--manifest"},
    "detect": _WORKERS,
    "reference build": {"": "--manifest"} | _WORKERS,
    "label export": {"": "--output"},
    "simulate": {"": "--output"},
}
"""What options were called in version 0.1, by command; "" is an argument without one."""
PANELS = {
    **dict.fromkeys(("formats", "probability_map"), "Exports"),
    **dict.fromkeys(("theta1", "theta2", "suppress_um", "smooth_um", "floor", "paper", "exhaustive"),
                    "Settings other than the model's, and the paper's"),
    **dict.fromkeys(("device", "precision", "tile", "batch", "shard", "workers", "allow_failed", "log_json"),
                    "Machines"),
}  # fmt: skip
"""Where help shows the options of commands over cohorts; all others come first."""
LIST = re.compile(r"<list\[(.+)\]>")
STOPPED = "Stopped. Finished work is kept; run the same command to continue."
app = typer.Typer(
    cls=Commands,
    help="Whole-slide mitosis detection for breast histology.",
    epilog="Exit codes: 0 all fine, 1 some inputs failed, 2 wrong use, 70 a fault of the program.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    detect, view, info, bench, tissue, register, simulate, score, convert, qupath, train, run, experiments,
)  # fmt: skip
GROUPS = {
    "review": review, "archive": archive, "lab": lab, "phh3": phh3, "label": label, "calibrate": calibrate,
    "reference": reference, "stain": stain, "data": data, "evaluate": evaluate, "observers": observers,
    "model": model, "configs": configs,
}  # fmt: skip
for command in COMMANDS:
    app.command(cls=Command)(command)
for name, group in GROUPS.items():
    for registered in group.registered_commands:
        registered.cls = Command
    app.add_typer(group, name=name)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"metaphase {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Whole-slide mitosis detection for breast histology."""


LOG = "METAPHASE_LOG"
"""Environment setting: the file to which tracebacks of unforeseen errors go; by default a new one each."""
FAULT, INTERRUPTED, TERMINATED = 70, 130, 143
"""Exit codes: a fault of the program, Ctrl-C, SIGTERM."""


OF_THE_MACHINE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO,
    errno.ENAMETOOLONG,
)  # fmt: skip
"""Errors that no program can foresee everywhere, and that say all by themselves."""


def main() -> None:
    """Run the command line; an error is one line on stderr, never a traceback."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the processor to others
    logging.getLogger("tifffile").addHandler(logging.NullHandler())  # our errors say it, in one line
    logging.getLogger("metaphase").handlers = [_Warnings()]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is no text must not end a command
            stream.reconfigure(errors="backslashreplace")
    with contextlib.suppress(ValueError):  # where another thread than the main one calls
        signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except MetaphaseError as error:
        complain(str(error))
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE:
            _give_up(error)
        complain(
            f"{error.filename or 'the disk'}: {described(error)}. Check the path, permissions and the disk."
        )
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 -- the last resort
        _give_up(error)


class _Warnings(logging.Handler):
    """What is said from below, as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        warn(record.getMessage())


def _give_up(error: Exception) -> NoReturn:
    """Say in one line that nobody thought of this, and where more is."""
    complain(f"unforeseen {type(error).__name__}: {described(error)}.{_logged(traceback.format_exc())}")
    sys.exit(FAULT)


def _terminate(_number: int, _frame: object) -> None:
    raise SystemExit(TERMINATED)


def _logged(trace: str) -> str:
    """Write a traceback where it can be found, and say where that is."""
    try:
        if os.environ.get(LOG):
            path = Path(os.environ[LOG])
        else:
            handle, name = tempfile.mkstemp(prefix="metaphase-", suffix=".log")
            os.close(handle)
            path = Path(name)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
    except OSError:
        return ""
    return f" The traceback is in {path}: please report it."
