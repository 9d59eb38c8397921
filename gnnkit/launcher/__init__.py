"""Who starts the ranks of a job, and the jobs of a sweep.

`base` is the interface. Ranks are `processes` or `threads` of this machine, or somebody
`outside` has started them. Jobs are `processes`, or go through `submitit`. The tools of
those that start processes here are in `gnnkit.launch`.
"""

from gnnkit.launch.environment import StartedRank as StartedRank
from gnnkit.launch.group import Failure as Failure
from gnnkit.launch.group import RankError as RankError
from gnnkit.launcher.base import JOBS as JOBS
from gnnkit.launcher.base import RANKS as RANKS
from gnnkit.launcher.base import Jobs as Jobs
from gnnkit.launcher.base import Launcher as Launcher
from gnnkit.launcher.base import Ranks as Ranks
