"""Tiles of the atlas over HTTP: several per request, immutable once they are complete."""

import hashlib
import re
import struct
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response

from regard.errors import ConfigError
from regard.web.explorer.explorer import Explorer
from regard.web.explorer.responses import respond_with_job
from regard.web.jobs import Job
from regard.web.worker import Worker

MAX_TILES = 16  # per request
PRIORITY = -1  # somebody looks at them
IMMUTABLE = "private, max-age=31536000, immutable"


def add_atlas_tiles(app: FastAPI, explorer: Explorer, worker: Worker) -> None:
    """Add the path of tiles."""
    explorer.maps.worker = worker

    @app.get("/explore/atlas/tiles")
    async def tiles(
        request: Request,
        map_id: Annotated[str, Query(alias="id", max_length=80)],
        tiles: Annotated[str, Query(max_length=1000)],
        reduce: Literal["mean", "max"] = "mean",
        band: bool = False,
    ) -> Response:
        """Tiles `level/row/column`, each as its length (uint32, little-endian) and its bytes."""
        places = parse_places(tiles)
        key = hashlib.sha256(repr((map_id, reduce, band, places)).encode()).hexdigest()[:24]
        headers = {"ETag": f'"{key}"', "Cache-Control": IMMUTABLE}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)  # complete tiles never change
        job, is_complete = Job(), True

        def compute() -> bytes:
            nonlocal is_complete
            content = []
            for n, place in enumerate(places):
                job.report(n / len(places), "computing tiles")
                pyramid = explorer.maps.look(map_id).pyramid
                tile = (pyramid.band if band else pyramid.tile)(*place, reduce=reduce)
                is_complete &= tile.complete
                data = tile.to_bytes()
                content.append(struct.pack("<I", len(data)) + data)
            return b"".join(content)

        future = worker.submit_job(job, compute, priority=PRIORITY)
        response = await respond_with_job(request, job, future, "application/octet-stream")
        response.headers.update(headers if is_complete else {"Cache-Control": "no-store"})
        return response


def parse_places(text: str) -> list[tuple[int, int, int]]:
    """Levels, rows and columns of tiles.

    >>> parse_places("5/0/1,4/2/3")
    [(5, 0, 1), (4, 2, 3)]
    """
    found = [re.fullmatch(r"(\d{1,3})/(\d{1,7})/(\d{1,7})", part) for part in text.split(",")]
    if not all(found) or len(found) > MAX_TILES:
        raise ConfigError(
            f"tiles: needs 1 to {MAX_TILES} of level/row/column, got {text[:40]!r}; try 0/0/0"
        )
    return [(int(x[1]), int(x[2]), int(x[3])) for x in found if x]
