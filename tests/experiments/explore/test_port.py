"""The port of the page of ``explore``."""

from __future__ import annotations

import socket

import pytest

from experiments.cli.commands.serve_api import HOST, check_free
from topologies.errors import InputError


def test_a_port_in_use_is_refused_with_the_option_that_changes_it() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be used.*--port"):
            check_free(port)
    check_free(port)
