"""job=compare: several ways of training on one graph, and one table.

`ways` reads what was asked. `measured` reads the folder of a run. `table` makes rows of
the runs of each way, and a sentence. `compare` puts these together, with the runner of
sweeps.
"""

from gnnkit.jobs.compare.compare import compare as compare
