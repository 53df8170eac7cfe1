"""Notebook output: whole tables, escaped text, the numbers of the library."""

from html.parser import HTMLParser

import torch

from regard import cost, models, work
from regard.inspection import Sight, draw, logit_lens, look, make_site
from regard.nn import MultiHeadAttention
from regard.ops import survey


class Cells(HTMLParser):
    """The text of every cell of every row."""

    def __init__(self, page: str):
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_survey_shows_least_mean_and_most_of_what_was_asked():
    site = make_site(*torch.randn(2, 5, 4))
    found = site.survey(statistics=["entropy", "peak_key"])
    head, *rows = Cells(found._repr_html_()).rows
    assert head == ["statistic", "shape", "min", "mean", "max"]
    assert rows[0][:2] == ["entropy", "1 × 1 × 5"]
    assert float(rows[0][3]) == round(found.entropy.mean().item(), 3)
    assert [row[0] for row in rows] == ["entropy", "peak_key"]


def test_a_survey_of_the_op_is_displayed():
    q = torch.zeros(2, 2)
    assert "peak" in survey(q, q, torch.zeros(2), statistics=["peak"])._repr_html_()


def test_a_sight_displays_recorded_and_refused_sites():
    layer = MultiHeadAttention(8, 2)
    with look(layer) as sight:
        layer(torch.randn(3, 6, 8))
    rows = Cells(sight._repr_html_()).rows
    assert rows[1] == ["MultiHeadAttention", "0", "self", "2", "6", "6", "3"]
    assert "&lt;b&gt;" in Sight(skipped={"<b>": "no"})._repr_html_()


def test_a_site_shows_its_heads_unless_that_would_take_long():
    head, row = Cells(make_site(*torch.zeros(2, 9, 4))._repr_html_()).rows
    assert dict(zip(head, row, strict=True))["entropy"] == "2.197"  # log 9
    long = make_site(*torch.zeros(2, 4, 5000, 4).unbind(0))
    assert "<table>" not in long._repr_html_()


def test_an_empty_statistic_does_not_stop_the_display():
    from regard.ops import Survey

    assert "0 × 4" in Survey(entropy=torch.zeros(0, 4))._repr_html_()


def test_figures_show_themselves_without_pyplot():
    figure = draw.map(make_site(*torch.randn(2, 5, 4)))
    assert figure._repr_png_().startswith(b"\x89PNG")  # pyright: ignore


def test_tables_are_not_displayed_while_they_are_formatted(monkeypatch):
    """In Jupyter rich displays what it captures: an empty box above each table."""
    shown = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *args: shown.append(args))
    model = models.LanguageModel(models.language_tiny(vocab=9)).eval()
    lens = logit_lens(model, torch.tensor([[1, 2, 3]]))
    assert "block 1" in repr(lens)
    assert "all" in str(cost(model, source=4))
    assert shown == []


def test_a_cost_a_solution_and_an_influence_are_tables():
    model = models.LanguageModel(models.language_tiny(vocab=9))
    rows = Cells(cost(model, source=4)._repr_html_()).rows
    assert rows[0][:3] == ["part", "formula", "with"]
    assert rows[-1][0] == "all"
    solution = work.SolutionBuilder("none", {"a": [[1, 2]], "b": [[3], [4]]})
    solution.add_step("c", "product", "a", "b", title="the product")
    assert "c = 1·3 + 2·4 = 11" in solution.build()._repr_html_()
    assert str(solution.build()).count("11")
    rows = Cells(make_site(*torch.randn(2, 5, 4)).influence()._repr_html_()).rows
    assert rows[1][1] == "1 × 1 × 5"
