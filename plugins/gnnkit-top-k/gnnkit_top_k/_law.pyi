from gnnkit.graph import Floats, Ids

def draw(
    indptr: Ids, indices: Ids, weight: Floats | None, num_sources: int, nodes: Ids, count: int, threads: int
) -> tuple[Ids, Ids, Ids]: ...
