"""Preset workloads of gnnkit that move, cluster, rotate or correct the shares."""

from gnnkit_preset.coverage import Coverage as Coverage
from gnnkit_preset.variants import Cluster as Cluster
from gnnkit_preset.variants import Dynamic as Dynamic
from gnnkit_preset.variants import Llcg as Llcg
