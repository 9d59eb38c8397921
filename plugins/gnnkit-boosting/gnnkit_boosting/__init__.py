"""Gradient boosting on nodes' columns and their neighbours' means: model=boosting."""

from gnnkit_boosting.model import Boosting as Boosting
