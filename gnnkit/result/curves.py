"""A data frame of epochs that plots as curves. Imports pandas."""

from __future__ import annotations

from typing import Any

import pandas


class Curves(pandas.DataFrame):  # type: ignore[misc] # pandas need not be there
    """Metrics by epoch. `plot` connects evaluations across epochs without one."""

    @property
    def _constructor(self) -> object:
        return Curves

    @property
    def plot(self) -> Any:
        """Plots the data frame, interpolating missing values."""
        return pandas.DataFrame(self).interpolate("index", limit_area="inside").plot
