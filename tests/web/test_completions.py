"""`/v1/completions` does what OpenAI documents, also streamed, and refuses the rest by name."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import regard as rg
from regard.decode import GeneratedRow
from regard.runs import TextStream, score_prompt
from regard.web.api import create_app

GREEDY = {"temperature": 0, "max_tokens": 12}


LETTERS = "abcdefghijklmnopqrstuvwxyz "


def make_run(tokenizer, split_by="files"):
    torch.manual_seed(0)
    recipe = rg.tasks.recipe("stdlib")
    data = replace(cast(Any, recipe.data), split_by=split_by)
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=tokenizer.vocab)).eval()
    with torch.no_grad():  # far from equal probabilities, but not always the same letter
        for name, x in model.named_parameters():
            if x.ndim == 2 and not name.startswith("embedding"):
                x.mul_(4)
    return rg.Run(None, replace(recipe, data=data), model, tokenizer)


@pytest.fixture(scope="module")
def run():
    return make_run(rg.data.CharTokenizer.train([LETTERS]))


@pytest.fixture(scope="module")
def client(run):
    torch.set_num_threads(1)
    with TestClient(create_app({"text": run}), base_url="http://127.0.0.1") as client:
        yield client


def ask(client, **body):
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client, **body):
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        *events, last = [line[6:] for line in answer.iter_lines() if line]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def joined(events):
    """The choices of a stream, as they are in an answer that is not streamed."""
    choices = {}
    for event in events:
        for part in event["choices"]:
            known = choices.setdefault(part["index"], part)
            if known is not part:
                known["text"] += part["text"]
                assert known["finish_reason"] is None
                known["finish_reason"] = part["finish_reason"]
                for name, values in (part["logprobs"] or {}).items():
                    known["logprobs"][name] += values
    return [choices[n] for n in sorted(choices)]


# stop


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop_sequence_however_it_is_cut(text, stop):
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(x) for x in stop)]
    expected = text
    if ends:
        expected = min(
            (text[: ends[0] - len(x)] for x in stop if text[: ends[0]].endswith(x)), key=len
        )
    one = TextStream(GeneratedRow([3], 9), stop)
    pieces = []
    for n, letter in enumerate(text):
        if not one.ended:
            pieces.append(one.release(letter, n == len(text) - 1))
    assert "".join(pieces) == one.text == expected
    whole = TextStream(GeneratedRow([3], 9), stop)
    assert whole.release(text, True) == expected


def test_stop_ends_the_text_and_the_generation(client):
    (whole,) = ask(client, prompt="def ", **GREEDY)["choices"]
    assert (len(whole["text"]), whole["finish_reason"]) == (12, "length")
    stop = whole["text"][5:7]
    first = whole["text"].index(stop)
    for given_stop in (stop, ["not in it", stop]):
        answer = ask(client, prompt="def ", stop=given_stop, **GREEDY)
        assert answer["choices"][0]["text"] == whole["text"][:first]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == first + 2
        events = stream(client, prompt="def ", stop=given_stop, **GREEDY)
        assert joined(events) == answer["choices"]
    server = client.app.app.state.server
    assert len(server.generator(server.runs["text"])) == 0


# n, seed


def test_n_choices_are_those_of_consecutive_seeds(client):
    options = {"max_tokens": 8, "temperature": 1.0}
    prompts = ["a", "import "]
    answer = ask(client, prompt=prompts, n=3, seed=5, **options)
    assert [x["index"] for x in answer["choices"]] == list(range(6))
    for n, choice in enumerate(answer["choices"]):
        (alone,) = ask(client, prompt=prompts[n // 3], seed=5 + n % 3, **options)["choices"]
        assert choice["text"] == alone["text"]
    assert len({x["text"] for x in answer["choices"]}) > 3
    assert answer["usage"]["prompt_tokens"] == 8
    assert joined(stream(client, prompt=prompts, n=3, seed=5, **options)) == answer["choices"]


def test_seeds_differ_where_none_is_given(client):
    texts = {ask(client, prompt="a", max_tokens=9)["choices"][0]["text"] for _ in range(4)}
    assert len(texts) > 1


# echo, logprobs


@pytest.mark.parametrize("edge", [True, False])
def test_log_probabilities_are_those_of_the_model_at_temperature_1(run, edge):
    run = run if edge else make_run(run.tokenizer, "tail")  # nothing precedes the first token
    options = {"prompt": "def f", "logprobs": 3, "max_tokens": 6, "echo": True}
    options |= {"seed": 1, "temperature": 0.7}
    with TestClient(create_app({"text": run}), base_url="http://127.0.0.1") as client:
        (choice,) = ask(client, **options)["choices"]
        assert joined(stream(client, **options)) == [choice]
    scores, text = choice["logprobs"], choice["text"]
    assert text.startswith("def f")
    assert "".join(scores["tokens"]) == text
    assert scores["text_offset"] == list(range(11))
    ids = [*run.data.document_edges(run.tokenizer), *run.tokenizer.encode_input(text)]
    with torch.no_grad():
        expected = run.model(torch.tensor([ids]))[0].log_softmax(-1)
    if not edge:
        assert (scores["token_logprobs"][0], scores["top_logprobs"][0]) == (None, None)
    for n, token in enumerate(ids[1:], 0 if edge else 1):
        before = expected[n if edge else n - 1]
        assert scores["token_logprobs"][n] == pytest.approx(float(before[token]), abs=1e-4)
        top = scores["top_logprobs"][n]
        assert top[scores["tokens"][n]] == scores["token_logprobs"][n]
        best = sorted(top.values(), reverse=True)[:3]
        assert best == pytest.approx(before.topk(3).values.tolist(), abs=1e-4)
        assert len(top) in (3, 4)


def test_bytes_of_one_character_have_names_and_its_text_once():
    run = make_run(rg.data.ByteTokenizer())
    tokens = score_prompt(run, "aé€b", 2)
    assert [x.text for x in tokens] == ["a", "\\xc3", "é", "\\xe2", "\\x82", "€", "b"]
    assert [x.offset for x in tokens] == [0, 1, 1, 2, 2, 2, 3]


def test_a_prompt_alone_is_scored(client, run):
    body = {"prompt": ["abc", "xy"], "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = ask(client, **body)
    assert [x["text"] for x in answer["choices"]] == ["abc", "xy"]
    assert [x["finish_reason"] for x in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["choices"][0]["logprobs"]["top_logprobs"][1:] == [
        {"b": answer["choices"][0]["logprobs"]["token_logprobs"][1]},
        {"c": answer["choices"][0]["logprobs"]["token_logprobs"][2]},
    ]
    assert answer["choices"][1]["logprobs"]["tokens"] == ["x", "y"]
    assert [x.logprob for x in score_prompt(run, "abc", 0)] == (
        answer["choices"][0]["logprobs"]["token_logprobs"]
    )
    assert joined(stream(client, **body)) == answer["choices"]


def test_scores_end_with_the_text_at_a_stop_sequence(client):
    (whole,) = ask(client, prompt="def ", logprobs=1, **GREEDY)["choices"]
    body = {"prompt": "def ", "logprobs": 1, "stop": whole["text"][4:6], **GREEDY}
    (cut,) = ask(client, **body)["choices"]
    size = len(cut["text"])
    assert 0 < size <= 4
    for name, values in cut["logprobs"].items():
        assert values == whole["logprobs"][name][:size]
    assert joined(stream(client, **body)) == [cut]


def test_usage_comes_last_where_it_is_requested(client):
    options = {"prompt": "abc", "max_tokens": 4, "temperature": 0}
    *events, last = stream(client, stream_options={"include_usage": True}, **options)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert last["usage"] == ask(client, **options)["usage"]
    assert {event["usage"] for event in events} == {None}
    assert "usage" not in stream(client, **options)[-1]


# what is not there


REFUSED = {
    "best_of": 2,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"50256": -100},
    "suffix": "end",
    "top_k": 3,
    "stream_options": {"include_usage": True},  # without a stream
    "stream_options.include_obfuscation": None,
    "max_completion_tokens": 3,
    "n": 65,
    "stop": ["a", "b", "c", "d", "e"],
    "logprobs": 6,
    "max_tokens": -1,
    "temperature": 11,
    "top_p": 0,
    "seed": -1,
    "echo": "perhaps",
    "model": "gpt",
    "prompt": [1, 2],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(client, name):
    body = {"prompt": "a", "stream": False} | {name: REFUSED[name]}
    if "." in name:
        body = {"prompt": "a", "stream": True, "stream_options": {"include_obfuscation": True}}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert name in error["message"]
    assert error["param"].split(".")[0] == name.split(".")[0]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


def test_values_without_effect_are_taken(client):
    neutral = {"best_of": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
    neutral |= {"suffix": None, "stop": None, "logprobs": None, "user": "me", "n": 1, "echo": False}
    assert (
        ask(client, prompt="a", **GREEDY, **neutral)["choices"]
        == (ask(client, prompt="a", **GREEDY)["choices"])
    )


def test_long_prompts_are_refused_before_they_are_tokenized(client, run, monkeypatch):
    monkeypatch.setattr(type(run.tokenizer), "encode", lambda *_: 1 / 0)
    for prompt in (
        "a" * 6_000_000,
        ["a" * 6_000_000],
        ["a" * 20_001],
        ["a"] * 65,
        [],
        ["a" * 20_000] * 4,
    ):
        answer = client.post("/v1/completions", json={"prompt": prompt})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("prompt")
        assert len(answer.content) < 2000


def test_a_prompt_that_is_scored_has_a_limit_of_its_own(client, run, monkeypatch):
    monkeypatch.setattr("regard.tasks.language.generate.MAX_SCORES", 3 * run.model.config.vocab)
    body = {"prompt": "abcdef", "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "needs at most 3 tokens to be scored, got 7" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "prompt"
