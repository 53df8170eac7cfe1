"""The lesson view: a lesson's outline, and one step with the values of its places."""

import re
from collections.abc import Callable
from typing import Any

from pydantic import Field
from torch import Tensor

from regard.errors import ConfigError, LookError, RegardError, check_choice
from regard.web.explorer.explorer import MAX_CHARS, Explorer, QueryRequest, find_query, pack, query
from regard.web.explorer.explorer import unpack as unpack_tensor
from regard.web.explorer.lesson_file import (
    MAX_OPTION,
    MAX_STEPS,
    STATE,
    Change,
    Lesson,
    Paragraph,
    Place,
    Question,
)
from regard.web.explorer.views.models import examples_of
from regard.web.jobs import Job

DEFAULT = "attention"
WITHIN = 0.03  # relative error that counts as right: two digits are enough
PART = re.compile(r"\.?(?:([a-z_]\w*)|\[([^\]]+)\])")  # of a path
PREDICTING = ("text", "text.lens", "what-if", "what-if.predictions")
NO_HEAD = "this model has no output head, so it predicts nothing; its attention is shown"
LOCATED = {"site", "head", "query", "key", "position"}  # chosen where the link does not say


class LessonRequest(QueryRequest):
    """A lesson, and what it is walked through with; the lesson knows where to start."""

    lesson: str = Field(DEFAULT, max_length=100)
    model: str | None = Field(None, max_length=200)
    text: str | None = Field(None, max_length=MAX_CHARS)
    to: str | None = Field(None, max_length=20)
    target: str | None = Field(None, max_length=MAX_CHARS)
    site: str | None = Field(None, max_length=300)
    head: int | None = Field(None, ge=0, le=100_000)
    query: int | None = Field(None, ge=0, le=100_000)
    key: int | None = Field(None, ge=0, le=100_000)
    sample: int | None = Field(None, ge=0, lt=1_000_000)
    message: str | None = Field(None, max_length=60)
    value: str | None = Field(None, max_length=MAX_OPTION)  # of what the step lets one change
    step: int = Field(0, ge=0, lt=MAX_STEPS)
    handout: bool = False  # all steps on one page, to print


State = dict[str, Any]


