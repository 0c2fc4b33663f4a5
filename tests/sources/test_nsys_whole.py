"""One export of each schema with all that it can hold at once, read in whole."""

from __future__ import annotations

from nsys_builder import load_schema
from source_helpers import rows, trace_of

from tracekit.attribution import Rules, attribute

STEPS = 5
TYPE = 1 << 48 | 5 << 32 | 0x700


def _fill(nsys):
    nsys.session(1_700_000_000_000_000_000, 9_000)
    nsys.process(100, "python3")
    nsys.gpu(0)
    nsys.gpu_metrics(
        TYPE, "SMs Active [Throughput %]", "NVLink RX Requests User Data [Throughput %]"
    )
    nsys.nic(77, 1, "mlx5_0")
    nsys.nic_metrics(4, ("Bytes sent", "byte/sec"))
    nsys.mpi_rank(100, 0)
    nsys.graph_node(2, 11)
    for step in range(STEPS):
        at, green = 1000 * step, {"greenContextId": step % 2} if step else {}
        nsys.push_pop(at, at + 950, f"iteration {step}")
        nsys.push_pop(at + 10, at + 300, "forward", registered=True)
        nsys.launch(at + 20, at + 30, at + 100, name="gemm<float>(int)", stream=7 + step, **green)
        nsys.call(at + 300, at + 305, name="cudaGraphLaunch_v10000", correlation=10 * step + 5)
        nsys.kernel(at + 310, at + 400, correlation=10 * step + 5, graph_node=11)
        nsys.graph_trace(at + 410, at + 450, graph=3, correlation=10 * step + 6)
        nsys.memcpy(at + 460, at + 500, kind=1, bytes=64, correlation=10 * step + 7)
        nsys.memset(at + 510, at + 520, bytes=16, correlation=10 * step + 8)
        nsys.mpi("COLLECTIVES", at + 600, at + 650, "MPI_Allreduce", size=64, recvSize=64)
        nsys.ucx("UCP_SUBMIT", at + 610, at + 620, "ucp_put_nbx", packedSize=4096, tag=7)
        nsys.sync(at + 700, at + 720, correlation=10 * step + 9, stream=7)
        nsys.memory(at + 2, step + 1, 256)
        nsys.gpu_sample(at + 50, TYPE, 40 + step, 7)
        nsys.nic_sample(at, at + 100, 77, 4, 5 + step)


def test_everything_that_a_schema_has_a_place_for_is_read(nsys):
    """No row is lost beside others, and the answer is that of the ops."""
    _fill(nsys)
    tables = set(load_schema(nsys.schema.version or "none-2020.4").tables)
    trace = trace_of(nsys)
    kinds = ["compute", "compute", "graph", "h2d", "memset"]
    if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" not in tables:
        kinds.remove("graph")
    assert [kind for (kind,) in rows(trace, "ops", "kind")] == kinds * STEPS
    lengths = {"compute": 160, "graph": 40, "h2d": 40, "memset": 10}
    total = sum(end - start for start, end in rows(trace, "ops", "start", "end"))
    assert total == STEPS * sum(lengths[kind] for kind in set(kinds))
    assert trace.read("ranges").height == 2 * STEPS
    for library, source in (("mpi", "MPI_COLLECTIVES_EVENTS"), ("ucx", "UCP_SUBMIT_EVENTS")):
        of_library = trace.read("host").filter(library=library)
        assert of_library.height == STEPS * (source in tables), library
    expected = {
        "syncs": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", STEPS),
        "memory": ("CUDA_GPU_MEMORY_USAGE_EVENTS", STEPS),
    }
    for name, (source, count) in expected.items():
        assert trace.read(name).height == count * (source in tables), name
    sampled = 2 * STEPS * ("GPU_METRICS" in tables) + STEPS * ("NET_NIC_METRIC" in tables)
    assert trace.read("metrics").height == sampled
    steps = attribute(trace, Rules.load(None, None)).read("iterations")
    assert steps.select("iteration", "start", "end").rows() == [
        (step, 1000 * step, 1000 * step + 950) for step in range(STEPS)
    ]
