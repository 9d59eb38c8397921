"""Layers that compute on any number of ranks what they compute on one.

`LayerNorm` is torch's own, which works on each row for itself and so is exact.
"""

from torch.nn import LayerNorm as LayerNorm

from gnnkit.nn.batch_norm import BatchNorm as BatchNorm
from gnnkit.nn.batch_norm import normalize as normalize
from gnnkit.nn.call import call as call
from gnnkit.nn.dropout import Dropout as Dropout
from gnnkit.nn.jumping_knowledge import JumpingKnowledge as JumpingKnowledge
