"""The leader, rank 0, which collects all workers' states without delaying steps."""
