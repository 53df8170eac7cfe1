"""The lesson view: lessons are files, and each number in them is that of the library."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.errors import ConfigError, FileError, RegardError
from regard.web.explorer import recall_models
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, query_names, unpack
from regard.web.explorer.lesson_file import (
    FENCE,
    FOLDER,
    MAX_BYTES,
    MAX_STEPS,
    OPTIONS,
    included_lessons,
    parse_lesson,
    read_lesson,
)
from regard.web.explorer.views.lesson.view import follow

PHRASES = {"model": "phrases", "text": "March 5, 2024", "to": "de"}
WORDS = "the cat sat on a mat and saw one dog"


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    names = ["phrases", "stdlib", *(tiny_folder(folder / x) for x in ("bert", "llama", "headless"))]
    return Explorer(Catalog(names, device="cpu"))


def tiny_folder(path):
    """A random model of transformers with a tokenizer of whole words, as a folder."""
    import tokenizers
    import transformers

    special = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    vocab = {x: i for i, x in enumerate([*special.values(), *WORDS.split()])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    sizes: dict[str, Any] = {
        "vocab_size": len(vocab), "hidden_size": 32, "num_hidden_layers": 2,
        "intermediate_size": 48, "num_attention_heads": 4, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(0)
    if path.name in ("bert", "headless"):
        kind = transformers.BertForMaskedLM if path.name == "bert" else transformers.BertModel
        model = kind(transformers.BertConfig(**sizes))
    else:
        config = transformers.LlamaConfig(**sizes, num_key_value_heads=2)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(path)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(
        path
    )
    return path


def walk(explorer, **body):
    """Every step of a lesson."""
    outline = explorer.answer("lesson", body)
    return [
        explorer.answer("lesson.step", body | {"step": n}) for n in range(len(outline["steps"]))
    ]


def places(step):
    """Everything that a step reads from a query."""
    question = step["question"]
    paragraphs = [*step["text"], *([question["text"]] if question else [])]
    paragraphs += [question["because"]] if question and question["because"] else []
    inline = [x for p in paragraphs for style, x in p["spans"] if style == "value"]
    return [*step["shown"], *inline]


def lesson(block="", text="Text.", title="# A"):
    return parse_lesson(f"{title}\n\n## B\n\n{text}\n\n{FENCE}\n{block}\n```\n")


# ---- worked numbers


def test_the_weight_of_the_lesson_is_that_of_explain(explorer):
    body = PHRASES | {"site": "decoder.1.cross", "head": 5, "query": 2, "key": 0}
    answer = explorer.answer("lesson.attention", body)
    site = explorer.recordings.read("phrases", "March 5, 2024", to="de").sight["decoder.1.cross"]
    explained = rg.explain(site, head=5, query=2, key=0).breakdown
    assert answer["row"][0]["weight"] == explained.weight
    assert answer["row"][0]["score"] == explained.score
    assert sum(x["weight"] for x in answer["row"]) == pytest.approx(1, abs=1e-5)
    assert torch.allclose(unpack(answer["mixed"])[2].double(), explained.out, atol=1e-6)


def test_heads_and_bias_add_up_to_what_attention_adds(explorer):
    body = {"model": "stdlib", "text": "import os", "site": "decoder.2.self", "query": 1}
    written = unpack(explorer.answer("lesson.projection", body)["vectors"])[-1]
    stream = explorer.answer("lesson.stream", body)
    parts = dict(zip(stream["names"], unpack(stream["parts"]), strict=True))
    assert torch.allclose(parts["+ self"], written, atol=1e-4)  # stdlib has no bias
    total = parts["stream before"] + parts["+ self"] + parts["+ feed-forward"]
    assert torch.allclose(parts["stream after"], total, atol=1e-4)


def test_the_embedding_of_a_shared_table_is_that_of_the_decoder(explorer):
    answer = explorer.answer("lesson.stream", PHRASES | {"site": "decoder.1.cross", "query": 0})
    run = rg.load("phrases")
    table = dict(zip(answer["start_names"], unpack(answer["start"]), strict=True))
    token = (
        run.tokenizer.encode_target("", "de")[0]
        if hasattr(run.tokenizer, "encode_target")
        else None
    )
    ids = rg.data.pair_preprocessor(run.tokenizer)(rg.data.Pair("x", "y", "de"))["target"]
    expected = run.model.target_embedding(torch.tensor([[token or ids[0]]]))[0, 0]
    assert torch.allclose(table["embedding"], expected)


def test_of_bert_the_row_of_the_token_stands_apart_from_what_is_added_to_it(explorer):
    body = {"model": "bert", "text": "the cat [MASK] on a mat", "query": 1}
    answer = explorer.answer("lesson.stream", body)
    table = dict(zip(answer["start_names"], unpack(answer["start"]), strict=True))
    words = explorer.catalog.run("bert").text_model.model.get_input_embeddings().weight
    assert any(torch.equal(table["embedding"], row) for row in words)
    added = table["enters block 0"] - table["embedding"]
    assert torch.allclose(table["added to it"], added)
    assert added.norm() > 0.1


def test_an_edit_changes_the_numbers_and_no_edit_gives_those_of_the_view(explorer):
    body = PHRASES | {"lesson": "attention", "step": 6}
    weights = {
        value: explorer.answer("lesson.step", body | {"value": value})["shown"][1]["value"]
        for value in ("0", "1")
    }
    assert weights["0"] == pytest.approx([1 / 8] * 8)
    shown = explorer.answer("text.map", PHRASES | {"site": "decoder.1.cross", "head": 0})
    state = explorer.answer("lesson.step", body)["state"]
    assert (state["site"], state["head"]) == ("decoder.1.cross", 0)
    assert weights["1"] == pytest.approx(unpack(shown["map"])[state["query"]].tolist(), abs=1e-6)


def test_answers_are_the_largest_and_smallest_of_what_is_shown(explorer, tmp_path):
    path = "lesson.attention row.dot rows=key_tokens"
    block = f"{FENCE}\nquestion: Which?\nanswer: WORD {path}\n```"
    row = explorer.answer("lesson.attention", PHRASES)["row"]
    for word, pick in (("largest", max), ("smallest", min)):
        text = f"# A\n\n## B\n\n{block.replace('WORD', word)}"
        (tmp_path / f"{word}.md").write_text(text, "utf-8")
        own = Explorer(explorer.catalog, lessons=tmp_path)
        step = own.answer("lesson.step", PHRASES | {"lesson": word})
        assert step["question"]["answer"] == pick(row, key=lambda x: x["dot"])["token"]


# ---- every lesson, every step, every model


@pytest.mark.parametrize("model", ["phrases", "stdlib", "bert", "llama"])
def test_the_attention_lesson_walks_through_any_model(explorer, model):
    text = {"bert": "the cat [MASK] on a mat", "llama": "the cat sat on"}.get(model)
    steps = walk(explorer, lesson="attention", model=model, **({"text": text} if text else {}))
    assert len(steps) == 14
    problems = [(s["title"], x["error"]) for s in steps for x in places(s) if "error" in x]
    assert not problems
    for step in steps:
        question = step["question"]
        assert question["answer"] is not None
        assert question["error"] is None
        assert not question["choices"] or question["answer"] in question["choices"]
        json.dumps(step, allow_nan=False)


def test_a_model_without_a_head_walks_too_and_says_where_a_prediction_would_be(explorer):
    steps = walk(explorer, lesson="attention", model="headless", text="the cat sat on a mat")
    assert not [(s["title"], x["error"]) for s in steps for x in places(s) if "error" in x]
    noted = {s["title"] for s in steps if any("note" in x for x in places(s))}
    assert noted == {"Tokens", "Output projection", "Next block", "Probabilities"}


@pytest.mark.parametrize("name", sorted(included_lessons()))
def test_every_included_lesson_has_all_its_numbers(name, monkeypatch):
    monkeypatch.setattr(recall_models, "STEPS", 2)
    monkeypatch.setattr(recall_models, "TEST_SEQUENCES", 640)
    models = [x for x in rg.runs.pretrained_names() if x != "smollm2"]
    for step in walk(Explorer(Catalog(models, device="cpu")), lesson=name):
        assert not [x["error"] for x in places(step) if "error" in x], step["title"]
        assert step["question"]["answer"] is not None, step["title"]
        assert step["shown"], step["title"]


def test_bert_is_asked_at_its_mask_and_a_language_model_at_its_end(explorer):
    bert = {"model": "bert", "text": "the cat [MASK] on a mat"}
    assert explorer.answer("lesson.attention", bert)["query"] == 2
    assert explorer.answer("lesson.attention", {"model": "llama", "text": "the cat"})["query"] == 1


def test_every_included_lesson_is_a_file_that_parses_and_starts_with_a_model_of_ours():
    known = rg.runs.pretrained_names()
    for name, one in included_lessons().items():
        assert (FOLDER / f"{name}.md").is_file()
        assert one.steps
        assert one.reads == "nothing" or {x["model"] for x in one.starts} & set(known), name


def test_no_query_has_a_parameter_that_a_place_uses_itself():
    for name in (x for x in query_names() if not x.startswith("atlas.")):  # tiles of open maps
        assert not set(OPTIONS) & set(find_query(name).request.model_fields), name


# ---- what a link and a teacher's folder say


def test_a_teachers_lesson_comes_first_and_is_read_anew(tmp_path):
    file = tmp_path / "mine.md"
    file.write_text("# Mine\n\n## One\n\nIt has {{text output}}.", "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=tmp_path)
    assert explorer.answer("lesson", {"lesson": "mine"})["lessons"][0] == ["mine", "Mine"]
    step = explorer.answer("lesson.step", PHRASES | {"lesson": "mine"})
    assert step["text"][0]["spans"][1][1]["value"] == "5. März 2024"
    file.write_text("# Other\n\n## One\n\nText.", "utf-8")
    assert explorer.answer("lesson", {"lesson": "mine"})["title"] == "Other"


def test_the_example_of_the_docs_walks(tmp_path):
    page = (Path(__file__).parents[3] / "docs/look/lessons.md").read_text("utf-8")
    (tmp_path / "mine.md").write_text(page.split("````markdown\n")[1].split("````")[0], "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=tmp_path)
    (step,) = walk(explorer, lesson="mine")
    assert not [x for x in places(step) if "error" in x]
    assert step["question"]["answer"] in step["question"]["choices"]


def test_a_missing_model_is_named_and_another_one_is_shown(tmp_path):
    file = tmp_path / "big.md"
    file.write_text(f"# Big\n\n{FENCE}\nstart: model=gpt9 text=x\n```\n\n## One\n\nText.", "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=file)
    answer = explorer.answer("lesson", {"lesson": "big"})
    assert answer["state"]["model"] == "phrases"
    assert "gpt9" in answer["remark"]
    with pytest.raises(ConfigError, match="model: needs one of"):
        explorer.answer("lesson", {"lesson": "big", "model": "gpt9"})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("cost totals", "path: needs a number, a text or a list, got an object; try parameters, "),
        ("cost parts columns=part,parameters", "columns: needs one of name, formula, .*got 'part'"),
    ],
)
def test_a_place_that_the_page_cannot_draw_says_why(tmp_path, place, message):
    (tmp_path / "one.md").write_text(f"# A\n\n## B\n\n{FENCE}\nshow: {place}\n```", "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=tmp_path)
    (shown,) = explorer.answer("lesson.step", {"lesson": "one"})["shown"]
    assert re.match(message, shown["error"])


def test_a_place_that_cannot_be_read_says_why_and_the_rest_is_shown(tmp_path):
    block = f"{FENCE}\nshow: time strips\nshow: text output\n```"
    (tmp_path / "mixed.md").write_text(f"# Mixed\n\n## One\n\n{block}", "utf-8")
    explorer = Explorer(Catalog(["phrases"], device="cpu"), lessons=tmp_path)
    first, second = explorer.answer("lesson.step", PHRASES | {"lesson": "mixed"})["shown"]
    assert first["error"].startswith("model: needs recurrent layers")
    assert second["value"] == "5. März 2024"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"lesson": "none"}, "lesson: needs one of"),
        ({"step": 39}, "step: needs 0 to 13, got 39"),
        ({"step": 40}, "step: needs to be valid"),
        ({"step": 4, "value": "7"}, "value: needs one of 0, 0.25"),
        ({"head": 99}, "head: needs less than the 6 heads"),
        ({"query": 99}, "query: needs"),
        ({"text": "day " * 70}, "text: needs at most 64 tokens in a lesson"),
        ({"lesson": "../secret"}, "lesson: needs one of"),
    ],
)
def test_a_bad_link_gets_one_line(explorer, body, message):
    with pytest.raises(RegardError, match=message) as error:
        explorer.answer("lesson.step", PHRASES | body)
    assert "\n" not in str(error.value)


# ---- bad files


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("show: texts output", r"line 8: query: needs a known name, got 'texts'; try text"),
        ("show: text", "place: needs QUERY PATH"),
        ("show: text output colour=red", "text: needs parameters such as .* got 'colour'"),
        ("show: text __class__", "path: needs names and"),
        ("show: text output.__class__.__mro__", "path: needs names and"),
        ("show: text output as=script", "as: needs one of"),
        ("show: text output 'open", "place: needs closed quotes"),
        ("show: what-if sentence edits=\"drop_head('{secret}')\"", "needs one of model"),
        ("shows: text output", "block: needs NAME: VALUE .* got 'shows: text output'; try show"),
        ("show text output", "block: needs NAME: VALUE"),
        ("change: everything", "change: needs one of query"),
        ("change: β = 1", "change: needs 2 to 12 short values"),
        ("question: Why?", "question: needs an answer"),
        ("answer: count text output", "question: needs an answer"),
        ("formula: " + "(" * 250, "line 8: "),
        ("formula: x_", "formula: needs an operand"),
        ("\n".join(["show: text output"] * 7), "show: needs at most 6"),
    ],
)
def test_a_bad_block_is_refused_with_its_line(block, message):
    with pytest.raises(FileError, match=message) as error:
        lesson(block)
    assert str(error.value).startswith("lesson, line ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs '# Title'"),
        ("# Only a title", "needs '# Title' and 1 to 40 '## Step', got a title and 0 steps"),
        ("## No title\n\nText.", "got no title and 1 steps"),
        ("# A\n" + "## B\n" * (MAX_STEPS + 1), "got a title and 41 steps"),
        ("# A\n\n## B\n\n" + "x" * 2001, "line 5: line: needs at most 2000 characters"),
        (f"# A\n\n## B\n\n{FENCE}\nshow: text output", "block: needs a line ``` at its end"),
        (f"# A\n\n{FENCE}\nreads: minds\n```\n## B", "reads: needs one of text"),
        (f"# A\n\n{FENCE}\nstart: password=1\n```\n## B", "start: needs one of model"),
        ("# A\n\n## B\n\nIt is {{texts output}}.", "line 5: query: needs a known name"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text, message):
    with pytest.raises(FileError, match=message):
        parse_lesson(text)


def test_html_in_a_lesson_stays_text(explorer, tmp_path):
    nasty = "<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1))"
    file = tmp_path / "nasty.md"
    file.write_text(f"# {nasty}\n\n## {nasty}\n\n{nasty}", "utf-8")
    one = read_lesson(file)
    assert one.title == one.steps[0].title == nasty
    assert one.steps[0].text[0].spans == [("", nasty)]


def test_files_that_are_no_lessons_are_refused(tmp_path):
    huge, binary, other = (tmp_path / x for x in ("huge.md", "binary.md", "other.txt"))
    huge.write_text("# A\n\n## B\n\n" + "x\n" * MAX_BYTES, "utf-8")
    binary.write_bytes(b"# A\n\n## B\n\n\xff\xfe")
    other.write_text("# A\n\n## B\n", "utf-8")
    catalog = Catalog(["phrases"], device="cpu")
    cases = {
        huge: f"at most {MAX_BYTES} bytes",
        binary: "a text in UTF-8",
        other: "files that end in .md",
        tmp_path / "none.md": "a lesson or a folder of them",
    }
    for path, message in cases.items():
        with pytest.raises(FileError, match=message):
            Explorer(catalog, lessons=path)


def test_a_path_reaches_fields_and_nothing_else():
    state = {"key": 1, "site": "b"}
    assert follow({"sites": [{"name": "b", "heads": 3}]}, "sites[site].heads", state) == 3
    with pytest.raises(
        ConfigError, match=r"path: needs a field of the query, got 'nothing'; try a"
    ):
        follow({"a": 1}, "nothing", state)
    with pytest.raises(ConfigError, match="path: needs a field"):
        follow({"a": "text"}, "a.upper", state)
