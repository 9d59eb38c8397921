"""Starting and monitoring ranks, locally, with torchrun or in a batch system.

`processes` starts and ends ranks, `child` is one of them, and the `watchdog` detects
ranks that hang. A started process reports through `progress`. `environment` detects a
rank that was started externally.
"""
