"""Methods of interpretability, judged on specimens: models whose mechanism is known (`emulon.planted`).

    from emulon.planted.benchmark import METHODS, ask, score, specimens_scored, summary

    questions = ask(specimens.sample(seed=3), seed=0)      # a subject for the method, and the right answers beside it
    answers = METHODS["linear-probe"](questions.subject)   # a method is one call, and never sees the truth
    score(answers, questions)                              # {"where": 0.4, "found": 0.8, "what": 0.9}
    rows = specimens_scored(["linear-probe", "random"], range(10))   # plain and in every disguise
    summary(rows)                                          # means over specimens, with 95 % intervals

A method answers what it can of four questions. Where does a quantity stand, as a stream and a token (`where`, `found`)?
What stands at a place, of four quantities (`what`)? Which heads and MLPs does ŷ depend on (`circuit`)? Which algorithm
is it, and with what parameter (`which`, `allowed`, `power`, `coverage`)? `MEASURES` says what each number is.

`@method("mine")` names a function; `emulon benchmark mine.py:function` takes one that has no name.
"""

from emulon.planted.benchmark import methods
from emulon.planted.benchmark.answers import METHODS, Answers, Method, Which, method, method_named
from emulon.planted.benchmark.questions import Questions, ask
from emulon.planted.benchmark.scores import MEASURES, score
from emulon.planted.benchmark.study import ALL, PLAIN, Cell, Row, over_dresses, specimens_scored, summary
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
    "over_dresses",
    "score",
    "specimens_scored",
    "summary",
]
