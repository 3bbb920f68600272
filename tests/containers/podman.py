"""Podman on this machine, images that stand for those that cannot be pulled, and a compose set that runs by steps.

Builds and runs as root, with a configuration of its own (CONTAINERS_CONF). Containers are on a bridge network of their
own, with names; nothing listens on this machine but the port that the compose file publishes.

Podman 4.3 without systemd runs no healthcheck by itself, and its `depends_on` knows no health. `Compose.up` starts
services in the file's order of dependence and runs their healthchecks itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from examples.sandbox.artifacts import S3PROXY, fetch
from examples.sandbox.cache import SandboxError, cache_dir, cached
from examples.sandbox.debian import Tree
from examples.sandbox.setup_mysql import MYSQL

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).with_name("stand_ins")
BASE = "docker.io/library/debian:bookworm-slim"
_MYSQL_TREE = "localhost/lockstep-mysql-tree"
# Podman sets limits that this machine may not raise; runc is what Debian's podman works with here.
_CONF = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=8000:8000"]\n[engine]\nruntime = "runc"\n'
_PACKAGES = ("podman", "buildah", "runc", "uidmap", "iptables", "dnsmasq-base", "containernetworking-plugins",
             "golang-github-containers-common", "golang-github-containernetworking-plugin-dnsname")  # fmt: skip
_CA = "/etc/ssl/certs/ca-certificates.crt"
HEALTHY_S = 300.0
_DEBIAN = Tree(
    name="Debian's base image",
    folder="debian-bookworm",
    suite="bookworm",
    packages="ca-certificates",
    size_mb=220,
    target="test-all",
    otherwise="run these tests where podman can pull images",
    available=lambda: None if (cache_dir() / "debian-bookworm/etc/debian_version").exists() else "it is not set up",
)


def unavailable() -> str | None:
    """None if podman can be used here, installed when missing; else why not."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "containers are run as root, on Linux"
    if shutil.which("buildah") is None or shutil.which("podman") is None:
        if shutil.which("apt-get") is None:
            return "there is no podman, and no apt-get to install it"
        done = subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *_PACKAGES],
            capture_output=True, text=True, check=False, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        if done.returncode != 0:
            return f"podman cannot be installed: {done.stderr[-500:]}"
    done = podman("info", check=False)
    return None if done.returncode == 0 else f"podman does not work here: {done.stderr[-500:]}"


def environment() -> dict[str, str]:
    conf = cache_dir() / "containers.conf"
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(_CONF)
    return {**os.environ, "CONTAINERS_CONF": str(conf)}


def podman(*arguments: str, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["podman", *arguments], capture_output=True, text=True, check=False, env=environment() | environ
    )
    if check and done.returncode != 0:
        raise SandboxError(f"podman {' '.join(arguments)[:200]}: {(done.stdout + done.stderr)[-4000:]}")
    return done


def build(tag: str, context: Path, *options: str) -> None:
    """Builds an image. `docker` is the one format that has healthchecks."""
    limits = ("--isolation", "chroot", "--ulimit", "nofile=1024:1024", "--format", "docker", "--layers")
    done = subprocess.run(
        ["buildah", "bud", *limits, *options, "-t", tag, str(context)],
        capture_output=True, text=True, check=False, env=environment(),
    )  # fmt: skip
    if done.returncode != 0:
        raise SandboxError(f"{tag} cannot be built: {(done.stdout + done.stderr)[-4000:]}")


def build_ours(target: str) -> str:
    """An image of docker/Dockerfile; its name."""
    _base()
    build(f"localhost/lockstep-{target}", ROOT, "-f", str(ROOT / "docker/Dockerfile"), "--target", target)
    return f"localhost/lockstep-{target}"


def stand_in(image: str) -> None:
    """Makes an image of this name, unless there is one (a pulled one, for example)."""
    if podman("image", "exists", image, check=False).returncode == 0:
        return
    kind = image.rpartition("/")[2].partition(":")[0]
    _base()
    if kind == "mysql":
        MYSQL.setup()
        _import(MYSQL.root, _MYSQL_TREE)
    context = STAND_INS / kind
    if kind == "s3proxy":
        context = cached("s3proxy-image-context", _with_jars)
    build(image, context)


def _with_jars(into: Path) -> None:
    shutil.copytree(STAND_INS / "s3proxy", into, dirs_exist_ok=True)
    shutil.copytree(fetch(S3PROXY), into / "jars")


