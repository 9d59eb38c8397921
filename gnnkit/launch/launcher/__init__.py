"""Launchers, which start the ranks of a job and the jobs of a sweep.

`base` is the interface. Ranks are `processes` or `threads` of this machine, or were
started `outside`. Jobs are `processes`. The tools for starting processes are in
`gnnkit.launch`.
"""

from gnnkit.launch.environment import StartedRank as StartedRank
from gnnkit.launch.group import Failure as Failure
from gnnkit.launch.group import RankError as RankError
from gnnkit.launch.launcher.base import JOBS as JOBS
from gnnkit.launch.launcher.base import RANKS as RANKS
from gnnkit.launch.launcher.base import Jobs as Jobs
from gnnkit.launch.launcher.base import Launcher as Launcher
from gnnkit.launch.launcher.base import Ranks as Ranks
