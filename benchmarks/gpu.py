"""Kernels of a GPU: exactness, bandwidth, memory, and epochs beside torch's sparse CSR.

First compares every kernel with the CPU in float64. Then prints a table of a sum over
in-edges: milliseconds, GB/s of rows that are read and written, and MiB of memory beside
operands and result, of Triton, of torch's segment reductions, and of a product with a
sparse CSR matrix (cuSPARSE). At last, milliseconds and memory of an epoch of two
layers, by Triton and by the product.

    uv run python benchmarks/gpu.py --nodes 200000 --edges 4000000 --width 128

Without a GPU says so, and ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.graph import CSC
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import EdgeKernels, Factors, TorchKernels

Sum = Callable[[Tensor], Tensor]
CPU = torch.device("cpu")
TIMES = 10


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000, help="default 200,000")
    parser.add_argument("--edges", type=int, default=4_000_000, help="default 4,000,000")
    parser.add_argument("--width", type=int, default=128, help="numbers of a row, default 128")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU: nothing was measured")
        return
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(device))
    worst = max(errors(edges(300, num_edges), device) for num_edges in (0, 40, 20_000))
    print(f"largest difference from the CPU, float64: {worst:.1e}")
    csc = edges(options.nodes, options.edges)
    measure_sums(csc, options.width, device)
    measure_epochs(csc, options.width, device)


def edges(num_nodes: int, num_edges: int) -> CSC:
    """Draws edges from even sources into destinations of skewed degrees."""
    rng = np.random.default_rng(0)
    dst = (rng.random(num_edges) ** 2 * num_nodes).astype(np.int64)
    return CSC.from_edges(rng.integers(0, num_nodes, num_edges), dst, num_nodes)


def errors(csc: CSC, device: torch.device) -> float:
    """Returns the largest difference of any kernel from the CPU's."""
    cpu, gpu = EdgeKernels.of(csc, CPU), EdgeKernels.of(csc, device)
    n, worst = csc.num_nodes, 0.0

    def compare(call: Callable[..., Tensor], *inputs: Tensor, turned: bool = False) -> None:
        nonlocal worst
        a, b = (cpu.transpose(), gpu.transpose()) if turned else (cpu, gpu)
        result, reference = call(b, *(x.to(device) for x in inputs)).cpu().double(), call(a, *inputs).double()
        if result.numel():
            worst = max(worst, float((result - reference).abs().nan_to_num(0).max()))

    for width in (1, 3, 64, 130):
        x, factor = torch.randn(n, width).double(), torch.randn(n).double()
        heads, weight = torch.randn(n, 2, width).double(), torch.randn(csc.num_edges, 2).double()
        grad, arg = torch.randn(n, 2 * width).double(), cpu.max(x.round())[1]
        for turned in (False, True):
            compare(lambda k, x: k.sum(x), x, turned=turned)
            compare(lambda k, x, s: k.sum(x, Factors(None, s, s), own=0.7), x, factor, turned=turned)
            compare(lambda k, x, w: k.sum(x, Factors(w)), heads, weight, turned=turned)
        compare(lambda k, x: k.sum_beside(x, Factors()), x)
        compare(lambda k, g: k.sum_beside_backward(g, Factors()), grad, turned=True)
        compare(lambda k, x, g: k.edge_dot(x, g), heads, heads)
        compare(lambda k, x: k.max(x)[1], x.round())
        compare(lambda k, g, arg: k.max_backward(g, arg), x, arg)
    return worst


def measure_sums(csc: CSC, width: int, device: torch.device) -> None:
    """Prints milliseconds, GB/s and MiB of a sum, for each way and type."""
    print("\n| rows | kernels | ms | GB/s | MiB beside |\n|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(csc.num_nodes, width, device=device, dtype=dtype)
        num_bytes = (csc.num_edges + csc.num_nodes) * width * x.element_size()
        for name, call in sums(csc, dtype, device).items():
            out = call(x)  # also compiles
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            seconds = elapsed(lambda call=call, x=x: call(x))
            memory = torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()
            kind = str(dtype).removeprefix("torch.")
            print(f"| {kind} | {name} | {1e3 * seconds:.2f} | {num_bytes / seconds / 1e9:.0f} | {memory / 2**20:.0f} |")


def sums(csc: CSC, dtype: torch.dtype, device: torch.device) -> dict[str, Sum]:
    """Returns the ways to sum rows over in-edges, by name."""
    edge_kernels, of_torch = EdgeKernels.of(csc, device), TorchKernels.of_csc(csc, device)
    matrix = sparse(csc, dtype, device)
    return {
        type(edge_kernels).__name__: edge_kernels.sum,
        "TorchKernels": of_torch.sum,
        "sparse CSR": lambda x: matrix @ x,
    }


def sparse(csc: CSC, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns the edges as a sparse CSR matrix of ones."""
    indptr, indices = (torch.tensor(np.asarray(offsets, np.int32)) for offsets in (csc.indptr, csc.indices))
    ones, size = torch.ones(csc.num_edges, dtype=dtype), (csc.num_nodes, csc.num_sources)
    return torch.sparse_csr_tensor(indptr, indices, ones, size).to(device)


def measure_epochs(csc: CSC, width: int, device: torch.device) -> None:
    """Prints milliseconds and peak memory of an epoch of two layers."""
    edges = HeldEdges(csc, device)
    forward, backward = sparse(csc, torch.float32, device), sparse(transposed(csc), torch.float32, device)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return forward @ x

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return backward @ grad

    print("\n| epoch of two layers | ms | peak MiB |\n|---|---|---|")
    x = torch.randn(csc.num_nodes, width, device=device)
    for name, add in {type(edges.kernels).__name__: edges.sum, "sparse CSR": Product.apply}.items():
        layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)]).to(device)
        optimizer = torch.optim.Adam(layers.parameters())

        def epoch(add: Sum = add, layers: nn.ModuleList = layers, optimizer: torch.optim.Adam = optimizer) -> None:
            optimizer.zero_grad()
            add(layers[1](add(layers[0](x)).relu())).square().mean().backward()
            optimizer.step()

        epoch()
        torch.cuda.reset_peak_memory_stats()
        seconds = elapsed(epoch)
        print(f"| {name} | {1e3 * seconds:.2f} | {torch.cuda.max_memory_allocated() / 2**20:.0f} |")


def transposed(csc: CSC) -> CSC:
    """Turns the edges round."""
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    return CSC.from_edges(dst, csc.indices, csc.num_sources)


def elapsed(call: Callable[[], object]) -> float:
    """Returns the mean seconds of a call, by the GPU's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(TIMES):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / TIMES


if __name__ == "__main__":
    main()
