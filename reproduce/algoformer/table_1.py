"""Table 1: cross entropy and BLEU of standard, looped and AlgoFormer decoders on German–English translation."""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from emulon.core.errors import WorkFailed
from emulon.report.figure import Figure, Panel, Series
from emulon.training import TrainConfig
from reproduce.algoformer.language import FEW, MODELS, PAPER, configured, corpus_file, learned, not_behind
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up
from reproduce.drawing import band
from reproduce.text.corpora import BadText
from reproduce.text.language import bleu, entropy, translations
from reproduce.text.tasks import Translation

PAPERS = {"standard": (4.99, 9.30), "looped": (4.73, 10.56), "algoformer": (4.61, 14.72)}
BEAMS, RESAMPLES = {"greedy": 1, "beam": 4}, 1000
# Translations that are kept beside the numbers.
SHOWN = 5


def run(setting: Setting) -> Numbers:
    """Trains every model, a learner a seed, and translates the test split; BLEU is counted when all have."""
    sizes = setting.sizes
    line = f"translation:data={corpus_file(sizes['set'], sizes['vocabulary'])},longest={sizes['longest']}"
    every = {f"{model}, seed {seed}": (model, seed) for seed, model in product(setting.seeds, MODELS)}
    measures = {}
    for name, (model, seed) in every.items():
        config = configured(sizes, line, model, seed)
        measures[name] = partial(one_learner, config)
    found = setting.parts(measures)
    rows = {every[name]: found[name] for name in every}
    task = config.make_task()
    assert isinstance(task, Translation)
    return {"set": sizes["set"], "floor": sizes["floor"]} | scored(task, rows)


def one_learner(config: TrainConfig, setting: Setting) -> Numbers:
    """Cross entropy per word on the test split, and the translations of all its texts."""
    fitted, took = learned(config, setting, share=0.9)
    task = fitted.evaluation.task
    assert isinstance(task, Translation)
    split = task.corpus.split("test")
    sources = [split.texts[row] for row in task.rows("test").tolist()]
    said = {}
    for way, beams in BEAMS.items():
        setting.report_progress(f"translating with {config.model.model}, {way}", 0.9)
        found = translations(fitted.learner, task, sources, beams)
        said[way] = [task.corpus.tokeniser.decode(words) for words in found]
    return took | {"entropy": entropy(fitted.learner, task), "said": said}


def scored(task: Translation, rows: dict[tuple[str, int], Numbers]) -> Numbers:
    """BLEU of all translations, by model and seed."""
    split = task.corpus.split("test")
    references = [split.references[row] for row in task.rows("test").tolist()]
    models: Numbers = {}
    for (model, _), row in rows.items():
        try:
            scores = {way: bleu(said, references, RESAMPLES) for way, said in row["said"].items()}
        except BadText as error:
            raise WorkFailed(
                f"all learners are trained, and their translations are kept; {error}, and run this again there"
            ) from None
        numbers = {"entropy": row["entropy"], "seconds": row["seconds"], "steps": row["steps"]}
        numbers |= {way: score for way, (score, _) in scores.items()}
        numbers |= {f"{way} within": half for way, (_, half) in scores.items()}
        for name, value in (numbers | {"learning": row["learning"]}).items():
            models.setdefault(model, {"parameters": row["parameters"]}).setdefault(name, []).append(value)
    shown = [
        {"reference": references[place]} | {model: row["said"]["beam"][place] for (model, _), row in rows.items()}
        for place in range(min(SHOWN, len(references)))
    ]
    trained_on = sum(bucket.size for bucket in task.buckets)  # type: ignore[attr-defined]  # a task over text
    return {"models": models, "trained_on": trained_on, "tested_on": len(references), "translations": shown}


def interval(model: Numbers) -> tuple[float, float]:
    """Of BLEU with four beams: from the lowest to the highest end of its seeds' 95 % intervals over sentences."""
    pairs = list(zip(model["beam"], model["beam within"], strict=True))
    return min(score - half for score, half in pairs), max(score + half for score, half in pairs)


