"""``llmsla``: check, plan, init, report, compare, history, export, doctor.

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
    list[Path],
    typer.Argument(
        help="timelines.jsonl, a run folder, a report folder, or another tool's result file."
    ),
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
    from ..gate import check_trace
    from ..policy import load_policy
    from . import plan as planning

    loaded = load_policy(sla, to_run=measure)
    check_trace(loaded)
    speeds = None
    if measure:
        from .measure import measure as ask

        speeds = ask(loaded, lambda text: complain(text))
    say(planning.describe(planning.cost(loaded, speeds)))
    return 0


@app.command()
def capacity(
    sla: Annotated[Path, typer.Argument(help="The policy.")],
    most: Annotated[
        float, typer.Option("--max", help="Highest level to try: requests in flight, or a rate.")
    ] = 64,
    least: Annotated[float, typer.Option("--min", help="Lowest level to try.")] = 1,
    rate: Annotated[
        bool, typer.Option("--rate", help="Search requests per second (open loop) instead.")
    ] = False,
    at_least: Annotated[
        float | None, typer.Option("--at-least", help="Fail unless the capacity is so high.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Report folder; default: the policy's.")
    ] = None,
) -> int:
    """Find the highest load at which every limit of a policy still passes."""
    from ..policy import load_policy
    from . import capacity as searching

    done = searching.find(
        load_policy(sla, to_run=True),
        lowest=least,
        highest=most,
        rate=rate,
        progress=searching.progress_of(complain),
        at_least=at_least,
        report_dir=report,
    )
    say(searching.describe(done))
    complain(f"written: {done.folder}")
    return searching.exit_code(done)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path(),
    server: Annotated[
        str | None, typer.Option("--server", help="Gate the server at this address.", metavar="URL")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="How it is asked: openai (default), tgi, llamacpp or mii."),
    ] = None,
) -> int:
    """Write a starter sla.yaml and a test; nothing is overwritten."""
    from .init import has_settings
    from .init import init as write

    settled = has_settings(folder)
    written = write(folder, server, kind)
    for path in written:
        say(f"wrote {path}")
    policy = shlex.quote(str(next(path for path in written if path.suffix == ".yaml")))
    if settled:
        say(f"add to the pytest settings of {folder}, for @sla tests: sla_policy = sla.yaml")
    say(f"next: llmsla plan {policy}, then pytest {policy}")
    return 0


@app.command()
def report(
    paths: _Paths,
    csv: Annotated[
        bool, typer.Option("--csv", help="Also write requests.csv, one row a request.")
    ] = False,
    csv_arrivals: Annotated[
        bool, typer.Option("--csv-arrivals", help="The same, and arrivals.csv, one row an arrival.")
    ] = False,
    code_quality: Annotated[
        Path | None,
        typer.Option("--code-quality", help="Also write GitLab's Code Quality file."),
    ] = None,
) -> int:
    """Render stored reports again: the table here, report.md and report.html in the run folder.

    Several runs are also shown side by side, in services.md and services.html of this folder.
    """
    from . import check as checking
    from . import report as rendering

    loaded = [(path, *rendering.load(path)) for path in paths]
    for _, found, run_dir in loaded:
        show_report(found)
        written = rendering.write_again(found, run_dir)
        if csv or csv_arrivals:
            written += rendering.write_csv(run_dir, arrivals=csv_arrivals)
        for file in written:
            complain(f"written: {file}")
    if code_quality is not None:
        rendering.write_code_quality([found for _, found, _ in loaded], code_quality)
        complain(f"written: {code_quality}")
    if len(loaded) > 1:
        reports = [(str(path), found) for path, found, _ in loaded]
        say(rendering.headline(reports))
        for file in rendering.write_services(reports, Path()):
            complain(f"written: {file}")
    if lacking := rendering.lacking():
        complain(f"note: {lacking}")
    return _worst([checking.exit_code(found) for _, found, _ in loaded])


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="Stored runs: a folder of runs, or one run.")],
    new: Annotated[Path, typer.Argument(help="The run to compare with them.")],
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", help="How much slower is allowed: 0.10 for 10 %."),
    ] = None,
    min_runs: Annotated[
        int | None, typer.Option("--min-runs", help="Fewest stored runs that decide (3).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON and nothing else.")
    ] = False,
) -> int:
    """Say whether a run is slower than stored ones of the same machine and model."""
    from . import compare as comparing

    found = comparing.compare(base, new, tolerance=tolerance, min_runs=min_runs)
    if as_json:
        show_json(found.to_json())
    else:
        say(comparing.describe(found))
    return found.exit_code


@app.command()
def history(
    path: Annotated[Path, typer.Argument(help="A folder of runs, such as .llmsla.")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="One limit by its id, such as short/ttft_p95.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw --metric into this .svg or .png file.")
    ] = None,
) -> int:
    """Show what stored runs observed, oldest first."""
    from . import history as telling

    if plot is not None and metric is None:
        raise UsageError("--plot draws one metric: name it with --metric")
    runs, left_out = telling.read(path)
    say(telling.describe(runs, left_out, metric))
    if plot is not None and metric is not None:
        complain(f"written: {telling.plot(runs, metric, plot)}")
    return 0


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="A run folder, a report folder, or its log.")],
    kind: Annotated[
        str, typer.Option("--as", help="openmetrics, or otlp (JSON; extra [otel]).")
    ] = "openmetrics",
    to: Annotated[
        Path | None, typer.Option("--to", help="Write this file instead of standard output.")
    ] = None,
    otlp: Annotated[
        str | None, typer.Option("--otlp", help="Send to this OTLP/HTTP collector.", metavar="URL")
    ] = None,
) -> int:
    """Give a run's figures to a dashboard: OpenMetrics text or OpenTelemetry metrics."""
    from . import export as exporting

    if otlp is not None:
        if to is not None:
            raise UsageError("--otlp sends and --to writes: give one of them")
        exporting.send(path, otlp)
        complain(f"sent to {otlp}")
        return 0
    text = exporting.export(path, kind)
    if to is None:
        say(text.rstrip("\n"))
    else:
        complain(f"written: {exporting.write(text, to)}")
    return 0


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
