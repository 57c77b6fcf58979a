"""The server: a socket, signals that end it gracefully, and the service behind it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from rdlm.errors import InputError
from rdlm.serve.connection import Connection
from rdlm.serve.guard import is_loopback

GRACE = 4.0
"""Seconds that requests under way have after the first signal."""
SHORTEST_TOKEN = 16
"""Characters of a token on an address that others can reach."""


def token_for(host: str) -> str | None:
    """Return the token that requests must bring, from RDLM_TOKEN; an address that others can reach needs one."""
    token = os.environ.get("RDLM_TOKEN") or None
    if is_loopback(host):
        return token
    if token is None:
        raise InputError(f"--host {host} can be reached from other machines: set RDLM_TOKEN to a secret first")
    if len(token) < SHORTEST_TOKEN:
        raise InputError(f"RDLM_TOKEN is too short for --host {host}: at least {SHORTEST_TOKEN} characters")
    return token


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes any free one."""
    if not 0 <= port <= 65535:
        raise InputError(f"--port must lie in [0, 65535], got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host} is no address of this machine") from None
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(1024)  # who comes while the models are loaded waits; and only now is a port known to be free
    except OSError as reason:
        opened.close()
        raise InputError(f"cannot listen on {host} port {port}: {reason.strerror}; choose another --port") from None
    return opened


class Server(uvicorn.Server):
    """uvicorn's server, which tells the service when it is asked to end."""

    def __init__(self, app: ASGIApp, on_exit: Callable[[float], object]) -> None:
        super().__init__(uvicorn.Config(
            app, lifespan="off", log_config=None, log_level="error", access_log=False, server_header=False, ws="none",
            timeout_graceful_shutdown=int(GRACE) + 2, timeout_keep_alive=15, h11_max_incomplete_event_size=1 << 15,
            http=Connection,
        ))  # fmt: skip
        self.on_exit = on_exit
        self.interrupted = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle the signals that end a service, and put back who handled them before."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End: requests under way have some seconds; a second signal ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.on_exit(GRACE)
