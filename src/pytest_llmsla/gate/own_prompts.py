"""Prompts that a test asks itself: which were made for it, and which it has sent before."""

from __future__ import annotations

from ..timeline import OWN_PROMPT, REPEATED
from ..workload import Prompt


class OwnPrompts:
    """Of all gates on one target: what one test has sent, a server knows when another sends it."""

    def __init__(self) -> None:
        self._asked: set[tuple[object, str, str | None]] = set()
        self._made: set[str] = set()

    def made(self, prompt: Prompt) -> Prompt:
        """Keep in mind that ``prompt`` is of this run only."""
        self._made.add(prompt.text)
        return prompt

    def asked(
        self, gate: str | None, attempt: int, prompt: str, system: str | None, *, remembered: bool
    ) -> list[str]:
        """Notes on a prompt that is being sent.

        ``remembered``: a server may know it of old, from another attempt or test as well.
        """
        this = (None if remembered else (gate, attempt), prompt, system)
        where = "run" if remembered else "test"
        notes = [f"{REPEATED}: sent before in this {where}"] if this in self._asked else []
        if remembered and prompt not in self._made:
            notes.append(f"{OWN_PROMPT}: the same in every run")
        self._asked.add(this)
        return notes