def _base() -> None:
    if podman("image", "exists", BASE, check=False).returncode == 0:
        return
    _DEBIAN.setup()
    # This machine may reach the network only through a proxy whose certificate is its own.
    for certificate in Path("/usr/local/share/ca-certificates").glob("*.crt"):
        shutil.copy(certificate, _DEBIAN.root / "usr/local/share/ca-certificates")
    subprocess.run(["chroot", _DEBIAN.root, "update-ca-certificates"], check=True, capture_output=True)
    _import(_DEBIAN.root, BASE, f"ENV PIP_CERT={_CA}", f"ENV SSL_CERT_FILE={_CA}", 'CMD ["bash"]')


def _import(root: Path, tag: str, *changes: str) -> None:
    tar = ["tar", "-C", str(root), "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "-c", "."]
    options = [part for change in changes for part in ("--change", change)]
    with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
        done = subprocess.run(
            ["podman", "import", *options, "-", tag], stdin=packing.stdout, capture_output=True, text=True, check=False,
            env=environment(),
        )  # fmt: skip
    if done.returncode != 0 or packing.returncode != 0:
        raise SandboxError(f"{tag} cannot be imported: {done.stderr[-2000:]}")


@dataclass(frozen=True)
class Compose:
    """A project of a compose file, run by podman-compose. environ: what `docker/.env` and a user's shell would give."""

    project: str
    file: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def services(self) -> Mapping[str, Mapping[str, object]]:
        found: Mapping[str, Mapping[str, object]] = yaml.safe_load(self.file.read_text(encoding="utf-8"))["services"]
        return found

    def container(self, service: str) -> str:
        return f"{self.project}_{service}_1"

    def up(self) -> None:
        """Starts every service after those that it depends on are healthy, or have ended well."""
        started: set[str] = set()
        while left := [name for name in self.services if name not in started]:
            ready = [name for name in left if set(self.services[name].get("depends_on", {})) <= started]  # type: ignore[call-overload]
            assert ready, f"{left} depend on one another"
            self("up", "-d", "--no-build", "--no-deps", *ready)
            for name in ready:
                self._wait(name)
            started |= set(ready)

    def _wait(self, service: str) -> None:
        name = self.container(service)
        deadline_s = time.monotonic() + HEALTHY_S
        while time.monotonic() < deadline_s:
            state = json.loads(podman("inspect", name).stdout)[0]
            if state["State"]["Status"] == "exited" and state["State"]["ExitCode"] == 0:
                return
            if state["State"]["Status"] == "running" and not self._ends(service):
                checked = state["Config"].get("Healthcheck") is not None
                if not checked or podman("healthcheck", "run", name, check=False).returncode == 0:
                    return
            time.sleep(1)
        raise SandboxError(f"{service} is not healthy:\n{self.logs(service)[-4000:]}")

    def _ends(self, service: str) -> bool:
        """Whether others wait for its end."""
        wanted = [definition.get("depends_on", {}) for definition in self.services.values()]
        return any(
            dependencies.get(service, {}).get("condition") == "service_completed_successfully"  # type: ignore[attr-defined]
            for dependencies in wanted
        )

    def logs(self, service: str) -> str:
        done = podman("logs", self.container(service), check=False)
        return done.stdout + done.stderr

    def exec(self, service: str, *command: str, check: bool = True) -> str:
        """What a command in a service's container printed on stdout."""
        return podman("exec", self.container(service), *command, check=check).stdout

    def down(self) -> None:
        """Removes its containers, networks and volumes, and nothing else."""
        self("down", "-v", "-t", "5")

    def __call__(self, *arguments: str) -> None:
        command = [_podman_compose(), "-p", self.project, "-f", str(self.file), "--in-pod", "0", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment() | dict(self.environ)
        )
        if done.returncode != 0:
            raise SandboxError(f"{' '.join(command[-6:])}: {(done.stdout + done.stderr)[-4000:]}")


def _podman_compose() -> str:
    """In an environment of its own: its pins are none of ours."""

    def install(into: Path) -> None:
        uv = str(Path(sys.executable).with_name("uv"))
        done: Sequence[Sequence[str]] = (
            [uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(into / "venv")],
            [uv, "pip", "install", "--quiet", "--python", str(into / "venv/bin/python"), "podman-compose==1.6.0"],
        )
        for command in done:
            subprocess.run(command, check=True)

    return str(cached("podman-compose-1.6.0", install) / "venv/bin/podman-compose")
