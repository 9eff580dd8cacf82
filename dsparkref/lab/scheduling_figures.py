"""The figures of notebook 09: what a token costs, duels, crowds, laws, policies.

Each returns a ``Picture`` whose title is computed from its numbers.
"""

from collections.abc import Mapping, Sequence

from dsparkref.analysis.profile import Profile
from dsparkref.lab.course import text_table
from dsparkref.lab.figures import OTHER_COLOUR, drawing, set_title
from dsparkref.lab.pictures import Picture

POLICY_COLOURS = {
    "the stop": "#882255",
    "the search": "#999933",
    "two steps late": "#332288",
}
ROW_COLOURS = ("#0072B2", "#009E73", "#D55E00")


def speed_picture(profile: Profile, rows: Sequence[int]) -> Picture:
    """Draw what is left of the steps per second as each row brings more tokens."""
    tokens = sorted({point.tokens for point in profile.points})
    kept = {}
    for count in rows:
        table = profile.steps_per_second(count)
        kept[f"{count} user{'s' * (count > 1)}"] = [
            table(count * n) / table(count) for n in tokens
        ]
    first, last = (
        100 * (1 - curve[-1]) for curve in (*kept.values(),)[:: len(kept) - 1]
    )
    finding = (
        f"{tokens[-1]} tokens a row instead of 1 cost {first:.0f} % of the steps "
        f"for {rows[0]} user, {last:.0f} % for {rows[-1]}"
    )
    with drawing((11, 5)) as figure:
        axes = figure.add_subplot()
        for (name, curve), colour in zip(kept.items(), ROW_COLOURS, strict=True):
            axes.plot(tokens, curve, "o-", color=colour, linewidth=2.4)
            end = {"color": colour, "weight": "bold", "va": "center"}
            axes.text(tokens[-1] + 0.12, curve[-1], name, **end)
        axes.set_ylim(0, 1.05)
        axes.set_xlim(0.8, tokens[-1] + 1.2)
        axes.set_xticks(tokens)
        axes.set_xlabel("tokens of each row: the anchor and the verified drafts")
        axes.set_ylabel("steps per second,\n1 = one token a row")
        axes.set_title(
            _measured(profile), loc="left", fontsize=12.5, color=OTHER_COLOUR
        )
        set_title(figure, finding)
    return Picture(figure, f"{finding}\n{text_table(kept, tokens, head='tokens')}")


def duels_picture(ratios: Mapping[str, Sequence[float]]) -> Picture:
    """Draw Theta of the stop over the best there is, on random curves, sorted."""
    best = {name: sum(r > 1 - 1e-9 for r in found) for name, found in ratios.items()}
    said = [f"{best[name]} of {len(found)} ({name})" for name, found in ratios.items()]
    finding = f"The stop finds the best: {', '.join(said)}"
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        for (name, found), colour in zip(ratios.items(), ROW_COLOURS, strict=False):
            axes.plot(sorted(found), color=colour, linewidth=2.6, label=name)
        axes.set_ylim(None, 1.02)
        axes.set_xlabel("random curve, from the worst to the best")
        axes.set_ylabel("Theta of the stop,\n1 = brute force")
        axes.legend(frameon=False, loc="lower right")
        axes.set_title("made-up curves", loc="left", fontsize=12.5, color=OTHER_COLOUR)
        set_title(figure, finding)
    rows = {
        name: [best[name], min(found), sum(found) / len(found)]
        for name, found in ratios.items()
    }
    columns = ["as good", "worst", "mean"]
    return Picture(figure, f"{finding}\n{text_table(rows, columns, head='curve')}")


def crowd_picture(
    users: Sequence[int], wanted: Mapping[str, Sequence[float]], note: str
) -> Picture:
    """Draw the drafts per user that are taken in, over the number of users."""
    name, curve = next(iter(wanted.items()))
    finding = (
        f"{name}: {curve[0]:.1f} drafts for one user, {curve[-1]:.1f} each for "
        f"{users[-1]}"
    )
    places = list(range(len(users)))
    colours = ("#882255", "#999933", OTHER_COLOUR)
    looks = zip(wanted.items(), colours, "os^", strict=True)
    with drawing((11, 5.2)) as figure:
        axes = figure.add_subplot()
        for (name, curve), colour, marker in looks:
            axes.plot(
                places, curve, marker=marker, color=colour, linewidth=2.4, label=name
            )
        axes.set_xticks(places, [str(count) for count in users])
        axes.set_ylim(0, None)
        axes.set_xlabel("users in the step")
        axes.set_ylabel("drafts verified per user")
        axes.legend(frameon=False, loc="lower left")
        axes.set_title(note, loc="left", fontsize=12.5, color=OTHER_COLOUR)
        set_title(figure, finding)
    return Picture(figure, f"{finding}\n{text_table(wanted, users, head='users')}")


def law_picture(shares: Mapping[str, Sequence[float]], wanted: float) -> Picture:
    """Draw the chance of A by policy and verifier; ``wanted`` is the target's."""
    off = [name for name, found in shares.items() if abs(found[0] - wanted) > 1e-9]
    finding = (
        f"The target says A with {wanted:.2f}: bent by {' and '.join(off) or 'none'}"
    )
    columns = ["rejection", "token match"]
    places = range(len(shares))
    with drawing((11, 4.8)) as figure:
        axes = figure.add_subplot()
        for shift, column, colour in zip((0, 1), columns, ROW_COLOURS, strict=False):
            heights = [found[shift] for found in shares.values()]
            at = [place + 0.4 * shift - 0.2 for place in places]
            bars = axes.bar(at, heights, 0.38, color=colour, label=column)
            axes.bar_label(bars, [f"{height:.2f}" for height in heights])
        axes.axhline(wanted, color=OTHER_COLOUR, linestyle="--", linewidth=1.2)
        axes.set_xticks(list(places), list(shares))
        axes.set_ylim(0, 1)
        axes.set_ylabel("chance that A comes out")
        axes.legend(frameon=False, loc="upper right", ncols=2)
        set_title(figure, finding)
    return Picture(
        figure, f"{finding}\n{text_table(shares, columns, head='scheduler')}"
    )


def policies_picture(thetas: Mapping[str, float], note: str) -> Picture:
    """Draw the mean Theta of policies, the last one being 1."""
    best = (*thetas.values(),)[-1]
    shares = {name: theta / best for name, theta in thetas.items()}
    stop, late = shares["the stop"], shares["two steps late"]
    finding = (
        f"On a staircase the stop gets {100 * stop:.0f} % of the search, "
        f"two steps late {100 * late:.0f} %"
    )
    with drawing((11, 4.4)) as figure:
        axes = figure.add_subplot()
        names = list(shares)[::-1]
        colours = [POLICY_COLOURS.get(name, "#BBBBBB") for name in names]
        bars = axes.barh(names, [shares[name] for name in names], color=colours)
        axes.bar_label(bars, [f" {shares[name]:.2f}" for name in names])
        axes.set_xlim(0, 1.1)
        axes.set_xlabel("mean Theta, 1 = the search on its own step (not lossless)")
        axes.set_title(note, loc="left", fontsize=12.5, color=OTHER_COLOUR)
        set_title(figure, finding)
    rows = {name: [share] for name, share in shares.items()}
    return Picture(figure, f"{finding}\n{text_table(rows, ['Theta'], head='policy')}")


def _measured(profile: Profile) -> str:
    return (
        f"measured: {profile.model}, {profile.device}, {profile.threads} threads, "
        f"{profile.dtype}, {profile.date}"
    )
