"""What a gate needs of the run it belongs to, and whom it tells how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..log import RunWriter
from ..policy import LoadedPolicy
from ..shelf import Shelf
from ..targets.base import Target
from ..verdict import EVERY, AllOrOne
from ..workload import PromptFactory
from .own_prompts import OwnPrompts


class Progress(Protocol):
    """Told what happens; must not raise."""

    def say(self, text: str) -> None:
        """Something that takes time begins."""

    def phase(self, gate: str | None, bucket: str, name: str) -> None:
        """``warm-up``, ``measure`` or ``done`` of a bucket."""

    def request(
        self, gate: str | None, bucket: str, *, warmup: bool, state: Mapping[str, Any]
    ) -> None:
        """A request ended. ``state``: requests, budget, running (ms by limit), open (limit ids)."""


class Run(Protocol):
    """What a gate needs of the run it belongs to (:class:`session.Session`)."""

    progress: Progress

    @property
    def writer(self) -> RunWriter:
        """The log, open."""

    @property
    def shelf(self) -> Shelf:
        """Where numbers go that are seldom looked at."""

    def target_of(self, loaded: LoadedPolicy, gate: str | None = None) -> Target:
        """The loaded target of a policy; raises UsageError or TargetError."""

    def describe(self, target: Target, gate: str | None, loaded: LoadedPolicy) -> Mapping[str, Any]:
        """Write the ``target`` line; what of it the judge needs."""

    def use_clock(self, target: Target) -> None:
        """Times from now on are this target's."""

    def factory(self, loaded: LoadedPolicy, target: Target) -> PromptFactory:
        """Where prompts come from."""

    def own_prompts(self, loaded: LoadedPolicy) -> OwnPrompts:
        """Prompts that tests ask of this target themselves."""

    def next_id(self) -> str:
        """A request id, unique in the run."""

    def problem(
        self, gate: str | None, bucket: str | None, reason: str, level: AllOrOne = EVERY
    ) -> None:
        """Write why something could not be measured."""

    def retire(self, target: Target, reason: str) -> None:
        """Never use a target again."""

    def ended(self, gate: str | None, reason: str, level: int | None) -> None:
        """Keep why a gate stopped measuring a level."""
