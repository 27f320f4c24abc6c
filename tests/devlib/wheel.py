"""Builds the wheel, inspects it, and uses it where neither compiler nor development package is."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from . import needs
from .ui import ROOT, DevError, Tally, attempt, run, say, step

# What a wheel may need from the system: glibc, nothing else. ("linux-vdso" is the kernel's.)
GLIBC = re.compile(r"(linux-vdso|ld-linux-[\w-]+|lib(c|m|dl|rt|pthread))\.so(\.\d+)?$")
SMOKE = ROOT / "tests" / "devlib" / "wheel_smoke.py"
# Hidden from the wheel's test: every compiler, header and shared library that the build used.
MASKED_FOLDERS = ("/usr/include", "/usr/local/include", "/usr/lib/gcc", "/usr/lib/cmake")
MASKED_LIBRARIES = ("libcrypto", "libssl", "libfmt", "libyaml-cpp", "libstdc++", "libgcc_s")


def build_wheel(folder: Path) -> tuple[Path, float]:
    """`pip wheel` as a user would run it, in pip's isolated environment; returns its time too."""
    python = needs.ensure()
    command = [str(python), "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "-w", str(folder)]
    # No compiler cache: this is the time that a user waits.
    begin = time.monotonic()
    with step("building the wheel in an isolated environment"):
        run([*command, str(ROOT)], env={"CCACHE_DISABLE": "1"}, quiet=True)
    return next(folder.glob("horovodlite-*.whl")), time.monotonic() - begin


def honest_tag(wheel: Path, folder: Path) -> Path:
    """Renames the wheel by the glibc that its binaries really need."""
    command = [str(needs.VENV / "bin" / "python"), "-m", "auditwheel", "repair"]
    run([*command, "-w", str(folder), str(wheel)], env=needs.environment(), quiet=True)
    return next(folder.glob("horovodlite-*manylinux*.whl"))


def foreign_libraries(wheel: Path, folder: Path) -> dict[str, list[str]]:
    """For each binary in the wheel the shared libraries that are not glibc."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
            listing = attempt(["readelf", "-d", str(path)], capture=True).stdout
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
            found[str(path.relative_to(folder))] = [n for n in needed if not GLIBC.fullmatch(n)]
    return found


def masks() -> list[str]:
    """Shell lines that hide compilers, headers and the packages' libraries from this namespace."""
    lines = [f"mount -t tmpfs none {folder}" for folder in MASKED_FOLDERS if Path(folder).is_dir()]
    for pattern in MASKED_LIBRARIES:
        found = Path("/usr/lib").glob(f"*-linux-gnu/{pattern}.*")
        files = [path for path in found if path.is_file() and not path.is_symlink()]
        lines += [f"mount --bind /dev/null '{path}'" for path in files]
    return lines


def empty_machine(script: Sequence[str]) -> list[str]:
    """A command that runs the shell lines in a mount namespace without compiler and packages."""
    enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    return [*enter, "/bin/sh", "-euc", "\n".join([*masks(), *script])]


def use_wheel(wheel: Path, folder: Path) -> Tally:
    """Installs the wheel into an empty environment on the masked machine, and runs two ranks."""
    venv = folder / "venv"
    smoke = folder / SMOKE.name
    shutil.copy(SMOKE, smoke)
    script = [
        f"'{sys.executable}' -m venv '{venv}'",
        f"export PATH='{venv}/bin' PYTHONNOUSERSITE=1; unset PYTHONPATH",
        "for tool in cc c++ gcc g++ cmake ninja ld; do",
        '  if command -v $tool; then echo "$tool is still on PATH"; exit 1; fi',
        "done",
        f"pip install --quiet --no-index --no-deps '{wheel}'",
        f"cd '{folder}'",
        f"python '{smoke}'",
        "echo 'params: {cache_capacity: 9}' > job.yaml",
        f"hvlrun -np 2 --config-file job.yaml python '{smoke}'",
        "hvlrun -np 1 --drop-in python -c 'import horovod; print(\"wheel works\")'",
    ]
    if attempt(empty_machine(["true"]), capture=True).returncode != 0:
        say("the wheel's test was skipped: this user may not make a mount namespace (unshare)")
        return Tally(skipped=1)
    with step("using the wheel without compiler, headers and packages"):
        done = attempt(empty_machine(script), capture=True)
    print(done.stdout)
    if done.returncode != 0 or done.stdout.count("wheel works") != 4:
        return Tally(failed=1, failures=["the installed wheel does not work (see above)"])
    return Tally(passed=1)


def wheel() -> Tally:
    """Builds dist/horovodlite-*.whl and proves that it stands alone."""
    tally = Tally()
    dist = ROOT / "dist"
    with tempfile.TemporaryDirectory(prefix="horovodlite-wheel-") as name:
        folder = Path(name)
        raw, seconds = build_wheel(folder)
        tagged = honest_tag(raw, folder / "tagged")
        say(f"the build took {seconds:.1f} s; {tagged.name}: {tagged.stat().st_size / 1e6:.1f} MB")
        libraries = foreign_libraries(tagged, folder / "content")
        if not libraries:
            raise DevError(f"{tagged.name} holds no binary; was the Python module built?")
        for binary, foreign in libraries.items():
            if foreign:
                tally.add(Tally(failed=1, failures=[f"{binary} needs {', '.join(foreign)}"]))
            else:
                tally.passed += 1
        tally.add(use_wheel(tagged, folder))
        dist.mkdir(exist_ok=True)
        shutil.copy(tagged, dist)
    say(f"the wheel is dist/{tagged.name}")
    return tally