def judge(numbers: Numbers) -> Verdict:
    """No verdict on the printed table, which is about IWSLT 2015. On the set used here the reason says whether
    AlgoFormer is behind the others: its BLEU interval ends below the start of another's, or its lowest cross entropy
    over seeds exceeds another's highest. Where the standard decoder is below the floor, training was too short for
    this comparison, too."""
    models = numbers["models"]
    shown = "; ".join(
        f"{model} {mean(each['entropy']):.2f}, {mean(each['greedy']):.1f} / {mean(each['beam']):.1f}"
        for model, each in models.items()
    )
    ours = f"{numbers['set']}, cross entropy and BLEU (greedy / 4 beams): {shown}"
    if mean(models["standard"]["beam"]) < numbers["floor"]:
        return Verdict("not tested at scale", ours, f"the standard decoder is below {numbers['floor']} BLEU: too early")
    own = models["algoformer"]
    others = {model: each for model, each in models.items() if model != "algoformer"}
    kept = {
        model: not_behind(interval(own), interval(each)) and min(own["entropy"]) <= max(each["entropy"])
        for model, each in others.items()
    }
    ahead = [model for model, each in others.items() if interval(own)[0] > interval(each)[1]]
    reason = f"IWSLT 2015 is not to be had here. A comparison of ours on {numbers['set']}: AlgoFormer is within the "
    reason += f"intervals behind {_listed([model for model in kept if not kept[model]])}, and beyond them"
    reason += f" ahead of {_listed(ahead)}; {len(own['beam'])} seed(s), {numbers['tested_on']} sentences"
    return Verdict("cannot be tested here", ours, reason)


def _listed(models: list[str]) -> str:
    return " and ".join(models) or "neither"


def figure(numbers: Numbers) -> Figure:
    models, names = numbers["models"], list(MODELS)
    scores = [models[name] for name in names]
    bars = [
        Series("greedy", names, [mean(each["greedy"]) for each in scores], "bars"),
        Series("4 beams", names, [mean(each["beam"]) for each in scores], "bars"),
        Series("Gao et al. 2024, IWSLT", names, [PAPERS[name][1] for name in names], "bars"),
    ]
    return Figure([Panel("", "BLEU", bars), learning_panel(models)])


def learning_panel(models: Numbers, title: str = "") -> Panel:
    """How cross entropy on the validation split fell; the band is of the seeds."""
    series = [
        band(model, each["learning"][0]["steps"], [run["entropy"] for run in each["learning"]])
        for model, each in models.items()
    ]
    return Panel("training steps", "cross entropy, validation", series, title=title)


SMALL: dict[str, Any] = {
    "recipe": "fast",
    "width": 64,
    "heads": 4,
    "batch": 32,
    "lr": 2e-3,
    "warmup": 50,
    "epochs": 1.5,
}
GPU: dict[str, Any] = {"recipe": "fast", "width": 256, "heads": 8, "batch": 128, "dropout": 0.2, "epochs": 30}
GPU |= {"precision": "bf16", "compile": "off", "evaluation_batch": 1014, "patience": 4}
SMALL_SIZES = {"set": "multi30k", "vocabulary": 2000, "longest": 16, "training": SMALL, "models": FEW, "floor": 5}
GPU_SIZES = {"set": "multi30k", "vocabulary": 8000, "longest": 40, "training": GPU, "models": PAPER, "floor": 25}
SET_UP = """
data | IWSLT 2015, German–English talks | Multi30k, 29,000 captions, an easier set | both
model | 12 layers, or one each and (10, 10); 8 heads, width 256; Eq. 2 | with injection
optimiser | not stated, 5e-5 | Muon, 0.005 to 0.01, linear, dropout 0.2 | both
steps × batch | not stated | 30 epochs at most × 128
seeds | not stated | 3
"""
CLAIM = Claim(
    "algoformer-table-1",
    "Gao et al. 2024, Table 1",
    "AlgoFormer translates German at least as well as the standard and the looped transformer.",
    "cross entropy and BLEU, IWSLT 2015: standard 4.99, 9.30; looped 4.73, 10.56; AlgoFormer 4.61, 14.72",
    {
        "small": Scale(3, SMALL_SIZES, at_source_scale=False),
        "gpu": Scale(20, GPU_SIZES | {"seeds": 3}, set_up=set_up(SET_UP)),
    },
    *(run, judge, figure),
    differs="On a CPU short sentences, width 64, and 3 layers or loops.",
    reversal="IWSLT 2015 itself: with its texts in a folder the claim can be measured as printed",
)
