"""A reference implementation in plain torch, independent of the ranks.

The ranks train with the regular trainer. The witness trains the same model, whose
layers read the graph through `DenseAdjacency`, and both results are compared.
"""

from gnnkit_witness.check import check_plan as check_plan
from gnnkit_witness.check import check_witness as check_witness
from gnnkit_witness.dense import DenseAdjacency as DenseAdjacency
from gnnkit_witness.plan import Plan as Plan
