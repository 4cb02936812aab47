"""Reaching a server: its address, a proxy on the way, and whom TLS trusts."""

from __future__ import annotations

import socket
import ssl
import time
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ..errors import UsageError
from .address import Address
from .errors import WireError
from .payload import Payload
from .refusal import PROXY_WANTS
from .response import Response
from .secret import Secret

_MOST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy: plain requests go to it whole, TLS through CONNECT."""

    address: Address
    authorization: Secret | None = None

    @classmethod
    def parse(cls, url: str | Secret) -> Proxy:
        """From ``http://[user:password@]host:port``.

        Raises:
            UsageError: it is none; the message shows no credential.
        """
        split = urlsplit(url.reveal() if isinstance(url, Secret) else url)
        if split.scheme != "http" or not split.hostname:
            raise UsageError("target.proxy is no HTTP proxy; valid: http://host:port.")
        try:
            port = split.port or 80
        except ValueError:
            raise UsageError("target.proxy has no sound port; valid: http://host:port.") from None
        credential = None
        if split.username is not None:
            credential = Secret(
                "Basic "
                + b64encode(
                    f"{unquote(split.username)}:{unquote(split.password or '')}".encode()
                ).decode("ascii")
            )
        return cls(Address("http", split.hostname, port), credential)


def tls_context(verify: bool | str) -> ssl.SSLContext:
    """A client context: ``verify`` True (the system's CAs), False, or the path of a CA file.

    Raises:
        UsageError: the CA file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except (OSError, ssl.SSLError) as e:
        raise UsageError(f"target.verify_tls: the CA file cannot be used: {e}.") from None
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def dial(address: Address, proxy: Proxy | None, deadline: float) -> socket.socket:
    """A connected socket, through ``proxy`` if given; TLS is not begun.

    Raises:
        WireError: nobody answers, or the proxy refuses.
        OSError, TimeoutError: the proxy broke off or was too late.
    """
    sock = _connect(address if proxy is None else proxy.address, deadline)
    if proxy is not None and address.tls:
        try:
            _tunnel(sock, address, proxy, deadline)
        except BaseException:
            sock.close()
            raise
    return sock


def _tunnel(sock: socket.socket, address: Address, proxy: Proxy, deadline: float) -> None:
    """Ask the proxy for a connection to ``address`` (RFC 9110, 9.3.6)."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"CONNECT {host}:{address.port} HTTP/1.1",
        f"Host: {host}:{address.port}",
        *(
            ()
            if proxy.authorization is None
            else (f"Proxy-Authorization: {proxy.authorization.reveal()}",)
        ),
        "\r\n",
    ]
    ask = Payload("\r\n".join(lines).encode("latin-1"))
    del lines
    sock.settimeout(left(deadline))
    sock.sendall(ask.reveal())
    answer = b""
    while b"\r\n\r\n" not in answer:
        sock.settimeout(left(deadline))
        data = sock.recv(1)  # byte by byte, so that none of the tunnel's is taken
        if not data or len(answer) > _MOST_BYTES:
            raise WireError(f"the proxy {proxy.address.url} gave no sound answer to CONNECT")
        answer += data
    # A CONNECT answer has no body; to the parser it is an answer to something that may.
    response = Response()
    response.feed(answer)
    if response.status != 200:
        why = f": {PROXY_WANTS}" if response.status == 407 else ""
        raise WireError(f"the proxy {proxy.address.url} refused CONNECT: {response.status}{why}")


def _connect(address: Address, deadline: float) -> socket.socket:
    try:
        if address.unix is not None:
            if not hasattr(socket, "AF_UNIX"):
                raise WireError("this platform has no Unix sockets")
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            found: list[tuple[socket.socket | None, int, str | tuple[str, int]]] = [
                (sock, socket.AF_UNIX, address.unix)
            ]
        else:
            infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            found = [(None, i[0], i[4]) for i in infos]  # type: ignore[misc]
    except OSError as e:
        raise WireError(f"{address.url}: the host name cannot be resolved: {words(e)}") from None
    except UnicodeError:  # an empty part, or one that is too long
        raise WireError(f"{address.url}: no host can have such a name") from None
    problem = "no address"
    for made, family, at in found:
        sock = made or socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(left(deadline))
            sock.connect(at)
        except OSError as e:
            sock.close()
            problem = words(e)
            if isinstance(e, TimeoutError):
                problem = "timed out (timeouts.connect_s)"
            continue
        if family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise WireError(f"cannot connect to {address.url}: {problem}")


def left(deadline: float) -> float:
    """Seconds until ``deadline`` (time.monotonic); TimeoutError when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def late(address: Address, timeout_s: float) -> str:
    """No connection in time, in words."""
    return f"timed out: no connection to {address.url} after {timeout_s:g} s (timeouts.connect_s)"


def words(e: OSError) -> str:
    """What the system says of a failure."""
    return e.strerror or str(e) or type(e).__name__


def ssl_words(e: ssl.SSLError) -> str:
    """What went wrong with TLS, and what to do where a certificate is not trusted."""
    verify = getattr(e, "verify_message", None)
    if verify:
        return f"the certificate is not trusted: {verify} (target.verify_tls takes a CA file)"
    return str(e.reason or e)
