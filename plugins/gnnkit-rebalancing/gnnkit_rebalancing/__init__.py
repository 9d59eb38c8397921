"""Rebalancing: work moves from a straggler to the other workers."""
