"""A reference implementation in plain torch, independent of the engine.

The ranks train with the regular trainer. The witness trains the same model, whose
layers read the graph through `DenseAdjacency`. `python -m gnnkit_witness` draws random
graphs, models and configurations, and compares both results. It also checks that no
negative pair drawn by a strategy is an edge.
"""

from gnnkit_witness.check import check_plan as check_plan
from gnnkit_witness.check import check_witness as check_witness
from gnnkit_witness.dense import DenseAdjacency as DenseAdjacency
from gnnkit_witness.negatives import NegativeCounts as NegativeCounts
from gnnkit_witness.negatives import check_negatives as check_negatives
from gnnkit_witness.plan import Plan as Plan
