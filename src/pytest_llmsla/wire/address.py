"""Where a server is: ``http://host:port/prefix``, https, or a Unix socket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import UsageError

SCHEMES = ("http", "https", "http+unix")
_VALID = "http://host:port/v1, https://host/v1 or http+unix://%2Fpath%2Fto.sock/v1"
_PORTS = {"http": 80, "https": 443, "http+unix": 0}


@dataclass(frozen=True)
class Address:
    """A server and the prefix of its routes. ``host`` is without the brackets of IPv6."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    """Begins with a slash and does not end with one; may be empty."""
    query: str = ""

    @classmethod
    def parse(cls, url: str, where: str = "base_url") -> Address:
        """An address from its URL.

        Raises:
            UsageError: it is none; ``where`` names the key.
        """
        split = _split(url, where)
        if split.username is not None or split.password is not None:
            raise UsageError(
                f"{where} holds a user name or password, which would be printed. Take it out and "
                "give the credential with target.api_key_env or target.headers."
            )
        prefix = split.path.rstrip("/")
        if split.scheme == "http+unix":
            path = unquote(split.netloc)
            if not path.startswith("/"):
                raise UsageError(
                    f"{where} is {url!r}: a Unix socket needs its whole path, with %2F for each "
                    "slash: http+unix://%2Frun%2Fserver.sock/v1."
                )
            return cls(split.scheme, path, 0, prefix, split.query)
        port = split.port if split.port is not None else _PORTS[split.scheme]
        host = str(split.hostname).replace("%25", "%")  # before the zone of an IPv6 address
        return cls(split.scheme, host, port, prefix, split.query)

    @property
    def unix(self) -> str | None:
        """Path of the Unix socket, None for a network address."""
        return self.host if self.scheme == "http+unix" else None

    @property
    def tls(self) -> bool:
        """True for https."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """What the ``Host`` header says: the port only where it is not the scheme's own."""
        if self.unix is not None:
            return "localhost"
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address for messages and reports."""
        if self.unix is not None:
            return f"http+unix:{self.unix}{self.prefix}"
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def root(self) -> Address:
        """The same server without a trailing version segment such as ``/v1``."""
        head, _, last = self.prefix.rpartition("/")
        if last[:1] == "v" and last[1:].isdecimal():
            return replace(self, prefix=head)
        return self

    def at(self, path: str) -> str:
        """The request target of a route below the prefix; the address's query is kept."""
        path = path.strip("/")
        route = f"{self.prefix}/{path}" if path else (self.prefix or "/")
        return f"{route}?{self.query}" if self.query else route


def _split(url: str, where: str) -> SplitResult:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError as e:
        raise UsageError(f"{where} is no address ({e}); valid: {_VALID}.") from None
    if split.scheme not in SCHEMES or not split.hostname or port == 0:
        raise UsageError(f"{where} is {_shown(url)}; valid: {_VALID}.")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError(f"{where} is {_shown(url)}: it holds a space or a control character.")
    if not url.isascii():
        raise UsageError(
            f"{where} is {_shown(url)}: it holds a letter that is no ASCII. Write a host name as "
            "xn--…, and a path with %XX."
        )
    if split.fragment:
        raise UsageError(f"{where} is {_shown(url)}: remove the part from # on.")
    return split


def _shown(url: str) -> str:
    """The URL for a message, without anything that could be a password."""
    return repr(url if "@" not in url else "…@" + url.rpartition("@")[2])
