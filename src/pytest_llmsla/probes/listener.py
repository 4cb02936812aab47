"""Which processes of this host serve a port or a socket file: listeners, children, proxies.

A proxy that listens for a model elsewhere (a container's port forwarder, a reverse proxy, a
tunnel) is recognised by name, because its memory is not the model's.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

import psutil


class ListenerError(Exception):
    """The serving processes cannot be told; the text is the reason shown to people."""


_PROXIES = frozenset(
    {
        "docker-proxy", "com.docker.backend", "vpnkit", "wslrelay", "rootlessport",
        "slirp4netns", "pasta", "pasta.avx2", "passt", "gvproxy", "conmon", "containerd-shim",
        "ssh", "sshd", "sshd-session", "autossh", "nginx", "openresty", "envoy", "haproxy",
        "socat", "kubectl", "kube-proxy", "k3s-server", "traefik", "caddy", "apache2", "httpd",
        "nc", "ncat", "stunnel", "stunnel4", "cloudflared", "ngrok", "frpc", "frps", "litellm",
        "telepresence", "mitmproxy", "mitmdump", "tailscaled", "systemd", "launchd",
    }
)  # fmt: skip

_PROXY_ARGUMENTS = ("litellm", "--restful-gateway", "--load-balancer", "sglang_router")
"""Words on a command line that make an interpreter a gateway in front of other processes."""

_LAUNCHERS = ("text-generation-launcher",)
"""Parents whose other children hold the model (TGI: the router listens, the shards compute)."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CONNECT_S = 2.0
_ANY = ("0.0.0.0", "::")
_MOST_PROCESSES = 2000


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a server; ``started`` tells a reused pid apart."""

    pid: int
    started: float
    name: str


@dataclass(frozen=True, slots=True)
class Tree:
    """The listeners of an address, and they with everything they started."""

    listeners: tuple[Member, ...]
    members: tuple[Member, ...]


def local_addresses(host: str) -> frozenset[str]:
    """The addresses of ``host`` when it is this machine (loopback or its own); empty when not.

    Raises:
        ListenerError: the name does not resolve.
    """
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as e:
        raise ListenerError(f"{host} does not resolve: {e}") from None
    own = {
        a.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for a in addresses
    }
    here = all(ipaddress.ip_address(a).is_loopback or a in own for a in found)
    return frozenset(found if here else ())


def serving(port: int, addresses: frozenset[str] = frozenset()) -> Tree:
    """The processes behind a listening TCP port of this host, reached by one of ``addresses``.

    Raises:
        ListenerError: nothing listens that we may see, or what listens is a proxy.
    """
    pids = _listening(port, addresses)
    listeners = [m for pid in sorted(pids) if (m := _member(pid)) is not None]
    if not listeners:
        raise ListenerError(f"the process that listens on port {port} has ended")
    for m in listeners:
        _refuse_proxy(m, f"port {port}")
    return _tree(listeners)


def serving_socket(path: str) -> Tree:
    """The processes behind a Unix socket of this host: who listens, as the kernel tells a client.

    Opens a connection and closes it (``SO_PEERCRED`` of unix(7), Linux only).

    Raises:
        ListenerError: nobody listens that we may see, or what listens is a proxy.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        raise ListenerError("the server is behind a Unix socket, and this system names no process")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(_CONNECT_S)
            s.connect(path)
            told = s.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    except OSError as e:
        raise ListenerError(f"who listens on the socket {path} is not told: {e}") from None
    pid = _CREDENTIALS.unpack(told)[0]
    if pid <= 0:
        raise ListenerError(f"who listens on the socket {path} is hidden: it is in a container")
    found = _member(pid)
    if found is None or not _holds(pid, path):  # who called listen() may have left it to others
        raise ListenerError(
            f"the process that began to listen on the socket {path} has ended, or belongs to "
            "another user"
        )
    _refuse_proxy(found, f"the socket {path}")
    return _tree([found])


def again(tree: Tree, find: Callable[[], Tree]) -> Tree:
    """The tree as it is now; cheap while its listeners live, else looked for by ``find``.

    Raises:
        ListenerError: as ``find`` does.
    """
    alive = all(_member(m.pid) == m for m in tree.listeners)
    return _tree(list(tree.listeners)) if alive else find()


def _tree(listeners: list[Member]) -> Tree:
    members: dict[int, Member] = {}
    for m in listeners:
        for each in _with_children(_root(m.pid)):
            members.setdefault(each.pid, each)
    return Tree(tuple(listeners), tuple(members.values()))


def _listening(port: int, addresses: frozenset[str]) -> set[int]:
    try:
        every = [
            (c.laddr.ip, c.pid)
            for c in psutil.net_connections(kind="tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        ]
    except (psutil.Error, OSError) as e:
        raise ListenerError(f"the system does not tell who listens on port {port}: {e}") from None
    # One that is bound to the very address wins over one that is bound to every address.
    found = [pid for ip, pid in every if ip in addresses] or [
        pid for ip, pid in every if not addresses or ip in _ANY
    ]
    if not found:
        raise ListenerError(
            f"no process of this host is seen listening on port {port} (it may be in a container "
            "or another network namespace)"
        )
    pids = {pid for pid in found if pid}
    if not pids or len(pids) < len({pid or 0 for pid in found}):
        raise ListenerError(
            f"who listens on port {port} is hidden: it belongs to another user or a container"
        )
    return pids


def _member(pid: int) -> Member | None:
    try:
        p = psutil.Process(pid)
        return Member(pid, p.create_time(), p.name())
    except psutil.Error:
        return None


def _holds(pid: int, path: str) -> bool:
    """Whether a process has a Unix socket of that file name; the path may differ in its view.

    Raises:
        ListenerError: the system does not tell.
    """
    try:
        held = [str(c.laddr) for c in psutil.net_connections(kind="unix") if c.pid == pid]
    except (psutil.Error, OSError) as e:
        raise ListenerError(f"the system does not tell who holds the socket {path}: {e}") from None
    return any(PurePath(name).name == PurePath(path).name for name in held)


def _refuse_proxy(m: Member, place: str) -> None:
    try:
        words = psutil.Process(m.pid).cmdline()
    except psutil.Error:
        words = []
    given = next((a for a in _PROXY_ARGUMENTS for w in words[:40] if a in PurePath(w).name), None)
    bare = m.name.removesuffix(".exe").lower()
    if bare in _PROXIES or bare.startswith("containerd-shim") or given is not None:
        what = m.name if given is None else f"{m.name} ({given})"
        raise ListenerError(
            f"{place} is held by {what} (pid {m.pid}), which passes requests on: its memory "
            "is not the model's"
        )


def _root(pid: int) -> int:
    """The launcher above a listener where one is known; never a shell or a service manager."""
    try:
        for parent in psutil.Process(pid).parents():
            if parent.name() in _LAUNCHERS:
                return int(parent.pid)
    except psutil.Error:
        return pid
    return pid


def _with_children(pid: int) -> list[Member]:
    try:
        children = psutil.Process(pid).children(recursive=True)[:_MOST_PROCESSES]
    except psutil.Error:
        children = []
    pids = [pid, *(c.pid for c in children)]
    return [m for each in pids if (m := _member(each)) is not None]
