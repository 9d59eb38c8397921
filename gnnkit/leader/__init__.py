"""What the leader, rank 0, sees of all workers, step by step. No step waits."""
