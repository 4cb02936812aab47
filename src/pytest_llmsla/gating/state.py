"""What the pytest side keeps on ``config.stash``, and nothing anywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from ..finding import Limit
    from ..policy import LoadedPolicy
    from ..resume import Earlier
    from .marker import SlaMark
    from .measuring import Measuring
    from .options import Options


class MarkGate(NamedTuple):
    """The gate of one marked test."""

    mark: SlaMark
    loaded: LoadedPolicy
    limits: tuple[Limit, ...]


OPTIONS: pytest.StashKey[Options] = pytest.StashKey()
LOADED: pytest.StashKey[LoadedPolicy] = pytest.StashKey()
"""The run's policy: named on the command line, else ini ``sla_policy`` once a mark needs it."""
RESUME: pytest.StashKey[Earlier | None] = pytest.StashKey()
"""The run that this one continues."""
GATE: pytest.StashKey[MarkGate] = pytest.StashKey()
"""On a marked item's own stash."""
IMPLIED: pytest.StashKey[bool] = pytest.StashKey()
"""On an item whose mark was not written but implied by a fixture it uses."""
MEASURING: pytest.StashKey[Measuring] = pytest.StashKey()
"""In the process that runs the tests, once a test of this plugin is selected."""
RUN_DIR: pytest.StashKey[Path] = pytest.StashKey()
"""Folder of this run, once anything of it is written."""
SKIPPED_FILES: pytest.StashKey[list[tuple[Path, pytest.CollectReport]]] = pytest.StashKey()
"""Test files that skipped themselves while being imported."""
PLACE: pytest.StashKey[int] = pytest.StashKey()
"""Where among the arguments a policy stands that is gated as a whole; absent otherwise."""
