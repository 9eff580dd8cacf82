"""Sliders for the notebooks: a number is moved, a figure and its numbers follow.

One output carries three forms of the same thing: the widget, the picture at the
starting values, and its numbers as text. A live front end shows the widget; GitHub,
a printed page or an environment without ipywidgets shows the picture. Everything
that can be chosen is computed beforehand, so that moving a slider waits for nothing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from html import escape
from itertools import product
from typing import Any

from dsparkref.lab.pictures import WIDTH, Bundle, Picture
from dsparkref.shapes import problem

Choice = tuple[Hashable, ...]


class Explorer:
    """One or two controls over a precomputed table.

    Args:
        table: chosen values, in the order of ``controls`` -> numbers to draw.
        draw: draws one entry of the table.
        controls: name -> the values it can take; numbers make a slider, words a
            row of buttons.
        start: the choice to begin with; the first of all if not given.

    Raises:
        ValueError: no control or more than two, a combination without an entry.

    >>> table = {(0.5,): [1.0, 0.5], (0.9,): [1.0, 0.82]}
    >>> explorer = Explorer(table, print, {"share": [0.5, 0.9]})
    >>> explorer.start
    (0.5,)
    """

    def __init__(
        self,
        table: Mapping[Choice, Any],
        draw: Callable[[Any], Picture],
        controls: Mapping[str, Sequence[Hashable]],
        start: Choice | None = None,
    ) -> None:
        if len(controls) not in (1, 2) or not all(controls.values()):
            rule, got = (
                "be few and have values",
                {k: len(v) for k, v in controls.items()},
            )
            raise problem("controls", rule, "one or two", got)
        choices = list(product(*controls.values()))
        missing = [choice for choice in choices if choice not in table]
        if missing:
            expected = f"all {len(choices)} combinations"
            raise problem("table", "cover the controls", expected, f"no {missing[0]}")
        self.table, self.draw, self.controls = table, draw, controls
        self.start: Choice = choices[0] if start is None else start
        if self.start not in choices:
            raise problem("start", "be a choice", f"such as {choices[0]}", start)
        self._drawn: dict[Choice, Picture] = {}

    def picture(self, choice: Choice) -> Picture:
        """Return the picture of a choice; each is drawn once."""
        if choice not in self._drawn:
            self._drawn[choice] = self.draw(self.table[choice])
        return self._drawn[choice]

    @cached_property
    def widget(self) -> Any:
        """The controls with picture and numbers below; None without ipywidgets."""
        try:
            import ipywidgets
        except ModuleNotFoundError:
            return None
        inputs = [
            self._control(name, value)
            for name, value in zip(self.controls, self.start, strict=True)
        ]
        image = ipywidgets.Image(format="png", width=WIDTH)
        numbers = ipywidgets.HTML()

        def update(_: object = None) -> None:
            found = self.picture(tuple(control.value for control in inputs))
            image.value = found.png
            numbers.value = f"<pre>{escape(found.text)}</pre>"

        update()
        for control in inputs:
            control.observe(update, names="value")
        return ipywidgets.VBox([*inputs, image, numbers])

    def _control(self, name: str, start: Hashable) -> Any:
        import ipywidgets

        values = self.controls[name]
        words = any(isinstance(value, str) for value in values)
        kind = ipywidgets.ToggleButtons if words else ipywidgets.SelectionSlider
        return kind(
            options=list(values),
            value=start,
            description=name,
            style={"description_width": "initial"},
            layout={"width": "95%"},
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        data, metadata = self.picture(self.start)._repr_mimebundle_()
        if self.widget is not None:
            shown = self.widget._repr_mimebundle_()
            data = {**shown, **data}  # our text, not the widget's
        return data, metadata


def explore(
    table: Mapping[Choice, Any],
    draw: Callable[[Any], Picture],
    controls: Mapping[str, Sequence[Hashable]],
    start: Choice | None = None,
) -> Explorer:
    """Print the numbers at the start, and return an ``Explorer``."""
    explorer = Explorer(table, draw, controls, start)
    print(explorer.picture(explorer.start).text)
    return explorer
