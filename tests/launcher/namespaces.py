"""Hosts that are network namespaces without log-ins: a script reaches them, as ssh does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from test_ssh import Cluster


def why_no_namespaces() -> str:
    """What is missing for network namespaces; empty when nothing is."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (apt-get install iproute2)"
    name = f"hvl-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


class Spaces(Cluster):
    """May be there beside a cluster with log-ins."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder, count)
        self.names = [f"{name}s" for name in self.names]
        self.switch += "s"

    @property
    def rsh(self) -> str:
        """The script: options, a host, and the words of a command, which a shell takes."""
        return str(self.folder / "rsh")

    def _log_in(self) -> None:
        spaces = zip(self.addresses, self.names, strict=True)
        cases = "\n".join(f"  {address}) space={name} ;;" for address, name in spaces)
        script = Path(self.rsh)
        script.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f'host=$1; shift\ncase "$host" in\n{cases}\nesac\n'
            # A name and a folder for temporary files of its own: Open MPI calls its shared memory
            # by the one and keeps it in the other.
            f'export TMPDIR="{self.folder}/$space"; mkdir -p "$TMPDIR"\n'
            'exec ip netns exec "$space" unshare --uts sh -c "hostname $space; $*"\n'
        )
        script.chmod(0o755)
