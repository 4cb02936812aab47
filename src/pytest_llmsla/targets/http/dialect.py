"""What one kind of server is sent, and what its events say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...wire.sse import Event
from ..base import Ask


@dataclass(slots=True)
class Piece:
    """What one event says. Counts are tokens; nothing here is a time of ours."""

    text: str = ""
    """Generated text of any channel: content, text, reasoning, tool-call name or arguments."""
    visible: str = ""
    """The part of ``text`` that a user sees: content or text."""
    whole: bool = False
    """``text`` is a message, no part of one: behind its parts it repeats them."""
    tokens: int | None = None
    """Tokens in this event, where the server says so (token ids, logprobs). With them an event
    counts even if its text is held back (half a character, an end token): see ``TokenEvent``."""
    total: int | None = None
    """Output tokens so far, this event included, where the server says so."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str | None = None
    """Finish reason: the answer is complete."""
    done: bool = False
    """The end marker of the stream."""
    error: str | None = None
    """An error object or an error event: its message with code or type."""
    server_ms: Mapping[str, float] | None = None
    """The server's own times, ms: ``prefill``, ``decode`` …"""


@dataclass(frozen=True)
class Options:
    """What this server refused to be asked, learned before measuring."""

    refused: frozenset[str] = field(default_factory=frozenset)

    def takes(self, name: str) -> bool:
        """True unless the server refused ``name``."""
        return name not in self.refused


@dataclass(frozen=True, slots=True)
class Renderer:
    """A route that turns messages into the text that the model reads."""

    path: str
    """Below the server's root; POST ``{"messages": [...]}``."""
    key: str
    """Where the text stands in the reply."""


class Dialect(Protocol):
    """One way of asking for a streamed answer."""

    @property
    def name(self) -> str:
        """For messages and reports: ``openai chat``."""
        ...

    @property
    def optional(self) -> tuple[str, ...]:
        """Options that a server may refuse without harm; without them less is known or forced."""
        ...

    @property
    def at_root(self) -> bool:
        """True: ``path`` is below the server's root, not below base_url's prefix (``/v1``)."""
        ...

    @property
    def streams(self) -> bool:
        """False: the answer is one JSON document, read as one event; no stream, so no ITL."""
        ...

    @property
    def renderer(self) -> Renderer | None:
        """Where the server renders a chat; None where it is asked with messages or bare text.

        Not None: :meth:`body` sends ``ask.prompt`` as it is, so it has to be the whole rendered
        chat, system prompt included.
        """
        ...

    @property
    def path(self) -> str:
        """Where requests go, relative."""
        ...

    def body(self, ask: Ask, options: Options) -> dict[str, Any]:
        """The JSON of one request."""
        ...

    def can_force(self, options: Options) -> bool:
        """True when this server can be asked for exactly ``max_new_tokens``."""
        ...

    def notes(self, ask: Ask, options: Options) -> tuple[str, ...]:
        """What of ``ask`` is not sent as it stands, in words; empty when all of it is."""
        ...

    def read(self, event: Event) -> Piece:
        """What an event says.

        Raises:
            WireError: its data is no JSON object (or what this server sends).
        """
        ...
