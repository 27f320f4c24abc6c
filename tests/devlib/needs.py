"""Installs what the other steps need: Debian packages, and a virtual environment.

Each function looks first and is quick when nothing is missing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .ui import ROOT, DevError, attempt, run, say, step

PACKAGES_FILE = ROOT / "csrc" / "cmake" / "packages.txt"
REQUIREMENTS_FILE = ROOT / "tests" / "requirements.txt"
VENV = Path(os.environ.get("HOROVODLITE_VENV") or ROOT / ".venv")


def debian_packages(*sections: str) -> list[str]:
    rows = [line.split() for line in PACKAGES_FILE.read_text().splitlines()]
    return [row[1] for row in rows if row and row[0] in sections]


def missing_packages(wanted: list[str]) -> list[str]:
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *wanted]
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return [name for name in wanted if f"{name} installed" not in listed.splitlines()]


def ensure() -> Path:
    """Sees to everything, and returns the Python of the virtual environment."""
    ensure_packages()
    return ensure_venv()


def ensure_packages() -> None:
    """Installs the Debian packages that are missing; needs root for that."""
    wanted = debian_packages("build", "dev")
    if shutil.which("dpkg-query") is None:
        say(f"this is no Debian system: please see to the equivalents of {' '.join(wanted)}")
        return
    missing = missing_packages(wanted)
    if not missing:
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise DevError(f"Debian packages are missing. Please run:\n  sudo {' '.join(install)}")
    apt = {"DEBIAN_FRONTEND": "noninteractive"}
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    with step(f"installing Debian packages: {' '.join(missing)}"):
        run(["apt-get", *wait, "update"], env=apt, quiet=True)
        run([install[0], *wait, *install[1:]], env=apt, quiet=True)


def ensure_venv() -> Path:
    """Creates or completes the virtual environment and returns its Python."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".horovodlite-stamp"
    place = f"Python {sys.version_info[0]}.{sys.version_info[1]} {VENV}"
    wanted = f"{place}\n{hashlib.sha256(REQUIREMENTS_FILE.read_bytes()).hexdigest()}\n"
    present = stamp.read_text() if stamp.exists() and python.exists() else ""
    if present == wanted:
        return python
    if present and not present.startswith(f"{place}\n") and VENV.parent == ROOT:
        say(f"{VENV} was made for another place or Python ({present.splitlines()[0]}): again")
        shutil.rmtree(VENV)  # its programs start with the old path
    if VENV.parent == ROOT or not python.exists():  # again after one that broke off
        with step(f"creating the virtual environment {VENV}"):
            run(
                [sys.executable, "-m", "venv", VENV],
                cure="On Debian the package python3-venv provides this module.",
            )
    with step("installing PyPI packages (torch is large: minutes on the first run)"):
        run(
            [python, "-m", "pip", "install", "-r", REQUIREMENTS_FILE],
            env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            quiet=not sys.stdout.isatty(),
            cure="tests/dev tries again where it stopped; docs/testing.md tells how to choose the "
            "CPU build of torch.",
        )
    if VENV.parent == ROOT:
        _link_tree(python)
    stamp.write_text(wanted)
    return python


def _link_tree(python: Path) -> None:
    """Makes `import horovodlite` and `hvlrun` of the environment mean this tree, as built."""
    where = attempt(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture=True
    )
    (Path(where.stdout.strip()) / "horovodlite-tree.pth").write_text(f"{ROOT}\n")
    link = VENV / "bin" / "hvlrun"
    if link.is_symlink() or link.exists():
        link.unlink()
    link.symlink_to(ROOT / "horovodlite" / "bin" / "hvlrun")


def environment() -> dict[str, str]:
    """The environment in which this tree's Python code runs."""
    return {
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(VENV),
        "PYTHONPATH": str(ROOT),
    }
