"""A real Slurm of N nodes on this one machine, as an ordinary user: munged, slurmctld and one slurmd per node.

Ports, keys, sockets and state are the lab's own, in its own folder, so that it stands beside a system's Slurm. Two
partitions: jobs in `low` are preempted (and requeued) by jobs in `high`. Nodes have an address each, as anywhere:
torchrun tells them apart by address and process id, and the ids are equal in containers of their own. A requeued job
may start again after 5 s instead of Slurm's 120 (AuthInfo=cred_expire). Started as root, everything runs as the
ordinary user `user`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_START_S = 30.0

_SLURM_CONF = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/state/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait={kill_wait_s}
SlurmdTimeout=10
SchedulerParameters=bf_interval=2,sched_min_interval=0
NodeName=DEFAULT CPUs=16 RealMemory=16000 Gres=gpu:2
NodeName=n[1-{num_nodes}] NodeHostname={host} NodeAddr=127.0.0.[1-{num_nodes}] Port=[{first}-{last}]
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_programs() -> list[str]:
    """The programs that the lab needs and this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass
class SlurmLab:
    """The daemons of one lab and how to talk to them. A context manager; leaving it ends exactly its processes."""

    folder: Path
    num_nodes: int = 2
    user: str = field(default_factory=lambda: pwd.getpwuid(os.getuid()).pw_name)
    """Who runs daemons and jobs; another one than the caller only when the caller is root."""
    kill_wait_s: int = 5

    def __enter__(self) -> SlurmLab:
        missing = missing_programs()
        if missing:
            raise RuntimeError(f"{', '.join(missing)} missing; tests/real/setup.sh installs what the real tests need")
        self._write_configuration()
        try:
            self._start_munge()
            self._daemon("slurmctld", "-c")
            for node in self.nodes:
                self.start_node(node)
            self.wait(lambda: len(self._idle_nodes()) == self.num_nodes, "all nodes to be idle", _START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if (self.folder / "run" / "slurmctld.pid").exists():
            self.run("scancel", "--signal=KILL", "--full", f"--user={self.user}", check=False)
        for pid_file in (self.folder / "run").glob("*.pid"):
            _end(pid_file)
        for process in self.processes():
            process.kill()

    @property
    def nodes(self) -> list[str]:
        """Node names, as Slurm knows them."""
        return [f"n{number}" for number in range(1, self.num_nodes + 1)]

    @property
    def environment(self) -> dict[str, str]:
        """What a process on the login node of this cluster sees."""
        home = pwd.getpwnam(self.user).pw_dir
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "LOCKSTEP"))
        }
        identity = {
            "USER": self.user,
            "LOGNAME": self.user,
            "HOME": home if self.other_user else kept.get("HOME", home),
        }
        return {**kept, **identity, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": f"{kept['PATH']}:/usr/sbin"}

    @property
    def other_user(self) -> bool:
        """True when the caller is root and the lab is not."""
        return os.getuid() == 0 and self.user != "root"

    def command(self, args: Sequence[str]) -> list[str]:
        """The command as the lab's user."""
        if not self.other_user:
            return list(args)
        return ["setpriv", "--reuid", self.user, "--regid", self.user, "--init-groups", "--", *args]

    def run(
        self, *args: str, cwd: Path | None = None, check: bool = True, timeout_s: float = 120.0, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of the lab's user on its login node. Raises AssertionError with all output when it fails."""
        done = subprocess.run(
            self.command(args),
            cwd=cwd or self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start_node(self, node: str) -> None:
        """Starts (again) the slurmd of one node."""
        (self.folder / "state" / node).mkdir(exist_ok=True)
        self._own(self.folder / "state" / node)
        self._daemon("slurmd", "-N", node)

    def kill_node(self, node: str) -> None:
        """What a power cut does to a node: SIGKILL to its slurmd and to everything that it started."""
        pid_file = self.folder / "run" / f"{node}.pid"
        victims = [psutil.Process(int(pid_file.read_text()))]
        victims += [step for step in self.processes() if step.name() == "slurmstepd" and _node_of(step) == node]
        everything = victims + [child for victim in victims for child in victim.children(recursive=True)]
        for process in everything:
            _kill(process)
        pid_file.unlink(missing_ok=True)

    def processes(self) -> list[psutil.Process]:
        """Every process whose environment or command names this lab's folder, Slurm's own daemons included."""
        found = []
        for process in psutil.process_iter():
            try:
                marks = [process.environ().get("SLURM_CONF", ""), *process.cmdline()]
            except psutil.Error:
                continue
            if process.pid != os.getpid() and any(str(self.folder / "slurm.conf") == mark for mark in marks):
                found.append(process)
        return found

    def state(self, job: str) -> str:
        """The state of a job as scontrol knows it (`PENDING`, `RUNNING`, `COMPLETED`, …)."""
        return self.job(job)["JobState"]

    def job(self, job: str) -> dict[str, str]:
        """All that scontrol says about a job."""
        text = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
        """Waits for a condition; raises AssertionError that says what never came."""
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"waited {timeout_s:.0f} s in vain for {what}"
            time.sleep(0.1)

    def _idle_nodes(self) -> list[str]:
        answer = self.run("sinfo", "-h", "-N", "-t", "idle", "-p", "low", "-o", "%N", check=False)
        return answer.stdout.split()

    def _write_configuration(self) -> None:
        for name in ("munge", "state", "log", "run"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        port = _free_ports(self.num_nodes + 1)
        text = _SLURM_CONF.format(
            host=socket.gethostname().split(".")[0],
            port=port,
            user=self.user,
            folder=self.folder,
            kill_wait_s=self.kill_wait_s,
            num_nodes=self.num_nodes,
            first=port + 1,
            last=port + self.num_nodes,
        )
        (self.folder / "slurm.conf").write_text(text)
        gpus = "AutoDetect=off\n" + "".join(
            f"NodeName={node} Name=gpu File=/dev/null,/dev/zero\n" for node in self.nodes
        )
        (self.folder / "gres.conf").write_text(gpus)
        self._own(self.folder, *self.folder.rglob("*"))

    def _own(self, *paths: Path) -> None:
        if self.other_user:
            account = pwd.getpwnam(self.user)
            for path in paths:
                os.chown(path, account.pw_uid, account.pw_gid)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o600)
        self._own(folder / "key")
        files = [f"--{name}-file={folder / name}" for name in ("key", "log", "seed")]
        pid = f"--pid-file={self.folder / 'run' / 'munged.pid'}"
        self.run("munged", "--force", f"--socket={folder / 'socket'}", pid, *files)

    def _daemon(self, program: str, *arguments: str) -> None:
        """The daemon detaches itself; a supervisor's descriptors must not be kept open by it."""
        self.run(program, *arguments, "-f", str(self.folder / "slurm.conf"))


def _free_ports(number: int) -> int:
    """The first of `number` neighbouring ports that nobody listens on."""
    for first in range(21000 + os.getpid() % 5000, 32000, number):
        try:
            for port in range(first, first + number):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports for a Slurm lab")


def _node_of(process: psutil.Process) -> str:
    """slurmstepd's command line does not name its node; the log that it writes to does."""
    return next((Path(opened.path).stem for opened in process.open_files() if opened.path.endswith(".log")), "")


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(5)
    except psutil.Error:
        pass


def _end(pid_file: Path) -> None:
    try:
        process = psutil.Process(int(pid_file.read_text()))
    except (OSError, ValueError, psutil.NoSuchProcess):
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except psutil.TimeoutExpired:
        process.kill()
