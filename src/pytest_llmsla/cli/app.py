"""``llmsla``: check, plan, init, report, doctor.

Exit codes: 0 pass, 1 fail, 2 inconclusive or conditional, 3 could not measure, 4 usage.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import LlmslaError, UsageError
from .output import complain, say, show_json, show_report

USAGE, UNMEASURED = 4, 3

# Typer carries click inside since 0.20; its usage errors all descend from this class.
_ClickError: type[Exception] = next(
    c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException"
)

app = typer.Typer(
    name="llmsla",
    help="Hold a language model to its latency SLA.",
    epilog="Exit: 0 pass, 1 fail, 2 inconclusive or conditional, 3 could not measure, 4 usage.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_Paths = Annotated[
    list[Path], typer.Argument(help="timelines.jsonl, a run folder, or a report folder.")
]
_Sla = Annotated[Path | None, typer.Option("--sla", help="The policy to judge by.")]


def _version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        say(f"pytest-llmsla {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hold a language model to its latency SLA."""


@app.command()
def check(
    paths: _Paths,
    sla: _Sla = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report.json object and nothing else.")
    ] = False,
) -> int:
    """Judge stored timelines again, by the code that judged them live."""
    from . import check as checking

    report, remarks = checking.check(paths, sla)
    for remark in remarks:
        complain(f"note: {remark}")
    if as_json:
        show_json(report)
    else:
        show_report(report)
    return checking.exit_code(report)


@app.command()
def plan(
    sla: Annotated[Path, typer.Argument(help="The policy.")],
    measure: Annotated[
        bool, typer.Option("--measure", help="Load the model and ask a few requests a bucket.")
    ] = False,
) -> int:
    """Say what a gate will cost: requests, tokens, minutes, and what decides."""
    from ..policy import load_policy
    from . import plan as planning

    loaded = load_policy(sla, to_run=measure)
    speeds = None
    if measure:
        from .measure import measure as ask

        speeds = ask(loaded, lambda text: complain(text))
    say(planning.describe(planning.cost(loaded, speeds)))
    return 0


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path(),
) -> int:
    """Write a starter sla.yaml and a test; nothing is overwritten."""
    from .init import init as write

    written = write(folder)
    for path in written:
        say(f"wrote {path}")
    policy = shlex.quote(str(next(path for path in written if path.suffix == ".yaml")))
    say(f"next: llmsla plan {policy}, then pytest {policy}")
    return 0


@app.command()
def report(paths: _Paths) -> int:
    """Render stored reports again: the table here, report.md in the run folder."""
    from . import check as checking
    from . import report as rendering

    codes = []
    for path in paths:
        found, run_dir = rendering.load(path)
        show_report(found)
        complain(f"written: {rendering.write_again(found, run_dir)}")
        codes.append(checking.exit_code(found))
    return _worst(codes)


@app.command()
def doctor() -> int:
    """Say what this machine can gate, and what to install for the rest."""
    from . import doctor as examining

    facts, checks = examining.examine()
    say(examining.describe(facts, checks))
    return examining.exit_code(checks)


def _worst(codes: Sequence[int]) -> int:
    """The exit code of several reports: fail before error before undecided before pass."""
    return next(code for code in (1, UNMEASURED, 2, 0) if code in codes)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; nothing it can raise comes out.

    Args:
        argv: arguments without the program's name; None takes the process's own.
    """
    try:
        result: Any = app(
            args=None if argv is None else list(argv), prog_name="llmsla", standalone_mode=False
        )
    except _ClickError as e:
        return _usage(e)
    except UsageError as e:
        complain(str(e))
        return USAGE
    except LlmslaError as e:
        complain(str(e))
        return UNMEASURED
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return UNMEASURED
    except Exception as e:
        return _unexpected(e)
    # Every command returns its code; anything else is a bug, and a bug is no PASS.
    return result if isinstance(result, int) else UNMEASURED


def _usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "llmsla")
    shown = getattr(error, "format_message", lambda: str(error))()
    if shown.startswith("Usage:"):  # no arguments: the help itself
        say(shown)
    else:
        complain(f"{shown} See: {command} --help")
    return USAGE


def _unexpected(error: Exception) -> int:
    if os.environ.get("LLMSLA_DEBUG"):
        complain("".join(traceback.format_exception(error)).rstrip())
    else:
        text = " ".join(str(error).split())
        complain(f"{type(error).__name__}: {text} (LLMSLA_DEBUG=1 shows the traceback)")
    return UNMEASURED


def main() -> None:
    """Entry point of ``llmsla``."""
    sys.exit(run())