def _related(request: LessonRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    """Every step, and every step with one thing changed."""
    base = request.model_dump(exclude_unset=True, exclude={"step", "value", "handout"})
    steps = [base | {"step": n} for n in range(len(response["steps"]))]
    changes = zip(steps, response["changes"], strict=True)
    return [
        ("lesson.step", body)
        for step, change in changes
        for body in (step, *({**step, change[0]: x} for x in (change[1] if change else ())))
    ]


@query("lesson", LessonRequest, related=_related, is_cached=False)
def answer_lesson(explorer: Explorer, request: LessonRequest, job: Job) -> dict[str, Any]:
    """The outline of a lesson, what it starts with, and the other lessons."""
    lesson = _lesson(explorer, request)
    state, remark = _state(explorer, lesson, request)
    numbers = _numbers(explorer, state, job)
    return {
        "lesson": lesson.name,
        "title": lesson.title,
        "summary": lesson.summary,
        "reads": lesson.reads,
        "steps": [step.title for step in lesson.steps],
        "changes": [_offered(step.change, numbers, explorer, state, job) for step in lesson.steps],
        "state": {k: x for k, x in state.items() if x is not None},
        "remark": remark,
        "lessons": [[x.name, x.title] for x in explorer.lessons.values()],
    }


@query("lesson.step", LessonRequest, is_cached=False)
def answer_lesson_step(explorer: Explorer, request: LessonRequest, job: Job) -> dict[str, Any]:
    """One step: its text, formulas and pictures with the numbers of the model, its question."""
    lesson = _lesson(explorer, request)
    if request.step >= len(lesson.steps):
        raise ConfigError(f"step: needs 0 to {len(lesson.steps) - 1}, got {request.step}")
    step = lesson.steps[request.step]
    state, _ = _state(explorer, lesson, request)
    # whether a place of the step is asked about one attention, or a change chooses one
    fields = {f for x in step.places for f in find_query(x.query).request.model_fields}
    sets_value = step.change is not None and step.change.name == "value"
    predicts = fields & LOCATED or (step.change is not None and not sets_value)
    numbers = _numbers(explorer, state, job) if predicts else None
    if numbers is not None:
        state |= {name: numbers[name] for name in LOCATED - {"position"}}
        state["position"] = _position(explorer, state, numbers, job)
    if step.change is not None and sets_value:
        state["value"] = request.value if request.value is not None else step.change.start
        check_choice("value", state["value"], step.change.options)

    def read(place: Place) -> dict[str, Any]:
        return _shown(explorer, place, state, job)

    offered = _offered(step.change, numbers, explorer, state, job)
    control = None
    if step.change is not None and offered is not None:
        name, values = offered
        labels = (numbers or {}).get(f"{name}_tokens") or map(str, values)
        options = [list(x) for x in zip(values, labels, strict=True)]
        control = {"name": name, "label": step.change.label or name, "options": options}
        control["chosen"] = state.get(name)
    return {
        "title": step.title,
        "text": [_written(x, read) for x in step.text],
        "formulas": step.formulas,
        "shown": [read(place) for place in step.shown],
        "change": control,
        "question": None if step.question is None else _question_json(step.question, read),
        "state": {k: x for k, x in state.items() if x is not None},
    }


def _lesson(explorer: Explorer, request: LessonRequest) -> Lesson:
    lessons = explorer.lessons  # those of a teacher are read anew
    check_choice("lesson", request.lesson, lessons)
    return lessons[request.lesson]


def _state(explorer: Explorer, lesson: Lesson, request: LessonRequest) -> tuple[State, str]:
    """What the places are asked with: the link, then the lesson's start for the model."""
    given = {k: x for k in STATE if (x := getattr(request, k, None)) is not None}
    if lesson.reads == "nothing":
        return given, ""
    entries = {n: x for n, x in explorer.catalog.entries.items() if x.reads == lesson.reads}
    starts = [x for x in lesson.starts if x.get("model") in entries]
    name, remark = given.get("model"), ""
    if name is None:
        name = starts[0]["model"] if starts else next(iter(entries), None)
        if lesson.starts and not starts:
            names = ", ".join(x.get("model", "") for x in lesson.starts)
            remark = f"This lesson begins with {names}, not among the models here; shown: {name}."
    if name is None:
        raise LookError(f"model: needs one that reads {lesson.reads}, got none; try regard get")
    entry = explorer.catalog.entry(name)
    start = next((x for x in starts if x["model"] == name), {})
    if given.keys() & {"text", "message", "sample"}:  # of another input the cell means nothing
        start = {k: x for k, x in start.items() if k in ("model", "to")}
    if "site" in given:
        start = {k: x for k, x in start.items() if k not in LOCATED}
    state = {**start, **given, "model": name}
    if lesson.reads == "text":
        state.setdefault("text", next(iter(examples_of(entry)), ""))
        if entry.languages:
            state.setdefault("to", "de" if "de" in entry.languages else entry.languages[0])
    return state, remark


def _numbers(explorer: Explorer, state: State, job: Job) -> dict[str, Any] | None:
    """Where the lesson is in the model; None where there is no attention to be in."""
    if "text" not in state or _reading(explorer, state, job)["start"] is None:
        return None
    fields = find_query("lesson.attention").request.model_fields
    return explorer.answer("lesson.attention", {k: state[k] for k in fields if k in state}, job)


def _reading(explorer: Explorer, state: State, job: Job) -> dict[str, Any]:
    """The response of the text view."""
    names = ("model", "text", "to", "target")
    return explorer.answer("text", {k: state[k] for k in names if k in state}, job)


def _position(explorer: Explorer, state: State, numbers: dict[str, Any], job: Job) -> int | None:
    """The position whose prediction is shown: that of the query where both are one sequence."""
    predictions = _reading(explorer, state, job)["predictions"]
    if predictions is None:
        return None
    is_same = predictions["count"] == len(numbers["query_tokens"])
    return numbers["query"] if is_same else predictions["at"]


def _offered(
    change: Change | None, numbers: Any, explorer: Explorer, state: State, job: Job
) -> tuple[str, list[Any]] | None:
    """The parameter that a change sets, and its values."""
    if change is None:
        return None
    if change.name == "value":
        return "value", list(change.options)
    if numbers is None:
        return None
    if change.name == "site":
        return "site", [x["name"] for x in _reading(explorer, state, job)["sites"]]
    counts = {"head": numbers["heads"]} | {x: len(numbers[f"{x}_tokens"]) for x in ("query", "key")}
    return change.name, list(range(counts[change.name]))


def _written(paragraph: Paragraph, read: Callable[[Place], Any]) -> dict[str, Any]:
    """A paragraph with the values of its places."""
    spans = [[style, read(x) if isinstance(x, Place) else x] for style, x in paragraph.spans]
    return {"kind": paragraph.kind, "spans": spans}


def _question_json(question: Question, read: Callable[[Place], Any]) -> dict[str, Any]:
    """A question with its answer, which the page checks; a saved page can, too."""
    place, rows = question.answer, []
    shown = read(place) if isinstance(place, Place) else {"value": place}
    if isinstance(place, Place) and place.reduction != "count":
        rows = shown.get("rows") or []
    return {
        "text": _written(question.question, read),
        "answer": shown.get("value"),
        "error": shown.get("error") or shown.get("note"),
        "within": WITHIN,
        "choices": list(question.choices) or rows,
        "because": None if question.because is None else _written(question.because, read),
    }


def _shown(explorer: Explorer, place: Place, state: State, job: Job) -> dict[str, Any]:
    """The value of a place with its labels, or the reason why there is none."""
    query = find_query(place.query)
    body = {k: x for k, x in state.items() if k in query.request.model_fields}
    # a slot takes a name of the model or a declared value, which edits parse, never evaluate
    body |= {k: _filled(x, state) for k, x in place.params.items()}
    options = place.options
    shown: dict[str, Any] = {k: options[k] for k in ("as", "size", "first", "last") if k in options}
    if "title" in options:
        shown["title"] = _filled(options["title"], state)
    if (mark := options.get("mark")) is not None:
        cell = [state.get("query"), state.get("key")]
        shown["mark"] = cell if mark == "cell" else state.get(mark)
    try:
        response = explorer.answer(place.query, body, job)
        for name in filter(options.get, ("rows", "columns")):
            path = options[name]
            labels = path.split(",") if "," in path else follow(response, path, state)
            shown[name] = [str(x) for x in labels]
        value = _drawable(follow(response, place.path, state), shown.get("columns"))
    except RegardError as error:
        predicts = place.query in PREDICTING and "text" in body
        if predicts and _reading(explorer, state, job)["predictions"] is None:
            return shown | {"note": NO_HEAD}
        return shown | {"error": str(error)}
    return shown | {"value": _reduced(place.reduction, value, shown.get("rows"))}


def _drawable(value: Any, columns: list[str] | None) -> Any:
    """The value, if the page can draw it: no bare object, and of records only fields they have."""
    if isinstance(value, dict) and not value.keys() & {"float32", "png"}:
        known = ", ".join(value)
        raise ConfigError(f"path: needs a number, a text or a list, got an object; try {known}")
    if columns and isinstance(value, list) and value and isinstance(value[0], dict):
        for name in columns:
            check_choice("columns", name, value[0])
    return value


def _filled(text: str, state: State) -> str:
    for name in (*STATE, "value"):
        text = text.replace(f"{{{name}}}", str(state.get(name, "")))
    return text


def follow(value: Any, path: str, state: State) -> Any:
    """What stands at a path of a response; what follows [:] or a list is taken of each entry.

    >>> follow({"row": [{"dot": 1}, {"dot": 4}]}, "row.dot", {})
    [1, 4]
    >>> follow([[1, 2], [3, 4]], "[:][key]", {"key": 1})
    [2, 4]
    """
    match = PART.match(path)
    if isinstance(value, dict) and "float32" in value:
        value = unpack_tensor(value)
    if match is None:
        if isinstance(value, Tensor):
            return value.item() if value.ndim == 0 else pack(value)
        return value
    name, index, rest = match[1], match[2], path[match.end() :]
    try:
        if index == ":" or (name and isinstance(value, list)):
            return [follow(x, rest if index else path, state) for x in value]
        at = int(index) if index and index.lstrip("-").isdigit() else state.get(index, index)
        if isinstance(at, str) and isinstance(value, list):  # an entry by its name
            return follow(next(x for x in value if x["name"] == at), rest, state)
        return follow(value[name or at], rest, state)
    except (KeyError, IndexError, TypeError, StopIteration):
        known = f"; try {', '.join(value)}" if isinstance(value, dict) else ""
        raise ConfigError(f"path: needs a field of the query, got {path!r}{known}") from None


def _reduced(reduction: str, value: Any, labels: list[str] | None) -> Any:
    """The label of the largest or smallest value, or how many values there are."""
    if not reduction:
        return value
    if isinstance(value, dict):
        value = unpack_tensor(value).tolist()
    if reduction == "count":
        return len(value)
    pairs = [x if isinstance(x, list) else [n, x] for n, x in enumerate(value)]
    known = [(x, n) for n, (_, x) in enumerate(pairs) if isinstance(x, int | float)]
    if not known:
        return None
    best = max(known)[1] if reduction == "largest" else min(known)[1]
    return labels[best] if labels else pairs[best][0]
