"""The leader, rank 0.

Chooses the layout, cuts the graph, watches the workers and reports.
"""
