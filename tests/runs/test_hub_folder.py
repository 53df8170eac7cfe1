"""Folders of Hugging Face from strangers: no code of theirs runs, and sizes are checked first."""

import ast
import builtins
import json
import logging
import pickle
import re
import resource
import shutil
import time
from contextlib import suppress
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data import Tokenizer
from regard.errors import FileError, RegardError
from regard.models.hub.bounds import check_processor
from regard.runs.hub_model import build_hub_model
from regard.runs.image_text_model import load_image_text_model
from regard.runs.loading import build_or_load_model
from regard.web.explorer.catalog import Catalog, describe

pytestmark = pytest.mark.usefixtures("users_view")
SOURCE = Path(rg.__file__).parent
CONFIGS = (
    *("config.json", "tokenizer_config.json", "processor_config.json", "adapter_model.json"),
    *("preprocessor_config.json", "generation_config.json", "video_preprocessor_config.json"),
    *("special_tokens_map.json", "modules.json", "model_index.json"),
)
AUTO = [
    "Config",
    "Model",
    "Tokenizer",
    "Processor",
    "ImageProcessor",
    "FeatureExtractor",
    "ModelForMaskedLM",
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    from tokenizers import Tokenizer as Engine
    from tokenizers import models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("hub") / "bert"
    words = {word: i for i, word in enumerate(["[UNK]", "[SEP]", "the", "cat", "sat", "."])}
    engine = Engine(models.WordLevel(words, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="[UNK]").save_pretrained(folder)
    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": 6, "intermediate_size": 8, "max_position_embeddings": 64}
    BertForMaskedLM(BertConfig(**sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "bert"))


def change(file: Path, **values: object) -> None:
    old = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(old | values))


def every_way_in(folder: Path, tmp_path: Path) -> None:
    """Each command and function that takes a folder; what it raises is one of our errors."""
    calls = [rg.load, rg.models.from_pretrained, rg.models.load, Tokenizer.load, describe]
    calls += [build_or_load_model, build_hub_model, lambda x: Catalog([x]).run(x.name)]
    for call in calls:
        with suppress(RegardError):
            call(folder)
    out = ["--out", str(tmp_path / "page.html")]
    commands = [["look", folder, "-", *out], ["look", folder, folder, "the", *out]]
    commands += [["verify", folder], ["heads", folder], ["cost", folder], ["evaluate", folder]]
    commands += [["generate", folder, "the"], ["report", folder], ["export", folder, *out]]
    commands += [["view", "text", f"model={folder}", "text=the", *out]]
    commands += [["tokenizer", "show", folder, "the"], ["quantize", folder, *out]]
    for command in commands:
        done = CliRunner().invoke(app, list(map(str, command)), input="y\nthe cat\n" * 9)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception


# code


class Payload:
    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def plant(folder: Path, mark: Path, model_type: str) -> None:
    """Code in each place where a library may look for some."""
    code = f"open({str(mark)!r}, 'w')\nclass A: pass\n"
    jinja = "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }}"
    auto = {f"Auto{name}": "evil.A" for name in AUTO}
    nested = {"auto_map": auto, "model_type": "deformable_detr", "_name_or_path": str(folder)}
    for name in CONFIGS:
        change(
            folder / name, auto_map=auto, custom_pipelines={"x": {"impl": "evil.A"}},
            custom_generate=str(folder), trust_remote_code=True, extra=nested,
            attn_implementation=f"{folder}:evil", _attn_implementation=f"{folder}:evil",
            chat_template=jinja, fusion_config={"a": "evil"},
        )  # fmt: skip
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.A", "evil.A"]})
    sides = {} if model_type == "bert" else {"encoder": nested, "decoder": nested}
    change(folder / "config.json", model_type=model_type, **sides)
    (folder / "chat_template.jinja").write_text(jinja)
    for place in (folder, folder / "custom_generate", folder / "question_encoder_tokenizer"):
        place.mkdir(exist_ok=True)
        for name in ("evil.py", "generate.py", "__init__.py", "sitecustomize.py"):
            (place / name).write_text(code)
        change(place / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.A", "evil.A"]})
    for name in (".metadata", "pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))


@pytest.mark.parametrize(
    ("model_type", "weights"),
    [
        *(("bert", True), ("evil", True)),
        *(
            pytest.param(model_type, weights, marks=pytest.mark.slow)
            for model_type, weights in [
                *(("bert", False), ("evil", False), ("rag", True), ("rag", False)),
                *(("vision-encoder-decoder", True), ("vision-encoder-decoder", False)),
            ]
        ),
    ],
)
def test_no_planted_code_runs_and_nothing_asks(folder, tmp_path, monkeypatch, model_type, weights):
    mark, asked = tmp_path / "mark", []
    monkeypatch.chdir(tmp_path)
    plant(folder, mark, model_type)
    if not weights:
        (folder / "model.safetensors").unlink()
    monkeypatch.setattr(builtins, "input", lambda *text: asked.append(text) or "y")
    every_way_in(folder, tmp_path)
    assert not mark.exists()
    assert not asked


def test_a_folder_with_code_beside_a_known_model_gives_the_numbers_of_the_model(folder, tmp_path):
    before = rg.load(folder, device="cpu").text_model.read("the cat").logits
    plant(folder, tmp_path / "mark", "bert")
    again = rg.load(folder, device="cpu").text_model.read("the cat").logits
    torch.testing.assert_close(again, before, atol=0, rtol=0)


def test_the_text_of_look_comes_from_standard_input_alone(folder, tmp_path):
    plant(folder, tmp_path / "mark", "bert")
    out = tmp_path / "page.html"
    command = ["look", str(folder), "-", "--out", str(out)]
    done = CliRunner().invoke(app, command, input="the cat sat\n")
    assert done.exit_code == 0, done.output
    assert "sat" in out.read_text()


def test_what_asks_transformers_for_configs_tokenizers_and_processors_trusts_no_code():
    calls = {}
    for file in SOURCE.rglob("*.py"):
        if "Auto" not in (text := file.read_text()) and "chat_template" not in text:
            continue
        tree = ast.parse(text)
        nodes = [x for x in ast.walk(tree) if isinstance(x, ast.Call)]
        names = {id(x): ast.unparse(x.func) for x in nodes}
        assert not any(name.endswith("apply_chat_template") for name in names.values())
        auto = [x for x in nodes if re.search(r"\bAuto\w+\.from_", names[id(x)])]
        calls |= {file.name: [ast.unparse(x) for x in auto]} if auto else {}
    assert calls.keys() == {"hub_model.py", "image_text_model.py"}
    every = [call for listed in calls.values() for call in listed]
    assert all("trust_remote_code=False" in x and "(copy," in x for x in every), every


@pytest.mark.parametrize(
    "name", ["pipeline", "AutoModel", "Trainer", "__dict__", "GPT2Model", 7, None, ["a"], "Evil"]
)
def test_an_architecture_is_a_model_of_the_config_and_no_other_name(folder, name):
    change(folder / "config.json", architectures=[name])
    with pytest.raises(FileError, match="config.json: needs as architecture a model of transfo"):
        rg.load(folder)


def test_a_pickle_is_refused_with_the_way_to_convert_it(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "mark")))
    for call in (rg.load, rg.models.from_pretrained):
        with pytest.raises(FileError, match=r"safetensors, got pytorch_model.bin file; try .*conv"):
            call(folder)
    assert not (tmp_path / "mark").exists()


def test_names_of_shards_stay_in_the_folder(folder):
    weights = folder / "model.safetensors"
    weights.rename(folder.parent / weights.name)
    for name in ("../model.safetensors", str(folder.parent / weights.name), "a.bin", ""):
        change(folder / "model.safetensors.index.json", weight_map={"a": name})
        with pytest.raises(FileError, match="needs names of safetensors files in its folder"):
            rg.load(folder)


def test_what_would_be_left_out_is_refused(folder):
    change(folder / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(FileError, match="needs no quantization_config"):
        rg.load(folder)
    change(folder / "config.json", quantization_config=None)
    change(folder / "adapter_config.json", base_model_name_or_path="/other")
    with pytest.raises(FileError, match="needs a whole model, got an adapter"):
        rg.load(folder)


def test_weights_that_the_file_lacks_are_not_drawn_at_random(folder):
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    del state["bert.encoder.layer.1.output.dense.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(FileError, match="needs all weights of BertForMaskedLM, got none of"):
        rg.load(folder)


def test_generation_options_are_those_of_the_folder(tmp_path):
    from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

    sizes: Any = dict.fromkeys(("encoder_layers", "decoder_layers"), 1) | {"d_model": 8}
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 12}
    theirs = BartForConditionalGeneration(BartConfig(vocab_size=9, **sizes))
    theirs.generation_config = GenerationConfig(num_beams=3, eos_token_id=7)
    theirs.save_pretrained(tmp_path)
    model = rg.load(tmp_path, device="cpu").model
    assert model.generation_config.num_beams == 3
    assert model.generation_config.eos_token_id == 7


# sizes


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**6},
        {"num_hidden_layers": 60_000},
        {"vocab_size": 10**9},
        {"vocab_size": 60_000_000},
        {"hidden_size": 1 << 20},
        {"intermediate_size": 1 << 25},
        {"max_position_embeddings": 1 << 31},
        {"max_position_embeddings": 1 << 24},
        {"type_vocab_size": 1e12},
        {"num_labels": 10**9},
        {"num_hidden_layers": 3},
        {"vocab_size": 7},
    ],
    ids=str,
)
def test_sizes_that_the_weights_do_not_have_are_refused_at_once(folder, values):
    change(folder / "config.json", **values)
    for call in (rg.load, rg.models.from_pretrained):
        if call is rg.models.from_pretrained:
            change(folder / "config.json", architectures=["BertForSequenceClassification"])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        with pytest.raises(RegardError) as caught:
            call(folder)
        assert "\n" not in str(caught.value)
        assert time.process_time() - start < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


