# syntax=docker/dockerfile:1
# The base is named by digest, so that a build a year from now starts from the same files.
ARG PYTHON=python:3.13-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

FROM ${PYTHON} AS build
WORKDIR /src
RUN python -m venv /opt/reconciler
COPY requirements/production.lock ./
RUN /opt/reconciler/bin/pip install --no-cache-dir --require-hashes --requirement production.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY reconciler ./reconciler
COPY reconciler_embedded ./reconciler_embedded
COPY schemas ./schemas
COPY state ./state
# What --version shows; without them it is a development version that names no commit.
ARG VERSION=
ARG REVISION=
ARG SOURCE_DATE_EPOCH=
RUN SOURCE_VERSION="${VERSION}" SOURCE_COMMIT="${REVISION}" /opt/reconciler/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
    && /opt/reconciler/bin/pip uninstall --yes hatchling pip \
    && sed -i '1s/$/ -IBu/' /opt/reconciler/bin/reconciler
# -I: the command imports nothing from the current folder or from variables of the environment.

FROM ${PYTHON}
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="reconciler" \
      org.opencontainers.image.description="Declarative reconciliation of EC2 node fleets from a git repository" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# git reads the fleet repository; nothing else of the system is needed.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /var/lib/reconciler --create-home reconciler
COPY --from=build /opt/reconciler /opt/reconciler

# The root file system may be read-only: only the volume and /tmp (a tmpfs) are written to.
USER 10001:10001
ENV PATH=/opt/reconciler/bin:${PATH} \
    HOME=/var/lib/reconciler \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    RECONCILER_STATE=/var/lib/reconciler/state \
    RECONCILER_HEARTBEAT=/tmp/reconciler.heartbeat
VOLUME /var/lib/reconciler
WORKDIR /fleet
HEALTHCHECK --interval=30s --timeout=10s --start-period=5m --retries=3 \
    CMD ["reconciler", "health", "--max-age", "5m"]
ENTRYPOINT ["reconciler"]
CMD ["--help"]
