"""A data frame of epochs that plots as curves. Imports pandas."""

from __future__ import annotations

from typing import Any

import pandas


class Curves(pandas.DataFrame):  # type: ignore[misc] # pandas need not be there
    """Figures by epoch. `plot` joins evaluations across the epochs without any."""

    @property
    def _constructor(self) -> Any:
        return Curves

    @property
    def plot(self) -> Any:
        """Plots like a data frame whose gaps between two numbers are filled in."""
        return pandas.DataFrame(self).interpolate("index", limit_area="inside").plot
