"""How long a prompt is for a server whose model is not here.

Three ways, best first: the server counts (its ``/tokenize``), a tokenizer beside the test counts
(``target.tokenizer``), or a calibration estimates from ``usage.prompt_tokens`` of short answers.
The first two are exact, and one real answer has to agree before they are believed. Whatever this
module says, each measured answer's own count decides about its bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import TargetError, UsageError
from ...wire.errors import WireError
from .calibration import (
    CALIBRATED,
    Sample,
    TextModel,
    english_samples,
    fit,
    is_foreign,
)
from .fetching import Fetches
from .local_tokenizer import LocalTokenizer
from .prompt_counts import AskShort, Framed, Lengths, ask_probe
from .tokenize_routes import PROBE_TOKENS, Asker, Count, NoRouteError, Route, Search

__all__ = ["AskShort", "Lengths", "is_chat", "lengths_for"]

Say = Callable[[str], None]

_CHAT_KINDS = ("llamacpp", "tgi")  # their native routes get the chat rendered
_FEWEST_SAMPLES = 8
_MOST_CHARACTERS = 30  # in one token, on average over a text
_CJK = "请用三句话说明潮汐是怎么形成的，并举两个例子。東京の天気は？"
CHECKS = (
    f"(a) Count 1, 2, 34 and 5678 – then naïve café “quotes” & 🙂. {_CJK} O'Neil's x_1 = f(y)?",
    "(b) What is a tide?",
    "(c) "
    + "The river rose again in March, and nobody in the valley was surprised. " * 12
    + "Why?",
    f"(d) {_CJK * 6}",
)
"""Texts that two ways of counting must agree on: mixed, short, long, CJK."""
EDGES = "  (e) Is this trimmed?\n\n"


def lengths_for(
    client: Fetches,
    *,
    kind: str,
    api: str | None,
    model: str | None,
    tokenizer: str | None,
    ask_short: AskShort,
    say: Say,
) -> Lengths:
    """The best way to count prompts of this server.

    Args:
        client: of the server.
        kind: ``openai``, ``tgi``, ``llamacpp``, ``mii``.
        api: ``chat``, ``completions`` …; whether a chat template is put around the prompt.
        model: name that requests carry, None: none.
        tokenizer: folder or ``tokenizer.json``, None: none given.
        ask_short: sends ``(prompt, system)`` as a request for one token, as measured requests
            are sent; the server's count of its prompt, None when it says none.
        say: told what takes time.

    Raises:
        UsageError: the tokenizer given is unusable or another model's; no way is left.
        TargetError: the server does not answer.
    """
    return _Finder(client, kind, api, model, tokenizer, ask_short, say).find()


def is_chat(kind: str, api: str | None) -> bool:
    """Whether a chat template is put around the prompt."""
    return kind in _CHAT_KINDS or api in ("chat", "openai") or (api is None and kind == "openai")


@dataclass
class _Finder:
    client: Fetches
    kind: str
    api: str | None
    model: str | None
    given: str | None
    ask_short: AskShort
    say: Say

    def find(self) -> Lengths:
        self.chat = is_chat(self.kind, self.api)
        self.notes: list[str] = []
        self.tried: list[str] = []
        self.asked: dict[str, int | None] = {}
        local = None if self.given is None else LocalTokenizer.load(self.given)
        search = Search(self.kind, self.model, Asker(self.client))
        try:
            route = search.find(self.chat)
        except WireError as e:
            route = None
            search.tried.append(str(e))
        self.tried += search.tried
        if route is not None and route.whole:
            found = self._by_server(route, search.asker, local)
            if found is not None:
                return found
        if local is not None:
            return self._by_tokenizer(local)
        if route is not None and not route.whole:
            found = self._by_parts(route, search.asker)
            if found is not None:
                return found
        return self._by_calibration()

    def _by_server(
        self, route: Route, asker: Asker, local: LocalTokenizer | None
    ) -> Lengths | None:
        count = self._agreed(route.count, route.name)
        if count is None:
            return None
        context = route.max_context
        if local is not None:
            own = self._counter(local)
            differ = next((t for t in CHECKS if _try(own, t) != count(t, None)), None)
            if differ is None and own is not None:
                return Lengths(
                    f"tokenizer {local.path}, which agrees with {route.name}",
                    own,
                    max_context=context,
                    notes=tuple(self.notes),
                    chat=self.chat,
                    local=local,
                )
            self.notes.append(
                f"target.tokenizer {local.path} counts otherwise than {route.name}, so the "
                "server's counts are used: it is another model's, or lacks the server's chat "
                "template"
            )
        self.say(f"prompts are counted by the {route.name}")
        return Lengths(
            route.name,
            count,
            max_context=context,
            notes=tuple(self.notes),
            chat=self.chat,
            remote=asker,
        )

    def _by_tokenizer(self, local: LocalTokenizer) -> Lengths:
        own = self._counter(local)
        source = f"tokenizer {local.path}"
        count: Count | None
        if own is None:
            self.notes.append(
                f"{local.path} holds no chat template: what the server's takes was measured"
            )
            count = self._framed(local.bare, source)
        else:
            count = self._agreed(own, source)
        if count is None:
            raise UsageError(
                f"target.tokenizer is {local.path!r}, but the server counts otherwise "
                f"({self.tried[-1]}); give the folder of the served model, or leave "
                "target.tokenizer out"
            )
        return Lengths(source, count, notes=tuple(self.notes), chat=self.chat, local=local)

    def _by_parts(self, route: Route, asker: Asker) -> Lengths | None:
        """A server that counts bare text; what its chat template adds, an answer tells."""
        count = self._framed(route.count, route.name)
        if count is None:
            return None
        self.say(f"prompts are counted by the {route.name}")
        return Lengths(route.name, count, notes=tuple(self.notes), chat=self.chat, remote=asker)

    def _by_calibration(self) -> Lengths:
        samples = english_samples()
        frame = self._probe()
        if frame is None:
            raise UsageError(self._nothing_left())
        self.say(f"no tokenizer: {len(samples)} short answers tell how long prompts are …")
        seen: list[tuple[Sample, int]] = []
        failed: TargetError | None = None
        for sample in samples:
            try:
                said = self.ask_short(sample.text, None)
            except TargetError as e:  # one that ends at once is no reason to give up
                failed = e
                continue
            if said is None:
                raise UsageError(self._nothing_left())
            seen.append((sample, self._bare(sample.text, said - frame)))
        if len(seen) < _FEWEST_SAMPLES:
            raise TargetError(
                f"only {len(seen)} of {len(samples)} answers to learn prompt lengths came; "
                f"the last failure: {failed}"
            )
        model = fit(*zip(*seen, strict=True))
        margin = round(model.margin, 3)
        self.notes.append(
            f"prompt lengths are estimated, within {margin:.1%}: prompts are in English, and aimed "
            "inside their buckets by as much; each answer's own count decides. With "
            "target.tokenizer they are exact"
        )
        return Lengths(
            f"calibrated by usage.prompt_tokens, ±{margin:.1%}",
            Framed(_english(model), self.ask_short, {None: frame}, PROBE_TOKENS),
            margin=margin,
            notes=tuple(self.notes),
            chat=self.chat,
            languages=CALIBRATED,
        )

    def _probe(self) -> int | None:
        """Tokens that the template takes, by an answer to the probe; None: the server says none."""
        probe, said = ask_probe(self.ask_short, None)
        if said is None:
            self.tried.append("calibration: the server sends no usage.prompt_tokens")
            return None
        if said < PROBE_TOKENS - 2:
            raise TargetError(
                f"the server says that the prompt {probe!r} has {said} tokens "
                "(usage.prompt_tokens), which cannot be: nothing can be told from its counts"
            )
        return said - PROBE_TOKENS

    def _bare(self, text: str, tokens: int) -> int:
        if not len(text) / _MOST_CHARACTERS <= tokens <= len(text.encode()):
            raise TargetError(
                f"the server says that a text of {len(text)} characters has {tokens} tokens "
                "(usage.prompt_tokens), which cannot be: set target.tokenizer, and look at what "
                "is between here and the model"
            )
        return tokens

    def _counter(self, local: LocalTokenizer) -> Count | None:
        """The local tokenizer's whole count; None where a chat has no template."""
        if not self.chat:
            return local.raw
        return None if local.template is None else local.chat

    def _agreed(self, count: Count, name: str) -> Count | None:
        """``count``, after an answer's own count agreed, or differed by a constant.

        None when it differs otherwise or does not count every text; :attr:`tried` says how.
        """
        try:
            pairs = [(count(text, None), said) for text, said in self._answers()]
        except NoRouteError as e:
            self.tried.append(f"{name}: {e}")
            return None
        if not pairs:
            self.notes.append(
                f"{name}: not compared with an answer, because the server sends no "
                "usage.prompt_tokens"
            )
            return count
        shifts = {said - own for own, said in pairs}
        if shifts == {0}:
            return count
        if len(shifts) > 1 or len(pairs) < 2:
            own, said = next((o, s) for o, s in pairs if o != s)
            self.tried.append(f"{name}: {own} tokens for a text that the server says has {said}")
            return None
        shift = shifts.pop()
        self.notes.append(
            f"{name} counts {abs(shift)} tokens {'less' if shift > 0 else 'more'} than the "
            "answers' usage.prompt_tokens, the same for a short and a long text: corrected"
        )
        return Framed(count, self.ask_short, {None: float(shift)})

    def _framed(self, inner: Count, name: str) -> Count | None:
        """``inner`` with what an answer adds; None when further answers do not fit.

        Templates may trim what they are given, and bare counts know nothing of it: an answer to a
        text with white space at both ends tells.
        """
        why = "the server sends no usage.prompt_tokens"
        for tidy in (str, str.strip):
            framed = Framed(_tidied(inner, tidy), self.ask_short, {})
            try:
                pairs = [(framed(text, None), said) for text, said in self._answers(EDGES)]
            except NoRouteError as e:
                why = str(e)
                break
            wrong = next(((own, said) for own, said in pairs if own != said), None)
            if pairs and wrong is None:
                return framed
            if wrong is not None:
                why = f"{wrong[0]} tokens for a text that the server says has {wrong[1]}"
        self.tried.append(f"{name}: {why}")
        return None

    def _answers(self, *more: str) -> Iterator[tuple[str, int]]:
        """The server's counts of a mixed and a long text, and of ``more``; each asked once.

        Raises:
            TargetError: it answers none of them.
        """
        failed: TargetError | None = None
        any_answered = False
        for text in (CHECKS[0], CHECKS[2], *more):
            if text not in self.asked:
                try:
                    self.asked[text] = self.ask_short(text, None)
                except TargetError as e:
                    failed = e
                    continue
            any_answered = True
            said = self.asked[text]
            if said is not None:
                yield text, said
        if failed is not None and not any_answered:
            raise failed

    def _nothing_left(self) -> str:
        tried = "; ".join(self.tried)
        return (
            "prompt lengths cannot be told, and TTFT's limits are bound to them. Tried: "
            f"{tried}. One of three is needed: a server that counts (/tokenize of vLLM, SGLang, "
            "llama.cpp or TGI reachable from here); target.tokenizer, a folder with the served "
            "model's tokenizer.json and chat template; or usage.prompt_tokens in its answers"
        )


def _english(model: TextModel) -> Callable[[str, str | None], float]:
    def tokens(prompt: str, system: str | None) -> float:
        if is_foreign(prompt):
            raise UsageError(
                f"the length of the prompt {prompt[:40]!r}… cannot be told: without a tokenizer, "
                "lengths are estimated for prompts in English (or another language in Latin "
                "letters, less exactly); set target.tokenizer to the served model's folder"
            )
        return model.tokens(prompt)

    return tokens


def _tidied(inner: Count, tidy: Callable[[str], str]) -> Count:
    return lambda prompt, system: inner(tidy(prompt), system)


def _try(count: Count | None, text: str) -> int | None:
    try:
        return None if count is None else count(text, None)
    except TargetError:
        return None
