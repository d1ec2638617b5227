"""What is measured runs in processes that end with the command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from killing import is_running, until

PARENT = """
import os, sys, time
from pathlib import Path
from siglum.lab.speed import bench as speed

def wait(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(120)

if __name__ == "__main__":
    speed.PRELOADED = []
    speed.in_process(speed.SpeedSettings(work=Path("unused")), wait, sys.argv[1])
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_what_is_measured_ends_with_the_command(tmp_path: Path, sign: signal.Signals) -> None:
    script, mark = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(mark)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: mark.exists() and mark.read_text() != "")
        parent.send_signal(sign)
        assert parent.wait(30) != 0
        until(lambda: not is_running(int(mark.read_text())))
    finally:
        parent.kill()
