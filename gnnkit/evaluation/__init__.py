"""Exact outputs of a model for all nodes.

Runs over shards, or chunk by chunk over one mapped graph, whichever strategy trains.
"""

from gnnkit.evaluation.logits import Evaluation as Evaluation
from gnnkit.evaluation.rows import by_node as by_node
from gnnkit.evaluation.survivors import SurvivorsEvaluation as SurvivorsEvaluation
