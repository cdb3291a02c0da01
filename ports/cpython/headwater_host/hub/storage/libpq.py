"""Helpers for connections to PostgreSQL, blocking or not."""

import contextlib
import os
import socket
from typing import Any

import psycopg


def shut_down(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Let whatever waits for the server fail, in any thread. The connection is then to be closed."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its class."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
