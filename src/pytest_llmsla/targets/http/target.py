"""A running server as a target: one POST a request, stamped at the socket."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import LlmslaError
from ...probes.sampler import Source
from ...wire.client import Client
from ...wire.errors import WireError
from ...wire.exchange import Deadlines, refusal
from ...wire.sse import MAX_EVENT_BYTES
from ..base import Answer, Ask, Clock, Recorder, Timeouts
from .calling import Call, scrubbed
from .crew import HttpCrew
from .dialect import Dialect, Options
from .lengths import Lengths
from .server_view import NoView, ServerView
from .spec import HttpSpec


class HttpTarget:
    """Asks one server through one dialect.

    ``generate`` may be called straight after the constructor; :mod:`loading` adds what is learnt
    from the server first (options, prompt lengths, facts).
    """

    keeps_deadlines = True

    def __init__(
        self,
        spec: HttpSpec,
        dialect: Dialect,
        *,
        clock: Clock = time.perf_counter_ns,
        lengths: Lengths | None = None,
        view: ServerView | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self.kind = spec.kind
        self.spec = spec
        self.dialect = dialect
        self.options = Options()
        self.lengths = lengths
        self.view: ServerView = view or NoView()
        self.client = Client(
            spec.address,
            headers=spec.headers,
            verify=spec.verify,
            proxy=spec.proxy,
            clock=clock,
            connect_s=spec.connect_s,
        )
        self.max_event_bytes = max_event_bytes
        self.renders = False
        """The server turns messages into text at the dialect's renderer (learnt at load)."""
        self.context: int | None = None
        """Longest prompt plus output, tokens, as the server says."""
        self.sent_requests = 0
        """POSTs for answers so far."""
        self.sent_tokens = 0
        """Output tokens of them."""
        self.told_cached = 0
        """Prompt tokens that a prefix cache held, as answers told them."""
        self.silent_requests = 0
        """POSTs that ended without telling them."""

    @property
    def start_point(self) -> str:
        """Where TTFT's clock starts, in words."""
        if self.spec.connect_in_ttft:
            return "client, before a new connection is opened (connecting and network included)"
        return "client, just before the request's first byte is written (network included)"

    @property
    def clock(self) -> Clock:
        """The machine's monotonic clock; another one in tests."""
        return self.client.clock

    def describe(self) -> Mapping[str, Any]:
        """Facts for the report."""
        spec = self.spec
        facts: dict[str, Any] = {
            "kind": spec.kind,
            "api": self.dialect.name,
            "url": spec.address.url,
            "model": None if spec.model is None else spec.scrubber.scrub(spec.model),
            "connection": "new for every request" if spec.connect_in_ttft else "kept, pre-opened",
            "refused_options": sorted(self.options.refused),
            "chat_template": self._template_words(),
            "retries": spec.retries,
            "extra_body": dict(spec.extra_body),
            **self.view.describe(),
        }
        if self.lengths is not None:
            facts["prompt_lengths"] = self.lengths.source
            facts["template_prefix_tokens"] = getattr(self.lengths, "template_tokens", None)
        facts["warnings"] = [
            *facts.get("warnings", ()),
            *({"code": "http", "message": words} for words in spec.warnings),
        ]
        return facts

    def _template_words(self) -> str:
        if self.renders:
            return "applied by the server, before the request"
        raw = not self.dialect.path.endswith("chat/completions")
        return "none: prompts are sent as they are" if raw else "applied by the server"

    def count(self, prompt: str, system: str | None = None) -> int:
        """Tokens of the rendered prompt."""
        if self.lengths is None:
            raise WireError("prompt lengths are not known: the target was not loaded")
        return self.lengths.count(prompt, system)

    def encode(self, text: str) -> list[int] | None:
        """Ids of bare user text; None without a tokenizer."""
        return None if self.lengths is None else self.lengths.encode(text)

    def max_context(self) -> int | None:
        """Longest prompt plus output, tokens; None when the server does not say."""
        return self.context

    def generate(self, ask: Ask, record: Recorder) -> Answer:
        """One answer.

        Raises:
            WireError: it failed; whatever arrived before is in ``record``.
        """
        spec, client = self.spec, self.client
        try:
            call = Call(
                self,
                self.rendered(ask),
                record,
                Deadlines(spec.first_token_s, spec.idle_s, spec.total_s),
                lambda: self._own_count(ask),
            )
            if spec.connect_in_ttft:
                call.since_ns = client.clock()
            while True:
                exchange = call.attempt(client.take(fresh=spec.connect_in_ttft))
                client.run(exchange)
                again = call.ended(exchange)
                if again is None:
                    return call.answer()
                client.loop.pause(again, lambda: record.cancelled)
                if record.cancelled:
                    raise exchange.outcome.error or WireError("stopped after its deadline")
        except WireError as e:
            raise scrubbed(e, spec.scrubber.scrub) from None

    def crew(self, size: int, timeouts: Timeouts) -> HttpCrew:
        """Keeps up to ``size`` requests on their way at once."""
        return HttpCrew(self, size, timeouts)

    def learn_rendering(self) -> None:
        """See whether the server renders chats; without, prompts are sent as they are."""
        self.renders = self.dialect.renderer is not None
        try:
            self.rendered(Ask("a", 1))
        except WireError:
            self.renders = False

    def rendered(self, ask: Ask) -> Ask:
        """The chat as one text, where the server's route takes only that; before the clock."""
        renderer = self.dialect.renderer
        if renderer is None or not self.renders:
            return ask
        messages = [{"role": "user", "content": ask.prompt}]
        if ask.system is not None:
            messages.insert(0, {"role": "system", "content": ask.system})
        reply = self.client.fetch("POST", renderer.path, {"messages": messages}, root=True)
        if not reply.ok:
            raise refusal(reply.status, reply.headers, reply.body)
        said = reply.json()
        text = said.get(renderer.key) if isinstance(said, dict) else None
        if not isinstance(text, str) or not text:
            raise WireError(f"/{renderer.path} gave no {renderer.key!r}: the chat is not rendered")
        return replace(ask, prompt=text, system=None)

    @property
    def margin(self) -> float:
        """Largest relative error of counts made before sending; 0 when they are exact."""
        return 0.0 if self.lengths is None else self.lengths.margin

    def _own_count(self, ask: Ask) -> int | None:
        """The length counted before sending; None where that is not known."""
        try:
            return None if self.lengths is None else self.lengths.count(ask.prompt, ask.system)
        except LlmslaError:  # the answer's own count is there all the same
            return None

    def reset_peaks(self) -> None:
        """The measured window begins."""
        self.view.reset()

    def memory(self) -> Mapping[str, Any]:
        """Memory of the server: read, scraped or declared."""
        return self.view.memory()

    def server_side(self) -> Mapping[str, Any]:
        """The server's own figures over the measured window."""
        return self.view.window()

    def samples(self) -> Sequence[Source]:
        """What a sampler reads of the server while it is measured."""
        return self.view.samples()

    def close(self) -> None:
        """Close every connection. Idempotent."""
        self.view.close()
        self.client.close()
