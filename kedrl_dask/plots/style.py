"""Colours, and the class of the figures that every function returns."""

from __future__ import annotations

from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from kedrl_dask.utils.arrays import Record

# Okabe and Ito's colours, which remain distinct under the common forms of colour blindness.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"
#: More of these colours, for several lines in one panel; each line has a dash pattern too.
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")


def panelled(
    n: int, most: int, size: tuple[float, float], margin: tuple[float, float], share: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure of n panels, at most ``most`` per row; panel size and margins are in inches."""
    columns = min(most, n)
    rows = -(-n // columns)
    width, height = size[0] * columns + margin[0], size[1] * rows + margin[1]
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel())
    for axes in panels[n:]:
        axes.set_axis_off()
    return figure, panels[:n]


def line_style(number: int) -> Record:
    """Return the colour and dash pattern for the lines of one policy or kernel."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


class Figure(MatplotlibFigure):
    """A figure that notebooks display with any Matplotlib backend, or none."""

    def _repr_png_(self) -> bytes:
        """Return the figure as a PNG image."""
        picture = BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
