"""Filling a catalog changes and marks the untranslated entries and no other byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import PoCatalog, placeholders
from regard.data.text.po_catalog import PoMessage, _quoted, read_po, unquote_po
from regard.errors import FileError

WHOLE = """# A translator's note
msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#. from the sources
#: main.c:10
msgctxt "menu"
msgid "Open"
msgstr ""

#, c-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] ""
msgstr[1] ""

#, fuzzy
#| msgid "Quitt"
msgid "Quit\\n"
msgstr "alt"

msgid "done"
msgstr "fertig"

msgid ""
"two "
"lines\\n"
msgstr ""
#~ msgid "old"
#~ msgstr "alt"
"""

FILLED = """# A translator's note
msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

#. from the sources
#: main.c:10
#, fuzzy
msgctxt "menu"
msgid "Open"
msgstr "OPEN"

#, c-format, fuzzy
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d FILE"
msgstr[1] "%d FILES"

#, fuzzy
#| msgid "Quitt"
msgid "Quit\\n"
msgstr "QUIT\\n"

msgid "done"
msgstr "fertig"

#, fuzzy
msgid ""
"two "
"lines\\n"
msgstr "TWO LINES\\n"
#~ msgid "old"
#~ msgstr "alt"
"""


def shout(texts: list[str]) -> list[str | None]:
    return [text.upper().replace("%D", "%d") for text in texts]


@pytest.fixture
def catalog(tmp_path):
    def make(text: str) -> PoCatalog:
        (tmp_path / "de.po").write_bytes(text.encode())
        return PoCatalog(tmp_path / "de.po")

    return make


# ---- worked numbers


def test_what_is_open_is_filled_and_all_else_stays(catalog):
    whole = catalog(WHOLE)
    assert str(whole) == WHOLE
    assert whole.fill(shout) == (4, 1, [])
    assert str(whole) == FILLED


def test_a_lost_or_made_up_placeholder_leaves_the_message_as_it_was(catalog):
    for text, answer in (("%s of %d", "%s"), ("{name}", "name"), ("a", "a %s"), ("<b>a</b>", "a")):
        before = f'msgid "{text}"\nmsgstr ""\n'
        one = catalog(before)
        done = one.fill(lambda texts, answer=answer: [answer])
        assert (done.filled, len(done.skipped)) == (0, 1)
        assert "the translation" in done.skipped[0]
        assert str(one) == before


def test_of_a_plural_either_all_forms_are_filled_or_none(catalog):
    before = 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    one = catalog(before)
    assert one.fill(lambda texts: ["%d Tag", "Tage"]).filled == 0
    assert str(one) == before


def test_what_cannot_be_translated_is_left_with_its_reason(catalog):
    one = catalog('msgid "a"\nmsgstr ""\n\nmsgid "b"\nmsgstr ""\n')
    done = one.fill(lambda texts: [None] * len(texts), lambda text: "too long" * (text == "a"))
    assert done == (0, 0, ["'a': too long", "'b': no complete translation"])


def test_placeholders_of_several_kinds():
    assert placeholders("50% discount, 5 % of it") == {}
    found = placeholders("%s %(name)s %1$d %5.2f %% {} {0} ${home} <a href='x'> </a>")
    assert list(found) == [
        "%s", "%(name)s", "%1$d", "%5.2f", "%%", "{}", "{0}", "${home}", "<a href='x'>", "</a>"
    ]  # fmt: skip


# ---- properties


def test_windows_line_ends_and_odd_line_signs_are_kept(catalog):
    text = 'msgid "a\u2028b"\r\nmsgstr ""\r\n\r\nmsgid "c"\r\nmsgstr "d"\r\n'
    one = catalog(text)
    assert str(one) == text
    one.fill(shout)
    assert str(one) == text.replace('msgstr ""', 'msgstr "A\u2028B"').replace(
        "msgid", "#, fuzzy\r\nmsgid", 1
    )


@given(st.text(alphabet='ab "\\\n\t\rä%'))
def test_a_text_that_is_written_is_read_back(text):
    lines = _quoted("msgstr", text)
    parts = [line.removeprefix("msgstr ") for line in lines]
    assert "".join(unquote_po(part) for part in parts) == text


def test_what_was_filled_is_read_by_the_reader_of_pairs_as_fuzzy(catalog, tmp_path):
    one = catalog(WHOLE)
    one.fill(shout)
    (tmp_path / "new.po").write_text(str(one))
    rows = list(read_po(tmp_path / "new.po"))
    assert [row.error for row in rows].count("marked fuzzy") == 4
    assert [row.values[1] for row in rows if not row.error] == ["fertig"]


def test_a_filled_catalog_is_filled_again_to_the_same(catalog):
    one = catalog(FILLED)
    one.fill(shout)
    assert str(one) == FILLED


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('msgid "a"\nhello\n', "got 'hello' in line 2; try msgfmt --check"),
        ('msgid "a\nmsgstr ""\n', "got 'msgid \"a' in line 1"),
        ('msgid "a"\nmsgid "b"\nmsgstr ""\n', "got msgid twice in line 2"),
        ('msgid "a"\n', "got a message without msgid or msgstr before it in line 2"),
        ('msgstr "a"\n\nmsgid "b"\nmsgstr ""\n', "without msgid or msgstr before it in line 3"),
        ('msgfoo "a"\n', "got 'msgfoo \"a\"' in line 1"),
    ],
)
def test_a_broken_catalog_is_reported_with_its_line(catalog, text, message):
    with pytest.raises(FileError, match="de.po: needs keywords and quoted texts, got") as caught:
        catalog(text)
    assert message in str(caught.value)


@pytest.mark.usefixtures("users_view")
def test_another_encoding_or_no_file_is_reported(tmp_path):
    (tmp_path / "de.po").write_bytes(b'msgid "\xe4"\nmsgstr ""\n')
    with pytest.raises(FileError, match="got byte 0xe4 in line 1, byte 8; try msgconv"):
        PoCatalog(tmp_path / "de.po")
    with pytest.raises(FileError, match="cannot be read, No such file"):
        PoCatalog(tmp_path / "no.po")


def test_a_message_is_its_lines():
    assert str(PoMessage([("msgid", 'msgid "a"\n')])) == 'msgid "a"\n'


# ---- plurals


PLURAL = 'msgid "%d day"\nmsgid_plural "%d days"\nmsgstr[0] ""\nmsgstr[1] ""\n'
FORMS = {"cs": 3, "ja": 1, "ar": 6, "fr": 2, "ru": 3}


def filled_plural(catalog, header: str, language: str = "") -> dict[str, str]:
    one = PoCatalog("a.po", (header + PLURAL).encode(), language=language)
    one.fill(lambda texts: [f"<{text}>".replace("<%d", "%d").replace(">", "!") for text in texts])
    read = PoCatalog("a.po", str(one).encode(), language=language)
    assert str(read) == str(one)
    texts = read.messages[-1].texts
    return {name: texts[name] for name in texts if name.startswith("msgstr")}


@pytest.mark.parametrize("language", FORMS)
def test_each_plural_form_of_the_language_is_filled(catalog, language):
    header = f'msgid ""\nmsgstr "Language: {language}\\n"\n\n'
    for forms in (filled_plural(catalog, header), filled_plural(catalog, "", language)):
        filled = [text for text in forms.values() if text]
        assert len(filled) == FORMS[language]
        singular = {"ar": 1}.get(language, 0)
        expected = ["%d days!"] * len(filled)
        if language != "ja":  # one form for all numbers
            expected[singular] = "%d day!"
        assert filled == expected


def test_the_header_decides_the_plural_forms_and_a_template_or_nonsense_does_not(catalog):
    def header(rule: str) -> str:
        return f'msgid ""\nmsgstr "Language: cs\\n"\n"Plural-Forms: {rule}\\n"\n\n'

    assert len(filled_plural(catalog, header("nplurals=4; plural=n%100==1 ? 0 : 3;"))) == 4
    for rule in ("nplurals=INTEGER; plural=EXPRESSION;",):
        assert len(filled_plural(catalog, header(rule))) == 3
    for rule in ("nplurals=999999; plural=0;", "nplurals=2; plural=1/0;", "nplurals=2; plural=((;"):
        assert len(filled_plural(catalog, header(rule))) == 2


# ---- what a model writes


def test_brackets_that_a_model_puts_around_placeholders_are_removed(catalog):
    one = catalog('msgid "%s of {n}"\nmsgstr ""\n\nmsgid "<%s>"\nmsgstr ""\n')
    one.fill(lambda texts: ["{n}: <%s>", "<%s>!"])
    assert [m.texts["msgstr"] for m in one.messages] == ["{n}: %s", "<%s>!"]


# ---- escapes


def test_escapes_are_those_of_c():
    assert unquote_po(r'"a\tb\\ \"c\" \303\274 \x41"') == 'a\tb\\ "c" ü A'
    for text in (r'"\ud800"', r'"\N{DASH}"', r'"\d"', '"a" "b"', '"a", "b"', r'"\303"', '"\\"'):
        assert unquote_po(text) is None


@pytest.mark.usefixtures("users_view")
def test_plural_translations_without_a_plural_are_reported(tmp_path):
    (tmp_path / "a.po").write_text('msgid "a"\nmsgstr[0] "x"\nmsgstr[1] "y"\n')
    with pytest.raises(FileError, match=r"got msgstr\[n\] without msgid_plural, .* in line 2; try"):
        PoCatalog(tmp_path / "a.po")
    errors = [row.error for row in read_po(tmp_path / "a.po")]
    assert errors[:2] == ["msgstr[n] without msgid_plural, or the reverse"] * 2
