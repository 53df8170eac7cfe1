"""The models that the explorer may open, by name, and what they did with texts: recorded passes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.errors import ConfigError, FileError, LookError, RegardError, ShapeError, check_choice
from regard.inspection import Edit, Sight, Site, load_sight
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.record.sight_file import FILE_NAME as SIGHT_FILE
from regard.models.hub.folder import read_config
from regard.runs import Run, load, pretrained_names
from regard.runs.contents import RECIPE_FILE, files_version, read_recipe
from regard.runs.image_model import ImageModel, hub_input, load_image_model, reads_pictures
from regard.runs.image_text_model import ImageTextModel, load_image_text_model
from regard.runs.loading import find_run, holds_model
from regard.runs.text_model import Reading, TextModel
from regard.tasks import Pipeline, Task
from regard.tasks.verb import options_of
from regard.web.jobs import Job

Edits = Sequence[Edit | ActivationEdit]
MAX_OPEN = 4  # models in memory
Kind = Literal["run", "hugging face", "model", "sight"]


class BoundedStore:
    """Values by key; the least recently used ones leave when all together are too large.

    >>> store = BoundedStore(10)
    >>> store.put("a", b"12345678"), store.put("b", b"1234")
    (b'12345678', b'1234')
    >>> store.get("a"), store.get("b")
    (None, b'1234')
    """

    def __init__(self, max_size: int, measure: Callable[[Any], int] = len):
        self.max_size, self.size, self.measure = max_size, 0, measure
        self._items: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The value of a key, or None."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key, (0, None))[1]

    def put(self, key: Hashable, value: Any) -> Any:
        """Keep a value, unless it alone is too large."""
        if (size := self.measure(value)) > self.max_size:
            return value
        with self._lock:
            self.size += size - self._items.pop(key, (0, None))[0]
            self._items[key] = size, value
            while self.size > self.max_size:
                self.size -= self._items.popitem(last=False)[1][0]
        return value


def one(value: Any) -> int:
    """The measure of a store that holds a number of values."""
    return 1


class CatalogEntry(NamedTuple):
    """A model that can be opened."""

    name: str
    path: Path
    kind: Kind
    verb: str | None = None  # of the task of a run
    task: str | None = None
    languages: tuple[str, ...] = ()  # that a translator writes
    input: str = "text"  # of a model
    options: tuple[Any, ...] = ()  # of its task, for a form, where a view shows what it returns
    reason: str = ""  # why no view shows it, of a Hugging Face folder
    example: str = ""  # an input that its task declares
    pictures: bool = False  # whether a model of texts reads pictures too

    @property
    def reads(self) -> str:
        """What the model reads: text, image, sound, or nothing for a saved sight."""
        if self.kind == "sight" or self.reason:
            return "nothing"
        return self.input

    @property
    def is_vision_folder(self) -> bool:
        """Whether it is a vision model of Hugging Face, which the image view opens."""
        return self.kind == "hugging face" and self.input == "image"

    @property
    def version(self) -> Hashable:
        """Changes when the files of the model do: a run that trains writes checkpoints."""
        return files_version(self.path)


class Catalog:
    """Models by name; requests never name a path.

    Args:
        names: run folders, Hugging Face folders, saved sights or names of pretrained models.
        folders: folders whose runs are listed too, also those that appear later.
    """

    def __init__(
        self,
        names: Iterable[str | Path] = (),
        folders: Iterable[Path] = (),
        *,
        device: str | None = None,
    ):
        self.folders, self.device = [Path(x).resolve() for x in folders], device
        self._entries: dict[str, CatalogEntry] = {}
        self._described: dict[Path, tuple[Any, CatalogEntry | None]] = {}
        self.damaged: dict[str, str] = {}  # reasons by name, of the runs that `entries` leaves out
        self._open = BoundedStore(MAX_OPEN, one)  # versions and models by name
        for name in names:
            self.add(name)

    def add(self, name: str | Path) -> str:
        """Add a model by its path or pretrained name; the name that requests use."""
        path = find_run(name)
        entry = describe(path)
        if entry.name in self._entries:  # such as a/run and b/run
            entry = entry._replace(name=f"{path.resolve().parent.name}/{entry.name}")
        if entry.name in self._entries:
            raise ConfigError(
                f"names: need to differ, got {entry.name!r} twice; try renaming a folder"
            )
        self._entries[entry.name] = entry
        return entry.name

    @property
    def named(self) -> list[CatalogEntry]:
        """The models given by name."""
        return list(self._entries.values())

    @property
    def entries(self) -> dict[str, CatalogEntry]:
        """The models that can be opened now; reads the folders again."""
        entries, folders = dict(self._entries), self.run_folders()
        for name, folder in folders.items():
            if (entry := self._described_run(folder, name)) is not None:
                entries.setdefault(name, entry._replace(name=name))
        for name in self.damaged.keys() - folders:  # its folder was removed
            self.damaged.pop(name, None)
        return entries

    def run_folders(self) -> dict[str, Path]:
        """The folder of each run of the listed folders, without links that lead elsewhere."""
        return {
            f"{parent.name}/{file.parent.name}": file.parent
            for parent in self.folders
            for file in sorted(parent.glob(f"*/{RECIPE_FILE}"))
            if file.resolve().is_relative_to(parent)
        }

    def _described_run(self, folder: Path, name: str) -> CatalogEntry | None:
        """The entry of a run, read when its recipe is new; every request needs all of them."""
        try:
            facts = (folder / RECIPE_FILE).stat()
        except OSError:  # gone since it was listed
            self.damaged.pop(name, None)
            return None
        stamp, known = (facts.st_mtime_ns, facts.st_size), self._described.get(folder)
        if known is None or known[0] != stamp:
            entry = None
            self.damaged.pop(name, None)
            try:
                entry = describe(folder)
            except RegardError as error:  # damaged, or just being written: the others are listed
                self.damaged[name] = str(error).replace(f"{folder}/", "")
            known = self._described[folder] = stamp, entry
        return known[1]

    def entry(self, name: str) -> CatalogEntry:
        """The entry of a name."""
        known = self._entries if name in self._entries else self.entries
        if name not in known and name in self.damaged:
            raise FileError(f"model: needs a whole run, got {name!r}, {self.damaged[name]}")
        check_choice("model", name, known)
        return known[name]

    def run(self, name: str) -> Run:
        """The open run of a name; at most a few stay in memory."""
        entry = self.entry(name)
        if entry.kind == "sight":
            raise ConfigError(f"model: needs one that runs, got the saved sight {name!r}")
        if entry.is_vision_folder:
            raise ConfigError(f"model: needs a text or a run, got {name!r}; try the image view")
        return self._opened(entry)

    def image_model(self, name: str) -> ImageModel | ImageTextModel | None:
        """The model of a Hugging Face folder that reads pictures; None for any other name."""
        entry = self.entry(name)
        if entry.pictures:
            return load_image_text_model(entry.path, self.run(name).text_model.model)
        return self._opened(entry) if entry.is_vision_folder else None

    def run_of_verb(self, verb: str, name: str, *, needs: str, hint: str) -> Run:
        """The open run of a name, if its task has this verb; `needs` and `hint` word the error."""
        entry = self.entry(name)
        if entry.verb == verb:
            return self.run(name)
        got = f"the {entry.kind} model {name!r}" + (f" ({entry.task})" if entry.task else "")
        raise ConfigError(f"model: needs {needs}, got {got}; try {hint}")

    def sight(self, name: str) -> Sight:
        """The saved sight of a name."""
        entry = self.entry(name)
        if entry.kind != "sight":
            raise ConfigError(f"model: needs a saved sight, got {name!r}")
        return self._opened(entry)

    def _opened(self, entry: CatalogEntry) -> Any:
        if entry.reason:
            raise ConfigError(
                f"model: needs one that a view shows, got {entry.name!r}: {entry.reason}"
            )
        stamp, known = entry.version, self._open.get(entry.name)
        if known is not None and known[0] == stamp:
            return known[1]
        if entry.kind == "sight":
            opened: Any = load_sight(entry.path)
        elif entry.is_vision_folder:
            opened = load_image_model(entry.path)
            opened.model.to(self.device or "cpu")
        else:
            opened = load(entry.path, device=self.device)
        return self._open.put(entry.name, (stamp, opened))[1]

    def version(self, name: str) -> Hashable:
        """The version of a model by name."""
        return self.entry(name).version


def default_names() -> list[str]:
    """The pretrained models, in the order in which the page lists them: it opens on the first.

    >>> default_names()[0] in ("smollm2", "stories")  # the first after `regard get smollm2`
    True
    """
    first = ("smollm2", "stories", "phrases", "stdlib", "phrases-gru", "glyphs", "morse")
    return sorted(pretrained_names(), key=lambda x: (first.index(x) if x in first else 9, x))


def _form(task: Task) -> tuple[Any, ...]:
    """The options that the text view shows, as JSON; other views have fields of their own."""
    if task.pipeline_type is not Pipeline:
        return ()
    return tuple(x.describe() for x in options_of(task.Options) if not x.local)


def describe(path: Path) -> CatalogEntry:
    """The entry of a folder or file, read from its small files only."""
    name = path.resolve().name
    if path.is_file() or (path / SIGHT_FILE).is_file():
        return CatalogEntry(path.stem, path, "sight")
    if (path / RECIPE_FILE).is_file():
        recipe = read_recipe(path)
        languages = tuple(getattr(recipe.data, "languages", ()) or ())
        task = recipe.data
        facts = task.verb, task.name, languages, task.reads.page, _form(task)
        declared = task.reads.example != type(task.reads)().example
        example = task.reads.example if declared else ""
        return CatalogEntry(name, path, "run", *facts, example=example)
    if (path / "config.json").is_file():  # first, as `load`: it has a model.safetensors too
        values = read_config(path)
        kinds = values.get("architectures")
        kind = kinds[0] if kinds and isinstance(kinds, list) else "model"
        reads, reason = hub_input(path, values)
        entry = CatalogEntry(name, path, "hugging face", None, str(kind), input=reads)
        return entry._replace(
            reason=reason, pictures=reads == "text" and reads_pictures(path, values)
        )
    if holds_model(path):
        return CatalogEntry(name, path, "model")
    raise FileError(f"{path}: needs a run, a model or a Hugging Face folder, got neither")


MAX_BYTES = 1 << 30  # of all recordings; the newest stays, however large
MAX_RECORDINGS = 64
MAX_TOKENS = 4096  # that are recorded at every attention; the atlas shows more of one


class Recordings:
    """What models did with texts; a reading that was dropped is simply recorded again.

    >>> readings = Recordings(Catalog(["phrases"]))
    >>> readings.read("phrases", "3 days", to="de").target
    '3 Tage'
    """

    def __init__(self, catalog: Catalog):
        self.catalog, self._readings = catalog, BoundedStore(MAX_BYTES, _size)

    def read(
        self,
        model: str,
        text: str,
        *,
        to: str | None = None,
        target: str | None = None,
        edits: Edits = (),
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
        if (known := self._readings.get(key)) is not None:
            return known
        job = job or Job()
        job.report(0.0, f"opening {model}")
        text_model = self.catalog.run(model).text_model
        if to is None and text_model.is_encoder_decoder:
            to = text_model.default_language
        check_length(text_model, text, target)
        job.report(0.0, "running the model")
        target = text_model.complete_target(text, target, to)  # decoded by the unedited model
        with job.checking(text_model.model):
            return self._readings.put(key, text_model.read(text, target, to=to, edits=edits))


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
    """Bytes of a recording, counted as so many that not too many fit, and that any fits alone."""
    tensors: list[Any] = [x for s in reading.sight for x in (s.q, s.k, s.v, s.out, s.lse)]
    count = sum(x.nbytes for x in (*tensors, reading.logits) if x is not None)
    return min(max(count, MAX_BYTES // MAX_RECORDINGS), MAX_BYTES)
