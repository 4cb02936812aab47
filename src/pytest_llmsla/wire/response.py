"""One HTTP/1.1 response, parsed by llhttp (httptools) as its bytes arrive."""

from __future__ import annotations

import httptools

from .errors import WireError

_MAX_HEADER_BYTES = 64 * 1024


class Response:
    """Feed it bytes; read :attr:`headers_done`, :attr:`status`, :meth:`take_body`, :attr:`done`."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._framed = False
        self.status = 0
        self.headers_done = False
        self.done = False
        self.keep_alive = False

    @property
    def headers(self) -> dict[str, str]:
        """Names in lower case; values of a repeated header joined by ``, ``."""
        return self._headers

    def feed(self, data: bytes) -> None:
        """More bytes of the connection.

        Raises:
            WireError: they are no HTTP/1.1 response, or more than one.
        """
        if self.done:
            raise WireError("bytes follow the end of the response: the server broke HTTP framing")
        if not self.headers_done:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise WireError("the server switched to another protocol") from None
        except httptools.HttpParserError as e:
            self.keep_alive = False  # what was read and not understood is lost
            cause = e.__context__
            if isinstance(cause, WireError):
                raise cause from None
            raise WireError(f"the server's answer is no sound HTTP/1.1: {e}") from None
        if not self.headers_done and self._head_bytes > _MAX_HEADER_BYTES:
            self._too_long()

    def take_body(self) -> bytes:
        """Body bytes since the last call."""
        if not self._body:
            return b""
        found = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return found

    def end_of_stream(self) -> None:
        """The server closed its side.

        Raises:
            WireError: the response was not complete.
        """
        if self.done:
            return
        if not self.headers_done:
            raise WireError("the server closed the connection before it answered")
        if self._framed:
            raise WireError(
                "the connection ended inside the body (its last chunk or Content-Length is "
                "missing): the answer is truncated"
            )
        self.done = True  # a body without framing ends with the connection

    def _too_long(self) -> None:
        raise WireError(f"the response's headers exceed the limit of {_MAX_HEADER_BYTES} bytes")

    def release(self) -> None:
        """Nothing more is fed: let go of the parser, which holds this object as this holds it.

        Collection may be off for as long as requests follow one another.
        """
        self.__dict__.pop("_parser", None)

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header or trailer."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:  # trailers count as well
            self._too_long()
        if self.headers_done:
            return  # of a trailer nothing may be believed that only reads in time would show
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The head is whole; an interim 1xx one is passed over."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        codings = self._headers.get("transfer-encoding", "chunked")
        if codings.strip(" \t").lower() != "chunked":
            raise WireError(
                f"the body comes with transfer coding {codings!r:.80}; valid: chunked. What stands "
                "between compresses and buffers; switch that off"
            )
        self.headers_done = True
        self._framed = "content-length" in self._headers or "transfer-encoding" in self._headers

    def on_body(self, data: bytes) -> None:
        """Body bytes, without their chunk framing."""
        self._body.append(data)

    def on_message_begin(self) -> None:
        """A response begins."""
        if self.headers_done:
            raise WireError("a second response follows the first: the server broke HTTP framing")
        self._headers = {}
        self._header_bytes = 0

    def on_message_complete(self) -> None:
        """A response ends."""
        if not self.headers_done:
            return  # an interim 1xx answer
        self.done = True
        self.keep_alive = bool(self._parser.should_keep_alive())
