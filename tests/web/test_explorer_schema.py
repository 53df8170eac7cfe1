"""Requests made from /openapi.json: what fits the schema, and what does not, gets an answer."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from regard.web.api import create_app
from regard.web.explorer import Explorer, query_names
from regard.web.explorer.catalog import Catalog

TRAINING = ("claims.run", "time.compare")  # take seconds, whatever is asked


@pytest.fixture(scope="module")
def client():
    app = create_app({}, explorer=Explorer(Catalog(["phrases"], device="cpu")))
    options = {"base_url": "http://127.0.0.1", "headers": {"X-Regard": "1"}}
    with TestClient(app, raise_server_exceptions=False, **options) as client:
        yield client


@pytest.fixture(scope="module")
def operations(client):
    described = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    return {x.ok().path: x.ok() for x in described.get_all_operations()}


def test_the_description_holds_every_query_and_its_references_resolve(client):
    described = client.get("/openapi.json").json()
    assert {f"/explore/{name}" for name in query_names()} < set(described["paths"])
    for part in json.dumps(described).split('"$ref": "')[1:]:
        found = described
        for key in part.partition('"')[0].removeprefix("#/").split("/"):
            found = found[key]


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # schemathesis does
@pytest.mark.parametrize("name", [x for x in query_names() if x not in TRAINING])
@given(data=st.data())
@settings(max_examples=3, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_a_generated_request_never_fails_the_server(client, operations, name, data):
    case = data.draw(operations[f"/explore/{name}"].as_strategy())
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body = body | {"model": "phrases"}  # or its random name would be all that is refused
    response = client.post(case.path, content=json.dumps(body))
    assert response.status_code in (200, 400), response.text
    assert response.status_code == 200 or set(response.json()) == {"error"}
