"""Claims as answers to questions: found by the words people use, beside `rg.work.ask`."""

from functools import cache

from regard.claims.claim import CLAIMS, FAMILIES
from regard.claims.gallery import LABELS
from regard.work.ask import Answer


@cache
def claim_answers() -> tuple[Answer, ...]:
    """Each claim with its declared verdict, to be searched by `rg.work.find_answers`.

    >>> [(_, found)] = rg.work.find_answers("forget gate of an lstm", 1, claim_answers())
    >>> found.title.startswith(found.claims[0])
    True
    """
    return tuple(
        Answer(
            title=f"{claim.id} {LABELS[claim.verdict]}: {claim.statement}",
            topic=FAMILIES[claim.id[0]],
            asked=(claim.statement,),
            claims=(claim.id,),
            command=f"regard claims {claim.id}",
            text=" ".join(filter(None, (claim.condition, claim.correction, claim.remark))),
        )
        for claim in CLAIMS.values()
    )
