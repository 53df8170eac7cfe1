import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_sight import X, in_steps
from test_site import TERMS, site
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import FileError, LookError
from regard.inspection.record.sight import Sight
from regard.inspection.record.sight_file import TensorPacker, _checksum

SAVED = {name: terms for name, terms in TERMS.items() if name not in ("own", "score")}


@pytest.mark.parametrize("terms", SAVED.values(), ids=SAVED)
def test_a_loaded_sight_gives_the_same_numbers(terms, tmp_path):
    here = site(**terms)
    [there] = rg.load_sight(Sight([here]).save(tmp_path / "x.safetensors"))
    assert torch.equal(there.weights(), here.weights())
    assert str(there.terms) == str(here.terms)
    assert repr(there) == repr(here)
    assert torch.equal(there.influence().effect_of_key, here.influence().effect_of_key)


def test_a_model_with_tokens_and_refused_sites_is_stored(tmp_path):
    model = models.Translator(models.translator_tiny(vocab=10)).eval()
    words = {"source": ["der", "»Hund«", "läuft"], "target": ["the", "dog"]}
    with rg.look(model, tokens=words) as sight:
        model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]), torch.tensor([3]))
    sight.skipped["x"] = "as it was hidden"
    file = sight.save(tmp_path)
    assert file.name == "sight.safetensors"
    there = rg.load_sight(tmp_path)
    assert repr(there) == repr(sight)
    assert there["decoder.0.cross"].key_tokens == [words["source"]]
    for mine, theirs in zip(sight, there, strict=True):
        assert (mine.kind, mine.path, mine.call) == (theirs.kind, theirs.path, theirs.call)
        assert torch.equal(mine.weights(), theirs.weights())
        assert torch.equal(mine.v, theirs.v)
        assert torch.equal(mine.out, theirs.out)


def test_activations_are_stored_with_their_calls(tmp_path):
    model = models.LanguageModel(models.language_tiny(vocab=10)).eval()
    with rg.look(model, activations=["*.self.heads", "logits"]) as sight:
        model(torch.tensor([[1, 2, 3]]))
        model(torch.tensor([[4, 5]]))
    there = rg.load_sight(sight.with_tokens(["a", "b", "c"]).save(tmp_path)).activations
    assert list(there) == list(sight.activations)
    for name in there:
        for mine, theirs in zip(sight.activations.calls(name), there.calls(name), strict=True):
            assert torch.equal(mine, theirs)


def test_the_keys_of_a_generated_text_are_written_once(tmp_path):
    sight = in_steps(rg.nn.MultiHeadAttention(8, 2), X.repeat(1, 20, 1), (100,) + (1,) * 20)
    file = sight.save(tmp_path)
    numbers = sum(x.numel() for x in load_file(file).values())
    own, text = 120 * (8 + 8 + 2), (100 + 120) * (8 + 8)  # q, out, lse; k, v of call 0 and of all
    assert numbers == 2 * (own + text)
    name = "MultiHeadAttention"
    there = rg.load_sight(file)
    assert_close(there.join(name).weights(), sight.join(name).weights())


def test_parts_of_one_text_come_back_wherever_they_start():
    shelf, text = TensorPacker(), torch.randn(2, 2, 9, 4)
    parts = [text[:, :, 2:5], text[:, :, 4:8], text[:, :, 3:4], text[:, :, 2:5, :2], text[1]]
    places = [shelf.add(part) for part in parts]
    tensors = shelf.tensors()
    assert sorted(x.shape for x in tensors.values()) == [(2, 2, 3, 2), (2, 2, 6, 4), (2, 9, 4)]
    for part, place in zip(parts, places, strict=True):
        assert torch.equal(TensorPacker.get(json.loads(json.dumps(place)), tensors), part)


def test_half_precision_and_surveys_without_tensors_are_stored(tmp_path):
    layer = rg.nn.MultiHeadAttention(8, 2).bfloat16()
    with rg.look(layer, survey=["entropy", "peak_key"]) as sight:
        layer(X.bfloat16())
    [there] = rg.load_sight(sight.save(tmp_path))
    assert there.q.is_meta
    assert (there.q.dtype, there.queries) == (torch.bfloat16, 6)
    assert torch.equal(there.recorded_survey.entropy, sight.sites[0].recorded_survey.entropy)
    assert torch.equal(there.recorded_survey.peak_key, sight.sites[0].recorded_survey.peak_key)


@pytest.mark.usefixtures("users_view")
def test_a_site_with_code_raises_and_leaves_no_file(tmp_path):
    with pytest.raises(
        LookError, match="here: needs dot-product scores to be saved, got a custom score"
    ):
        Sight([site(**TERMS["score"])]).save(tmp_path / "new")
    with pytest.raises(LookError, match="here: needs registered masks .*, got Odd"):
        Sight([site(**TERMS["own"])]).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("users_view")
def test_damaged_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(FileError, match="got no such file"):
        rg.load_sight(tmp_path)
    file = Sight([site()]).save(tmp_path / "a.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(FileError, match="needs a whole safetensors file, got"):
        rg.load_sight(cut)
    flipped = bytearray(file.read_bytes())
    flipped[-3] ^= 1
    cut.write_bytes(flipped)
    with pytest.raises(FileError, match="the file is damaged"):
        rg.load_sight(cut)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.ones(1)}, other)
    with pytest.raises(FileError, match="needs a sight, got another file"):
        rg.load_sight(other)
    models.save(models.LanguageModel(models.language_tiny(vocab=9)), other)
    with pytest.raises(FileError, match="needs a sight, got a model; try models.load"):
        rg.load_sight(other)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "needs version 3, got 2; try another regard"),
        ({"sight": [{}]}, "the file is damaged"),
        ({"sight": [{}]}, "needs sites as `save_sight` writes them, got KeyError"),
        ({"sight": 7}, "needs sites as `save_sight` writes them, got TypeError"),
    ],
    ids=["version", "damaged", "empty", "number"],
)
def test_a_header_of_another_time_or_hand_is_refused(change, said, tmp_path):
    file = Sight([site()]).save(tmp_path)
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["regard"])
    header |= change
    if said.startswith("needs sites"):
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, file, {"regard": json.dumps(header)})
    with pytest.raises(FileError, match=said):
        rg.load_sight(file)


@pytest.mark.usefixtures("users_view")
def test_no_single_changed_number_or_letter_of_the_index_is_believed(tmp_path):
    """A report of such a file crashed: the checksum was of the tensors alone."""
    whole = Sight([site()]).save(tmp_path / "a.safetensors")
    text, damaged = whole.read_bytes(), tmp_path / "b.safetensors"
    size = 8 + int.from_bytes(text[:8], "little")
    start = text.index(b"__metadata__")
    believed = []
    for at in range(start, size, 11):
        new = bytearray(text)
        new[at] ^= 3
        damaged.write_bytes(new)
        try:
            rg.load_sight(damaged)
        except FileError:
            continue
        believed.append(text[at - 5 : at + 5])
    assert not [x for x in believed if x.strip()]


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("valid_checksum", [False, True])
def test_an_index_that_points_elsewhere_is_refused(valid_checksum, tmp_path):
    file = Sight([site()]).save(tmp_path)
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["regard"])
    header["sight"][0]["k"]["count"] -= 2
    if valid_checksum:
        header["checksum"] = _checksum(header, tensors)
    save_file(tensors, file, {"regard": json.dumps(header)})
    with pytest.raises(FileError):
        rg.load_sight(file)
