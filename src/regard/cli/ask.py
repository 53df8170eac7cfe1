"""`regard ask`: answers to the questions of courses."""

from typing import Annotated

import typer


def ask(
    question: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="In your words.")
    ] = None,
    count: Annotated[
        int, typer.Option("--list", min=0, max=56, help="List so many answers by their titles.")
    ] = 0,
) -> None:
    """Answer a question about attention, recurrence or Transformers; without one, list all."""
    from regard.work.ask import answers, find_answers
    from regard.work.ask import ask as find

    text = " ".join(question or [])
    if not text:
        topic = ""
        for answer in answers():
            print(
                f"\n{answer.topic}" if answer.topic != topic else "",
                end="\n" * (answer.topic != topic),
            )
            topic = answer.topic
            print(f"  {answer.title}")
        return
    if count:
        for score, answer in find_answers(text, count):
            print(f"{score:5.0%}  {answer.title}")
        return
    answer = find(text)
    print(answer)
    others = [one.title for _, one in find_answers(text, 4) if one is not answer]
    if others:
        print("\nNear it:\n  " + "\n  ".join(others))
