"""The words that the page explains are those of the glossary, and every type of a head is one."""

import re
from pathlib import Path

from regard.inspection.heads import head_table
from regard.inspection.heads.head_table import HeadRow, Thresholds, classify_head
from regard.page import FOLDER

GLOSSARY = Path(__file__).parents[2] / "docs/start/glossary.md"
TERMS = dict(re.findall(r'^  (\w+): "([^"]*)",$', (FOLDER / "lib/terms.js").read_text(), re.M))


def test_the_page_and_the_glossary_explain_each_word_alike():
    text = GLOSSARY.read_text()
    assert len(TERMS) > 15
    assert [name for name, says in TERMS.items() if f"| {name} | {says} |" not in text] == []


def test_every_type_of_a_head_is_explained():
    source = Path(head_table.__file__).read_text()
    body = source[source.index("def classify_head") : source.index("TABLE_COLUMNS =")]
    returned = set(re.findall(r'(?:return|\() ?"(\w+)",', body)) - {"offset"}
    assert returned >= {"forced", "diffuse", "mixed", "sink", "identity"}
    assert returned <= TERMS.keys()


def test_a_type_by_numbers_is_a_word_of_the_page():
    row = HeadRow(site="a", call=0, head=0, query_count=9, sink_share=0.9)
    assert classify_head(row, Thresholds())[0] in TERMS
