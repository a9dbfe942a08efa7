"""Makes up reviews of hotels, each praising or blaming in the end. Which of the two depends on the order of words."""

import random

THINGS = [
    "room",
    "bed",
    "breakfast",
    "staff",
    "view",
    "bath",
    "pool",
    "lobby",
    "bar",
    "garden",
    "coffee",
    "lift",
]
GOOD = [
    "lovely",
    "clean",
    "fresh",
    "quiet",
    "warm",
    "friendly",
    "bright",
    "generous",
    "splendid",
    "spotless",
    "calm",
    "tasty",
]
BAD = [
    "dirty",
    "noisy",
    "cold",
    "rude",
    "dark",
    "stale",
    "broken",
    "dusty",
    "bland",
    "gloomy",
    "cramped",
    "awful",
]
VERBS = ["was", "seemed", "looked", "felt"]
NEGATIONS = ["not", "never", "hardly"]
DEGREES = ["very", "quite", "rather", "really", "so"]

# Of two clauses the second counts after "but", the one without "although" otherwise.
FORMS = ("{other} but {main}", "although {other} , {main}", "{main} although {other}", "{main}")


def clause(rng, good):
    """``the bed was not very dusty``: praise (``good``) in plain words, or by a negation of the contrary."""
    negated = rng.random() < 0.5
    words = ["the", rng.choice(THINGS), rng.choice(VERBS)]
    if negated:
        words.append(rng.choice(NEGATIONS))
    if rng.random() < 0.4:
        words.append(rng.choice(DEGREES))
    words.append(rng.choice(GOOD if good != negated else BAD))
    return " ".join(words)


def make_reviews(count, seed=0):
    """``count`` texts, and a label for each: 1 for praise, 0 for blame. The same seed gives the same ones."""
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        praise = rng.random() < 0.5
        main, other = clause(rng, praise), clause(rng, rng.random() < 0.5)
        texts.append(rng.choice(FORMS).format(main=main, other=other))
        labels.append(int(praise))
    return texts, labels
