# The locked environment as an image. It holds no code of Lockstep: the checkout is bound in, and its src is on PYTHONPATH.
#   docker build --build-arg FLAVOUR=cpu .        (or cuda; the CUDA libraries come as wheels)
# Builds with Docker's classic builder, BuildKit and buildah. Offline where wheelhouse/FLAVOUR holds the wheels, else online.
ARG BASE_IMAGE=debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716

FROM ${BASE_IMAGE} AS environment
ARG FLAVOUR=cpu
# Of a site that reaches no public index; see scripts/install.sh.
ARG PIP_INDEX_URL=
ARG LOCKSTEP_TORCH_INDEX=
ENV DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
WORKDIR /build
COPY scripts/image.sh scripts/install.sh scripts/bytecode.py scripts/
COPY requirements/*.lock requirements/
# The bracket makes the wheelhouse optional: a pattern may match nothing, a plain name may not.
COPY requirements/cpu.lock wheelhous[e]/${FLAVOUR}/* wheelhous[e]/${FLAVOUR}/.complete wheelhouse/${FLAVOUR}/
RUN scripts/image.sh environment ${FLAVOUR}
COPY image.lock ./
RUN scripts/image.sh facts ${FLAVOUR}

FROM ${BASE_IMAGE}
COPY scripts/image.sh scripts/bytecode.py /run/
RUN DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 /run/image.sh system /run/bytecode.py
COPY --from=environment /opt/lockstep /opt/lockstep
ENV PATH=/opt/lockstep/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 LC_ALL=C.UTF-8 PYTHONUTF8=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
# Below all that takes time: a builder's cache holds only up to an argument that changed.
ARG FLAVOUR=cpu
ARG COMMIT=unknown
ARG LOCK_SHA256=unknown
LABEL org.opencontainers.image.title="lockstep" \
    org.opencontainers.image.revision="${COMMIT}" \
    lockstep.flavour="${FLAVOUR}" \
    lockstep.lock.sha256="${LOCK_SHA256}"
USER lockstep
WORKDIR /home/lockstep
CMD ["python", "--version"]
