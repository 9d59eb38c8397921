"""Tensors of one row per edge that are computed only where a function needs them."""

from lazyedges.deferred import Call, Constant, Deferred, Lazy, Origin, computed, deferred_in, name_of, value_of, written
from lazyedges.edges import EdgeSet
from lazyedges.kernels import Backend, EdgeDropout, EdgeKernels
from lazyedges.pieces import Reduction
from lazyedges.reductions import at_destinations, extreme_by_destination, is_fresh, overwrite, sum_by_destination
from lazyedges.rows import rows_by_edge

__all__ = [
    "Backend",
    "Call",
    "Constant",
    "Deferred",
    "EdgeDropout",
    "EdgeKernels",
    "EdgeSet",
    "Lazy",
    "Origin",
    "Reduction",
    "at_destinations",
    "computed",
    "deferred_in",
    "extreme_by_destination",
    "is_fresh",
    "name_of",
    "overwrite",
    "rows_by_edge",
    "sum_by_destination",
    "value_of",
    "written",
]
