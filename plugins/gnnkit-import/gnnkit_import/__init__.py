"""A data set -> a store, in bounded memory: job=import.

`job` checks the order, and runs two processes: `run` imports a graph, and `cut` cuts it
into `shards`. `arrays`, `ogb` and `store` read data sets in pieces, and `tables` opens
tables in files, by `sources` and `csv_source`. `nodes` writes node data. Edges take
three `passes`, each of which only appends:

1. `count` reads and checks all edges, and counts destinations in 65,536 bins.
2. `sort` writes each edge to the bucket of its destination: a range of nodes with
in-edges that fit into memory.
3. It then sorts bucket by bucket, and appends to the graph's arrays.

This is a distribution sort (Knuth, The Art of Computer Programming, vol. 3, section
5.4.9). A bucket keeps the data's order, and the sort is stable, so the result equals
`Graph.from_edges`. Edges that are sorted by destination, and remain in their order, are
counted and appended. `progress` records finished work on disk, from which an
interrupted import continues. `graph` runs all this.
"""
