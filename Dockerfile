# session-manager as a container: small, not root, data in a volume.
#   docker build -t session-manager .
#   docker run --network host -v sessions:/data session-manager --url ws://127.0.0.1:49134
FROM python:3.12-slim AS build
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN python -m venv /app && /app/bin/pip install --no-cache-dir /src

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /data session-manager && install -d -o session-manager -m 0700 /data
COPY --from=build /app /app
USER session-manager
# Relative data paths start here.
ENV III_COMPOSE_DIR=/data PYTHONUNBUFFERED=1
WORKDIR /data
VOLUME /data
# The worker is process 1 and handles SIGTERM itself: it drains and exits within ten seconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/app/bin/session-manager", "serve"]
