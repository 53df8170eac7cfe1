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
    """Answer a question about attention, recurrence or Transformers; without one, list all.

    Claims that share its words are named below the answer.
    """
    from regard.claims import claim_answers
    from regard.work.ask import MIN_SCORE, answers, find_answers
    from regard.work.ask import ask as find

    text = " ".join(question or [])
    if not text:
        topic = ""
        for answer in answers():
            if answer.topic != topic:
                print(f"\n{answer.topic}")
            topic = answer.topic
            print(f"  {answer.title}")
        return
    claims = find_answers(text, 3, claim_answers())
    if count:
        for score, answer in sorted(find_answers(text, count) + claims, reverse=True)[:count]:
            print(f"{score:5.0%}  {answer.title}")
        return
    near = find_answers(text, 4)
    is_claim = claims and claims[0][0] >= MIN_SCORE > (near[0][0] if near else 0)
    answer = claims[0][1] if is_claim else find(text)
    print(answer)
    others = [one.title for _, one in [*near[:3], *claims] if one is not answer]
    if others:
        print("\nNear it:\n  " + "\n  ".join(others))
