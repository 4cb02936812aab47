"""From what a server said to an answer: its tokens placed, and what must be said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...timeline import DISPUTED, NOT_FORCED
from ...wire.errors import WireError
from ...wire.exchange import Exchange, refusal
from ...wire.sse import Event
from .counting import Counted, reconcile
from .reader import Said, StreamReader


class EmptyError(WireError):
    """The answer is whole and holds no token."""


class Tokenizes(Protocol):
    """Counts tokens of generated text; None where no tokenizer is here."""

    def tokenize(self, text: str) -> int | None:
        """Tokens of ``text``."""
        ...


def counted_of(said: Said, lengths: Tokenizes | None) -> Counted:
    """Which event brought how many tokens.

    Raises:
        WireError: there is no token that could be stamped.
    """
    final = said.totals[-1][1] if said.totals else None
    if not any(e.text for e in said.events):
        if final:
            raise WireError(
                f"the server counted {final} output tokens, but no event held text in a channel "
                "that is known: no token could be stamped"
            )
        raise EmptyError("the answer is empty: no token was generated")
    return reconcile(
        said.events,
        totals=said.totals,
        final=final,
        finish=said.finish,
        tokenize=_tokenizer(lengths),
    )


def _tokenizer(lengths: Tokenizes | None) -> Callable[[str], int] | None:
    if lengths is None or lengths.tokenize("a") is None:
        return None
    return lambda text: lengths.tokenize(text) or 0


def disputed(ours: int | None, theirs: int | None, margin: float) -> tuple[str, ...]:
    """A note where the length counted before sending is not the one in the answer.

    Allowed are two tokens or 2 % (a template may hold the date), or three times the ``margin`` of
    a calibrated count.
    """
    if ours is None or theirs is None:
        return ()
    if abs(ours - theirs) <= max(2.0, 0.02 * ours, 3 * margin * ours):
        return ()
    return (f"{DISPUTED}: {ours} tokens were counted before sending, {theirs} in the answer",)


def notes_of(said: Said, *, forced: bool, asked_again: tuple[str, ...]) -> tuple[str, ...]:
    """What a reader must know of this answer.

    ``forced``: its length was asked for, or need not be. ``asked_again``: options that the server
    refused, without which it was asked again.
    """
    notes: list[str] = []
    if said.prompt_before is not None:
        notes.append(
            f"{DISPUTED}: the server counted {said.prompt_before} tokens, then "
            f"{said.prompt_tokens} in the same answer"
        )
    if said.prompt_tokens is not None and (said.cached_tokens or 0) > said.prompt_tokens:
        notes.append(
            f"{DISPUTED}: the server says that {said.cached_tokens} of its {said.prompt_tokens} "
            "tokens came from a cache"
        )
    if not forced:
        notes.append(f"{NOT_FORCED}: the server was not asked to, or refused")
    if asked_again:
        notes.append(f"asked again without {', '.join(asked_again)} (refused)")
    if said.finish is None:
        notes.append("no finish reason: only the end marker came")
    elif not said.marked:
        notes.append("no end marker came")
    return tuple(notes)


def read_whole(exchange: Exchange, reader: StreamReader) -> None:
    """A whole JSON answer read as one event, stamped at its last byte."""
    outcome = exchange.outcome
    try:
        if outcome.status != 200:
            raise refusal(outcome.status, outcome.headers, outcome.body)
        reader.event(Event(outcome.end_ns, "message", outcome.body))
        reader.ended(b"")
    except WireError as e:
        outcome.error = e
