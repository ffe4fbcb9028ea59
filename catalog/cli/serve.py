"""``openshelf serve``: run the catalog."""

from __future__ import annotations

import errno
import ipaddress
import json
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
import uvicorn

from catalog.app import create_app
from catalog.runtime import Runtime
from catalog.start import open_catalog
from catalog.tokens.service import first_token
from catalog.web.logging import configure
from openshelf.console import say
from openshelf.errors import OpenshelfError, UsageError

DEFAULT_PORT = 8420
GRACE_S = 30
"""How long running requests may take after the signal to stop."""


class Server(uvicorn.Server):
    """Uvicorn, except that those who wait for the feed are sent home when it stops."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: end the long polls, let the other requests finish."""
        self._runtime.signal.close()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says why there is none."""
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise UsageError("bad_host", f"{host}:{port} is not an address of this machine", "Choose --host.") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise OpenshelfError(
                "port_in_use",
                f"Port {port} of {host} is in use",
                "Stop what listens there, or choose another with --port.",
            ) from error
        raise OpenshelfError(
            "cannot_listen", f"Cannot listen on {host}:{port}: {error.strerror}", "Choose another --host or --port."
        ) from error
    return listening


def server_for(runtime: Runtime, log_level: str) -> Server:
    """A server of ``runtime`` that logs through :mod:`catalog.web.logging`."""
    config = uvicorn.Config(
        create_app(runtime),
        log_config=None,
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=30,
    )
    return Server(config, runtime)


def _url(host: str, listening: socket.socket) -> str:
    port = listening.getsockname()[1]
    try:
        return f"http://[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"http://{host}:{port}"
    except ValueError:
        return f"http://{host}:{port}"


def serve(
    data: Annotated[Path, typer.Option(help="Folder of the database, the key and, without --objects, the objects.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = DEFAULT_PORT,
    objects: Annotated[
        str | None,
        typer.Option(
            help="s3://BUCKET/PREFIX keeps objects in S3; keys and endpoint come from the usual AWS environment."
        ),
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="Print the address as JSON on stdout.")] = False,
) -> None:
    """Run the catalog until SIGTERM or Ctrl-C.

    The first start makes an administrator's token and writes it to DATA/admin.token.

    Examples:

      openshelf serve --data /srv/openshelf

      openshelf serve --data /srv/openshelf --host 0.0.0.0 --port 8420 --objects s3://shelf/objects
    """
    folder = data.expanduser().resolve()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each node keeps a connection; 1,024 is usual
    with listen(host, port) as listening, open_catalog(folder, objects) as runtime:
        configure(log_level)
        url = _url(host, listening)
        made = first_token(runtime)
        server = server_for(runtime, log_level)
        token_file = folder / "admin.token"
        if made:
            say(f"First start: an administrator's token is in {token_file} (only you can read it).")
        say(f"The catalog of {folder} answers at {url} (API: {url}/v1/openapi.json).")
        if as_json:
            print(json.dumps({"url": url, "admin_token": str(token_file), "key": runtime.key.fingerprint}), flush=True)
        for signum in (signal.SIGTERM, signal.SIGINT):
            # Uvicorn raises the signal again once it has stopped; stopping on request is no failure.
            signal.signal(signum, server.handle_exit)
        server.run(sockets=[listening])
        if not server.started:
            sys.exit(1)
