"""The archive: the same bytes from the same sources, all that a host needs, nothing that it does not."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from remote.archive import build_archive, pack, sources
from remote.unpack import unpack


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(data))) as tar:
        return {member.name: member for member in tar}


def test_the_hash_names_the_tar_inside() -> None:
    archive = build_archive()
    assert hashlib.sha256(gzip.decompress(archive.data)).hexdigest() == archive.sha256
    assert archive.name == archive.sha256[:16]


def test_the_same_files_give_the_same_bytes_whatever_their_order_and_time() -> None:
    files = {"b/x.py": b"1", "a.py": b"2" * 5000, "b/a.py": b""}
    first = pack(files)
    again = pack(dict(reversed(files.items())))
    assert first == again
    assert pack({**files, "a.py": b"3"}).sha256 != first.sha256
    assert all((m.mtime, m.uid, m.gid, m.mode) == (0, 0, 0, 0o644) for m in members(first.data).values())
    assert list(members(first.data)) == ["a.py", "b/a.py", "b/x.py"]


def test_what_is_sent_and_what_is_not() -> None:
    names = set(sources())
    assert {
        "remote/__init__.py",
        "remote/protocol.py",
        "remote/agent/__main__.py",
        "pipeline/rundir/__init__.py",
    } <= names
    assert not [
        name for name in names if name.startswith(("remote/l", "remote/c", "console", "pipeline/verifier/model/"))
    ]
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc") or "/tests/" in name]
    assert len(build_archive().data) < 2_000_000


def test_pynvml_goes_along_without_being_imported() -> None:
    program = (
        "import sys; from remote.archive import sources; s = sources()\n"
        "print('pynvml.py' in s, b'nvmlInit' in s.get('pynvml.py', b''), 'pynvml' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True", "False"]


def test_the_unpacked_code_runs_alone(tmp_path: Path) -> None:
    folder = unpack(gzip.decompress(build_archive().data), str(tmp_path), "code", repair=False)
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    environment = {"PATH": os.environ["PATH"]}
    program = "import remote.protocol, remote.agent.transfer, pipeline.rundir; print(remote.protocol.__file__)"
    result = subprocess.run(
        [python, "-E", "-B", "-c", program], cwd=folder, capture_output=True, text=True, env=environment, check=True
    )
    assert result.stdout.strip() == os.path.join(folder, "remote", "protocol.py")
