"""Callbacks of Lightning that a run may have, one file each."""

from gnnkit.callback.base import check as check
from gnnkit.callback.leader import Leader as Leader
from gnnkit.callback.leader import LeaderHook as LeaderHook
