"""A made-up NVML, compiled here: GPU memory that outlives its process, and what the agent weighs beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.rundir import status
from remote.agent import starting
from remote.agent.cuda import without_cuda
from remote.agent.memory import holding
from remote.agent.paths import CODE

NVML = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } info_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_t;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 8; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(1UL + index); return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) { strncpy(name, "made up", length); return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *value) { *value = 81712; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_t *memory) { memory->total = 1000; memory->used = 10; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, info_t *infos) {
    const char *path = HOLDERS;
    unsigned pid;
    FILE *file = fopen(path, "r");
    if (!file) { *count = 0; return 0; }
    if (fscanf(file, "%u", &pid) == 1 && pid == 0) pause();
    if (pid == 1) abort();
    *count = 1;
    infos[0].pid = pid;
    infos[0].used = 10;
    fclose(file);
    return 0;
}
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture
def holders(tmp_path, monkeypatch) -> Path:
    """The file that says which pid holds memory: 0 makes NVML hang, 1 makes it crash."""
    path = tmp_path / "holders"
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    library = tmp_path / "lib" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    where = f'-DHOLDERS="{path}"'
    subprocess.run(["cc", "-shared", "-fPIC", "-w", where, "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    return path


def test_what_holds_memory_is_told(holders, monkeypatch):
    assert holding() == set()
    holders.write_text("4711")
    assert holding() == {4711}
    holders.write_text("1")
    assert holding() == set()
    monkeypatch.setattr("remote.agent.memory.ANSWER_S", 1.0)
    holders.write_text("0")
    assert holding() == set()


def test_a_stage_has_not_stopped_while_a_card_holds_its_memory(holders, supervise, wait_for):
    stage = supervise("import time; time.sleep(120)")
    holders.write_text(str(stage.main))
    stage.attempt.request("kill", "test")
    wait_for(lambda: "GPU memory" in status(stage.stage).message)
    assert stage.attempt.exit() is None
    with pytest.raises(Exception, match="runs already"), starting.locked(stage.stage, "r1"):
        pass
    holders.unlink()
    assert stage.ended()["message"] == "killed on request"


def test_memory_of_others_is_not_waited_for(holders, supervise):
    stage = supervise("import time; time.sleep(120)")
    holders.write_text(str(os.getpid()))
    stage.attempt.request("kill", "test")
    assert stage.ended()["message"] == "killed on request"


@pytest.mark.real
def test_memory_that_is_never_freed_is_told_and_ends_the_wait(holders, supervise):
    stage = supervise("import os; print(os.getpid(), flush=True); import time; time.sleep(120)")
    holders.write_text(str(stage.main))
    stage.attempt.request("kill", "test")
    end = stage.ended(120)
    assert end["reason"] == "killed"
    assert "isn't free" in end["message"] and str(stage.main) in end["message"]


def test_agent_and_its_nvml_child_weigh_at_most_30_mb(holders, host):
    host.run()
    agent = host.agent()
    agent.ask("watch", run="r1")
    assert len(agent.push("host", lambda data: len(data["gpus"]) == 8)["gpus"]) == 8
    family = [agent.process.pid]
    for task in os.listdir(f"/proc/{agent.process.pid}/task"):
        family += map(int, Path(f"/proc/{agent.process.pid}/task/{task}/children").read_text().split())
    assert len(family) == 2
    total = 0
    for pid in family:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    assert total * 1024 <= 30_000_000


TABLES = """
#include <string.h>
static char tables[12 << 20];
void clear(void) { memset(tables, 0, sizeof tables); tables[6 << 20] = 7; }
int at(long place) { return tables[place]; }
"""
GIVE_BACK = """
import ctypes, sys
from pathlib import Path
from remote.agent.kernel import give_back_zeros

def used():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) * 1024

library = ctypes.CDLL(sys.argv[1])
library.clear()
before = used()
given = give_back_zeros("libtables")
print(given, before - used(), library.at(ctypes.c_long(6 << 20)), library.at(ctypes.c_long(1 << 20)))
"""


def test_zeros_of_a_library_are_given_back_and_nothing_else(tmp_path):
    source, library = tmp_path / "tables.c", tmp_path / "libtables.so.1"
    source.write_text(TABLES)
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", str(library), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", GIVE_BACK, str(library)], cwd=CODE, capture_output=True, text=True, check=True
    )
    given, less, kept, zero = map(int, done.stdout.split())
    assert 11 << 20 < given <= 12 << 20
    assert less > 11 << 20
    assert (kept, zero) == (7, 0)


def test_nvml_finds_no_cuda(holders, monkeypatch):
    """The empty file is found first, and what the person's own path holds comes after it."""
    folder, *rest = without_cuda()["LD_LIBRARY_PATH"].split(os.pathsep)
    assert (Path(folder) / "libcuda.so.1").read_bytes() == b""
    assert rest == os.environ["LD_LIBRARY_PATH"].split(os.pathsep)
    load = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    done = subprocess.run([sys.executable, "-c", load], env=without_cuda(), capture_output=True, text=True)
    assert done.returncode and "libcuda.so.1" in done.stderr
