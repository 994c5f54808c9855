"""A handful of sentences, for tests that must not need anybody's data."""

from reproduce.text.texts import make_corpus

GERMAN = {"hund": "dog", "katze": "cat", "pferd": "horse", "vogel": "bird"}
DOES = {"läuft": "runs", "schläft": "sleeps", "frisst": "eats", "springt": "jumps"}
WHERE = {"": "", " im Haus": " in the house", " auf der grünen Wiese": " on the green meadow"}

PAIRS = [
    (f"Ein {animal} {does}{where}.", f"A {GERMAN[animal]} {DOES[does]}{WHERE[where]}.")
    for animal in GERMAN
    for does in DOES
    for where in WHERE
]
CLASSES = ("animals", "weather")
SKY = ("sun", "rain", "snow", "wind")
TOPICS = [(english, "animals") for _, english in PAIRS] + [
    (f"The {sky} comes {when} {where}.", "weather")
    for sky in SKY
    for when in ("today", "tomorrow", "late at night")
    for where in ("again", "from the north", "over the hills")
]


def _splits(pairs):
    return {"train": pairs[0::4] + pairs[1::4], "validation": pairs[2::4], "test": pairs[3::4]}


def translations():
    return make_corpus("translation", _splits(PAIRS), vocabulary=300)


def topics():
    return make_corpus("classification", _splits(TOPICS), vocabulary=300, classes=CLASSES)
