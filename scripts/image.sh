#!/bin/sh
# The steps of an image's build, for the Dockerfile and for apptainer-base.def alike, on a Debian 12 base, as root:
#   image.sh environment FLAVOUR   builds /opt/lockstep from the lock (needs a folder with requirements/ and scripts/)
#   image.sh facts FLAVOUR         writes down there which environment it is (needs image.lock)
#   image.sh system BYTECODE.PY     installs what the image keeps besides, and removes what differs between two builds
set -eu

environment() {
    flavour=$1
    apt-get update -q
    apt-get install -y -q --no-install-recommends python3.11 python3.11-venv ca-certificates
    UV_NO_CACHE=1 scripts/install.sh /usr/bin/python3.11 /opt/lockstep "$flavour"
    PYTHONHASHSEED=0 python3.11 scripts/bytecode.py /opt/lockstep
    # uv notes when each file of the wheelhouse was made.
    find /opt/lockstep -name uv_cache.json -delete
    find /opt/lockstep -name RECORD -path '*.dist-info/*' -exec sed -i '/\.dist-info\/uv_cache\.json,/d' {} +
    chmod -R a+rX /opt/lockstep
}

# What an image says of itself, so that a start need not hash it: its content has a name of its own.
facts() {
    python3.11 - "$1" <<'PYTHON'
import json, sys
flavour = sys.argv[1]
with open("image.lock") as lock, open("/opt/lockstep/lockstep-image.json", "w") as facts:
    json.dump({"environment_id": json.load(lock)["environments"][flavour]["id"], "flavour": flavour}, facts)
PYTHON
}

# Python; git, which some packages ask for a version; the RDMA user libraries, without which NCCL falls back to sockets in silence.
system() {
    apt-get update -q
    apt-get install -y -q --no-install-recommends \
        python3.11 git ca-certificates libibverbs1 ibverbs-providers librdmacm1 libgomp1 procps
    id lockstep >/dev/null 2>&1 || useradd --uid 1000 --create-home --shell /bin/bash lockstep
    apt-get clean
    rm -rf /var/lib/apt/lists/* /var/cache/apt /var/cache/debconf /var/cache/ldconfig /var/log/* /tmp/* ~root/.cache
    # What two builds write differently, and what an ordinary user could not read (an image has no password to keep).
    rm -f /var/lib/dpkg/*-old /etc/*- /etc/shadow /etc/gshadow /etc/.pwd.lock /etc/machine-id /var/lib/dbus/machine-id
    find /usr/lib /usr/share -xdev -name __pycache__ -prune -exec rm -rf {} +
    PYTHONHASHSEED=0 python3.11 "$1" /usr/lib/python3.11
    chmod -R a+rX /etc /opt /usr /var
}

"$@"
