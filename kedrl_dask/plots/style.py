"""Colours, and the kind of figure that every function returns."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure as MatplotlibFigure

from kedrl_dask.utils.arrays import Record

# Okabe and Ito's colours, which people with any common colour blindness can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#8C8C8C"
#: More of them, for several lines in one panel; each has a dash pattern too.
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")


def line_style(number: int) -> Record:
    """Colour and dash pattern of the lines of one policy or kernel."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


class Figure(MatplotlibFigure):
    """A figure that notebooks show, whatever backend they use or if they use none."""

    def _repr_png_(self) -> bytes:
        """Return the picture."""
        picture = BytesIO()
        self.savefig(picture, format="png")
        return picture.getvalue()
