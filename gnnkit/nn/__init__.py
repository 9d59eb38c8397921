"""Layers that compute the same on any number of ranks.

`LayerNorm` is torch's own, which is exact because it treats rows independently.
"""

from torch.nn import LayerNorm as LayerNorm

from gnnkit.nn.batch_norm import BatchNorm as BatchNorm
from gnnkit.nn.batch_norm import normalize as normalize
from gnnkit.nn.call import call as call
from gnnkit.nn.dropout import Dropout as Dropout
from gnnkit.nn.jumping_knowledge import JumpingKnowledge as JumpingKnowledge
