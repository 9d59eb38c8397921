"""The jobs of the command line: `train`, `verify`, `plan` and `partition`, a file each.

`start` makes the run folder. `dispatch` checks the plugins and chooses the work of a
rank. `run` starts the ranks, or `join` joins ranks that were started. Every rank then
does the work of a `RankJob`: `train`, `iterate` for programs, or `verify`. The leader's
`figures` go back to `start`, into `result.json`. `sweep` runs several jobs.
"""

from gnnkit.jobs.dispatch import start as start
from gnnkit.jobs.order import Order as Order
from gnnkit.jobs.redacted import command as command
from gnnkit.jobs.redacted import to_yaml as to_yaml
