#!/usr/bin/env bash
# Makes real Docker, Apptainer and Slurm work on a Debian 12 machine, as root: the tests beside this file drive them as an
# ordinary user (Slurm's daemons are the tests' own: slurm_lab.py). Safe to run again: it installs what is missing, starts dockerd where none answers, and makes the user.
#   LOCKSTEP_REAL   where all of it is kept (default /var/lib/lockstep-real)
set -euo pipefail

state=${LOCKSTEP_REAL:-/var/lib/lockstep-real}
user=lockstep-tester

say() { printf 'real: %s\n' "$*"; }
[ "$(id -u)" = 0 ] || { say "run this as root (it installs packages and starts dockerd)" >&2; exit 2; }
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$state"

install_packages() {
    local wanted=(slurm-wlm munge docker.io buildah crun mmdebstrap uidmap squashfs-tools squashfuse fuse-overlayfs patchelf git make
        python3.11 python3.11-venv ca-certificates) missing=()
    for package in "${wanted[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    say "installing ${missing[*]}"
    apt-get update -q >/dev/null
    apt-get install -y -q --no-install-recommends "${missing[@]}" >"$state/apt.log" 2>&1 ||
        { tail -n 20 "$state/apt.log" >&2; exit 1; }
}

# The mirror that this machine's own sources name.
debian_mirror() {
    grep -rhE '^(URIs:|deb )' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
        grep -oE 'https?://[^ ]+/debian/?( |$)' | tr -d ' ' | sed 's#/$##' | sed -n 1p
}

# Debian 12 has no Apptainer; sid has, but wants a newer glibc. It gets that glibc in a folder of its own, and an apt state
# of its own, so that neither touches the system.
install_apptainer() {
    apptainer --version >/dev/null 2>&1 && return
    say "installing Apptainer from Debian sid, beside its own glibc"
    local sid=$state/sid glibc=/opt/apptainer-glibc deb program
    rm -rf "$sid"
    mkdir -p "$sid/lists/partial" "$sid/debs" "$sid/libs" "$sid/apptainer" "$glibc"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s sid main\n' "$(debian_mirror)" >"$sid/sources.list"
    local apt=(apt-get -q -o "Dir::Etc::SourceList=$sid/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$sid/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
    "${apt[@]}" update >/dev/null
    (cd "$sid/debs" && "${apt[@]}" download apptainer/sid libc6/sid libseccomp2/sid libsqlite3-0/sid >/dev/null)
    for deb in "$sid"/debs/lib*.deb; do dpkg -x "$deb" "$sid/libs"; done
    cp -a "$sid"/libs/usr/lib/x86_64-linux-gnu/*.so* "$glibc/"
    dpkg -x "$sid"/debs/apptainer_*.deb "$sid/apptainer"
    cp -a "$sid/apptainer/etc/apptainer" /etc/
    cp -a "$sid/apptainer/usr/." /usr/
    for program in /usr/bin/apptainer /usr/lib/x86_64-linux-gnu/apptainer/bin/starter; do
        # The rpath must be forced: the libraries need it as well, and they inherit only a forced one.
        patchelf --set-interpreter "$glibc/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$glibc" "$program"
    done
    mkdir -p /var/lib/apptainer/mnt/session
    rm -rf "$sid"
}

start_dockerd() {
    docker info >/dev/null 2>&1 && return
    say "starting dockerd"
    setsid dockerd --data-root "$state/docker" >"$state/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 120); do
        docker info >/dev/null 2>&1 && return
        sleep 0.5
    done
    tail -n 20 "$state/dockerd.log" >&2
    exit 1
}

# An ordinary user who may use Docker and has subordinate ids, as on a cluster's login node.
make_user() {
    id "$user" >/dev/null 2>&1 || useradd --create-home --home-dir "$state/home" --shell /bin/bash "$user"
    usermod -aG docker "$user"
    grep -q "^$user:" /etc/subuid || echo "$user:200000:65536" >>/etc/subuid
    grep -q "^$user:" /etc/subgid || echo "$user:200000:65536" >>/etc/subgid
    if [ -e /dev/fuse ]; then chmod 666 /dev/fuse; fi
}

# No image can be pulled on every machine: a minimal Debian from the machine's own mirror stands in for the pinned base.
make_base_image() {
    docker image inspect lockstep-base:bookworm >/dev/null 2>&1 && return
    say "making a Debian 12 base image from this machine's mirror"
    mmdebstrap --quiet --variant=apt --include=ca-certificates bookworm "$state/base.tar" "$(debian_mirror)"
    docker import "$state/base.tar" lockstep-base:bookworm >/dev/null
}

install_packages
install_apptainer
start_dockerd
make_user
make_base_image
say "docker $(docker version -f '{{.Server.Version}}') · $(apptainer --version) · buildah $(buildah --version | awk '{ print $3 }')"
