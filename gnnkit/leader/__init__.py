"""The leader, rank 0: chooses the layout and cuts the graph, watches the workers, reports."""
