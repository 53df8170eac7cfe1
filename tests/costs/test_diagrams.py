"""Diagrams: well-formed, made from the object, within bounds, without overlapping boxes."""

import itertools
from xml.etree import ElementTree

import pytest
import torch

import regard as rg
from regard import models
from regard.errors import ConfigError, FileError

NS = "{http://www.w3.org/2000/svg}"
BOXES = {"attention", "cross", "feed", "norm", "token", "readout", "gate", "squash"}


def parsed(module):
    return ElementTree.fromstring(rg.costs.diagram(module).svg)


def of_class(root, *names):
    return [node for node in root.iter() if node.get("class") in names]


def words(root):
    return ["".join(node.itertext()).replace("\u200b", "") for node in root.iter(f"{NS}text")]


def boxes(root):
    names = ("x", "y", "width", "height")
    return [tuple(float(node.get(name)) for name in names) for node in of_class(root, *BOXES)]


MODULES = {
    "rnn": lambda: rg.nn.RecurrentCell(3, 4, "rnn"),
    "gru": lambda: rg.nn.RecurrentCell(3, 4, "gru"),
    "lstm": lambda: rg.nn.Recurrent(300, 400, kind="lstm", layers=2, bidirectional=True),
    "post": lambda: rg.nn.EncoderBlock(512, 8),
    "pre": lambda: rg.nn.DecoderBlock(64, 4, norm_first=True, norm="rms", kv_heads=2, gated=True),
    "bare": lambda: rg.nn.EncoderBlock(8, 2, norm="none", skip=False),
    "encoder": lambda: rg.nn.Encoder(3, 8, 2, final_norm=True),
    "decoder": lambda: rg.nn.Decoder(3, 8, 2),
    "translator": lambda: models.Translator(models.translator_tiny(vocab=10)),
    "language": lambda: models.LanguageModel(models.language_small(vocab=10)),
    "classifier": lambda: models.Classifier(models.classifier_tiny(vocab=10, classes=3)),
    "vision": lambda: models.VisionTransformer(models.vision_tiny(classes=10)),
}


def test_an_lstm_diagram_has_three_gates_two_tanh_and_four_nodes():
    root = parsed(rg.nn.RecurrentCell(3, 4, "lstm"))
    assert len(of_class(root, "gate")) == 3
    assert len(of_class(root, "squash")) == 2
    assert len(of_class(root, "joint")) == 4
    assert {"Ct-1 (4)", "Ct (4)", "ht-1 (4)", "ht (4)", "xt (3)"} <= set(words(root))
    assert "each gate: W 4×3, U 4×4, biases; 144 parameters" in words(root)


def test_a_gru_cell_has_two_gates_and_its_reset_after_the_product():
    root = parsed(rg.nn.RecurrentCell(3, 4, "gru"))
    assert [len(of_class(root, name)) for name in ("gate", "squash", "joint")] == [2, 1, 4]
    assert {"U h", "1 - z", "z"} <= set(words(root))


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, ["attention", "sum", "norm", "feed", "sum", "norm"]),
        ({"norm_first": True}, ["norm", "attention", "sum", "norm", "feed", "sum"]),
        ({"norm": "none"}, ["attention", "sum", "feed", "sum"]),
        ({"skip": False}, ["attention", "norm", "feed", "norm"]),
    ],
)
def test_norm_and_sum_stand_in_the_order_the_block_has_them(options, order):
    root = parsed(rg.nn.EncoderBlock(8, 2, **options))
    nodes = of_class(root, "attention", "norm", "feed", "sum")
    rising = sorted(nodes, key=lambda node: -float(node.get("y") or node.get("cy")))
    assert [node.get("class") for node in rising] == order
    assert len(of_class(root, "residual")) == order.count("sum")


def test_shapes_and_counts_match_the_module():
    said = words(parsed(rg.nn.EncoderBlock(512, 8)))
    assert {"8 heads of 64", "512 → 2048 → 512, relu", "2,099,712 parameters"} <= set(said)
    said = words(parsed(MODULES["pre"]()))
    assert {"4 heads of 16, 2 of keys", "64 → 256 → 64, relu, gated", "RMS norm"} <= set(said)
    said = words(parsed(MODULES["translator"]()))
    assert said.count("× 2") == 2
    assert {"source (M)", "target (N)", "memory (M, 64)", "logits (N, 10)"} <= set(said)
    assert "cross-attention" in said
    assert "masked self-attention" in words(parsed(MODULES["language"]()))
    assert "masked self-attention" not in words(parsed(MODULES["classifier"]()))


@pytest.mark.parametrize("name", MODULES)
def test_every_drawing_is_whole_and_nothing_lies_on_another(name):
    root = parsed(MODULES[name]())
    left, top, wide, high = map(float, root.get("viewBox").split())
    for x, y, w, h in boxes(root):
        assert left < x < x + w < left + wide
        assert top < y < y + h < top + high
    for text in root.iter(f"{NS}text"):
        assert left < float(text.get("x")) < left + wide
    for a, b in itertools.combinations(boxes(root), 2):
        apart = (a[0] + a[2] <= b[0], b[0] + b[2] <= a[0], a[1] + a[3] <= b[1], b[1] + b[3] <= a[1])
        assert any(apart), (a, b)
    assert root.find(f"{NS}title").text == rg.costs.diagram(MODULES[name]()).title


def test_it_is_saved_as_it_is_shown_and_needs_no_weights(tmp_path):
    with torch.device("meta"):
        model = models.Translator(models.translator_base(vocab=37000))
    drawing = rg.costs.diagram(model)
    path = drawing.save(tmp_path / "base.svg")
    assert path.read_text() == drawing.svg == drawing._repr_svg_()


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix(tmp_path):
    with pytest.raises(ConfigError, match="got Linear; try one of its parts"):
        rg.costs.diagram(torch.nn.Linear(2, 2))
    drawing = rg.costs.diagram(rg.nn.RecurrentCell(1, 1))
    with pytest.raises(FileError, match=r"needs a path that ends in .svg, got .png"):
        drawing.save(tmp_path / "cell.png")
    with pytest.raises(FileError, match="needs an existing folder"):
        drawing.save(tmp_path / "nowhere" / "cell.svg")
