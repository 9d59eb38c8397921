"""Logits of all nodes, exactly, and how good they are."""

from gnnkit.evaluation.logits import Evaluation as Evaluation
from gnnkit.evaluation.metrics import accuracies as accuracies
