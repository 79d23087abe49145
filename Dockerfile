# docker build -t fedspray . && docker run --rm fedspray demo
# Keep runs, and read your own files:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" fedspray run --dataset banks --out runs/first
FROM python:3.11-slim AS build
WORKDIR /source
RUN python -m venv /opt/fedspray
# Name an index with CPU builds of PyTorch (docs/get-started.md), or a mirror of yours; the default build brings CUDA along:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... -t fedspray .
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/fedspray/bin/pip install --no-cache-dir -c constraints.txt '.[deploy]'

FROM python:3.11-slim
COPY --from=build /opt/fedspray /opt/fedspray
# Any user may run it, also one that the image does not know: caches go to a folder that all can write.
RUN mkdir -p /work /cache && chmod 1777 /work /cache
ENV PATH="/opt/fedspray/bin:$PATH" HOME=/cache OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["fedspray"]
CMD ["--help"]
