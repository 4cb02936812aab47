"""A limit that holds with fewer requests in flight and breaks with more: they share something."""

from __future__ import annotations

from ..finding import Finding


def explain(broken: Finding, held: Finding) -> str:
    """Why ``broken`` is the load's doing: ``held`` is the same limit at a lower level."""
    return (
        f"holds with {_in_flight(held)} ({_figure(held)}) and breaks with {_in_flight(broken)} "
        f"({_figure(broken)}): what requests in flight share (places, batches, the host) is "
        "likelier than what one of them needs → take fewer in flight on each replica, or look at "
        "what this level lost of its rate (TGS)"
    )


def _in_flight(f: Finding) -> str:
    return f"{f.concurrency} in flight"


def _figure(f: Finding) -> str:
    value = "?" if f.observed is None else f"{f.observed:.1f} {f.unit}"
    return value if f.percentile is None else f"P{f.percentile:g} {value}"
