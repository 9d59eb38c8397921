"""Starting and monitoring ranks, locally, with torchrun or in a batch system.

`processes` starts ranks. In the launching process, a `child` is one process, a `group`
is all processes, and the `watchdog` detects a group that hangs. In a started process,
`entry` runs the function, and `progress` reports. `environment` detects a rank that was
started externally, and `handshake` compares such ranks.
"""
