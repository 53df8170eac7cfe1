"""The frame of a quiz in Moodle XML."""

from pathlib import Path
from xml.etree import ElementTree

from regard.files.text import write_text


def new_quiz(category: str) -> ElementTree.Element:
    """A quiz whose questions go to this category of the course.

    >>> new_quiz("Week 3")[0][0][0].text
    '$course$/top/Week 3'
    """
    quiz = ElementTree.Element("quiz")
    question = ElementTree.SubElement(quiz, "question", type="category")
    add_quiz_text(question, "category", f"$course$/top/{category}")
    return quiz


def add_quiz_text(
    parent: ElementTree.Element, tag: str, text: str, *, html: bool = False
) -> ElementTree.Element:
    """Add an element with a text, as Moodle nests them.

    >>> add_quiz_text(new_quiz("a"), "name", "Q1").find("text").text
    'Q1'
    """
    element = ElementTree.SubElement(parent, tag, {"format": "html"} if html else {})
    ElementTree.SubElement(element, "text").text = text
    return element


def write_quiz_file(quiz: ElementTree.Element, path: str | Path) -> Path:
    """Write a quiz as a file that Moodle imports.

    >>> import tempfile
    >>> write_quiz_file(new_quiz("a"), Path(tempfile.mkdtemp()) / "quiz.xml").name
    'quiz.xml'
    """
    ElementTree.indent(quiz)
    xml = ElementTree.tostring(quiz, encoding="unicode", xml_declaration=True)
    return write_text(path, xml + "\n")
