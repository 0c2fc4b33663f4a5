"""Which physical GPU a process means by an ordinal, in each of the ways in which exports say it."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder
from source_helpers import execute, rows, trace_of, versions_with

from tracekit.model import Trace
from tracekit.sources import read

GPU, GPU_OF_2020 = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"
MAP, CAPTURE = "TARGET_INFO_CUDA_DEVICE", "META_DATA_CAPTURE"
UNSET = 4294967295
UUID = "00000000-0000-0000-0000-{:012x}".format

with_gpus = pytest.mark.parametrize("nsys", versions_with(GPU), indirect=True)
with_map = pytest.mark.parametrize("nsys", versions_with(MAP), indirect=True)
with_capture = pytest.mark.parametrize(
    "nsys", sorted({*versions_with(CAPTURE)} & {*versions_with(GPU)}), indirect=True
)


def visible(nsys: NsysBuilder, value: str, process: int = 0) -> None:
    name = f"PROCESS_{process}:ENVIRONMENT_VARIABLE"
    nsys.capture(name, f"CUDA_VISIBLE_DEVICES={value}")


def devices(trace: Trace) -> list[tuple[int, str | None, bool, str]]:
    """Number, the last digits of the UUID, whether it ran an op, and how it was found."""
    return [
        (device, None if uuid is None else uuid.rsplit("-", 1)[1].lstrip("0") or "0", active, how)
        for device, uuid, active, how in rows(
            trace, "devices", "device", "uuid", "active", "identity"
        )
    ]


def placed(trace: Trace) -> list[tuple[int, int]]:
    """The process id and the device of each op."""
    pids = dict(rows(trace, "processes", "process", "pid"))
    return [(pids[process], device) for process, device in rows(trace, "ops", "process", "device")]


@with_gpus
class TestDescriptions:
    def test_every_column_comes_from_its_row(self, nsys):
        nsys.gpu(
            0, name="NVIDIA A100-SXM4-40GB", bus="0000:07:00.0", uuid="36017b65-c648",
            totalMemory=42_350_739_456, memoryBandwidth=1_555_200_000_000, smCount=108,
            computeMajor=8, computeMinor=0,
        )  # fmt: skip
        nsys.kernel(1, 2)
        assert rows(
            trace_of(nsys), "devices", "device", "report", "name", "uuid", "pci_bus",
            "memory_bytes", "peak_memory_bandwidth", "sm_count", "compute_capability", "active",
        ) == [
            (0, 0, "NVIDIA A100-SXM4-40GB", "36017b65-c648", "0000:07:00.0", 42_350_739_456,
             1_555_200_000_000, 108, "8.0", True),
        ]  # fmt: skip


class TestDescriptionsFurther:
    def test_what_is_not_known_of_a_gpu_is_null(self, one):
        nothing = dict.fromkeys(
            ("totalMemory", "memoryBandwidth", "smCount", "computeMajor", "computeMinor")
        )
        one.gpu(0, **nothing)
        one.kernel(1, 2)
        assert rows(
            trace_of(one), "devices", "memory_bytes", "peak_memory_bandwidth", "sm_count",
            "compute_capability", "numa",
        ) == [(None,) * 5]  # fmt: skip

    def test_gpus_that_ran_nothing_are_listed_after_those_that_did(self, one):
        for gpu in range(4):
            one.gpu(gpu)
        one.kernel(1, 2, device=2)
        assert devices(trace_of(one)) == [
            (0, "0", False, "ordinal"),
            (1, "1", False, "ordinal"),
            (2, "2", True, "ordinal"),
            (3, "3", False, "ordinal"),
        ]

    @pytest.mark.parametrize(
        ("recorded", "numa"), [(1, 1), (0, 0), (UNSET, None), (-1, None), (None, None)]
    )
    @pytest.mark.parametrize("nsys", versions_with(GPU, "numaNodeId"), indirect=True)
    def test_the_numa_node(self, nsys, recorded, numa):
        nsys.gpu(0, numaNodeId=recorded)
        nsys.kernel(1, 2)
        assert rows(trace_of(nsys), "devices", "numa") == [(numa,)]

    def test_the_prefix_of_a_uuid_is_cut(self, one):
        one.gpu(0, uuid="GPU-36017b65")
        one.kernel(1, 2)
        assert rows(trace_of(one), "devices", "uuid") == [("36017b65",)]

    def test_numbers_that_cannot_be_are_null(self, one):
        one.gpu(0, smCount=UNSET, cu_device=2**40)
        one.kernel(1, 2)
        assert rows(trace_of(one), "devices", "device", "sm_count") == [(0, None)]

    def test_a_gpu_that_is_listed_twice_is_one(self, one):
        one.gpu(0, name="first")
        one.close()
        execute(one.path, f"CREATE TABLE g AS SELECT * FROM {GPU}", "UPDATE g SET name = 'again'")
        execute(
            one.path,
            f"CREATE TABLE both AS SELECT * FROM {GPU} UNION ALL SELECT * FROM g",
            f"DROP TABLE {GPU}",
            f"ALTER TABLE both RENAME TO {GPU}",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL"
            " (start INTEGER, end INTEGER, deviceId INTEGER, globalPid INTEGER)",
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 16777216)",
        )
        assert rows(read(one.path), "devices", "device", "name") == [(0, "first")]


class TestByDeviceTable:
    @with_map
    def test_the_ordinals_of_each_process_are_looked_up(self, nsys):
        for gpu in range(3):
            nsys.gpu(gpu)
        nsys.cuda_device(200, 0, 2)
        nsys.cuda_device(300, 0, 1)
        nsys.cuda_device(300, 1, 2)
        nsys.kernel(1, 2, pid=200, device=0)
        nsys.kernel(3, 4, pid=300, device=0)
        nsys.kernel(5, 6, pid=300, device=1)
        trace = trace_of(nsys)
        assert devices(trace) == [
            (0, "0", False, "device_table"),
            (1, "1", True, "device_table"),
            (2, "2", True, "device_table"),
        ]
        assert placed(trace) == [(200, 2), (300, 1), (300, 2)]

    def test_so_are_those_of_the_ends_of_copies(self, one):
        for gpu in range(2):
            one.gpu(gpu)
        for pid in (200, 300):
            one.cuda_device(pid, 0, 1 if pid == 200 else 0)
            one.cuda_device(pid, 1, 0 if pid == 200 else 1)
        one.memcpy(1, 2, pid=200, kind=10, device=0, src_device=0, dst_device=1)
        one.memcpy(3, 4, pid=300, kind=10, device=0, src_device=0, dst_device=1)
        assert rows(trace_of(one), "ops", "device", "src_device", "dst_device") == [
            (1, 1, 0),
            (0, 0, 1),
        ]

    def test_it_is_believed_before_all_else(self, one):
        for gpu in range(2):
            one.gpu(gpu)
        visible(one, "0")
        one.cuda_device(100, 0, 1)
        one.kernel(1, 2)
        assert devices(trace_of(one)) == [
            (0, "1", True, "device_table"),
            (1, "0", False, "device_table"),
        ]

    @with_map
    def test_it_says_which_gpus_are_the_same_even_where_none_is_described(self, nsys):
        nsys.cuda_device(200, 0, 7)
        nsys.cuda_device(300, 0, 7)
        nsys.cuda_device(400, 0, 5)
        for pid in (200, 300, 400):
            nsys.kernel(pid, pid + 1, pid=pid)
        trace = trace_of(nsys)
        (_, one), (_, same), (_, other) = placed(trace)
        assert one == same != other
        assert {how for *_, how in devices(trace)} == {"device_table"}
        uuids = dict(rows(trace, "devices", "device", "uuid"))
        known = "uuid" in " ".join(nsys.schema.tables[MAP])
        assert uuids == ({one: UUID(7), other: UUID(5)} if known else {one: None, other: None})

    @pytest.mark.parametrize("nsys", versions_with(GPU_OF_2020), indirect=True)
    def test_exports_of_2020_describe_the_gpus_of_each_process(self, nsys):
        table = {"coreClockRate": 1_530_000, "numMultiprocessors": 80, "name": "Tesla V100"}
        nsys.insert(GPU_OF_2020, pid=200, deviceId=0, pciBusId="0000:0B:00.0", **table)
        nsys.insert(GPU_OF_2020, pid=300, deviceId=0, pciBusId="0000:06:00.0", **table)
        nsys.insert(GPU_OF_2020, pid=400, deviceId=0, pciBusId="0000:06:00.0", **table)
        for pid in (200, 300, 400):
            nsys.kernel(pid, pid + 1, pid=pid)
        trace = trace_of(nsys)
        assert rows(
            trace, "devices", "device", "pci_bus", "name", "sm_count", "active", "identity"
        ) == [
            (0, "0000:06:00.0", "Tesla V100", 80, True, "device_table"),
            (1, "0000:0B:00.0", "Tesla V100", 80, True, "device_table"),
        ]  # fmt: skip
        assert placed(trace) == [(200, 1), (300, 0), (400, 0)]

    @pytest.mark.parametrize("nsys", versions_with(GPU_OF_2020), indirect=True)
    def test_gpus_of_2020_of_a_process_that_is_not_listed(self, nsys):
        for device in range(2):
            nsys.insert(GPU_OF_2020, pid=1, deviceId=device, pciBusId=f"0000:0{device}:00.0")
        nsys.kernel(1, 2, device=1)
        assert rows(trace_of(nsys), "devices", "device", "pci_bus", "active", "identity") == [
            (0, "0000:00:00.0", False, "ordinal"),
            (1, "0000:01:00.0", True, "ordinal"),
        ]


class TestByVisibleDevices:
    @with_capture
    def test_ordinals_count_the_gpus_that_are_visible(self, nsys):
        for gpu in range(4):
            nsys.gpu(gpu)
        visible(nsys, "3, 1")
        nsys.kernel(1, 2, device=0)
        nsys.kernel(3, 4, device=1)
        trace = trace_of(nsys)
        assert devices(trace) == [
            (0, "3", True, "visible_devices"),
            (1, "1", True, "visible_devices"),
            (2, "0", False, "visible_devices"),
            (3, "2", False, "visible_devices"),
        ]

    @pytest.mark.parametrize(
        ("value", "uuid"),
        [
            ("GPU-36017b65-c648-392c", "36017b65-c648-392c"),
            ("GPU-36017b65-c", "36017b65-c648-392c"),
            ("GPU-36017b65-f", "36017b65-ffff-ffff"),
            ("1", "36017b65-c648-392c"),
            ("2,-1,0", "36017b65-ffff-ffff"),
            # What names no GPU, or more than one, tells nothing: the ordinal is taken instead.
            ("GPU-36017b65", "9a5cbc7d-0000-0000"),
            ("GPU-", "9a5cbc7d-0000-0000"),
            ("GPU-7", "9a5cbc7d-0000-0000"),
            ("36017b65-c648-392c", "9a5cbc7d-0000-0000"),
            ("7", "9a5cbc7d-0000-0000"),
            ("", "9a5cbc7d-0000-0000"),
            (" , ", "9a5cbc7d-0000-0000"),
            ("NoDevFiles", "9a5cbc7d-0000-0000"),
        ],
    )
    def test_gpus_are_named_by_index_or_by_the_beginning_of_their_uuid(self, one, value, uuid):
        one.gpu(0, uuid="9a5cbc7d-0000-0000")
        one.gpu(1, uuid="36017b65-c648-392c")
        one.gpu(2, uuid="36017b65-ffff-ffff")
        visible(one, value)
        one.kernel(1, 2)
        trace = trace_of(one)
        [(device,)] = rows(trace, "ops", "device")
        assert dict(rows(trace, "devices", "device", "uuid"))[device] == uuid

    def test_a_gpu_without_uuid_is_no_gpu_none(self, one):
        one.gpu(0)
        one.gpu(1)
        one.close()
        execute(one.path, f"UPDATE {GPU} SET uuid = NULL WHERE id = 1")
        with NsysBuilder(one.path.with_name("u.sqlite"), schema="3.24.14") as other:
            visible(other, "GPU-N")
            other.kernel(1, 2)
        execute(
            other.path,
            f"ATTACH '{one.path}' AS one",
            f"CREATE TABLE {GPU} AS SELECT * FROM one.{GPU}",
        )
        assert devices(read(other.path))[0] == (0, "0", True, "ordinal")

    def test_several_processes_on_ordinals_of_their_own_share_one_environment(self, one):
        for gpu in range(4):
            one.gpu(gpu)
        visible(one, "2,3")
        one.kernel(1, 2, pid=200, device=0)
        one.kernel(3, 4, pid=300, device=1)
        trace = trace_of(one)
        assert placed(trace) == [(200, 0), (300, 1)]
        assert devices(trace)[:2] == [
            (0, "2", True, "visible_devices"),
            (1, "3", True, "visible_devices"),
        ]

    @with_capture
    def test_several_processes_on_one_ordinal_may_each_have_set_their_own(self, nsys):
        """A launcher sees all GPUs and shows one to each of the processes that it starts."""
        for gpu in range(2):
            nsys.gpu(gpu)
        visible(nsys, "0,1")
        nsys.kernel(1, 2, pid=200)
        nsys.kernel(3, 4, pid=300)
        trace = trace_of(nsys)
        assert devices(trace) == [
            (0, "0", False, "unknown"),
            (1, "1", False, "unknown"),
            (2, None, True, "unknown"),
            (3, None, True, "unknown"),
        ]
        assert placed(trace) == [(200, 2), (300, 3)]

    def test_a_launcher_that_sees_one_gpu_has_no_other_to_show(self, one):
        for gpu in range(4):
            one.gpu(gpu)
        visible(one, "2")
        one.kernel(1, 2, pid=200)
        one.kernel(3, 4, pid=300)
        trace = trace_of(one)
        assert placed(trace) == [(200, 0), (300, 0)]
        assert devices(trace)[0] == (0, "2", True, "visible_devices")

    @pytest.mark.parametrize(
        ("value", "uuid", "identity"),
        [("0,1,2", "2", "ordinal"), ("2,1,0", "2", "ordinal"), ("1", "1", "visible_devices")],
    )
    def test_indices_are_numbers_of_cuda_and_not_of_nsys(self, one, value, uuid, identity):
        for gpu in range(3):
            one.gpu(gpu, cu_device=2 - gpu)
        visible(one, value)
        one.kernel(1, 2)
        assert devices(trace_of(one))[0] == (0, uuid, True, identity)

    def test_an_index_tells_nothing_where_nsys_saw_no_hidden_gpu(self, one):
        one.gpu(0, cu_device=9)
        one.gpu(1, cu_device=0)
        visible(one, "0")
        one.kernel(1, 2)
        one.close()
        execute(one.path, f"UPDATE {GPU} SET cuDevice = NULL WHERE id = 0")
        assert devices(read(one.path))[0] == (0, "1", True, "ordinal")

    def test_environments_that_differ_tell_nothing(self, one):
        one.gpu(0)
        one.gpu(1)
        visible(one, "1", process=0)
        visible(one, "0", process=1)
        one.kernel(1, 2)
        assert devices(trace_of(one))[0] == (0, "0", True, "ordinal")

    def test_environments_that_agree_are_one(self, one):
        one.gpu(0)
        one.gpu(1)
        visible(one, "1", process=0)
        visible(one, "1", process=1)
        one.kernel(1, 2)
        assert devices(trace_of(one))[0] == (0, "1", True, "visible_devices")

    def test_values_stand_between_quotes_as_nsys_writes_them(self, one):
        one.gpu(0)
        one.gpu(1)
        for name, value in (("CUDA_VISIBLE_DEVICES", "1"), ("RANK", "3"), ("WORLD_SIZE", "8")):
            one.capture("PROCESS_0:ENVIRONMENT_VARIABLE", f'{name}="{value}"')
        one.kernel(1, 2)
        trace = trace_of(one)
        assert devices(trace)[0] == (0, "1", True, "visible_devices")
        assert rows(trace, "reports", "rank", "ranks") == [(3, 8)]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PROCESS_0:ARGUMENT_3", "CUDA_VISIBLE_DEVICES=1"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "MY_CUDA_VISIBLE_DEVICES=1"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "CUDA-VISIBLE-DEVICES=1"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "cuda_visible_devices=1"),
            ("PROCESS_0:ENVIRONMENT_VARIABLE", "CUDA_VISIBLE_DEVICES"),
        ],
    )
    def test_nothing_but_that_variable_is_followed(self, one, name, value):
        one.gpu(0)
        one.gpu(1)
        one.capture(name, value)
        one.kernel(1, 2)
        assert devices(trace_of(one))[0] == (0, "0", True, "ordinal")


class TestByOrdinal:
    @with_gpus
    def test_the_ordinal_that_the_report_gives_the_gpu(self, nsys):
        nsys.gpu(0, cu_device=1)
        nsys.gpu(1, cu_device=0)
        nsys.kernel(1, 2, device=0)
        nsys.kernel(3, 4, device=1)
        assert devices(trace_of(nsys)) == [(0, "1", True, "ordinal"), (1, "0", True, "ordinal")]

    def test_without_it_the_number_of_the_gpu_is_assumed_to_be_the_ordinal(self, one):
        one.gpu(7, cu_device=UNSET)
        one.gpu(3, cu_device=UNSET)
        one.kernel(1, 2, device=3)
        assert devices(trace_of(one)) == [(0, "7", False, "assumed"), (3, "3", True, "assumed")]

    @with_gpus
    def test_processes_on_ordinals_of_their_own_agree_on_what_these_mean(self, nsys):
        for gpu in range(4):
            nsys.gpu(gpu)
        for rank in range(4):
            nsys.kernel(rank, rank + 1, pid=200 + rank, device=rank)
        trace = trace_of(nsys)
        assert placed(trace) == [(200, 0), (201, 1), (202, 2), (203, 3)]
        assert [how for *_, how in devices(trace)] == ["ordinal"] * 4

    def test_so_do_they_when_they_copy_to_one_another(self, one):
        for gpu in range(4):
            one.gpu(gpu)
        for rank in range(4):
            peers = {"src_device": rank, "dst_device": (rank + 1) % 4}
            one.memcpy(rank, rank + 1, kind=10, pid=200 + rank, device=rank, **peers)
        trace = trace_of(one)
        assert rows(trace, "ops", "device", "src_device", "dst_device") == [
            (0, 0, 1),
            (1, 1, 2),
            (2, 2, 3),
            (3, 3, 0),
        ]
        assert trace.read("devices").height == 4

    def test_so_do_processes_that_all_see_all_gpus(self, one):
        for gpu in range(2):
            one.gpu(gpu)
        for pid in (200, 300):
            for device in range(2):
                one.kernel(pid + device, pid + device + 1, pid=pid, device=device)
        trace = trace_of(one)
        assert placed(trace) == [(200, 0), (200, 1), (300, 0), (300, 1)]
        assert [how for *_, how in devices(trace)] == ["ordinal"] * 2

    def test_the_only_gpu_is_meant_by_all_processes(self, one):
        one.gpu(5, cu_device=UNSET)
        one.kernel(1, 2, pid=200)
        one.kernel(3, 4, pid=300)
        trace = trace_of(one)
        assert devices(trace) == [(0, "5", True, "ordinal")]
        assert placed(trace) == [(200, 0), (300, 0)]


class TestUnknown:
    @with_gpus
    def test_one_ordinal_in_two_processes_may_be_two_gpus(self, nsys):
        for gpu in range(2):
            nsys.gpu(gpu)
        nsys.kernel(1, 2, pid=200)
        nsys.kernel(3, 4, pid=300)
        trace = trace_of(nsys)
        assert placed(trace) == [(200, 2), (300, 3)]
        assert devices(trace)[2:] == [(2, None, True, "unknown"), (3, None, True, "unknown")]

    def test_two_ordinals_of_one_process_are_two_gpus_even_where_one_is_described(self, one):
        one.gpu(0)
        one.kernel(1, 2, device=0)
        one.kernel(3, 4, device=1)
        trace = trace_of(one)
        (_, first), (_, second) = placed(trace)
        assert first != second

    def test_without_any_description_ordinals_keep_their_numbers(self, nsys):
        nsys.kernel(1, 2, pid=200, device=3)
        nsys.kernel(3, 4, pid=300, device=1)
        trace = trace_of(nsys)
        assert rows(trace, "devices", "device", "name", "uuid", "active", "identity") == [
            (1, None, None, True, "unknown"),
            (3, None, None, True, "unknown"),
        ]
        assert placed(trace) == [(200, 3), (300, 1)]

    def test_without_any_description_processes_stay_apart(self, nsys):
        for pid in (200, 300):
            for device in (0, 1):
                nsys.kernel(pid + device, pid + device + 1, pid=pid, device=device)
        assert placed(trace_of(nsys)) == [(200, 0), (200, 1), (300, 2), (300, 3)]

    def test_they_are_numbered_by_process_and_then_by_ordinal(self, one):
        for pid in (200, 300):
            for device in range(12):
                one.kernel(100 * pid + device, 100 * pid + device + 1, pid=pid, device=device)
        assert placed(trace_of(one)) == [
            (pid, first + device) for pid, first in ((200, 0), (300, 12)) for device in range(12)
        ]

    def test_a_copy_to_a_gpu_that_runs_nothing_names_it(self, one):
        one.memcpy(1, 2, kind=10, device=0, src_device=0, dst_device=1)
        trace = trace_of(one)
        assert rows(trace, "ops", "device", "src_device", "dst_device") == [(0, 0, 1)]
        assert rows(trace, "devices", "device", "active") == [(0, True), (1, False)]