@pytest.mark.parametrize("file", ["preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize(
    "values",
    [
        {"size": {"height": 10**9, "width": 224}},
        {"size": 10**9},
        {"crop_size": {"height": 224, "width": 10**9}},
        {"size": {"shortest_edge": 65536, "longest_edge": 16777216}},
        {"size": {"shortest_edge": 10**9, "longest_edge": 10**9}, "merge_size": 2},
        {"min_pixels": 10**9},
        {"image_grid_pinpoints": [[336, 672], [10**9, 336]]},
        {"max_image_tiles": 10**9},
        {"image_seq_length": 10**9},
        {"size": {"longest_edge": 4096}, "max_image_size": {"longest_edge": 1}},
        {"max_pixels": 1 << 24, "patch_size": 1},
        {"image_processor": {"size": {"shortest_edge": 10**9}}},
    ],
    ids=str,
)
def test_pictures_of_any_size_are_refused_before_they_are_made(folder, file, values):
    change(folder / file, **values)
    with pytest.raises(FileError, match=rf"{file}: needs .*at most \d+"):
        load_image_text_model(folder, torch.nn.Identity())


@pytest.mark.parametrize(
    "values",
    [
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        {"patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056},
        {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "merge_size": 2}
        | {"patch_size": 16, "temporal_patch_size": 2},
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_grid_pinpoints": [[384, 2304], [2304, 2304]], "size": {"height": 384}},
        {"size": {"height": 560, "width": 560}, "max_image_tiles": 4, "rescale_factor": 1 / 255},
        {"image_seq_length": 256, "pan_and_scan_max_num_crops": None, "size": {"height": 896}},
    ],
    ids=["LLaVA", "Qwen 2.5", "Qwen 3", "SmolVLM", "OneVision", "Llama 3.2", "Gemma 3"],
)
def test_sizes_of_processors_that_people_use_are_taken(values):
    check_processor(values, "preprocessor_config.json")


@pytest.mark.parametrize("size", [1 << 31, 1 << 63, -1, 1 << 20, "x", None, 0.5])
@pytest.mark.parametrize(
    "place", ["vocab", "added_tokens", "tokenizer_config.json", "added_tokens.json", "vocab.json"]
)
def test_ids_of_tokens_are_bounded_by_their_number(folder, place, size):
    if place.endswith(".json"):
        token = {"content": "<x>"} | dict.fromkeys(["lstrip", "rstrip", "special"], False)
        values = {str(size): token} if "config" in place else {"<x>": size}
        change(
            folder / place, **({"added_tokens_decoder": values} if "config" in place else values)
        )
    else:
        data = json.loads((folder / "tokenizer.json").read_text())
        if place == "vocab":
            data["model"]["vocab"]["x"] = size
        else:
            data["added_tokens"].append({"id": size, "content": "<x>"})
        (folder / "tokenizer.json").write_text(json.dumps(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match="needs ids below|needs integers as ids"):
        rg.load(folder)
    if not place.endswith(".json"):
        with pytest.raises(FileError, match="needs ids below|needs integers as ids"):
            Tokenizer.load(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10


def test_the_cost_of_a_folder_is_that_of_its_config_with_weights_or_without(folder):
    model = rg.load(folder, device="cpu").model
    expected = rg.cost(model)
    for _ in range(2):
        sized = build_or_load_model(str(folder))
        assert {p.device.type for p in sized.parameters()} == {"meta"}
        assert rg.cost(sized).parts == expected.parts
        done = CliRunner().invoke(app, ["cost", str(folder)])
        assert done.exit_code == 0, done.output
        assert f"{expected.parameters:,}" in done.output
        (folder / "model.safetensors").unlink(missing_ok=True)


def test_the_cost_of_a_folder_is_printed_without_notes_of_transformers_on_kernels(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).save_pretrained(tmp_path)
    once = (transformers.utils.logging.warning_once, transformers.utils.logging.info_once)
    for function in once:
        function.cache_clear()
    handler = BufferingHandler(10)
    logging.getLogger("transformers").addHandler(handler)
    try:
        done = CliRunner().invoke(app, ["cost", str(tmp_path)])
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert done.exit_code == 0, done.output
    assert [record.getMessage() for record in handler.buffer] == []


# what a fuzzer found


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("config.json", {"model_type": {"a": 1}}),
        ("config.json", {"num_experts": 1 << 16}),
        ("config.json", {"hidden_act": [[[]]]}),
        ("tokenizer_config.json", {"model_max_length": {"": {}}}),
        ("tokenizer_config.json", []),
        ("tokenizer.json", {"added_tokens": None, "model": {"type": "WordLevel"}}),
        ("tokenizer.json", {"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "a"}}),
        ("tokenizer.json", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "aa"}}),
        (
            "tokenizer.json",
            {
                "post_processor": {
                    "type": "TemplateProcessing", "pair": [], "special_tokens": {},
                    "single": [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                }
            },
        ),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_wrong_types_are_reported_in_one_line(folder, file, values):
    if isinstance(values, list):
        (folder / file).write_text("[]")
    else:
        change(folder / file, **values)
    calls = [lambda x: rg.load(x, device="cpu").text_model.encode("text", "the cat"), describe]
    calls += [rg.models.from_pretrained, lambda x: Tokenizer.load(x).encode("the cat")]
    for call in calls:
        try:
            call(folder)
        except RegardError as error:
            lines = str(error).splitlines()
            assert len(lines) == 1 and len(lines[0]) < 600  # noqa: PT017, PT018
