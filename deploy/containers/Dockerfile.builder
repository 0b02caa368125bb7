# An image with the sources, the compilers, `xtask` and its programs. Pods with this image build, tune and publish on nodes with
# one kind of CPU (deploy/kubernetes/build.yaml), or install from the store. The image does not depend on the CPU that built it.
#
#   docker build -f deploy/containers/Dockerfile.builder -t "$REGISTRY/anneal-builder:0.1.0" \
#       --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" .
#   docker push "$REGISTRY/anneal-builder:0.1.0"

FROM rust:1.95-bookworm
# Timestamp of published archives. The builder does not get the repository's history, which usually provides the timestamp.
ARG SOURCE_DATE_EPOCH
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH}
WORKDIR /src
COPY . .
# The dry run compiles the program that queries stores, and succeeds even if the store is unreachable.
RUN cargo build --locked --package xtask \
    && install target/debug/xtask /usr/local/bin/xtask && rm -rf target/debug \
    && xtask setup --profile native --yes \
    && xtask vendor \
    && cargo fetch --locked \
    && xtask install --list \
    && xtask build-native --dry-run --store s3://nobody/nothing \
    && rm -rf /var/lib/apt/lists/*
# Builds write to the checkout, but the root file system is read-only. A pod must therefore copy /src and cargo's home to /work.
ENV ANNEAL_WORKSPACE=/work/src CARGO_HOME=/work/cargo HOME=/work ANNEAL_STATE_DIR=/var/lib/anneal
WORKDIR /work
USER 65532:65532
STOPSIGNAL SIGTERM
CMD ["/usr/local/bin/xtask", "detect"]
