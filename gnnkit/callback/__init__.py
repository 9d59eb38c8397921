"""Callbacks of Lightning that a run may have, one file each."""

from gnnkit.callback.base import check as check
