"""`regard serve`: an HTTP API of trained runs."""

from typing import Annotated

import typer


def serve(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Run folders or names of pretrained models.")
    ],
    api: Annotated[
        bool, typer.Option("--api", help="Serve the HTTP API, described by /openapi.json.")
    ] = True,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            help="Required of every request; needed beyond loopback.", envvar="REGARD_TOKEN"
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; cuda where available.")] = None,
    threads: Annotated[
        int, typer.Option(help="Threads of the models on a CPU; small models need one.", min=1)
    ] = 1,
) -> None:
    """Serve runs over HTTP, each at the path of its verb, such as /translate; see /models.

    Waiting requests are computed as one batch. Example: curl -d '{"texts": ["3 days"],
    "to": ["de"]}' -H 'Content-Type: application/json' http://127.0.0.1:8000/translate
    """
    from pathlib import Path

    import torch

    from regard.errors import ConfigError
    from regard.runs import load
    from regard.web.api import create_app, serve_app
    from regard.web.gate import LOOPBACK

    is_loopback = host in ("127.0.0.1", "localhost", "::1")
    if not is_loopback and not token:
        raise ConfigError(f"token: needs one to listen beyond loopback, on {host}, got none")
    runs = {Path(name).name: load(name, device=device) for name in names}
    if len(runs) < len(names):
        raise ConfigError(f"runs: need different names, got {' '.join(names)}")
    hosts = LOOPBACK if is_loopback else (*LOOPBACK, host)
    torch.set_num_threads(threads)
    app = create_app(runs, hosts=hosts, token=token)
    print(f"http://{host}:{port}: {', '.join(app.paths)}; Ctrl-C stops", flush=True)
    serve_app(app, host=host, port=port)
