"""A witness that shares no code with the engine: plain torch on dense matrices.

The ranks train by the trainer of every run. The witness trains the same model, whose
layers read the graph through `DenseAdjacency`. `python -m gnnkit_witness` draws
graphs, models and configurations at random, and compares both sides. It also looks at
each negative pair that a strategy draws, which must be no edge.
"""

from gnnkit_witness.check import check_plan as check_plan
from gnnkit_witness.check import check_witness as check_witness
from gnnkit_witness.dense import DenseAdjacency as DenseAdjacency
from gnnkit_witness.negatives import NegativeCounts as NegativeCounts
from gnnkit_witness.negatives import check_negatives as check_negatives
from gnnkit_witness.plan import Plan as Plan
