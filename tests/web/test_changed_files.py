"""An open model stays whole whatever happens to its files, which are read anew as a whole."""

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

import regard as rg
from regard.errors import FileError
from regard.runs import find_run
from regard.web.api import create_app
from regard.web.explorer import Explorer
from regard.web.explorer.catalog import Catalog

SIX_DAYS = {"texts": ["6 days"], "to": ["de"]}


def copied(folder, name="phrases", to=None):
    return Path(shutil.copytree(find_run(name), folder / (to or name)))


def overwrite(file, content):
    """Write into the file that is there, as `cp` and `rsync --inplace` do."""
    with open(file, "r+b") as opened:
        opened.write(content)
        opened.truncate()


def is_mapped(file):
    maps = Path("/proc/self/maps")
    return maps.exists() and str(file) in maps.read_text()


@contextmanager
def api(*folders):
    runs = {folder.name: rg.load(folder, device="cpu") for folder in folders}
    with TestClient(create_app(runs), base_url="http://127.0.0.1") as client:
        yield client


def german(client):
    answer = client.post("/translate", json=SIX_DAYS)
    assert answer.status_code == 200, answer.text
    return answer.json()["translations"][0]["de"]


def retrain(folder):
    """Another model of the same shapes, with another tokenizer and calibration."""
    model = rg.models.load(folder)
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(0.5)
    other = folder.parent / "other.safetensors"
    rg.models.save(model, other)
    overwrite(folder / "model.safetensors", other.read_bytes())
    calibration = json.loads((folder / "calibration.json").read_text())
    overwrite(folder / "calibration.json", json.dumps(calibration | {"offset": 0.5}).encode())


def test_a_loaded_run_owns_its_weights(tmp_path):
    folder = copied(tmp_path)
    file, run = folder / "model.safetensors", rg.load(folder, device="cpu")
    before = run.translate(["6 days"], to=["de"])
    assert not is_mapped(file)
    overwrite(file, bytes(file.stat().st_size))
    assert run.translate(["6 days"], to=["de"]) == before
    overwrite(file, b"")
    assert run.translate(["6 days"], to=["de"]) == before


def test_a_loaded_hugging_face_model_owns_its_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    run, ids = rg.load(tmp_path, device="cpu"), torch.arange(5)[None]
    before = run.model(ids).logits
    assert not is_mapped(tmp_path / "model.safetensors")
    overwrite(tmp_path / "model.safetensors", b"")
    assert torch.equal(run.model(ids).logits, before)


def test_a_saved_sight_that_is_loaded_owns_its_tensors(tmp_path):
    file = rg.Sight([rg.make_site(*torch.ones(2, 3, 4))]).save(tmp_path)
    sight = rg.load_sight(file)
    assert not is_mapped(file)
    overwrite(file, b"")
    assert sight.sites[0].k.sum() == 12


def test_files_that_change_while_they_are_read_are_read_again_or_refused(tmp_path, monkeypatch):
    folder, opened, times = copied(tmp_path), [], 1
    module = sys.modules["regard.runs.loading"]  # the package has a function of its name
    open_ = module._open

    def open_and_change(path, device):
        run = open_(path, device)
        if len(opened) < times:
            opened.append((path / "calibration.json").write_bytes(b"{}"))
            shutil.copy(find_run("phrases") / "calibration.json", path)
        return run

    monkeypatch.setattr(module, "_open", open_and_change)
    assert rg.load(folder, device="cpu").translate(["6 days"], to=["de"])["de"] == ["6 Tage"]
    times = 100
    with pytest.raises(FileError, match="needs files that stay as they are while they are read"):
        rg.load(folder, device="cpu")


def test_a_served_run_is_reloaded_as_a_whole_when_its_files_change(tmp_path):
    folder, other = copied(tmp_path), copied(tmp_path, to="untouched")
    with api(folder, other) as client:
        before = german(client)
        retrain(folder)
        after = german(client)
        assert after != before
        fresh = rg.load(folder, device="cpu")
        with api(folder) as again:
            assert after == german(again)
        assert client.app.app.state.server.runs["phrases"].calibration == fresh.calibration
        untouched = client.post("/translate", json=SIX_DAYS | {"model": "untouched"}).json()
        assert untouched["translations"][0]["de"] == before


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "calibration.json"])
def test_a_served_run_that_is_damaged_is_refused_by_name_and_the_others_answer(tmp_path, name):
    folder, other = copied(tmp_path), copied(tmp_path, to="sound")
    whole = (folder / name).read_bytes()
    with api(folder, other) as client:
        before = german(client)
        overwrite(folder / name, whole[: len(whole) // 2])
        for _ in range(2):
            refused = client.post("/translate", json=SIX_DAYS)
            assert refused.status_code == 503
            assert refused.json()["error"].startswith("model: needs the whole files of 'phrases'")
        sound = client.post("/translate", json=SIX_DAYS | {"model": "sound"})
        assert sound.json()["translations"][0]["de"] == before
        overwrite(folder / name, whole)
        assert german(client) == before


def test_the_explorer_notices_a_changed_file_too(tmp_path):
    folder = copied(tmp_path)
    explorer = Explorer(Catalog([folder], device="cpu"))
    question = {"model": "phrases", "text": "6 days", "to": "de"}
    before = explorer.answer("text", question)
    retrain(folder)
    assert explorer.answer("text", question)["heads"] != before["heads"]
    overwrite(folder / "model.safetensors", b"half")
    with pytest.raises(FileError, match="phrases"):
        explorer.answer("text", question)
