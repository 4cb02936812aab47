"""Keys that are sent and never shown."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from html import escape
from itertools import takewhile
from urllib.parse import quote, quote_plus

_SHORTEST = 4  # scrubbing a shorter one would garble every text and hide nothing
_BEGINNING = 8  # so many characters of one are known for its beginning
_CUT = re.compile(r"['\"]?(…|\Z)")


class Secret:
    """A value whose text is not in its ``repr``: tracebacks and logs show ``***``."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value. Use it in an expression; never keep it in a variable."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret is not written to disk or sent to another process")


class Scrubber:
    """Takes secrets out of texts that come from outside: servers like to echo what they got.

    They are known in upper and lower case, as JSON, URLs, HTML, base64 and ``repr`` write them, and
    by their beginning where a text was cut inside one.
    """

    __slots__ = ("_begun", "_secrets", "_starts")

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        known = [s for s in secrets if len(s.reveal()) >= _SHORTEST]
        written = dict.fromkeys(form for s in known for form in _forms(s))
        self._secrets = tuple(sorted(written, key=lambda s: -len(s.reveal())))
        # An address (of a proxy) begins like many others: it is known whole only.
        begun = (s for s in known if "://" not in s.reveal())
        self._begun = tuple(dict.fromkeys(form for s in begun for form in _forms(s)))
        self._starts = Secret("|".join(re.escape(s.reveal()[:_SHORTEST]) for s in self._begun))

    def scrub(self, text: str) -> str:
        """``text`` with every secret in it replaced by ``***``."""
        for secret in self._secrets:
            text = re.sub(re.escape(secret.reveal()), "***", text, flags=re.IGNORECASE)
        return self._without_beginnings(text) if self._begun else text

    def _without_beginnings(self, text: str) -> str:
        """Eight characters that a secret begins with are taken out, four where a text was cut."""
        out, done = "", 0
        for found in re.finditer(self._starts.reveal(), text, flags=re.IGNORECASE):
            at = found.start()
            if at < done:
                continue
            shared = max(_shared(text, at, s) for s in self._begun)
            if shared >= _BEGINNING or _CUT.match(text, at + shared):
                out += text[done:at] + "***"
                done = at + shared
        return out + text[done:]


def _forms(secret: Secret) -> Iterator[Secret]:
    """The secret as it may be written; and its longer words, as a scheme may stand before it."""
    for plain in (secret, *(Secret(w) for w in secret.reveal().split() if len(w) >= _BEGINNING)):
        yield plain
        once = Secret(json.dumps(plain.reveal())[1:-1])
        yield from (once, Secret(json.dumps(once.reveal())[1:-1]))
        yield Secret(repr(plain.reveal())[1:-1])
        for safe in ("", "/"):
            yield Secret(quote(plain.reveal(), safe=safe))
        yield Secret(quote_plus(plain.reveal()))
        yield Secret(escape(plain.reveal()))
        for encode in (b64encode, urlsafe_b64encode):
            yield Secret(encode(plain.reveal().encode()).decode("ascii").rstrip("="))
            yield from _inside(plain, encode)


def _inside(secret: Secret, encode: Callable[[bytes], bytes]) -> Iterator[Secret]:
    """Base64 of the secret where other bytes stand around it, as a scheme before a key does."""
    for before, shared in ((0, 0), (1, 2), (2, 3)):
        size = before + len(secret.reveal().encode())
        whole = size * 8 // 6  # characters that nothing behind it changes
        if whole - shared >= _BEGINNING:
            yield Secret(
                encode(b"\0" * before + secret.reveal().encode()).decode("ascii")[shared:whole]
            )


def _shared(text: str, at: int, secret: Secret) -> int:
    """How many characters ``text`` has from ``at`` on in common with the secret's beginning."""
    pairs = zip(text[at : at + len(secret.reveal())], secret.reveal(), strict=False)
    return sum(1 for _ in takewhile(lambda p: p[0].lower() == p[1].lower(), pairs))
