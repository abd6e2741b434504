FROM python:3.13-slim-bookworm

# git reads the fleet repository; nothing else of the system is needed.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home reconciler

WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY reconciler ./reconciler
COPY schemas ./schemas
COPY state ./state
RUN pip install --no-cache-dir --constraint requirements.lock '.[aws,kubernetes,postgres]'

USER 10001
WORKDIR /fleet
ENV RECONCILER_STATE=/home/reconciler/state
ENTRYPOINT ["reconciler"]
CMD ["--help"]
