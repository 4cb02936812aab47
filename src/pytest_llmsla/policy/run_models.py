"""How a run is decided, compared and reported: ``evidence``, ``baseline``, ``report``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from .keys import COUNT, FLAG, SECONDS, TEXT, Count, Keys, Positive, Text, key


class EvidenceSettings(Keys):
    """How sure a verdict has to be."""

    preset: Literal["fast", "normal", "strict", "observed"] = key(
        "normal", "fast, normal, strict or observed", "Risk of a wrong PASS: .20, .05, .01."
    )
    max_requests: Literal["auto"] | Count = key(
        "auto", f"auto, or {COUNT}", "Budget per bucket; auto: 15/(1-q), 300 for a P95."
    )
    max_seconds: Positive = key(3600.0, SECONDS, "Budget of the whole run.")
    guard: StrictBool = key(True, FLAG, "Drifting noise costs evidence.")


class Baseline(Keys):
    """Stored runs that a run is compared with, besides its limits."""

    path: Text | None = key(
        None,
        "the path of a run folder, a folder of runs or a timelines.jsonl, or null",
        "Stored runs of the same machine and model; relative path.",
    )
    tolerance: Annotated[float, Field(strict=True, ge=0, lt=10, allow_inf_nan=False)] = key(
        0.10, "a share from 0, such as 0.10 for 10 %", "How much slower a run may be."
    )
    min_runs: Count = key(3, COUNT, "Fewest stored runs that decide anything.")


class ReportSettings(Keys):
    """What is written."""

    dir: Text = key(".llmsla", TEXT, "Report folder, relative to the working directory.")
    formats: Annotated[
        tuple[Literal["terminal", "json", "markdown", "html"], ...], Field(min_length=1)
    ] = key(
        ("terminal", "json", "markdown", "html"),
        "a list of terminal, json, markdown and html",
        "Reports to make; html needs the extra [html].",
    )
    keep_text: StrictBool = key(False, FLAG, "Store prompt and answer texts.")
