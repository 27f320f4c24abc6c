"""Hosts that are network namespaces without log-ins: a script reaches them, as ssh does."""

from __future__ import annotations

from pathlib import Path

from tests.support.network import Network


class Spaces(Network):
    """Hosts that MPI takes for machines of their own, too."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(count)
        self.folder = folder

    def __enter__(self) -> Spaces:
        super().__enter__()
        return self

    @property
    def shell(self) -> str:
        """For --rsh: takes options, a host, and the words of a command, which a shell takes."""
        # A name and a folder for temporary files of its own: Open MPI calls its shared memory by
        # the one and keeps it in the other.
        script = self.folder / "rsh"
        script.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            f"host=$1; shift\nspace={self.prefix}-$((${{host##*.}} - 1))\n"
            f'export TMPDIR="{self.folder}/$space"; mkdir -p "$TMPDIR"\n'
            'exec ip netns exec "$space" unshare --uts sh -c "hostname $space; $*"\n'
        )
        script.chmod(0o755)
        return str(script)
