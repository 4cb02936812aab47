"""Whether a log is all that its run wrote: lines counted by kind, and what is never left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .strict_json import parse

_FREQUENT = {b'{"type":"request",': "request", b'{"type":"start",': "start"}
"""How the lines begin of which a long run has many: these need not be parsed."""


class Lines:
    """Lines by kind, anew from each clock segment on: what belongs to one is no other's."""

    def __init__(self) -> None:
        self._sections: list[Counter[str]] = [Counter()]

    def add(self, kind: str) -> None:
        """One more line."""
        if kind == "segment":
            self._sections.append(Counter())
        self._sections[-1][kind] += 1

    def listed(self) -> list[dict[str, int]]:
        """As the ``end`` line holds it: one object before the first segment, one for each."""
        return [dict(section) for section in self._sections]

    def differ(self, said: Sequence[Mapping[str, int]]) -> Iterator[str]:
        """``4 'start' lines in part 2 instead of 5`` for everything that is not as was ``said``."""
        if len(said) != len(self._sections):
            yield f"{len(self._sections) - 1} clock segments instead of {len(said) - 1}"
            return
        for number, (was, now) in enumerate(zip(said, self._sections, strict=True)):
            for kind in dict.fromkeys((*was, *now)):
                if was.get(kind, 0) != now[kind]:
                    where = f"after clock segment {number} begins" if number else "at its beginning"
                    yield f"{now[kind]} {kind!r} lines {where} instead of {was.get(kind, 0)}"


def lines_of(path: Path) -> Lines:
    """Count the lines of a log that is to be added to."""
    lines = Lines()
    with path.open("rb") as file:
        for data in file:
            kind = kind_of(data)
            if kind is not None:
                lines.add(kind)
    return lines


def kind_of(data: bytes) -> str | None:
    """The type of a line as it stands in a log that could be read; None: it is empty."""
    for begins, kind in _FREQUENT.items():
        if data.startswith(begins):
            return kind
    if not data.strip():
        return None
    record = parse(data)
    return str(record.get("type", "run")) if isinstance(record, dict) else None


def lacking(
    run: Mapping[str, Any],
    gates: Mapping[str, Mapping[str, Any]],
    targets: Iterable[Mapping[str, Any]],
    segments: Sequence[Mapping[str, Any]],
    measured: Iterable[tuple[str | None, int]],
) -> Iterator[str]:
    """What this program writes into every log and this one, which says it is one, lacks.

    ``measured``: gate and clock segment of its requests. A log of another's hand (its ``run``
    line names no ``version``) needs no more than a schema and a policy.
    """
    if run.get("version") is None:
        return
    if not run.get("host"):
        yield "the machine and its settings (host of the run line)"
    policies: list[tuple[str | None, Mapping[str, Any]]] = [(None, run), *gates.items()]
    for key, line in policies:
        if line.get("policy") is not None and line.get("policy_sha256") is None:
            yield f"the sha256 of the policy{'' if key is None else f' of {key}'}"
    told = {line.get("gate") for line in targets}
    opened = {line.get("segment", n) for n, line in enumerate(segments)}
    asked = dict.fromkeys(measured)
    for gate in dict.fromkeys(gate for gate, _ in asked):
        if gate not in told:
            yield f"the 'target' line{'' if gate is None else f' of {gate}'}: what was measured"
    for segment in dict.fromkeys(segment for _, segment in asked):
        if segment not in opened:
            yield f"the 'segment' line of clock segment {segment}"
