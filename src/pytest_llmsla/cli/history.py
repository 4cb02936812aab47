"""``llmsla history``: what stored runs observed, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..baselines import stored
from ..baselines.history import Past, Point, past
from ..errors import UsageError
from ..reports.escape import visible
from .tables import table

_PICTURES = (".svg", ".png")
_SHOWN_DIFFERENCES = 3


def read(path: Path) -> tuple[list[Past], list[tuple[Path, str]]]:
    """The stored runs at ``path``, oldest first, and those that cannot be used.

    Raises:
        UsageError: there is no run that can be used.
    """
    runs, left_out = stored(path)
    if not runs:
        told = "; ".join(f"{run}: {why}" for run, why in left_out)
        raise UsageError(f"{path}: holds no run that is whole ({told})")
    return past(runs), left_out


def describe(runs: Sequence[Past], left_out: Sequence[tuple[Path, str]], metric: str | None) -> str:
    """One table a service, one row a run; below it what changed, and what was left out.

    Raises:
        UsageError: no run has ``metric``.
    """
    if metric is not None:
        _known(runs, metric)
    services = list(dict.fromkeys(r.service for r in runs))
    parts = []
    for service in services:
        mine = [r for r in runs if r.service == service]
        title = [f"service {visible(service)}"] if len(services) > 1 else []
        parts.append("\n".join([*title, *_table(mine, metric)]))
    lines = ["\n\n".join(parts)]
    lines += [visible(f"not used: {run}: {why}") for run, why in left_out]
    return "\n".join(lines)


def _table(runs: Sequence[Past], metric: str | None) -> list[str]:
    names = [metric] if metric is not None else _names(runs)
    head = ("run", "verdict", *map(visible, names))
    rows = [
        (visible(r.started or r.path), r.verdict.upper(), *(_cell(r.points.get(n)) for n in names))
        for r in runs
    ]
    lines = [table(head, rows)]
    for r in runs:
        if r.changed:
            shown = "; ".join(r.changed[:_SHOWN_DIFFERENCES])
            more = len(r.changed) - _SHOWN_DIFFERENCES
            rest = f"; and {more} more" if more > 0 else ""
            lines.append(visible(f"changed before {r.started or r.path}: {shown}{rest}"))
    return lines


def _names(runs: Sequence[Past]) -> list[str]:
    found = dict.fromkeys(n for r in runs for n, p in r.points.items() if p.unit != "share")
    return list(found)


def _known(runs: Sequence[Past], metric: str) -> None:
    if any(metric in r.points for r in runs):
        return
    names = dict.fromkeys(n for r in runs for n in r.points)
    raise UsageError(f"--metric {metric!r}: no run has it. Valid: {', '.join(names)}")


def _cell(point: Point | None) -> str:
    if point is None:
        return "–"
    figure = "–" if point.observed is None else f"{point.observed:.4g} {point.unit}"
    return figure if point.verdict == "pass" else f"{figure} {point.verdict}"


def plot(runs: Sequence[Past], metric: str, to: Path) -> Path:
    """Draw ``metric`` over the runs into an SVG or PNG file; returns its path.

    Raises:
        UsageError: no run has a figure of it, runs of several services have, another kind of
            file is asked for, or matplotlib is not installed.
    """
    _known(runs, metric)
    if to.suffix.lower() not in _PICTURES:
        raise UsageError(f"--plot {to}: valid: a name that ends in {' or '.join(_PICTURES)}")
    shown = [(r, r.points[metric]) for r in runs if metric in r.points]
    if all(p.observed is None for _, p in shown):
        raise UsageError(f"--plot: no run has a figure of {metric}")
    services = list(dict.fromkeys(r.service for r, _ in shown))
    if len(services) > 1:
        raise UsageError(
            f"--plot: the folder holds runs of {len(services)} services ({', '.join(services)}), "
            "and one line through them says nothing of any. Give a folder of one service's runs"
        )
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--plot: needs matplotlib: pip install 'pytest-llmsla[html]'. The table needs nothing"
        ) from None
    with mpl.rc_context({"svg.hashsalt": "llmsla", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        _draw(axes, shown, metric)
        to.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(to, metadata=_about(to, metric), dpi=150)
    return to


def _about(to: Path, metric: str) -> dict[str, str | None]:
    if to.suffix.lower() == ".svg":
        return {"Title": f"{metric} over stored runs", "Date": None}
    return {"Title": f"{metric} over stored runs"}


def _draw(axes: object, shown: Sequence[tuple[Past, Point]], metric: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    at = range(len(shown))
    values = [float("nan") if p.observed is None else p.observed for _, p in shown]
    axes.plot(at, values, color="#35618e", linewidth=1.2, zorder=1)
    for good, marker, label in ((True, "o", "PASS"), (False, "X", "not PASS")):
        picked = [i for i in at if (shown[i][1].verdict == "pass") is good]
        axes.scatter(
            picked,
            [values[i] for i in picked],
            marker=marker,
            s=44,
            color="#1d6f42" if good else "#b3261e",
            label=label if picked else None,
            zorder=2,
        )
    limits = [p.limit for _, p in shown]
    if any(limit is not None for limit in limits):
        heights = [float("nan") if limit is None else limit for limit in limits]
        axes.step(at, heights, where="mid", color="#5f5f5f", linestyle="--", label="limit")
    for i, (run, _) in enumerate(shown):
        if run.changed:
            axes.axvline(i - 0.5, color="#b0b0b0", linewidth=1, linestyle=":")
    axes.set_title(f"{metric} over stored runs", loc="left")
    axes.set_ylabel(shown[0][1].unit)
    axes.set_ylim(bottom=0)
    axes.set_xticks(list(at), [r.started[:16].replace("T", " ") or r.path for r, _ in shown])
    axes.tick_params(axis="x", rotation=45)
    axes.legend(loc="best", frameon=False)
