"""Reports about the attention of a model on a text or a picture, its search and verification."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from regard.errors import FileError, LookError, ShapeError, counted
from regard.files import is_stream, read_text
from regard.inspection import (
    HeadSearch,
    Sight,
    SightComparison,
    Site,
    Verification,
    compare_sights,
    describe_head,
    output_projection,
    score_heads,
    search_heads,
    verify,
    write_report,
)
from regard.inspection.edits.registry import parse_edits
from regard.inspection.record.sight import layer_of
from regard.inspection.report.report import Predictions, top_predictions
from regard.models.hub.folder import read_config
from regard.runs.image_model import hub_input, load_image_model, reads_pictures
from regard.runs.image_text_model import load_image_text_model
from regard.runs.loading import load
from regard.runs.text_model import TextModel

TOP_KEYS = 2  # keys listed per head
VERIFIED_TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps."
VERIFIED_IDS = 24  # tokens where there is no tokenizer


class LookReport(NamedTuple):
    """The text of a report, and the sites that could not be recorded with the reasons."""

    text: str
    skipped: dict[str, str] = {}


def look_report(
    model: TextModel,
    text: str,
    *,
    target: str | None = None,
    to: str | None = None,
    at: str = "*",
    out: Path = Path("report.html"),
    cell: tuple[int, int, int] | None = None,
    describe: bool = False,
    query: int | None = None,
    probe: bool = False,
    name: str | None = None,
    around: Sequence[int] = (),
    edits: str = "",
) -> LookReport:
    """Record the attention of a model on a text and report about it.

    Args:
        model: with its tokenizer.
        text: what the model reads; token ids if it has no tokenizer.
        target: what an encoder-decoder writes; a run's translator decodes its own if None.
        to: target language of a run's translator.
        at: glob over attention sites.
        out: HTML page to write, unless one of the next three is set.
        cell: (head, query, key) of one weight to explain.
        describe: describe every head in words.
        query: list the top keys of this query, trained and untrained.
        probe: also score induction heads on repeated random tokens.
        name: of the model on the page, such as its folder; its class if None.
        around: queries of a long text around which the page has the exact weights.
        edits: of the model, written as in Python: "drop_head('*.self', 2); uniform('*.cross')".

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> report = look_report(rg.runs.TextModel(model, vocab=10), "3 1 4", describe=True)
    >>> len(report.text.splitlines())  # two layers of four heads
    8
    """
    if not out.resolve().parent.is_dir():  # raised now, not after the forward pass
        raise FileError(f"out: needs a folder that exists, got {out.parent}; try another path")
    calls = [call.make() for call in parse_edits(edits)]
    if query is not None:
        if calls:
            raise LookError("edit: needs a page, a cell or prose, got a query; try without --query")
        return LookReport(format_attention_table(model, query, text, target, at, to))
    reading = model.read(text, target, at, to=to, edits=calls)
    sight, target = reading.sight, reading.target
    if cell is not None:
        return LookReport(explain_weight(model.model, sight, *cell))
    if describe:
        if not sight.sites:
            raise LookError(f"describe: needs attention, got {sight.mixer_names}; try without it")
        heads = ((site, head) for site in sight for head in range(site.heads))
        lines = (f"{site.name}, head {head}: {describe_head(site, head)}" for site, head in heads)
        return LookReport("\n".join(lines))
    scores = score_heads(model.model) if probe else None
    kind = type(model.model).__name__
    facts = {"Model": kind if name is None else f"{name} ({kind})", "Input": text}
    facts |= {} if target is None else {"Output": target}
    facts["Layers"] = layers_recorded(sight)
    facts |= {"Edits": "; ".join(map(repr, calls))} if calls else {}
    write_report(
        sight,
        out,
        title=f"Attention of {kind if name is None else Path(name).name or name}",
        separators=model.separators,
        probe=scores,
        facts=facts,
        queries=around,
        predictions=reading.predictions,
    )
    sites = counted(len(sight), "attention site")
    size = "" if is_stream(out) else f", {out.stat().st_size / 1e6:.1f} MB"
    text = f"{out}: {sites}, {counted(sum(x.heads for x in sight), 'head')}{size}\n"
    text += "; ".join(filter(None, (facts["Layers"], sight.missing)))
    return LookReport(text, dict(sight.skipped))


def layers_recorded(sight: Sight) -> str:
    """How many layers were recorded, and why others were not; with at= nothing is known of those.

    >>> layers_recorded(Sight([rg.make_site(*torch.zeros(2, 3, 4), name="layers.0.attn")]))
    '1 of 1 layers recorded'
    """
    if sight.coverage:
        return sight.coverage
    count = len({layer_of(name) for name in (*sight.names, *sight.mixer_names)})
    mixers = f", {counted(len(sight.mixer_names), 'linear mixer')}" if sight.mixers else ""
    if sight.unmatched:
        return counted(count, "layer")
    return f"{count} of {count} layers recorded{mixers}"


def compare_texts(
    models: tuple[TextModel, TextModel],
    texts: tuple[str, str],
    *,
    names: tuple[str, str] | None = None,
    target: str | None = None,
    to: str | None = None,
    at: str = "*",
) -> SightComparison:
    """Compare the attention of a model on two texts, or of two models on one text.

    Args:
        models: the model of each text.
        texts: what each model reads; token ids if it has no tokenizer.
        names: of the two, for figures; the texts by default.
        target: what an encoder-decoder writes; a run's translator decodes its own if None.
        to: target language of a run's translator.
        at: glob over attention sites.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> model = rg.runs.TextModel(model, vocab=10)
    >>> len(compare_texts((model, model), ("3 1 4", "3 1 5")).rows)
    8
    """
    pairs = zip(models, texts, strict=True)
    first, second = (model.look(text, target, at, to=to) for model, text in pairs)
    return compare_sights(first, second, names=names or texts)


def parse_cell(text: str) -> tuple[int, int, int]:
    """A cell given as "head,query,key".

    >>> parse_cell("0,1,2")
    (0, 1, 2)
    """
    parts = text.split(",")
    if len(parts) != 3 or not all(map(_is_index, parts)):
        raise LookError(f"cell: needs a head, a query and a key, got {text!r}; try 0,1,2")
    head, query, key = map(int, parts)
    return head, query, key


def parse_queries(text: str) -> list[int]:
    """Queries given as "12,400".

    >>> parse_queries("12,400")
    [12, 400]
    """
    if not all(map(_is_index, text.split(","))):
        raise LookError(f"around: needs indices of queries, got {text!r}; try 0,100")
    return [int(part) for part in text.split(",")]


def _is_index(text: str) -> bool:
    return text.strip().lstrip("-").isdigit()


def explain_weight(model: nn.Module, sight: Sight, head: int, query: int, key: int) -> str:
    """The arithmetic of one weight of the only recorded site, with its output projection."""
    from regard.work import explain

    if len(sight) != 1:
        names = ", ".join(sight.names[:3])
        raise LookError(f"at: needs one attention site for a cell, got {len(sight)}; try {names}")
    (site,) = sight.sites
    try:
        w_out = output_projection(model, site)
    except LookError:  # a module whose output projection has an unknown name: leave that step out
        w_out = None
    return str(explain(site, head, query, key, w_out=w_out))


def format_attention_table(
    model: TextModel, query: int, text: str, target: str | None, at: str, to: str | None
) -> str:
    """The top keys of one query by site and head, of the trained and of an untrained model."""
    target = model.complete_target(text, target, to)  # the same for both models
    trained, untrained = (m.look(text, target, at, to=to) for m in (model, model.untrained()))
    rows = [("attention, head", "trained", "untrained")]
    for site, other in zip(trained, untrained, strict=True):
        if 0 <= query < site.queries:  # source and target differ in length
            rows += [
                (f"{site.name} {head}", _top_keys(site, head, query), _top_keys(other, head, query))
                for head in range(site.heads)
            ]
    if len(rows) == 1:
        longest = max((site.queries for site in trained), default=0)
        raise ShapeError(f"query: needs less than {longest}, got {query}; try 0")
    widths = [max(len(row[n]) for row in rows) for n in range(2)]
    lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows]
    names = {_token(site.query_tokens, query) for site in trained if query < site.queries}
    return "\n".join([f"query {query}: {' or '.join(sorted(names))}", *lines])


def _top_keys(site: Site, head: int, query: int) -> str:
    row = site.window(head=head, rows=slice(query, query + 1))[0, 0]
    weights, keys = row.topk(min(TOP_KEYS, len(row)))
    pairs = zip(keys.tolist(), weights.tolist(), strict=True)
    return ", ".join(f"{_token(site.key_tokens, key)} {weight:.2f}" for key, weight in pairs)


def _token(tokens: list[list[str]] | None, at: int) -> str:
    return str(at) if tokens is None else repr(tokens[0][at])


def is_vision_folder(model: str) -> bool:
    """Whether a folder has a vision model of Hugging Face, which reads pictures alone."""
    path = Path(model)
    if not (path / "config.json").is_file():
        return False
    reads, reason = hub_input(path, read_config(path))
    if reads == "image" and reason:
        raise LookError(f"model: needs a transformer over patches, got {path.name}: {reason}")
    return reads == "image"


def picture_report(folder: Path, image: Path, text: str | None, out: Path) -> LookReport:
    """Record the attention of a model on a picture, and on a text after it, and write a page.

    Args:
        folder: of Hugging Face: a vision model, or one of images and text with its processor.
        image: a picture.
        text: what follows the picture; None for a vision model.
        out: HTML page to write.
    """
    if text is None:
        vision = load_image_model(folder)
        model, (sight, logits) = vision.model, vision.look(vision.read(image))
        labels = vision.labels
        predictions = None if logits is None else top_predictions(
            "class", logits[None], lambda ids: [labels[i] for i in ids]
        )  # fmt: skip
    elif reads_pictures(folder, read_config(folder)):
        model = load(folder, device="cpu").text_model.model
        reading = load_image_text_model(folder, model).read(image, text)
        sight, predictions = reading.sight, Predictions("next token", [reading.next_tokens[:5]])
    else:
        raise LookError(f"image: needs a model of images and text with its processor, got {folder}")
    facts = {"Model": f"{folder.name} ({type(model).__name__})", "Image": image.name}
    facts |= {} if text is None else {"Input": text}
    facts["Layers"] = layers_recorded(sight)
    title = f"Attention of {folder.name}"
    write_report(sight, out, title=title, facts=facts, predictions=predictions)
    hint = f"regard serve {folder} shows which patches each head looks at"
    sites, heads = len(sight), sum(x.heads for x in sight)
    count = f"{counted(sites, 'attention site')}, {counted(heads, 'head')}"
    return LookReport(f"{out}: {count}\n{facts['Layers']}\n{hint}", dict(sight.skipped))


def search_files(
    model: TextModel, paths: Iterable[Path], by: str = "induction", **options: Any
) -> HeadSearch:
    """Find where in text files each head shows a pattern most; a folder gives its .txt files.

    `options` are those of `search_heads`. Texts are numbered in the order of the files.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "ids.txt"
    >>> _ = file.write_text("3 1 4 3 1 5")
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10)).eval()
    >>> rg.runs.search_files(rg.runs.TextModel(model, vocab=10), [file]).tokens
    6
    """
    if model.is_encoder_decoder:
        raise LookError(
            f"model: needs one stack that reads text, got {type(model.model).__name__}; "
            "try regard look, which records an encoder-decoder on a text"
        )
    options["max_length"] = min(options.get("max_length", 256), model.max_length or 1 << 30)
    tokenizer = model.hf_tokenizer if model.tokenizer is None else model.tokenizer
    return search_heads(model.model, tokenizer, _texts(model, tokenizer, paths), by, **options)


def _texts(model: TextModel, tokenizer: Any, paths: Iterable[Path]) -> Iterator[Any]:
    for path in paths:
        files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        if not files:
            raise FileError(f"{path}: needs .txt files, got a folder without any")
        for file in files:
            text = read_text(file)
            yield model.encode(str(file), text)[0].tolist() if tokenizer is None else text


def verify_text(
    model: TextModel, text: str | None = None, *, target: str | None = None
) -> Verification:
    """Check every look, edit and attribution of a model on a text against brute force.

    Args:
        model: with its tokenizer.
        text: what the model reads; token ids if it has no tokenizer. None is a sentence.
        target: what an encoder-decoder writes; the text by default.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=30, layers=1)).eval()
    >>> rg.runs.verify_text(rg.runs.TextModel(model, vocab=30), "3 1 4 1 5").passed
    True
    """
    if text is None and (model.tokenizer is not None or model.hf_tokenizer is not None):
        text = VERIFIED_TEXT
    elif text is None:
        vocab = model.vocab or 100
        text = " ".join(str((7 * i + 3) % vocab) for i in range(VERIFIED_IDS))
    inputs: Any = model.encode("text", text)
    if model.is_encoder_decoder:
        other = model.encode("target", text if target is None else target, is_decoder=True)
        inputs = (inputs, other)
    if model.decoder_start_token_id is not None:
        inputs = {"input_ids": inputs[0], "decoder_input_ids": inputs[1]}
    elif hasattr(model.model, "base_model_prefix"):  # of transformers
        inputs = {"input_ids": inputs}
    return verify(model.model, inputs)
