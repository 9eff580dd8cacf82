"""Chat: open-ended replies in which several words are equally good at every turn.

Three kinds of collision are planted here, because a drafter that fills all slots at
once falls into each of them.

* One token back: "of course" or "no problem", "great fun" or "pure joy". Slots that do
  not see each other mix the halves ("of problem"); a Markov head cannot.
* Two tokens back: "slow and steady", "short and sweet", "plain and simple". The token
  between is shared and tells nothing, so only a head with a memory knows the ending.
  Which of them is used is an even toss, so nothing earlier gives it away.
* Two tokens back and the topic together: "red little lamp" where the talk is of chess,
  "red little cup" where it is of travel. The word between is free, and neither the
  topic nor the adjective alone says which object comes.
"""

import random
import re
from itertools import pairwise
from string import Formatter

from dsparkref.train.corpus.phrases import (
    ADJECTIVES,
    CHOICES,
    ENDING_OF,
    EVEN_CHOICES,
    FILLERS,
    GREETINGS,
    JOB_SENTENCE,
    JOBS,
    MEMORY_PHRASES,
    MEMORY_TRIPLES,
    MOODS,
    NEEDS,
    OBJECT_OF,
    OPENINGS,
    QUESTIONS,
    SENTENCES,
    SKEWED_CHOICES,
    TOPICS,
    VOCABULARY,
    split_words,
)


def draw_things(topic: str, rng: random.Random) -> list[str]:
    """Things of a topic in any order, each adjective once.

    >>> draw_things("chess", random.Random(0))[:2]
    ['warm own lamp', 'round own cup']
    """
    adjectives = rng.sample(ADJECTIVES, len(ADJECTIVES))
    return [f"{a} {rng.choice(FILLERS)} {OBJECT_OF[topic, a]}" for a in adjectives]


def fill_slot(slot: str, jobs: list, things: list, rng: random.Random) -> str:
    """The words for one slot; a job or a thing is taken from those still left."""
    if slot == "job":
        return jobs.pop()
    if slot == "thing":
        return things.pop()
    if slot in MEMORY_PHRASES:
        first, last = rng.choice(MEMORY_PHRASES[slot])
        return f"{first} {slot} {last}"
    if slot in EVEN_CHOICES:
        return rng.choice(EVEN_CHOICES[slot])
    options = SKEWED_CHOICES[slot]
    weights = [1 / rank for rank in range(1, len(options) + 1)]
    return rng.choices(options, weights)[0]


def fill(template: str, topic: str, rng: random.Random) -> str:
    """A template with its slots filled; no job and no thing comes twice.

    >>> fill("Keep it {and}, {by}.", "chess", random.Random(0))
    'Keep it plain and simple, hour by hour.'
    >>> fill("{job}{join} {job}.", "chess", random.Random(0))
    'study the board and watch the clock.'
    """
    jobs = [f"{verb} the {noun}" for verb, noun in rng.sample(JOBS[topic], 2)]
    things = draw_things(topic, rng)
    text = ""
    for literal, slot, _, _ in Formatter().parse(template):
        text += literal + (fill_slot(slot, jobs, things, rng) if slot else "")
    return text


def generate(rng: random.Random) -> tuple[str, str, dict]:
    """One exchange: prompt, reply, check (the topic and the reply's memory places).

    >>> prompt, reply, check = generate(random.Random(1))
    >>> answer_is_right(check, reply)
    True
    """
    topic = rng.choice(TOPICS)
    need = rng.choice(NEEDS).format(topic=topic, mood=rng.choice(MOODS))
    prompt = f"{rng.choice(GREETINGS)}{need} {rng.choice(QUESTIONS)}"

    opener = rng.choice(tuple(OPENINGS))
    middle = rng.sample(SENTENCES, rng.choice((3, 4)))
    if JOB_SENTENCE not in middle:
        middle[0] = JOB_SENTENCE
        rng.shuffle(middle)
    opening = f"{opener}, {OPENINGS[opener]}{{mark}}"
    praise = f"{topic.capitalize()} is{{soft}} {{praise}}."
    sentences = (opening, praise, *middle, "{closing}!")
    reply = " ".join(fill(sentence, topic, rng) for sentence in sentences)
    return prompt, reply, {"topic": topic, "memory_pairs": memory_pairs(reply)}


def memory_pairs(reply: str) -> list[list[str]]:
    """The places of a reply where the word two back decides.

    >>> memory_pairs("Yes, of course! Keep it slow and steady, day by day.")
    [['Yes', ',', 'of'], ['slow', 'and', 'steady'], ['day', 'by', 'day']]
    """
    words = split_words(reply)
    triples = zip(words, words[1:], words[2:], strict=False)
    return [list(triple) for triple in triples if triple in MEMORY_TRIPLES]


def answer_is_right(check: dict, reply: str) -> bool:
    """Whether a reply is well formed: no word mixed up, none foreign, none doubled.

    >>> reply = "Yes, of course! Go find your red little chair. "
    >>> reply += "Keep it slow and steady. Have fun!"
    >>> check = {"topic": "painting"}
    >>> answer_is_right(check, reply)
    True
    >>> answer_is_right(check, reply.replace("of course", "of problem"))
    False
    >>> answer_is_right(check, reply.replace("steady", "sweet"))
    False
    >>> answer_is_right(check, reply.replace("chair", "cup"))
    False
    """
    words = split_words(reply)
    things = re.findall(r"\b[Yy]our (\w+) \w+ (\w+)", reply)
    opening = re.match(r"(\w+), ([a-z ]+)[.!]", reply)
    closings = tuple(f"{closing}!" for closing in CHOICES["closing"])
    return (
        opening is not None
        and OPENINGS.get(opening[1]) == opening[2]
        and reply.endswith(closings)
        and VOCABULARY.issuperset(words)
        and all(OBJECT_OF.get((check["topic"], a)) == noun for a, noun in things)
        and all(word != after for word, after in pairwise(words))
        and all(
            ENDING_OF.get((first, shared), last) == last
            for first, shared, last in zip(words, words[1:], words[2:], strict=False)
        )
    )
