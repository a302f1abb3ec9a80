"""Entry point: the table of commands, and how errors reach the user."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.foreign import described
from metaphase.cli.console import complain, tell, warn
from metaphase.cli.detect import convert, data, demo, detect, score
from metaphase.cli.evaluate import evaluate, observers
from metaphase.cli.lab import lab
from metaphase.cli.options import Command
from metaphase.cli.phh3 import phh3, reference, register
from metaphase.cli.run import configs, experiments, paper, qupath, run
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


class Paneled(Command):
    """A command over cohorts, whose help shows what most people need first."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters of the command, sorted into the panels of its help."""
        params = super().get_params(ctx)
        for param in params:
            param.rich_help_panel = PANELS.get(param.name)
        return params


PANELS = {
    **dict.fromkeys(("formats", "probability_map"), "Exports"),
    **dict.fromkeys(("paper", "other_settings"), "Settings other than the model's, and the paper's"),
    **dict.fromkeys(("device", "workers", "allow_failed", "log_json"), "Machines"),
}
"""Where help shows the options of `detect`; all others come first."""
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
    detect,
    demo,
    view,
    info,
    bench,
    tissue,
    register,
    simulate,
    score,
    convert,
    qupath,
    train,
    run,
    experiments,
    paper,
)
GROUPS = {
    "review": review,
    "archive": archive,
    "lab": lab,
    "phh3": phh3,
    "label": label,
    "calibrate": calibrate,
    "reference": reference,
    "stain": stain,
    "data": data,
    "evaluate": evaluate,
    "observers": observers,
    "model": model,
    "configs": configs,
}
for command in COMMANDS:
    app.command(cls=Paneled if command is detect else Command)(command)
for name, group in GROUPS.items():
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
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENAMETOOLONG,
)
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
    """Prints warnings of the package's loggers on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record as a warning."""
        warn(record.getMessage())


def _give_up(error: Exception) -> NoReturn:
    """Report an unforeseen error in one line, with the file that has its traceback, and exit."""
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
