"""Exact model outputs for all nodes.

Evaluation runs over shards, or chunk by chunk over one mapped graph, independently of
the training strategy.
"""

from gnnkit.task.evaluation.later import LaterEvaluation as LaterEvaluation
from gnnkit.task.evaluation.logits import Evaluation as Evaluation
from gnnkit.task.evaluation.rows import by_node as by_node
from gnnkit.task.evaluation.rows import by_row as by_row
from gnnkit.task.evaluation.rows import columns_by_row as columns_by_row
from gnnkit.task.evaluation.rows import meet as meet
from gnnkit.task.evaluation.survivors import SurvivorsEvaluation as SurvivorsEvaluation
