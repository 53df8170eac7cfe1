"""`regard serve`: the explorer and the HTTP API of models."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL…",
            help="Run folders, Hugging Face folders, saved sights or pretrained models; by default "
            "the pretrained models and the runs in --runs.",
        ),
    ] = None,
    api: Annotated[
        bool, typer.Option("--api", help="Serve the HTTP API only, without the page.")
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder whose runs the page lists.")] = Path("runs"),
    lesson: Annotated[
        Path | None,
        typer.Option(help="A lesson, or a folder of lessons (.md), shown before those included."),
    ] = None,
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
        int | None,
        typer.Option(
            help="Threads on a CPU; by default 1, and for large models one per core.", min=1
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
) -> None:
    """Open the explorer, a page that shows what models do, and serve them over HTTP.

    Each named run is also served at the path of its verb, such as /translate; see /models.
    Waiting requests are computed as one batch. Example: curl -d '{"texts": ["3 days"],
    "to": ["de"]}' -H 'Content-Type: application/json' http://127.0.0.1:8000/translate
    """
    import os
    import socket
    import threading
    import webbrowser

    # set before torch starts its threads: ones that spin while they wait halve a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from regard.cli.look import silence_transformers
    from regard.errors import ConfigError
    from regard.web.api import create_app
    from regard.web.explorer.catalog import Catalog, default_names
    from regard.web.explorer.explorer import Explorer
    from regard.web.gate import EVERY_ADDRESS, LOOPBACK
    from regard.web.server import serve_app

    is_loopback = host in LOOPBACK
    if not is_loopback and not token:
        raise ConfigError(f"token: needs one to listen beyond loopback, on {host}, got none")
    if api and lesson:
        raise ConfigError("lesson: needs the page, got --api; try one of the two")
    if api and not names:
        raise ConfigError("MODEL: needs one or more for --api, got none; try phrases")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))  # raised before the models are loaded
            port = probe.getsockname()[1]  # of 0: any free one
        except OSError as error:
            raise ConfigError(
                f"port: needs a free one, got {port} ({error.strerror}); try --port 0"
            ) from None
    torch.set_num_threads(threads or 1)
    catalog = Catalog(names or default_names(), [runs], device=device)
    with silence_transformers():
        # an API for the runs that are named; the others are opened when the page asks for them
        served = {x.name: catalog.run(x.name) for x in catalog.named if names and x.kind == "run"}
    name = socket.gethostname()
    hosts = LOOPBACK if is_loopback else (*LOOPBACK, host, name, f"{name}.local")
    explorer = None if api else Explorer(catalog, threads=threads, lessons=lesson)
    app = create_app(served, hosts=hosts, token=token, explorer=explorer)
    shown = name if host in EVERY_ADDRESS else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}"
    page = f"{address}/{f'#token={token}' if token else ''}"
    lines = [] if api else [f"{page} is the explorer"]
    lines += [f"{address}: {', '.join(app.paths)}"] if app.paths else []
    print("; ".join([*lines, "Ctrl-C stops"]), flush=True)
    if open_browser and not api:
        threading.Timer(0.5, webbrowser.open, [page]).start()
    serve_app(app, host=host, port=port)
