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
from metaphase.base.foreign import told
from metaphase.cli.bench import bench
from metaphase.cli.console import complain, tell, warn
from metaphase.cli.detect import detect
from metaphase.cli.detections import convert, data, score
from metaphase.cli.evaluate import evaluate, observers
from metaphase.cli.lab import lab
from metaphase.cli.label import calibrate, label
from metaphase.cli.phh3 import phh3
from metaphase.cli.reference import reference, register
from metaphase.cli.run import configs, experiments, qupath, run
from metaphase.cli.slides import archive, info, simulate, tissue
from metaphase.cli.stain import stain
from metaphase.cli.train import model, train
from metaphase.cli.view import review, view
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

    def get_params(self, ctx: Any) -> list[Any]:
        """Its parameters, of which help says what they take in plain words."""
        return [_plainly_shown(param) for param in super().get_params(ctx)]


def _plainly_shown(param: Any) -> Any:
    """The parameter; lists are shown as `<path>...`, flags take nothing, and formats are those there are."""
    if "of formats}" in (getattr(param, "help", None) or ""):
        from metaphase.detections import format_titles, known_formats

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


LIST = re.compile(r"<list\[(.+)\]>")
STOPPED = "Stopped. What was finished is kept: the same command goes on from there."
app = typer.Typer(
    cls=Commands,
    help="Whole-slide mitosis detection for breast histology.",
    epilog="Exit codes: 0 all fine, 1 some inputs failed, 2 wrong use, 70 a fault of the program.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(detect)
app.command()(view)
app.command()(info)
app.command()(bench)
app.command()(tissue)
app.command()(register)
app.command()(simulate)
app.command()(score)
app.command()(convert)
app.command()(qupath)
app.command()(train)
app.command()(run)
app.command()(experiments)
app.add_typer(review, name="review")
app.add_typer(archive, name="archive")
app.add_typer(lab, name="lab")
app.add_typer(phh3, name="phh3")
app.add_typer(label, name="label")
app.add_typer(calibrate, name="calibrate")
app.add_typer(reference, name="reference")
app.add_typer(stain, name="stain")
app.add_typer(data, name="data")
app.add_typer(evaluate, name="evaluate")
app.add_typer(observers, name="observers")
app.add_typer(model, name="model")
app.add_typer(configs, name="configs")


for group in (app, *(one.typer_instance for one in app.registered_groups)):
    for command in group.registered_commands if group is not None else ():
        command.cls = Command


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
            f"{error.filename or 'the disk'}: {told(error)}. Check the path, its permissions and the disk."
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
    complain(f"unforeseen {type(error).__name__}: {told(error)}.{_logged(traceback.format_exc())}")
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
