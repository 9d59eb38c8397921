"""Exact logits of all nodes, and their accuracy.

Runs over shards, or chunk by chunk over one mapped graph, whichever strategy trains.
"""

from gnnkit.evaluation.logits import Evaluation as Evaluation
from gnnkit.evaluation.metrics import accuracies as accuracies
from gnnkit.evaluation.survivors import SurvivorsEvaluation as SurvivorsEvaluation
