"""Lightning callbacks that a run can select, one per file."""

from gnnkit.callback.base import check as check
from gnnkit.callback.leader import Leader as Leader
from gnnkit.callback.leader import LeaderHook as LeaderHook
