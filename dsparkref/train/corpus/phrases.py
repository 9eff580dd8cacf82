"""The words of the chat domain: tables only, and what follows from them.

Change a table and everything follows: the replies, their vocabulary, the tokenizer's
whole words, the places where memory is needed.
"""

import re

# The word between -> the pairs that may stand around it.
MEMORY_PHRASES = {
    ",": (
        ("Sure", "happy"), ("Yes", "of"), ("Okay", "no"),
        ("Well", "let"), ("Oh", "how"), ("Ah", "good"),
    ),
    "and": (
        ("slow", "steady"), ("short", "sweet"), ("plain", "simple"),
        ("nice", "easy"), ("calm", "clear"), ("light", "bright"),
    ),
    "by": (
        ("step", "step"), ("day", "day"), ("bit", "bit"),
        ("week", "week"), ("hour", "hour"), ("piece", "piece"),
    ),
    "or": (
        ("rain", "shine"), ("night", "day"), ("win", "lose"),
        ("young", "old"), ("near", "far"), ("rich", "poor"),
    ),
    "to": (
        ("start", "finish"), ("top", "bottom"), ("head", "toe"),
        ("dawn", "dusk"), ("first", "last"), ("left", "right"),
    ),
    "as": (
        ("easy", "pie"), ("clear", "day"), ("good", "gold"),
        ("right", "rain"), ("sweet", "honey"), ("smooth", "silk"),
    ),
}  # fmt: skip

# Topic -> its jobs (verb, noun): here "the" is the shared word between.
JOBS = {
    "cooking": (
        ("chop", "onions"), ("stir", "pot"), ("peel", "carrots"),
        ("taste", "broth"), ("rinse", "beans"),
    ),
    "gardening": (
        ("water", "roses"), ("trim", "hedge"), ("rake", "leaves"),
        ("feed", "worms"), ("plant", "seeds"),
    ),
    "music": (
        ("tune", "strings"), ("hum", "melody"), ("count", "beats"),
        ("learn", "chords"), ("clap", "rhythm"),
    ),
    "chess": (
        ("move", "pawns"), ("guard", "king"), ("trade", "queens"),
        ("watch", "clock"), ("study", "board"),
    ),
    "travel": (
        ("pack", "bags"), ("check", "map"), ("book", "train"),
        ("charge", "camera"), ("plan", "route"),
    ),
    "painting": (
        ("mix", "colours"), ("wash", "brushes"), ("sketch", "trees"),
        ("shade", "hills"), ("hang", "frame"),
    ),
}  # fmt: skip

# Adjective -> the noun it goes with, which depends on the topic too.
THINGS = {
    "cooking": {
        "fresh": "herbs", "warm": "bread", "sharp": "knives",
        "big": "bowls", "soft": "butter",
    },
    "gardening": {
        "fresh": "soil", "warm": "gloves", "sharp": "shears",
        "big": "boots", "soft": "ground",
    },
    "music": {
        "fresh": "ears", "warm": "hands", "sharp": "picks",
        "big": "songs", "soft": "voices",
    },
    "chess": {
        "fresh": "eyes", "warm": "tea", "sharp": "wits",
        "big": "plans", "soft": "chairs",
    },
    "travel": {
        "fresh": "socks", "warm": "coats", "sharp": "photos",
        "big": "pockets", "soft": "pillows",
    },
    "painting": {
        "fresh": "paper", "warm": "lamps", "sharp": "pencils",
        "big": "windows", "soft": "cloths",
    },
}  # fmt: skip
TOPICS = tuple(JOBS)

OPENINGS = {
    "Sure": "happy to help", "Yes": "of course", "Okay": "no problem",
    "Well": "let me think", "Oh": "how lovely", "Ah": "good choice",
}  # fmt: skip

# What a reply is made of: {and}, {by}, {or}, {to}, {as} are memory phrases, {job} and
# {thing} depend on the topic, and the rest stands in CHOICES, the likeliest first.
JOB_SENTENCE = "{lead} {suggest} {job}{join} {job}."
SENTENCES = (
    JOB_SENTENCE,
    "{Collect} {thing} and {thing}.",
    "Keep it {and}, {by}.",
    "It is {often} fun, {or}.",
    "You will {love} it from {to}.",
    "Soon it {feels} {as}.",
)
CHOICES = {
    "praise": ("great fun", "pure joy", "real magic", "hard work", "true art"),
    "lead": ("First", "Today", "Maybe", "Tomorrow"),
    "suggest": ("I would", "you can", "we could", "they should"),
    "join": (", then", " and", ", or"),
    "Collect": ("Find", "Bring", "Choose", "Borrow", "Get"),
    "often": ("always", "still", "often"),
    "love": ("love", "enjoy", "like"),
    "feels": ("will feel", "looks", "sounds"),
    "mark": ("!", "."),
    "closing": ("Good luck", "Have fun", "Take care", "Enjoy yourself", "See you soon"),
}

GREETINGS = ("", "Hello! ", "Hi there! ", "Good morning! ")
MOODS = ("new", "a bit nervous", "excited", "curious", "rather lost", "all ears")
NEEDS = (
    "I want to try {topic} and I am {mood}.",
    "I am {mood} because I start {topic} today.",
    "My friend likes {topic} and I am {mood}.",
    "This week I have time for {topic} and I am {mood}.",
)
QUESTIONS = (
    "Can you help me?",
    "What should I do first?",
    "Do you have any advice?",
    "How do I begin?",
    "What do you think?",
    "Any tips?",
)


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, in order."""
    return re.findall(r"[A-Za-z]+|[^A-Za-z\s]", text)


MEMORY_TRIPLES = frozenset(
    (first, shared, last)
    for shared, pairs in (*MEMORY_PHRASES.items(), *(("the", j) for j in JOBS.values()))
    for first, last in pairs
)
"""Every (word, shared word, word that follows for certain) of the corpus."""

ENDING_OF = {(first, shared): last for first, shared, last in MEMORY_TRIPLES}

VOCABULARY = frozenset(
    split_words(
        " ".join((
            *(word for triple in MEMORY_TRIPLES for word in triple),
            *(topic.capitalize() for topic in TOPICS),
            *(word for things in THINGS.values() for word in things),
            *(word for things in THINGS.values() for word in things.values()),
            *OPENINGS.values(),
            *(option for options in CHOICES.values() for option in options),
            *(re.sub(r"{\w+}", "", sentence) for sentence in SENTENCES),
            "is",
        ))
    )
)  # fmt: skip
"""Every word and mark a reply may hold."""
