"""After collection: is anything of ours in it? Cheap for suites that have nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .fixtures import ALL
from .options import MARK
from .state import IMPLIED, OPTIONS

_OURS = frozenset(ALL)


def mark_users(items: Sequence[pytest.Item]) -> None:
    """Give tests that use the plugin without a gate of their own its mark, bare.

    So ``-m sla`` and ``-m "not sla"`` select everything of this plugin and nothing else.
    """
    for item in items:
        names = getattr(item, "fixturenames", ())
        if not _OURS.isdisjoint(names) and item.get_closest_marker(MARK) is None:
            item.add_marker(MARK)
            item.stash[IMPLIED] = True


def plan(
    session: pytest.Session, collected: Sequence[pytest.Item], selected: Sequence[pytest.Item]
) -> None:
    """Hand over to :mod:`collection` when a test of ours was collected or a gate was asked for."""
    every = {id(item): item for item in (*collected, *selected)}
    ours = [item for item in every.values() if item.get_closest_marker(MARK) is not None]
    opts = session.config.stash[OPTIONS]
    if ours or opts.policy is not None or opts.signoff:
        from .collection import take_over

        take_over(session, ours, {id(item) for item in selected})
