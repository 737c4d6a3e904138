"""The words of the generated texts (`dpexp.data.grammar`), and what their labels are called."""

from __future__ import annotations

# What a film is said to be. In the order of the labels.
OPINIONS = (
    "awful boring clumsy dull empty lifeless shallow tedious".split(),
    "brilliant charming clever funny gripping lovely moving superb".split(),
)
FILM_PARTS = "story acting script cast music ending".split()
FILM_KINDS = "film comedy drama".split()
INTENSIFIERS = "very really truly rather".split()
FILM_NEGATORS = "not hardly never".split()
OPENERS = ("in short", "for me")
CLOSERS = ("from start to finish", "in every scene", "for two hours")
CONTRAST, ADDITION = "but", "and"

# What a scene shows: each word's next wider one, up to the question that it answers.
WIDER = {
    "boys": "children",
    "girls": "children",
    "men": "adults",
    "women": "adults",
    "children": "people",
    "adults": "people",
    "dogs": "animals",
    "horses": "animals",
    "people": "who",
    "animals": "who",
    "run": "moving",
    "dance": "moving",
    "jump": "moving",
    "climb": "moving",
    "sit": "resting",
    "sleep": "resting",
    "lie": "resting",
    "wait": "resting",
    "moving": "doing",
    "resting": "doing",
    "park": "outside",
    "garden": "outside",
    "meadow": "outside",
    "forest": "outside",
    "kitchen": "inside",
    "hall": "inside",
    "classroom": "inside",
    "garage": "inside",
    "outside": "where",
    "inside": "where",
}
COUNTS = "two three four several many".split()
LOOKS = "young old tall quiet".split()
REASONS = (
    "because they are happy",
    "after a long day",
    "before the rain comes",
    "to win a prize",
    "for the first time",
)
SCENE_NEGATORS = ("not", "nobody")
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
"""Labels, in GLUE's order."""
