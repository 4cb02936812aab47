"""Counts of rendered prompts: remembered, corrected, or estimated to search with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from ...errors import TargetError, UsageError
from .calibration import TextModel, every_sample, fit
from .local_tokenizer import LocalTokenizer
from .tokenize_routes import PROBES, Asker, Count

AskShort = Callable[[str, "str | None"], "int | None"]
_REMEMBERED = 8192
_MOST_SYSTEMS = 32


class Lengths:
    """Counts prompts, and says how.

    Attributes:
        source: in words, for the report.
        margin: largest relative error of :meth:`count`; 0 when it is exact.
        max_context: longest prompt plus output, tokens, where the server said it.
        notes: what a reader of the report should know.
        template_tokens: tokens that every prompt shares besides the user's text, without a
            system prompt; an upper bound of what stands before it.
        languages: of the built-in prompts, those whose lengths are known; None: all.
        scrub: takes secrets that the server echoed out of what is said of a failure.
    """

    def __init__(
        self,
        source: str,
        count: Count,
        *,
        margin: float = 0.0,
        max_context: int | None = None,
        notes: tuple[str, ...] = (),
        chat: bool = True,
        local: LocalTokenizer | None = None,
        languages: tuple[str, ...] | None = None,
        remote: Asker | None = None,
    ) -> None:
        self.source = source
        self.margin = margin
        self.max_context = max_context
        self.notes = notes
        self.languages = languages
        self._count = count
        self._local = local
        self._remote = remote
        self._known: dict[bytes, int] = {}
        self._model: TextModel | None = None
        self.scrub: Callable[[str], str] = str
        self.template_tokens = max(0, self.count("a", None) - 1) if chat else 0

    @property
    def calls(self) -> int:
        """Requests that counting has sent so far, besides short answers."""
        return 0 if self._remote is None else self._remote.calls

    @property
    def remote(self) -> bool:
        """True when every new count is a request to the server: search with :meth:`size`."""
        return self._remote is not None

    def count(self, prompt: str, system: str | None = None) -> int:
        """Tokens of the whole rendered prompt; remembered.

        Raises:
            TargetError: the server or the chat template gave no usable count.
            UsageError: a calibration cannot tell this text's length.
        """
        key = blake2b(
            f"{system is None}\0{system}\0{prompt}".encode("utf-8", "surrogatepass"), digest_size=16
        ).digest()
        known = self._known.get(key)
        if known is None:
            try:
                known = self._count(prompt, system)
            except TargetError as e:
                words = self.scrub(f"the length of a prompt could not be counted: {e}")
                raise TargetError(words) from None
            if len(self._known) >= _REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[key] = known
        return known

    def encode(self, text: str) -> list[int] | None:
        """Ids of bare text; None without a tokenizer here."""
        return None if self._local is None else self._local.ids(text)

    def tokenize(self, text: str) -> int | None:
        """Tokens of generated text; None without a tokenizer here."""
        return None if self._local is None else len(self._local.ids(text))

    def size(self, text: str) -> int:
        """Tokens of bare text without asking the server for this one: an estimate to search with.

        The first call has the server count a few texts, from which the estimate is made.
        """
        if self._local is not None:
            return len(self._local.ids(text))
        if self._model is None:
            samples = every_sample()
            around = self.template_tokens
            self._model = fit(samples, [self.count(s.text, None) - around for s in samples])
        return round(self._model.tokens(text))


@dataclass(frozen=True)
class Framed:
    """Adds what one short answer has shown that a count leaves out: per system prompt, a constant.

    Raises:
        TargetError: the server did not say how long the prompt was.
        UsageError: more than 32 different system prompts.
    """

    inner: Callable[[str, str | None], float]
    ask: AskShort
    frames: dict[str | None, float]
    probe: float | None = None
    """Tokens of a probe by ``inner``, where those are known better."""
    asking: set[str | None] = field(default_factory=set)

    def __call__(self, prompt: str, system: str | None) -> int:
        """Tokens, whole."""
        if system not in self.frames:
            self.frames[system] = self._learn(system)
        return max(1, round(self.inner(prompt, system) + self.frames[system]))

    def _learn(self, system: str | None) -> float:
        if len(self.frames) >= _MOST_SYSTEMS:
            raise UsageError(
                f"the prompts have more than {_MOST_SYSTEMS} different system prompts, and each "
                "takes an answer to learn its length; set target.tokenizer"
            )
        # An answer without usage makes its target count the prompt, which leads back to here.
        probe, said = "", None
        if system not in self.asking:
            self.asking.add(system)
            try:
                probe, said = ask_probe(self.ask, system)
            finally:
                self.asking.discard(system)
        if said is None:
            raise TargetError("the server did not say how long the prompt was (usage)")
        return said - (self.inner(probe, system) if self.probe is None else self.probe)


def ask_probe(ask: AskShort, system: str | None) -> tuple[str, int | None]:
    """The first probe that was answered, and its prompt's tokens as the server counts them.

    Raises:
        TargetError: the server answers none of them.
    """
    failed: TargetError | None = None
    for probe in PROBES:
        try:
            return probe, ask(probe, system)
        except TargetError as e:
            failed = e
    assert failed is not None
    raise failed
