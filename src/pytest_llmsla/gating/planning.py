"""After collection: is anything of ours in it? Cheap for suites that have nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ..fixtures import ALL
from ..marker import MARK
from .state import OPTIONS

_OURS = frozenset(ALL)


def is_ours(item: pytest.Item) -> bool:
    """True for items of a policy, marked tests and tests that use a fixture of this plugin."""
    return (
        getattr(item, "is_sla_limit", False)
        or item.get_closest_marker(MARK) is not None
        or not _OURS.isdisjoint(getattr(item, "fixturenames", ()))
    )


def plan(
    session: pytest.Session, collected: Sequence[pytest.Item], selected: Sequence[pytest.Item]
) -> None:
    """Hand over to :mod:`collection` when a test of ours was collected or a gate was asked for."""
    every = {id(item): item for item in (*collected, *selected)}
    ours = [item for item in every.values() if is_ours(item)]
    opts = session.config.stash[OPTIONS]
    if ours or opts.policy is not None or opts.signoff:
        from .collection import take_over

        take_over(session, ours, {id(item) for item in selected})
