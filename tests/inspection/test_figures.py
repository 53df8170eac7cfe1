"""Figures show the right numbers under the right labels, in the requested format."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard.errors import FileError, ShapeError
from regard.inspection import HeadRow, HeadTable, draw, make_site
from regard.inspection.figures.panels import TYPE_STYLES
from regard.inspection.heads.descriptions import TYPE_SENTENCES
from regard.ops import Causal

WORDS = ["the", "animal", "did", "not", "cross", "because", "it", "was", "tired"]


def sentence(heads: int = 2, **terms):
    q, k = torch.randn(2, 1, heads, len(WORDS), 8)
    return make_site(q, k, tokens=WORDS, name="encoder.0.self", **terms)


def drawn(axes) -> torch.Tensor:
    return torch.from_numpy(np.asarray(axes.images[0].get_array()).copy())


def written(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


# what is drawn


def test_a_map_shows_the_weights_with_tokens_on_both_axes():
    site = sentence()
    axes = draw.map(site, 1).axes[0]
    assert_close(drawn(axes), site.weights()[0, 1])
    assert written(axes.xaxis) == written(axes.yaxis) == WORDS
    assert axes.get_xlabel() == "key"
    assert "query" in axes.get_ylabel()
    assert axes.yaxis_inverted()  # the first query on top, as in a matrix


def test_a_part_of_a_map_keeps_its_tokens():
    axes = draw.map(sentence(), rows=slice(6, 7), keys=slice(1, 4)).axes[0]
    assert written(axes.yaxis) == ["it"]
    assert written(axes.xaxis) == ["animal", "did", "not"]


def test_a_long_map_is_pooled_and_its_axes_count_tokens():
    site = make_site(*torch.randn(2, 1, 1, 600, 4), mask=Causal())
    axes = draw.map(site).axes[0]
    assert drawn(axes).shape == (200, 200)
    assert_close(drawn(axes), site.window(0, pool=(3, 3))[0])
    assert axes.get_xlim() == (-0.5, 599.5)


def test_one_token_of_several_attentions():
    site = sentence()
    axes = draw.token([site, site], WORDS.index("it")).axes[0]
    assert_close(drawn(axes), site.weights()[0, :, 6].repeat(2, 1))
    assert axes.get_title() == "attention of it"
    assert len(written(axes.yaxis)) == 4


def test_an_alignment_circles_the_largest_weight_of_each_query():
    site = make_site(torch.randn(5, 8), torch.randn(7, 8))
    axes = draw.alignment(site).axes[0]
    rings = torch.tensor(np.asarray(axes.collections[0].get_offsets()))
    assert rings[:, 0].tolist() == site.weights()[0, 0].argmax(-1).tolist()
    assert rings[:, 1].tolist() == list(range(5))


def test_an_overlay_lays_each_patch_where_it_was_cut():
    site = make_site(*torch.randn(2, 1, 2, 1 + 2 * 4, 8))
    axes = draw.image_attention(site, None, 0, torch.rand(3, 16, 32)).axes[1]
    patches = torch.from_numpy(np.asarray(axes.images[1].get_array()).copy())
    assert_close(patches, site.weights()[0, :, 0, 1:].mean(0).view(2, 4))
    assert axes.images[1].get_extent() == [-0.5, 31.5, 15.5, -0.5]


def test_lines_are_the_weights_above_the_faint():
    site = sentence()
    lines = draw.lines(site, 1).axes[0].collections[0]
    w = site.weights()[0, 1]
    assert len(lines.get_segments()) == (w >= 0.02).sum()
    start, end = lines.get_segments()[3]
    assert lines.get_alpha()[3] == pytest.approx(w[int(start[1]), int(end[1])].item())


def test_lines_of_one_query_leave_the_others_out():
    lines = draw.lines(sentence(), [0, 1], query=6).axes[0].collections
    assert {segment[0][1] for part in lines for segment in part.get_segments()} == {6.0}


def test_lines_of_masked_rows_and_of_half_precision():
    site = sentence(mask=torch.zeros(9, 9, dtype=torch.bool))
    assert len(draw.lines(site).axes[0].collections) == 0
    q = (torch.eye(4) * 40).bfloat16()
    past = replace(make_site(q, q), lse=make_site(q, q).lse - 0.01)
    assert max(draw.lines(past).axes[0].collections[0].get_alpha()) == 1


def test_strips_are_the_survey():
    site = sentence(heads=3)
    found = site.survey(statistics=["entropy", "received"])
    panels = draw.statistics(site).axes
    assert_close(drawn(panels[0]), found.entropy[0])
    assert_close(drawn(panels[2]), found.received[0])


def test_thumbnails_have_their_own_scale_and_place():
    site = sentence(heads=3)
    sheet = drawn(draw.heads([site, site]).axes[0])
    assert sheet.shape == (2 * 52 - 4, 3 * 52 - 4)
    assert sheet[:48, 52:100].max() == 1
    assert sheet[:, 48:52].isnan().all()


@pytest.mark.parametrize("heads", [1, 4, 16])
@pytest.mark.parametrize("rows", [1, 12])
def test_no_label_of_thumbnails_is_cropped(heads, rows):
    names = [f"model.language_model.layers.{10 * row}.self_attn" for row in range(rows)]
    site = make_site(*torch.randn(2, heads, 6, 4))
    figure = draw.heads([replace(site, name=name, call=3) for name in names])
    figure.canvas.draw()
    axes, whole = figure.axes[0], figure.bbox
    texts = [*axes.get_yticklabels(), *axes.get_xticklabels(), axes.xaxis.label, *figure.texts]
    for box in (text.get_window_extent() for text in texts):
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= whole.x1 + 1
        assert box.y1 <= whole.y1 + 1
    assert [x.get_text() for x in axes.get_yticklabels()] == [f"{name} (3)" for name in names]


def test_every_head_type_has_its_own_style():
    assert TYPE_STYLES.keys() == TYPE_SENTENCES.keys()
    assert len(set(TYPE_STYLES.values())) == len(TYPE_STYLES)


def test_the_table_of_types_writes_each_word():
    rows = [
        HeadRow(site="a", call=0, head=h, query_count=9, type=t) for h, t in enumerate(TYPE_STYLES)
    ]
    axes = draw.head_types(HeadTable(rows)).axes[0]
    assert [text.get_text() for text in axes.texts] == list(TYPE_STYLES)


def test_gates_are_drawn_as_they_are_and_states_around_zero():
    gates = {"forget": torch.rand(6, 3), "state": torch.randn(6, 3)}
    figure = draw.gates(gates, tokens=list("abcdef"))
    assert_close(drawn(figure.axes[0]), gates["forget"].mT)
    low, high = figure.axes[1].images[0].get_clim()
    assert -low == high == pytest.approx(gates["state"].abs().max().item())


# files


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_suffix_selects_the_format(tmp_path, suffix, start):
    path = tmp_path / f"map.{suffix}"
    draw.map(sentence(), path=path)
    assert path.read_bytes().startswith(start)


def test_text_in_a_vector_picture_is_text_and_the_file_is_the_same_each_time(tmp_path):
    torch.manual_seed(1)
    site = make_site(*torch.randn(2, 3, 4), tokens=["a$b", "<x>", "c_d^e"])
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    draw.lines(site, path=one)
    draw.lines(site, path=two)
    assert one.read_bytes() == two.read_bytes()
    text = one.read_text()
    assert "a$b" in text
    assert "&lt;x&gt;" in text
    assert "c_d^e" in text


# errors


@pytest.mark.usefixtures("users_view")
def test_wrong_requests_are_reported(tmp_path):
    site = sentence()
    with pytest.raises(FileError, match=r"needs to end in .png, .svg or .pdf, got '.bmp'"):
        draw.map(site, path=tmp_path / "map.bmp")
    with pytest.raises(FileError, match="needs an existing folder"):
        draw.map(site, path=tmp_path / "none" / "map.png")
    with pytest.raises(ShapeError, match="head: needs less than 2"):
        draw.map(site, 2)
    with pytest.raises(ShapeError, match="query: needs less than 9"):
        draw.token(site, 9)
    with pytest.raises(ShapeError, match="sites: needs one or more with the same"):
        draw.token([site, make_site(*torch.randn(2, 3, 4))], 0)
    with pytest.raises(ShapeError, match="image: needs the proportions"):
        draw.image_attention(make_site(*torch.randn(2, 18, 4)), None, 0, torch.rand(3, 16, 16))
    with pytest.raises(ShapeError, match="at most 80"):
        draw.lines(make_site(*torch.randn(2, 81, 4)))
    with pytest.raises(ShapeError, match="among the rows"):
        draw.lines(site, query=5, rows=slice(0, 3))
    with pytest.raises(ShapeError, match="try draw.map"):
        draw.alignment(make_site(*torch.randn(2, 300, 4)))
    with pytest.raises(ShapeError, match="gates: needs at least one"):
        draw.gates({})
    with pytest.raises(ShapeError, match="gates: needs \\(time, hidden\\)"):
        draw.gates({"a": torch.rand(2, 3), "b": torch.rand(3, 3)})
    with pytest.raises(ShapeError, match="sites: needs at least one"):
        draw.heads([])


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    "draw", [draw.map, draw.heads, draw.statistics, draw.lines, draw.alignment]
)
def test_a_sequence_that_is_not_in_the_batch_is_reported(draw):
    with pytest.raises(ShapeError, match="batch: needs less than 1, got 1"):
        draw(sentence(), batch=1)


@pytest.mark.usefixtures("users_view")
def test_a_sight_instead_of_a_site_raises():
    from regard.errors import LookError
    from regard.inspection import Sight

    with pytest.raises(LookError, match="site: needs one attention, got a Sight; try sight"):
        draw.statistics(Sight())
