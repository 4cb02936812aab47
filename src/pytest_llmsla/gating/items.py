"""A policy as a test file: ``sla.yaml::short::ttft_p95``, one item per limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .options import MARK
from .state import LOADED, MEASURING

if TYPE_CHECKING:
    from ..finding import Limit
    from ..policy import LoadedPolicy

_LINE = re.compile(r":(\d+)(?:\s|$)")


class SlaFile(pytest.File):
    """An sla.yaml that was named. It was loaded and checked in configure, never here."""

    def collect(self) -> Iterator[pytest.Collector | pytest.Item]:
        """One group per bucket, then ``tgs``, ``goodput`` and ``memory``."""
        yield from _nodes(
            self, [(limit.id, limit) for limit in declared_limits(self.config.stash[LOADED])]
        )


class SlaGroup(pytest.Collector):
    """The limits of one bucket, of one level of load in it, of ``tgs`` or of ``memory``."""

    def __init__(self, *, limits: list[tuple[str, Limit]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = limits

    def collect(self) -> Iterator[pytest.Collector | pytest.Item]:
        """One item per limit, one group per further level of load."""
        yield from _nodes(self, self.limits)


def _nodes(
    parent: pytest.Collector, limits: list[tuple[str, Limit]]
) -> Iterator[pytest.Collector | pytest.Item]:
    """The nodes below ``parent``; ``limits`` are (rest of the id, limit)."""
    groups: dict[str, list[tuple[str, Limit]]] = {}
    for rest, limit in limits:
        name, slash, inner = rest.partition("/")
        if slash:
            groups.setdefault(name, []).append((inner, limit))
            continue
        yield SlaItem.from_parent(parent, name=name, limit=limit)
    for name, inside in groups.items():
        yield SlaGroup.from_parent(parent, name=name, limits=inside)


class SlaItem(pytest.Item):
    """One limit of the policy. The first item to run measures the selected buckets."""

    def __init__(self, *, limit: Limit, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limit = limit
        self.add_marker(MARK)  # -m sla selects every gate

    def runtest(self) -> None:
        """Measure where that is not done yet, and give this limit's verdict.

        Raises:
            pytest.fail.Exception: the limit is not met, or could not be judged.
        """
        self.config.stash[MEASURING].judge_limit(self)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The policy and the line the limit stands on."""
        found = _LINE.search(self.limit.source)
        line = int(found.group(1)) - 1 if found else None
        return self.path, line, self.limit.id.replace("/", "::")


def declared_limits(loaded: LoadedPolicy) -> tuple[Limit, ...]:
    """Every limit of a policy; loads no model."""
    from ..verdict import limits_of

    return limits_of(loaded)


def nodeid_of(file_nodeid: str, limit: Limit) -> str:
    """The node id of a policy's limit, collected or not."""
    return f"{file_nodeid}::{limit.id.replace('/', '::')}"
