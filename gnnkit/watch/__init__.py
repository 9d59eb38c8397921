"""The leader watches: what all workers do, step by step, while no step waits."""
