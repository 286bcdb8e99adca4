"""Stands in for a stage: counts in its output, a line and a metric a count, resumable, stoppable, told what to do.

Called as a Python would be (``counting -m pipeline.generate --run DIR …``) with COUNTING, a JSON object, in its
environment: ``pause`` seconds a count, ``steps`` to count to (0: until the file ``until`` is there), ``noise`` bytes
of text that does not compress a count, ``then`` what to do after ``after`` counts; ``curve`` metrics of 24 numbers each
are written before the first of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

SOURCE = '''#!{python}
import base64, json, os, random, signal, subprocess, sys, time
sys.path.insert(0, os.getcwd())
from pipeline.stage import StageError, Stopped, run_stage
name = next(word for word in sys.argv if word.startswith("pipeline.")).split(".")[1]
how = json.loads(os.environ.get("COUNTING", "{{}}"))
CHILD = "import signal, time\\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\\nwhile True: time.sleep(1)"
SLEEP = "import time; time.sleep(600)"
TITLED = "import ctypes, time\\nctypes.CDLL(None).prctl(15, b'VLLM::Worker')\\n" + SLEEP
def child(code, **more):
    return subprocess.Popen([sys.executable, "-c", code], **more)
def family():
    """As torchrun and vLLM leave one: sessions of their own, another title, deaf to TERM, forked twice."""
    child(SLEEP), child(CHILD), child(CHILD, start_new_session=True), child(TITLED, start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        child(CHILD, start_new_session=True)
        os.execv(sys.executable, [sys.executable, "-c", CHILD])
def flood():
    out = sys.stdout.buffer
    out.write(b"x" * 50_000_000 + b"\\n")
    out.write(bytes(range(256)) * 400 + b"\\n")
    out.write(b"\\x1b]52;c;Ym9v\\x07\\x1b[2J\\x1b]0;pwned\\x07\\x1b[6n\\xff\\xfe" * 2000 + b"\\n")
    piece, end = b"".join(b"%07d %s\\n" % (n, b"y" * 92) for n in range(10_000)), time.monotonic() + how["flood_s"]
    while time.monotonic() < end:
        out.write(piece)
    out.flush()
def then(run):
    what = how.get("then")
    if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if what == "segv": os.kill(os.getpid(), signal.SIGSEGV)
    if what == "fail": raise StageError("the counting fails", "resume it")
    if what == "flood": flood()
    if what == "family": family()
    if what == "leave": family(); run.finish({{"samples": 1}}, "left"); return True
def body(run):
    path = run.output / "counts.txt"
    step = len(path.read_text().splitlines()) if path.exists() else 0
    run.resumed_at(step)
    for step in range(step + 1, step + 1 + how.get("curve", 0)):
        run.metric(step, values={{f"train/{{n}}": random.random() for n in range(24)}})
    steps, until, began = how.get("steps", 0), how.get("until", ""), step
    with open(path, "a", buffering=1) as file:
        while step < steps if steps else not os.path.exists(until):
            if run.stopping():
                raise Stopped()
            time.sleep(how.get("pause", 0.02))
            step += 1
            file.write(f"{{step}}\\n")
            noise = base64.b64encode(os.urandom(how.get("noise", 30))).decode()
            print("count", step, noise, flush=True)
            run.metric(step, values={{"train/loss": 1 / step}})
            run.progress(step, steps or None, "samples", counts={{"samples": step, "tokens": step * 10}})
            if step % 20 == 0:
                run.event("info", f"{{name}} is at {{step}}")
            if step == began + how.get("after", 5) and then(run):
                return
    run.event("info", f"{{name}} counted to {{step}}")
    run.finish({{"samples": step, "tokens": step * 10}}, f"{{name}}-{{step}}")
sys.exit(run_stage(name, body, sys.argv[sys.argv.index("--run"):]))
'''


def write_counting(path: Path) -> Path:
    path.write_text(SOURCE.format(python=sys.executable))
    path.chmod(0o755)
    return path
