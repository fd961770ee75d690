# syntax=docker/dockerfile:1
# Alcove as a service: one process, no root, no downloads at run time (the model is in the packages).
# docs/deploy.md explains how to run it.
FROM python:3.13-slim-bookworm AS build
ARG EXTRAS=knowledge,llm,mcp,postgres,server,tokens,tracing,valkey
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/alcove
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/alcove/bin/pip install ".[${EXTRAS}]"

FROM python:3.13-slim-bookworm
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin alcove \
    && install --directory --owner=alcove --group=alcove --mode=0700 /data
COPY --from=build /opt/alcove /opt/alcove
ENV PATH=/opt/alcove/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 ALCOVE_HOST=0.0.0.0
# Contains the store's file, or with PostgreSQL the ledger of wipes: both go to the working directory (ALCOVE_STATE).
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["alcove"]
CMD ["serve"]
