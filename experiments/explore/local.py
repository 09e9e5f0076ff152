"""Servers on this machine: their names, their ports, and whom they answer."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Any

from topologies.errors import InputError

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
"""Names by which a browser on this machine may ask."""


def check_free(port: int, address: str = HOST) -> None:
    """Refuse a port on which another program serves, before anything is computed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            raise InputError(f"port {port} cannot be used. Choose another with --port.") from None


def only_for(application: Any, hosts: Sequence[str]) -> None:
    """Let an application of tornado answer requests for these host names alone, web sockets too.

    A page elsewhere may give its own name the address 127.0.0.1, and a browser would then let it
    read what this server answers (DNS rebinding).
    """
    from tornado.routing import HostMatches, Rule

    pattern = "|".join(map(re.escape, hosts))
    application.default_router.rules = [
        Rule(HostMatches(f"(?:{pattern})$"), application.wildcard_router)
    ]
