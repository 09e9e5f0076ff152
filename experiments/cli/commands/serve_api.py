"""``cluster-sim serve-api``: questions to the simulator over HTTP."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cli.options.inputs import Invocation
from topologies.support.errors import InputError
from topologies.support.files.reading import read_text
from topologies.support.options import setting
from topologies.support.units import parse_seconds

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")  # names by which a browser on this machine may ask
TOKEN = "CLUSTER_SIM_TOKEN"  # environment variable with the token
LEAST_TOKEN = 16  # fewest characters of a token
LARGEST_TOKEN_BYTES = 4096
ANY = ("", "0.0.0.0", "::")
"""Addresses that stand for all of a machine's, and are no names by which to ask."""


@dataclass(frozen=True)
class ServiceInputs:
    """Address, token and limits of the service."""

    address: str = setting(
        "127.0.0.1",
        "Address to listen on; any but this machine's own needs a token",
        recorded=False,
    )
    port: int = setting(8017, "Port to listen on", least=1, most=65535, recorded=False)
    host: tuple[str, ...] = setting(
        (),
        "Further name by which clients ask, as in the Host header; may be repeated",
        recorded=False,
    )
    token_file: Path | None = setting(
        None,
        f"File with the token that every request carries, in place of {TOKEN}",
        metavar="FILE",
        recorded=False,
    )
    workers: int = setting(2, "Questions that run at once", least=1, most=1024, recorded=False)
    time_limit: str = setting("10min", "Longest time of one question", plain="s", recorded=False)
    state: Path | None = setting(
        None,
        "State directory of lend --follow, whose last answer and metrics are served as well",
        metavar="DIR",
        recorded=False,
    )

    def token(self) -> str:
        """Return the token; empty where none is stated and none is needed."""
        token = os.environ.get(TOKEN, "")
        if self.token_file is not None:
            token = read_text(self.token_file, limit_bytes=LARGEST_TOKEN_BYTES).strip()
        elif not token and not self.is_local:
            raise InputError(
                f"--address {self.address} is open to other machines and needs a token; set "
                f"{TOKEN}, or name --token-file FILE."
            )
        if (token or self.token_file) and (len(token) < LEAST_TOKEN or not token.isascii()):
            raise InputError(
                f"the token has {len(token)} characters and needs {LEAST_TOKEN} of ASCII; draw one "
                "with openssl rand -hex 16."
            )
        return token

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can ask."""
        return self.address in ("localhost", "::1") or self.address.startswith("127.")

    def hosts(self) -> tuple[str, ...]:
        """Return the names by which clients may ask."""
        if self.address in ANY and not self.host:
            raise InputError(
                f"--address {self.address} has no name of its own; add --host with the name by "
                "which clients ask."
            )
        return tuple(dict.fromkeys((*HOSTS, self.address, *self.host)))


def serve_api(inputs: ServiceInputs, call: Invocation) -> None:
    """Answer questions of programs over HTTP, in JSON.

    POST /lend, /fleet, /plan, /serve and /train take the options of these commands and answer what
    --json prints. The page / lists them, and /openapi.json describes them. Ends with Ctrl-C.
    """
    if call.out is not None or call.json:
        raise InputError("serve-api answers requests; leave --json and --out out.")
    token, hosts = inputs.token(), inputs.hosts()
    limit_s = parse_seconds(inputs.time_limit, "--time-limit")
    if not 1 <= limit_s <= 86_400:
        raise InputError(f"--time-limit {inputs.time_limit} is not between 1 s and 24 h.")
    check_free(inputs.port, inputs.address)
    try:
        import asyncio

        from experiments.cli.service.server import Service, application, listening
    except ModuleNotFoundError as missing:
        if missing.name != "tornado":
            raise
        raise InputError(
            "serve-api needs tornado, which is not installed. Install it with "
            "pip install 'cluster-sim[api]'."
        ) from None

    async def serve() -> None:
        """Serve until interrupted."""
        served = application(Service(token, inputs.workers, limit_s, inputs.state))
        only_for(served, hosts)
        listening(served, inputs.port, inputs.address)
        if not call.quiet:
            sys.stderr.write(f"http://{inputs.address}:{inputs.port} (Ctrl-C ends it)\n")
            sys.stderr.flush()
        await asyncio.Event().wait()

    asyncio.run(serve())


def check_free(port: int, address: str = HOST) -> None:
    """Refuse a port on which another program serves, before anything is computed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            raise InputError(f"port {port} cannot be used. Choose another with --port.") from None


def only_for(application: Any, hosts: Sequence[str]) -> None:
    """Let an application of tornado answer requests for these host names alone, web sockets too."""
    # A page elsewhere may give its own name the address 127.0.0.1, and a browser would then let it
    # read what this server answers (DNS rebinding).
    from tornado.routing import HostMatches, Rule

    pattern = "|".join(map(re.escape, hosts))
    application.default_router.rules = [
        Rule(HostMatches(f"(?:{pattern})$"), application.wildcard_router)
    ]
