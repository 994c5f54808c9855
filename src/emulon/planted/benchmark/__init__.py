"""Benchmark of interpretability methods on planted models, whose mechanism is known (`emulon.planted`).

    from emulon.planted.benchmark import METHODS, ask, score, score_models, summary

    questions = ask(planted.sample(seed=3), seed=0)      # a subject for the method, and the right answers
    answers = METHODS["linear-probe"](questions.subject)   # a method is one call and does not see the truth
    score(answers, questions)                              # {"where": 0.4, "found": 0.8, "what": 0.9}
    rows = score_models(["linear-probe", "random"], range(10))   # plain and under every obfuscation
    summary(rows)                                          # means over planted models, with 95 % intervals

A method answers any of four questions. Where is a quantity represented, as a stream and a token (`where`, `found`)?
Which of four quantities is represented at a place (`what`)? Which heads and MLPs does ŷ depend on (`circuit`)? Which
algorithm is it, and with which parameter (`which`, `allowed`, `power`, `coverage`)? `MEASURES` describes each score.

`@method("mine")` registers a function; `emulon benchmark mine.py:function` takes one that is not registered.
"""

from typing import Any

from emulon.core.names import renamed
from emulon.planted.benchmark import methods
from emulon.planted.benchmark.answers import METHODS, Answers, Method, Which, method, method_named
from emulon.planted.benchmark.questions import Questions, ask
from emulon.planted.benchmark.scoring import MEASURES, score
from emulon.planted.benchmark.study import ALL, PLAIN, Cell, Row, over_variants, score_models, summary
from emulon.planted.benchmark.subject import Activations, Change, NoisyAnswers, Subject

__all__ = [
    "ALL",
    "MEASURES",
    "METHODS",
    "PLAIN",
    "Activations",
    "Answers",
    "Cell",
    "Change",
    "Method",
    "NoisyAnswers",
    "Questions",
    "Row",
    "Subject",
    "Which",
    "ask",
    "method",
    "method_named",
    "methods",
    "over_variants",
    "score",
    "score_models",
    "summary",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"over_dresses": "over_variants", "specimens_scored": "score_models"})
