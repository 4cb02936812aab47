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

    def collect(self) -> Iterator[pytest.Collector]:
        """One group per bucket, then ``tgs`` and ``memory``."""
        groups: dict[str, list[Limit]] = {}
        for limit in declared_limits(self.config.stash[LOADED]):
            groups.setdefault(limit.id.split("/", 1)[0], []).append(limit)
        for name, limits in groups.items():
            yield SlaGroup.from_parent(self, name=name, limits=limits)


class SlaGroup(pytest.Collector):
    """The limits of one bucket (or of ``tgs``, ``memory``)."""

    def __init__(self, *, limits: list[Limit], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = limits

    def collect(self) -> Iterator[pytest.Item]:
        """One item per limit."""
        for limit in self.limits:
            yield SlaItem.from_parent(self, name=limit.id.split("/", 1)[1], limit=limit)


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
    return f"{file_nodeid}::{limit.id.replace('/', '::', 1)}"
