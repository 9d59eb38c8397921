"""The jobs of the command line. What was asked is an `Order`.

`builtin` has a class for each job of this package, and `job` what these have in common:
the check by the table in `fits`, the run folder, the result.
`run` prepares the data and starts the ranks, or joins ranks that were started. Every
rank then does the work of a `RankJob`: `train`, whose phases share a `RankRun`,
`iterate` for programs, or `predict`. The leader's `figures` go into
`result.json`.
"""

from gnnkit.jobs.job import Job as Job
from gnnkit.jobs.job import OnRanks as OnRanks
from gnnkit.jobs.job import Run as Run
from gnnkit.jobs.job import check as check
from gnnkit.jobs.job import preload as preload
from gnnkit.jobs.job import start as start
from gnnkit.jobs.order import Order as Order
from gnnkit.jobs.order import command as command
from gnnkit.jobs.order import to_yaml as to_yaml
from gnnkit.result.result import Result as Result
