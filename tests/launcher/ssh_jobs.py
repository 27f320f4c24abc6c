"""Jobs over ssh: each host is a network namespace with an sshd of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from conftest import Ended, Launcher, Running, wait_until

from tests.support.network import Network, run, why_not

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NO_SSH = why_not(["ssh", "ssh-keygen", "ss", SSHD])


class SshNetwork(Network):
    """Hosts with a server each, and a user's keys and configuration on the head."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(count)
        self.folder = folder
        self.servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SshNetwork:
        super().__enter__()
        try:
            self._log_in()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _log_in(self) -> None:
        """Keys, a configuration for ssh, and a server on each host."""
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        (self.folder / "sshd_config").write_text(
            f"HostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/authorized\n"
            "PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\n"
        )
        (self.folder / "ssh_config").write_text(
            f"IdentityFile {self.folder}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.folder}/known\nGlobalKnownHostsFile /dev/null\n"
        )
        # The user's configuration, wherever the tests' user has one.
        ssh = self.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {self.folder}/ssh_config "$@"\n')
        ssh.chmod(0o755)
        for i in range(1, len(self.namespaces)):
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.servers.append(
                subprocess.Popen(self.inside(i, *command), stderr=subprocess.DEVNULL)
            )
        for i in range(1, len(self.namespaces)):
            wait_until(f"host {i} listens", partial(self._listens, i))

    def _listens(self, host: int) -> bool:
        return bool(run(*self.inside(host, "ss", "-Hltn", "sport", "=", ":22")))

    def _destroy(self) -> None:
        super()._destroy()
        for server in self.servers:
            server.wait()


class Jobs:
    """Starts jobs from the head of a cluster."""

    def __init__(self, launcher: Launcher, cluster: SshNetwork) -> None:
        self.launcher = launcher
        self.cluster = cluster

    def start(self, ranks: int, *words: str, **options: Any) -> Running:
        slots = -(-ranks // len(self.cluster.hosts))
        hosts = ",".join(f"{host}:{slots}" for host in self.cluster.hosts)
        env = {
            "PATH": f"{self.cluster.folder}/bin:{os.environ['PATH']}",
            **options.pop("env", {}),
        }
        return self.launcher.start(
            *["-np", str(ranks), "-H", hosts, "--ssh-accept-new", *words],
            command_prefix=self.cluster.inside(0),
            env=env,
            **options,
        )

    def __call__(self, ranks: int, *words: str, **options: Any) -> Ended:
        return self.start(ranks, *words, **options).wait()
