"""Claims about sequence models, run as experiments with verdicts.

    claim.py     statement, declared verdict, experiment, evidence; `@claim` registers one
    families/        the experiments, by subject
    measurements.py  derivatives, slopes, counts and small trainings that several share
    charts.py        the pictures
    results.py       runs them side by side and stores the results
    gallery.py       pages, a quiz for Moodle, and claims as answers to questions

>>> rg.claims.CLAIMS["A1"].run().verdict
'true'
"""

from regard.claims import families
from regard.claims.charts import Bars, Chart, Lines, Maps, Points, draw_chart
from regard.claims.claim import CLAIMS, Claim, Evidence, Measure, Trial, Verdict, claim, literature
from regard.claims.gallery import claim_answers, write_gallery, write_quiz
from regard.claims.results import Result, junit_xml, run_claims, select_claims

__all__ = [
    "Bars", "CLAIMS", "Chart", "Claim", "Evidence", "Lines", "Maps", "Measure", "Points",
    "Result", "Trial", "Verdict", "claim", "claim_answers", "draw_chart", "families", "junit_xml",
    "literature", "run_claims", "select_claims", "write_gallery", "write_quiz",
]  # fmt: skip
