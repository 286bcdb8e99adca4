"""GPU rows from NVML that fails in every way, disk and its rate, load, the recorder, decimation."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rundir import Lock
from pipeline.volume import Space, Volume
from remote.agent import gpus, recorder
from remote.agent.columns import decimate
from remote.agent.disk import DiskReader, FillRate
from remote.agent.gpus import GpuReader, smi_rows
from remote.agent.load import LoadReader
from remote.agent.nvml import Nvml, NvmlError, sample
from remote.agent.starting import command, start_detached

MIB = 1 << 20


class Library:
    """libnvidia-ml as a table: function -> error code, or what it writes through its pointers."""

    def __init__(self, cards=2, codes=None):
        self.cards, self.codes = cards, codes or {}

    def __getattr__(self, name):
        if not name.startswith("nvml") or self.codes.get(name) == "missing":
            raise AttributeError(name)
        return lambda *args: self._call(name, args)

    def _call(self, name, args):
        index = int(args[0].value or 0) if args and isinstance(args[0], ctypes.c_void_p) else None
        code = self.codes.get(name, self.codes.get((name, index), 0))
        if code:
            return code
        target = args[-1]._obj if args and hasattr(args[-1], "_obj") else None
        if name == "nvmlDeviceGetCount_v2":
            target.value = self.cards
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            target.value = args[0].value + 1
        elif name == "nvmlDeviceGetName":
            args[1].value = b"NVIDIA RTX PRO 6000 Blackwell Server Edition"
        elif name == "nvmlDeviceGetPowerUsage":
            target.value = 81_712
        elif name == "nvmlDeviceGetEnforcedPowerLimit":
            target.value = 600_000
        elif name == "nvmlDeviceGetTemperature":
            target.value = 39
        elif name == "nvmlDeviceGetUtilizationRates":
            target.gpu = 97
        elif name == "nvmlDeviceGetMemoryInfo_v2":
            assert target.version == 0x02000028
            target.total, target.used, target.reserved = 96 * 1024 * MIB, 0, 615 * MIB
        elif name == "nvmlDeviceGetMemoryInfo":
            target.total, target.used = 96 * 1024 * MIB, 615 * MIB
        return 0


FIELDS = {
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetTemperature": "temp_c",
    "nvmlDeviceGetUtilizationRates": "util_pct",
}


def test_a_healthy_card():
    row = sample(Nvml(Library()))["gpus"][1]
    assert row == {
        "index": 1, "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "error": "", "power_w": 81.712,
        "power_limit_w": 600.0, "util_pct": 97, "mem_used": 0, "mem_total": 96 * 1024 * MIB, "temp_c": 39,
    }  # fmt: skip


@pytest.mark.parametrize("function", FIELDS)
@pytest.mark.parametrize("code", [1, 3, 4, 12, 15, 16, 18, 999, "missing"])
def test_a_field_that_fails_is_none_and_the_rest_stays(function, code):
    row = sample(Nvml(Library(codes={function: code})))["gpus"][0]
    assert row[FIELDS[function]] is None
    assert row["error"] == ""
    assert all(row[field] is not None for field in FIELDS.values() if field != FIELDS[function])


def test_memory_falls_back_to_its_first_version_then_to_none():
    assert sample(Nvml(Library(codes={"nvmlDeviceGetMemoryInfo_v2": "missing"})))["gpus"][0]["mem_used"] == 615 * MIB
    both = {"nvmlDeviceGetMemoryInfo_v2": 3, "nvmlDeviceGetMemoryInfo": 3}
    row = sample(Nvml(Library(codes=both)))["gpus"][0]
    assert (row["mem_used"], row["mem_total"]) == (None, None)


def test_a_lost_card_keeps_its_row_and_leaves_the_others():
    lost = {
        (name, 1): 15
        for name in (*FIELDS, "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
    }
    rows = sample(Nvml(Library(cards=3, codes=lost)))["gpus"]
    assert [row["error"] != "" for row in rows] == [True, False, False]
    assert "lost" in rows[0]["error"]
    assert rows[0]["power_w"] is None


def test_a_driver_that_does_not_fit_is_explained():
    with pytest.raises(NvmlError, match="different versions"):
        Nvml(Library(codes={"nvmlInit_v2": 18}))


def reader(code, monkeypatch):
    monkeypatch.setattr(gpus, "ANSWER_S", 1.0)
    made = GpuReader()
    made.CHILD = (sys.executable, "-S", "-u", "-c", code)
    return made


ROWS = json.dumps({"gpus": [{"index": 0, "name": "A", "error": "", "power_w": 1.0, "power_limit_w": 2.0, "util_pct": 3,
                             "mem_used": 4, "mem_total": 5, "temp_c": 6}], "note": ""})  # fmt: skip


def test_the_real_child_on_this_machine(monkeypatch):
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    made = GpuReader()
    seen = made.read()
    made.close()
    assert seen["gpus"] or seen["note"]


def test_a_child_that_hangs_is_killed_and_the_row_stays_unknown(monkeypatch):
    code = f"import sys, time\nsys.stdin.readline(); print({ROWS!r}); sys.stdin.readline(); time.sleep(600)"
    made = reader(code, monkeypatch)
    assert made.read()["gpus"][0]["power_w"] == 1.0
    child = made._child
    seen = made.read()
    assert (seen["gpus"][0]["name"], seen["gpus"][0]["power_w"]) == ("A", None)
    assert "doesn't answer" in seen["note"]
    assert child.poll() is not None
    assert made.read() == seen
    made.close()


@pytest.mark.parametrize("ending", ["import os; os.abort()", "print('no json')", "print('')"])
def test_a_child_that_crashes_or_babbles_takes_nobody_with_it(monkeypatch, ending):
    made = reader(f"import sys\nsys.stdin.readline()\n{ending}", monkeypatch)
    assert made.read()["gpus"] == []
    assert made.read()["note"]
    made.close()


def test_without_the_library_nvidia_smi_is_asked(monkeypatch, tmp_path):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA H200, 83.16, 700.00, [N/A], 615, 143771, 39'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = reader('import sys; sys.stdin.readline(); print(\'{"gpus": [], "note": "", "missing": true}\')', monkeypatch)
    row = made.read()["gpus"][0]
    assert (row["name"], row["power_w"], row["util_pct"], row["mem_used"]) == ("NVIDIA H200", 83.16, None, 615 * MIB)
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9\n")
    made._next_try = 0
    assert made.read()["note"].startswith("NVIDIA-SMI has failed")
    made.close()


def test_smi_lines_that_are_none():
    assert smi_rows("") == []
    assert smi_rows("garbage\n1,2,3\n") == []


# ---------------------------------------------------------------- disk


@given(st.floats(-5e9, 5e9), st.lists(st.integers(0, 10**8), min_size=61, max_size=61))
def test_the_rate_of_a_line_is_its_slope_whatever_a_few_samples_do(slope, noise):
    rate = FillRate()
    for number in range(61):
        used = 10**13 + slope * 10 * number
        if number in (7, 20, 33, 50):
            used += noise[number]  # a checkpoint that comes and goes
        rate.add(number * 10.0, int(used))
    assert rate.bytes_per_s() == pytest.approx(slope, rel=0.05, abs=2e5) or slope < -1e8


def test_no_rate_from_few_samples_and_a_new_window_after_a_cleanup():
    rate = FillRate()
    for number in range(5):
        rate.add(number * 10.0, number * 10**9)
    assert rate.bytes_per_s() is None
    rate.add(50.0, 5 * 10**9)
    assert rate.bytes_per_s() == pytest.approx(1e8)
    rate.add(60.0, 0 - 10**10)
    assert rate.bytes_per_s() is None


def test_the_screen_counts_a_quota_against_the_folder(tmp_path):
    (tmp_path / "data").write_bytes(b"x" * MIB)
    seen = DiskReader(Volume(tmp_path, capacity=10 * MIB)).read()
    assert seen["capacity"] == 10 * MIB < seen["total"]
    assert MIB <= seen["used"] < 2 * MIB
    assert seen["free"] == 10 * MIB - seen["used"]


def test_the_eta_counts_to_the_reserve(tmp_path, monkeypatch):
    made = DiskReader(Volume(tmp_path, reserve=10**9))
    now = [10**12]
    monkeypatch.setattr(
        "remote.agent.disk.space", lambda volume: Space(2 * 10**12, 2 * 10**12, now[0], 10**10, 1000, False)
    )
    made.seed([(60.0 - number * 10, 10**12 - (6 - number) * 10**9) for number in range(6)])
    seen = made.read()
    assert seen["fill_rate_bps"] == pytest.approx(10**8, rel=0.02)
    assert seen["eta_s"] == pytest.approx(90, rel=0.03)


def test_a_hung_mount_leaves_the_last_answer(tmp_path, monkeypatch):
    made = DiskReader(Volume(tmp_path))
    first = made.read()
    monkeypatch.setattr("remote.agent.disk.DEADLINE_S", 0.05)

    def hung(volume):
        time.sleep(2)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("remote.agent.disk.space", hung)
    second = made.read()
    assert second["used"] == first["used"]
    assert "hasn't answered" in second["error"]
    assert "hasn't answered" in made.read()["error"]


def test_a_volume_that_fails_says_so(monkeypatch, tmp_path):
    def broken(volume):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("remote.agent.disk.space", broken)
    seen = DiskReader(Volume(tmp_path)).read()
    assert seen["used"] is None and "Input/output error" in seen["error"]


# ---------------------------------------------------------------- load


def test_load_is_the_containers(tmp_path):
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    (proc / "stat").write_text("cpu 100 0 100 800 0 0 0 0 0 0\n")
    made = LoadReader(proc, cgroup)
    first = made.read()
    assert (first["mem_used"], first["mem_total"], first["cpu_pct"]) == (750 * 1024, 1000 * 1024, None)
    (proc / "stat").write_text("cpu 150 0 125 825 0 0 0 0 0 0\n")
    assert made.read()["cpu_pct"] == 75.0
    (cgroup / "memory.max").write_text("500000\n")
    (cgroup / "memory.current").write_text("400000\n")
    (cgroup / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert made.read()["mem_used"] == 300000
    (cgroup / "memory.max").write_text("max\n")
    assert made.read()["mem_total"] == 1000 * 1024
    bare = LoadReader(tmp_path / "none", cgroup).read()
    assert (bare["cpu_pct"], bare["mem_used"]) == (None, None)


# ---------------------------------------------------------------- columns


@given(
    st.integers(3, 50),
    st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), min_size=1, max_size=400),
)
def test_decimation_keeps_extremes_ends_and_the_bound(points, values):
    columns = {"step": [float(n) for n in range(len(values))], "loss": values}
    out = decimate(columns, ("step",), points)
    assert len(out["step"]) == len(out["loss"]) <= max(points, 3)
    assert out["step"][0] == 0 and out["step"][-1] == len(values) - 1
    assert out["step"] == sorted(out["step"])
    finite = [value for value in values if math.isfinite(value)]
    kept = [value for value in out["loss"] if value is not None]
    assert all(math.isfinite(value) for value in kept)
    if finite:
        assert min(kept) == pytest.approx(min(finite), rel=1e-5)
        assert max(kept) == pytest.approx(max(finite), rel=1e-5)


# ---------------------------------------------------------------- recorder


def row(t, **more):
    return {
        "t": t,
        "gpus": [[0, 80.0, None, 5, 39]],
        "disk": [100, 900],
        "path": "/v",
        "cpu": 1.0,
        "mem": 2,
        "load": 0.1,
        **more,
    }


def test_history_is_read_back_decimated(tmp_path):
    folder = tmp_path / "telemetry"
    folder.mkdir()
    now = time.time()
    for number in range(300):
        recorder.append(folder, row(now - 3000 + number * 10, cpu=float(number)))
    recorder.append(folder, row(now, gpus=[[0, 80.0, None, 5, 39], [1, 70.0, 9, 6, 40]]))
    columns = recorder.history(tmp_path, 0.0, 50)
    assert len(columns["t"]) <= 50
    assert {len(column) for column in columns.values()} == {len(columns["t"])}
    assert max(value for value in columns["cpu_pct"] if value is not None) == 299
    assert columns["gpu1/power_w"][-1] == 70 and columns["gpu1/power_w"][0] is None
    assert len(recorder.history(tmp_path, now - 95, 50)["t"]) == 10
    assert recorder.history(tmp_path / "none", 0.0, 50) == {}


def test_rows_that_say_less_or_nonsense_break_no_curve(tmp_path):
    (tmp_path / "telemetry").mkdir()
    now = time.time()
    good = {"disk": [10, 90], "gpus": [[0, 80.0, 5, 100, 40]], "path": "/v", "cpu": 1.0, "mem": 2, "load": 0.5}
    odd = ({"disk": []}, {"disk": None}, {"disk": ["x", None]}, {"gpus": None}, {"gpus": [None, [1]]}, {"cpu": "x"})
    for number, change in enumerate(({}, *odd, {})):
        recorder.append(tmp_path / "telemetry", {**good, **change, "t": now - 100 + number})
    columns = recorder.history(tmp_path, 0.0, 50)
    assert len(columns["t"]) == len(odd) + 2
    assert columns["disk/used"] == [10.0, None, None, None, 10.0, 10.0, 10.0, 10.0]
    assert columns["gpu0/power_w"] == [80.0, 80.0, 80.0, 80.0, None, None, 80.0, 80.0]
    assert [used for _, used in recorder.recent_use(tmp_path, Path("/v"))] == [10] * 5


def test_the_record_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "SEGMENT_BYTES", 2000)
    for number in range(400):
        recorder.append(tmp_path, row(float(number)))
    segments = sorted(tmp_path.glob("*.jsonl"))
    assert 2 <= len(segments) <= recorder.SEGMENTS
    assert sum(path.stat().st_size for path in segments) < 2000 * 9
    assert json.loads(segments[-1].read_text().splitlines()[-1])["t"] == 399


def test_one_recorder_a_host_and_it_records(host, wait_for):
    run = host.run()
    (run.path / "conductor").mkdir()
    lock = Lock.acquire(run.path / "conductor" / "lock")
    argv = command("record", "--root", str(host.root))
    first = start_detached(argv, Path.cwd())
    assert first["ok"]
    assert start_detached(argv, Path.cwd())["ok"] is False
    wait_for(lambda: list((host.root / "telemetry").glob("*.jsonl")))
    wait_for(lambda: recorder.history(host.root, 0.0, 10).get("disk/used"))
    lock.release()
