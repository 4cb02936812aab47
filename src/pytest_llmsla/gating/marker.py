"""``@sla(...)``: what a mark may say, checked by name before any model loads."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from .options import MARK, PRESETS

LIMITS = (
    "ttft_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "stall_p95_ms",
    "min_tokens_per_s",
)


@dataclass(frozen=True)
class SlaMark:
    """One checked mark. ``given`` holds exactly the arguments that were written."""

    given: Mapping[str, Any]
    where: str
    """``test_chat.py:12 test_short``: the file, line and test it stands on."""

    def get(self, name: str, default: Any = None) -> Any:
        """The argument's value, ``default`` when it was not written."""
        return self.given.get(name, default)

    def says(self, name: str) -> bool:
        """True when the argument was written, be it as None."""
        return name in self.given

    def error(self, text: str) -> pytest.UsageError:
        """A usage error that names the test and its line."""
        return pytest.UsageError(f"{self.where}: {text}")


def where(item: pytest.Item) -> str:
    """``file:line test`` of an item, as pytest itself prints locations."""
    path, line, name = item.location
    return f"{path}:{line + 1} {name}" if line is not None else f"{path} {name}"


def parse(item: pytest.Item, *, implied: bool = False) -> SlaMark | None:
    """The item's mark, checked; None when it has none.

    ``implied`` passes over the bare mark that a fixture's user was given.

    Raises:
        pytest.UsageError: stacked marks, positional or unknown arguments, values of a wrong kind,
            a limit without a prompt length.
    """
    marks = [m for m in item.iter_markers(MARK) if not (implied and m == pytest.mark.sla.mark)]
    if not marks:
        return None
    at = where(item)
    if len(marks) > 1:
        raise pytest.UsageError(
            f"{at}: {len(marks)} sla marks on one test: {', '.join(_show(m) for m in marks)}. "
            "Give one: write every limit into it, and keep a class's or module's mark off tests "
            "that carry their own."
        )
    mark = marks[0]
    if mark.args:
        raise pytest.UsageError(
            f"{at}: @sla takes named arguments only, got {mark.args[0]!r}. "
            f"Valid: {', '.join(_CHECKS)}; for example @sla(prompt_max=128, ttft_ms=300)."
        )
    problems = [
        problem
        for name, value in mark.kwargs.items()
        if (problem := _problem(name, value)) is not None
    ]
    if problems:
        raise pytest.UsageError("\n".join(f"{at}: {p}" for p in problems))
    parsed = SlaMark(given=dict(mark.kwargs), where=at)
    _check_length(parsed)
    return parsed


def _show(mark: pytest.Mark) -> str:
    inside = ", ".join([*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())])
    return f"@sla({inside})"


def _check_length(mark: SlaMark) -> None:
    has_range = mark.get("prompt_min") is not None or mark.get("prompt_max") is not None
    named = mark.get("bucket") is not None
    if named and has_range:
        raise mark.error(
            "@sla has both bucket and prompt_min/prompt_max; give one of them: bucket names a "
            "range of the policy, prompt_max (with prompt_min) writes one down."
        )
    if not named and not has_range:
        limits = [name for name in LIMITS if mark.get(name) is not None]
        what = f"{limits[0]}={mark.get(limits[0])!r} has" if limits else "@sla has"
        raise mark.error(
            f"{what} no prompt length. Latency depends on it, so every limit names one: add "
            "prompt_max=128 (tokens of the rendered prompt) or bucket='short'."
        )
    low, high = mark.get("prompt_min"), mark.get("prompt_max")
    if low is not None and high is None:
        raise mark.error(
            f"prompt_min={low} has no prompt_max; add the longest prompt this limit covers, "
            "for example prompt_max=512."
        )
    if low is not None and high is not None and low > high:
        raise mark.error(
            f"prompt_min={low} is above prompt_max={high}; no prompt is that long and that "
            "short. Swap or correct them."
        )


def _problem(name: str, value: object) -> str | None:
    check = _CHECKS.get(name)
    if check is None:
        close = difflib.get_close_matches(name, _CHECKS, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"@sla has no argument {name!r}.{hint} Valid: {', '.join(_CHECKS)}."
    return check(name, value)


def _number(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _limit(name: str, value: object) -> str | None:
    if value is None or _number(value):
        return None
    unit = "tokens per second" if name == "min_tokens_per_s" else "milliseconds"
    return f"{name}={value!r}; valid: a finite number of {unit} above 0, or None (no such limit)."


def _count(name: str, value: object) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return None
    return f"{name}={value!r}; valid: a whole number from 1 on."


def _percentile(name: str, value: object) -> str | None:
    if _number(value) and 1 <= float(value) < 100:  # type: ignore[arg-type]  # _number checked it
        return None
    hint = ""
    if _number(value) and float(value) < 1:  # type: ignore[arg-type]
        hint = f" Did you mean {float(value) * 100:g}?"  # type: ignore[arg-type]
    return f"{name}={value!r}; valid: a percentile from 1 to below 100.{hint}"


def _name(name: str, value: object) -> str | None:
    if isinstance(value, str) and value:
        return None
    return f"{name}={value!r}; valid: the name of a bucket of the policy, such as 'short'."


def _mapping(name: str, value: object) -> str | None:
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return None
    return f"{name}={value!r}; valid: a dict such as {{'greedy': True}}, keys as in sla.yaml."


def _path(name: str, value: object) -> str | None:
    if value is None or (isinstance(value, (str, os.PathLike)) and str(value)):
        return None
    return f"{name}={value!r}; valid: the path of a KV-cache plan (Markdown or YAML)."


def _preset(name: str, value: object) -> str | None:
    if value in PRESETS:
        return None
    close = difflib.get_close_matches(str(value), PRESETS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{name}={value!r}; valid: {', '.join(map(repr, PRESETS))}.{hint}"


_CHECKS: dict[str, Callable[[str, object], str | None]] = {
    "bucket": _name,
    "prompt_min": _count,
    "prompt_max": _count,
    "ttft_ms": _limit,
    "ttft_percentile": _percentile,
    "itl_p50_ms": _limit,
    "itl_p95_ms": _limit,
    "itl_p99_ms": _limit,
    "stall_p95_ms": _limit,
    "min_tokens_per_s": _limit,
    "concurrency": _count,
    "max_new_tokens": _count,
    "sampling": _mapping,
    "kv_plan": _path,
    "evidence": _preset,
}
