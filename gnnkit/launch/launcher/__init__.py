"""Launchers, which start the ranks of a job and the jobs of a sweep.

`base` is the interface, and `builtin` has the launchers of this package. The tools for
starting processes are in `gnnkit.launch`.
"""

from gnnkit.launch.child import RankReport as RankReport
from gnnkit.launch.environment import StartedRank as StartedRank
from gnnkit.launch.launcher.base import JOBS as JOBS
from gnnkit.launch.launcher.base import RANKS as RANKS
from gnnkit.launch.launcher.base import Jobs as Jobs
from gnnkit.launch.launcher.base import Launcher as Launcher
from gnnkit.launch.launcher.base import Ranks as Ranks
from gnnkit.launch.processes import Failure as Failure
from gnnkit.launch.processes import RankError as RankError
