"""Recorded forward passes: one per model, input and edits, within a memory limit."""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from regard.errors import LookError, ShapeError
from regard.inspection import Edit, Sight, Site
from regard.inspection.edits.activations import ActivationEdit
from regard.runs.text_model import Reading, TextModel
from regard.web.explorer.catalog import Catalog
from regard.web.jobs import Job

MAX_BYTES = 4 << 30  # of all recordings
MAX_RECORDINGS = 64
MAX_TOKENS = 4096  # that are recorded at every attention; the atlas shows more of one


class Recordings:
    """What models did with texts; a reading that was dropped is simply recorded again.

    >>> readings = Recordings(Catalog(["phrases"]))
    >>> readings.read("phrases", "3 days", to="de").target
    '3 Tage'
    """

    def __init__(self, catalog: Catalog):
        self.catalog = catalog
        self._readings: OrderedDict[Hashable, Reading] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self,
        model: str,
        text: str,
        *,
        to: str | None = None,
        target: str | None = None,
        edits: Sequence[Edit | ActivationEdit] = (),
        job: Job | None = None,
    ) -> Reading:
        """Sight, output and predictions of a model on a text; recorded once.

        Args:
            model: a name of the catalog.
            text: what it reads.
            to: target language of a translator.
            target: what an encoder-decoder writes; its own translation by default.
            edits: of the forward pass, as `rg.what_if` takes them.
            job: to check between blocks.
        """
        entry = self.catalog.entry(model)
        if entry.kind == "sight":
            return Reading(self.catalog.sight(model), None)
        key = (model, entry.version, text, to, target, tuple(map(repr, edits)))
        with self._lock:
            if key in self._readings:
                self._readings.move_to_end(key)
                return self._readings[key]
        reading = self._record(model, text, to, target, edits, job or Job())
        with self._lock:
            self._readings[key] = reading
            while len(self._readings) > MAX_RECORDINGS or (
                len(self._readings) > 1 and sum(map(_size, self._readings.values())) > MAX_BYTES
            ):
                self._readings.popitem(last=False)
        return reading

    def _record(
        self,
        model: str,
        text: str,
        to: str | None,
        target: str | None,
        edits: Sequence[Edit | ActivationEdit],
        job: Job,
    ) -> Reading:
        text_model = self.catalog.run(model).text_model
        if to is None and text_model.is_encoder_decoder:
            to = text_model.default_language
        check_length(text_model, text, target)
        target = text_model.complete_target(text, target, to)  # decoded by the unedited model
        with job.checking(text_model.model):
            return text_model.read(text, target, to=to, edits=edits)


def check_length(text_model: TextModel, text: str, target: str | None = None) -> None:
    """Refuse texts whose attention would take minutes, before the model runs.

    >>> check_length(rg.load("phrases").text_model, "day " * 5000)
    Traceback (most recent call last):
        ...
    regard.errors.ShapeError: text: needs at most 4096 tokens here, got 5002; try the atlas
    """
    for name, content in (("text", text), ("target", target)):
        if content is not None and len(content) > MAX_TOKENS // 64:  # few tokens per character
            count = text_model.encode(name, content).shape[1]
            if count > MAX_TOKENS:
                limit = f"at most {MAX_TOKENS} tokens here"
                raise ShapeError(f"{name}: needs {limit}, got {count}; try the atlas")


def recorded_sites(sight: Sight) -> list[Site]:
    """One site per attention whose tensors were recorded; calls that continue each other joined.

    >>> [site.name for site in recorded_sites(rg.Sight([rg.make_site(*torch.zeros(2, 3, 4))]))]
    ['attention']
    """
    known = [site for site in sight if site.has_tensors]
    if len({site.name for site in known}) < len(known):
        known = Sight(known).join_all()
    return list({site.name: site for site in reversed(known)}.values())[::-1]


def find_head(sight: Sight, name: str, head: int) -> tuple[Site, int]:
    """A recorded site by name, and one of its heads.

    >>> find_head(rg.Sight([rg.make_site(*torch.zeros(2, 3, 4))]), "attention", 1)
    Traceback (most recent call last):
        ...
    regard.errors.LookError: head: needs less than the 1 heads of attention, got 1
    """
    sites = recorded_sites(sight)
    site = next((x for x in sites if x.name == name), None)
    if site is None:
        names = ", ".join(x.name for x in sites[:8])
        raise LookError(f"site: needs one of {names}, got {name[:80]!r}")
    if head >= site.heads:
        raise LookError(f"head: needs less than the {site.heads} heads of {name}, got {head}")
    return site, head


def _size(reading: Reading) -> int:
    tensors: list[Any] = [x for s in reading.sight for x in (s.q, s.k, s.v, s.out, s.lse)]
    return sum(x.nbytes for x in (*tensors, reading.logits) if x is not None)
