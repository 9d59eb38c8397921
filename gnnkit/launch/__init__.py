"""The launch of ranks: as processes of this machine, by torchrun, or by a batch system.

`processes` starts ranks. In the launcher, a `child` is one process, a `group` is all
processes, and the `watchdog` notices a group that hangs. In the started process,
`entry` runs the work, and `progress` gives signs. `environment` finds a rank that
somebody else has started, and `handshake` compares such ranks.
"""
