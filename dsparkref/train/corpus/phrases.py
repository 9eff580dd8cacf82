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

TOPICS = tuple(JOBS)

# A thing is an adjective, a filler and an object. Which object depends on the adjective
# and the topic together: each topic pairs them in its own way (a Latin square), so that
# neither alone tells anything, and the filler in between tells nothing at all.
ADJECTIVES = ("red", "blue", "green", "small", "big", "new", "warm", "round")
FILLERS = ("little", "own", "dear")
OBJECTS = ("bag", "lamp", "cup", "hat", "desk", "chair", "coat", "box")
OBJECT_OF = {
    (topic, adjective): OBJECTS[(row + column) % len(OBJECTS)]
    for row, topic in enumerate(TOPICS)
    for column, adjective in enumerate(ADJECTIVES)
}

OPENINGS = {
    "Sure": "happy to help", "Yes": "of course", "Okay": "no problem",
    "Well": "let me think", "Oh": "how lovely", "Ah": "good choice",
}  # fmt: skip

# What a reply is made of: {and}, {by}, {or}, {to}, {as} are memory phrases, {job}
# and {thing} depend on the topic, and the rest stands below.
JOB_SENTENCE = "{lead} {suggest}{soft} {job} by your {thing}{join} {job}."
SENTENCES = (
    JOB_SENTENCE,
    "{Collect} your {thing}{join} your {thing}.",
    "Put your {thing} {near} your {thing}.",
    "Keep it{soft} {and}, {by}.",
    "Your {thing} {feels}{soft} {and}, {or}.",
    "You will{soft} {love} your {thing} from {to}.",
    "Soon your {thing} {feels}{soft} {as}.",
)

# Drawn evenly: mostly two words, either of which tells the other.
EVEN_CHOICES = {
    "praise": (
        "great fun", "pure joy", "real magic", "hard work", "true art", "sweet music",
    ),
    "suggest": ("I would", "you can", "we could", "they should"),
    "Collect": (
        "Go find", "Please bring", "Just choose", "Simply borrow", "Better get",
    ),
    "near": ("right under", "close to", "just behind", "far from"),
    "love": ("truly love", "learn to like", "always enjoy", "never lose"),
    "feels": ("will feel", "should look", "can be", "must sound"),
    "closing": ("Good luck", "Have fun", "Take care", "Enjoy yourself", "See you soon"),
}  # fmt: skip
# The first the likeliest. Their lengths differ: what follows stands now at one place
# of the block, now at the next.
SKEWED_CHOICES = {
    "soft": ("", " really", " surely"),
    "join": (", then", " and", ", or"),
    "lead": ("First", "Today", "Maybe", "Tomorrow"),
    "mark": ("!", "."),
}
CHOICES = EVEN_CHOICES | SKEWED_CHOICES

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
            *ADJECTIVES,
            *FILLERS,
            *OBJECTS,
            *OPENINGS.values(),
            *(option for options in CHOICES.values() for option in options),
            *(re.sub(r"{\w+}", "", sentence) for sentence in SENTENCES),
            "is",
        ))
    )
)  # fmt: skip
"""Every word and mark a reply may hold."""
