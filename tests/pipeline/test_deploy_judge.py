"""Whether a verifier may be loaded in fp32 to judge answers, and that nothing about it ends a deploy."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pipeline.deploy import judge as judging
from pipeline.deploy.agreement import compare
from pipeline.deploy.client import Answer
from pipeline.deploy.judge import VerifierJudge, obstacle
from pipeline.deploy.memory import free_bytes

GB = 10**9


def verifier(folder: Path, tensors: dict[str, tuple[str, list[int]]], name: str = "model.safetensors") -> Path:
    """A folder whose safetensors file says it holds these tensors; the data is a hole."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    sizes = {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8}
    entries, end = {}, 0
    for tensor, (dtype, shape) in tensors.items():
        size = sizes[dtype]
        for side in shape:
            size *= side
        entries[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    with (folder / name).open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    return folder


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with 100 GB of free memory."""
    monkeypatch.setattr(judging, "free_bytes", lambda: 100 * GB)


@pytest.mark.usefixtures("free")
def test_the_parameters_in_fp32_must_fit(tmp_path: Path) -> None:
    count = 20 * GB // 1000  # 20 G parameters take 80 GB of weights, 96 GB with room for one pass
    folder = verifier(tmp_path, {"a": ("BF16", [count, 1000]), "position_ids": ("I64", [4096])})
    assert obstacle(folder) == ""
    verifier(tmp_path, {"a": ("F32", [count, 1000]), "b": ("BF16", [count // 10, 1000])}, "other.safetensors")
    assert "takes 202 GB in float32, and 100 GB of memory are free" in obstacle(folder)
    # an index says which of the files are the verifier's
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert obstacle(folder) == ""


@pytest.mark.usefixtures("free")
def test_a_quantised_verifier_is_no_judge(tmp_path: Path) -> None:
    # INT4 packed eight to an int32: 4 bytes here, 32 in float32
    folder = verifier(tmp_path, {"a.weight_packed": ("I32", [64, 8]), "a.weight_scale": ("BF16", [64, 2])})
    assert "quantised (I32)" in obstacle(folder)
    assert "quantised (F8_E4M3)" in obstacle(verifier(tmp_path, {"a": ("F8_E4M3", [8, 8])}))
    verifier(tmp_path, {"a": ("BF16", [8, 8])})
    for config in ({"quantization_config": {"bits": 4}}, {"text_config": {"quantization_config": {"bits": 4}}}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert "is quantised" in obstacle(tmp_path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "can't be read" in obstacle(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "holds no safetensors files" in obstacle(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10")
    assert "can't be read" in obstacle(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "lacks 'weight_map'" in obstacle(tmp_path)


def parted(judge: VerifierJudge) -> dict[str, Any]:
    answers = [Answer(name, (9,), (5, 1), "stop") for name in "ab"]
    return compare(answers, [Answer(one.id, (9,), (5, 2), "stop") for one in answers], 0.01, judge).to_json()


@pytest.mark.usefixtures("free")
def test_a_difference_that_nobody_can_judge_counts_as_different(tmp_path: Path) -> None:
    judge = VerifierJudge(str(verifier(tmp_path, {"a": ("BF16", [1 << 20, 1 << 20])})))
    found = parted(judge)
    assert found["different"] == 2 and found["differences"][0]["gap"] is None
    assert "in float32" in judge.reason


@pytest.mark.parametrize("error", [AttributeError("no such kernel"), MemoryError(), RuntimeError("shape")])
def test_a_verifier_that_does_not_load_is_a_reason_and_is_tried_once(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def fail(folder: Path, dtype: object) -> None:
        tries.append(folder)
        raise error

    monkeypatch.setattr("pipeline.extract.capture.load_verifier", fail)
    judge = VerifierJudge(str(verifier(tmp_path, {"a": ("BF16", [8, 8])})))
    assert parted(judge)["different"] == 2
    assert type(error).__name__ in judge.reason and len(tries) == 1


def test_a_verifier_that_transformers_does_not_know_is_a_reason(tmp_path: Path) -> None:
    folder = verifier(tmp_path, {"a": ("BF16", [8, 8])})
    (folder / "config.json").write_text(json.dumps({"model_type": "of_tomorrow"}))
    judge = VerifierJudge(str(folder))
    assert parted(judge)["different"] == 2 and "can't be loaded" in judge.reason


def host(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:    800 kB\n"}


def test_free_memory_is_the_smallest_of_host_and_cgroups(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None
    assert free_bytes(host(tmp_path, MEMINFO)) == 800 * 1024
    # version 2: the limit may stand on any group above; the page cache counts as used and is given back
    v2 = host(tmp_path / "v2", {**MEMINFO, "proc/self/cgroup": "0::/pod/box\n"})
    host(v2 / "sys/fs/cgroup", {"pod/memory.max": "600000", "pod/memory.current": "500000"})
    host(v2 / "sys/fs/cgroup", {"pod/memory.stat": "anon 5\nactive_file 1000\ninactive_file 300000\n"})
    host(v2 / "sys/fs/cgroup", {"pod/box/memory.max": "max", "pod/box/memory.current": "400000"})
    assert free_bytes(v2) == 401000
    (v2 / "sys/fs/cgroup/pod/memory.max").write_text("9999999999")
    assert free_bytes(v2) == 800 * 1024
    # in a container the group is the root of what is mounted
    inside = host(tmp_path / "in", {**MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "70000"})
    host(inside / "sys/fs/cgroup", {"memory.current": "80000"})
    assert free_bytes(inside) == 0


def test_cgroup_version_1_is_read_too(tmp_path: Path) -> None:
    # the path is the host's, and only the container's own folder is mounted
    root = host(tmp_path, {**MEMINFO, "proc/self/cgroup": "4:cpu:/x\n3:memory,hugetlb:/docker/abc\n1:name=systemd:/\n"})
    group = {"memory.limit_in_bytes": "300000", "memory.usage_in_bytes": "250000"}
    host(root / "sys/fs/cgroup/memory", {**group, "memory.stat": "inactive_file 7\ntotal_inactive_file 100000\n"})
    assert free_bytes(root) == 150000
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712")
    assert free_bytes(root) == 800 * 1024
