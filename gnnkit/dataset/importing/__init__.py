"""A folder of tables -> a saved graph, in bounded memory.

`sources` reads tables in pieces. `edges` counts, scatters and sorts edges. `nodes`
writes what belongs to nodes. `progress` keeps what is done, and tells how far it is.
`graph` puts these together.
"""
