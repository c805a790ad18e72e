#!/usr/bin/env bash
# XpYd on one machine, with the variables of vLLM's launch script of that name:
#
#   MODEL            folder or hub name; default: the small bundled model
#   PREFILL_GPUS     one GPU for each prefill node, as 0 or 0,1; without GPUs they only count.
#                    With --tensor-parallel-size N a node has N, and its entry is the first
#   DECODE_GPUS      the same for decode nodes
#   PREFILL_PORTS    an HTTP port for each prefill node, as 20003,20004
#   DECODE_PORTS     the same for decode nodes
#   PREFILL_KV_PORTS a port for the KV side channel of each prefill node; default: 21001 and up
#   DECODE_KV_PORTS  the same for decode nodes; default: 22001 and up
#   PROXY_PORT       where nodes register with the proxy
#   HTTP_PORT        where clients come to
#   TIMEOUT_SECONDS  how long to wait for all of it to be ready
#
# More flags of `pdserve up` may follow on the command line. Ctrl-C, or ending this process, ends
# what it started and nothing else.
set -euo pipefail

PREFILL_GPUS=${PREFILL_GPUS:-0}
DECODE_GPUS=${DECODE_GPUS:-1,2,3}
PREFILL_PORTS=${PREFILL_PORTS:-20003}
DECODE_PORTS=${DECODE_PORTS:-20005,20007,20009}
PROXY_PORT=${PROXY_PORT:-30001}
HTTP_PORT=${HTTP_PORT:-10001}
TIMEOUT_SECONDS=${TIMEOUT_SECONDS:-1200}

IFS=',' read -ra prefill_gpus <<<"$PREFILL_GPUS"
IFS=',' read -ra decode_gpus <<<"$DECODE_GPUS"
IFS=',' read -ra prefill_ports <<<"$PREFILL_PORTS"
IFS=',' read -ra decode_ports <<<"$DECODE_PORTS"

arguments=(
  --port "$HTTP_PORT"
  --discovery-port "$PROXY_PORT"
  --ready-timeout-s "$TIMEOUT_SECONDS"
  --prefill "${#prefill_gpus[@]}"
  --decode "${#decode_gpus[@]}"
)
if [[ -n "${MODEL:-}" ]]; then arguments+=(--model "$MODEL"); fi
for port in "${prefill_ports[@]}"; do arguments+=(--prefill-ports "$port"); done
for port in "${decode_ports[@]}"; do arguments+=(--decode-ports "$port"); done
IFS=',' read -ra prefill_kv_ports <<<"${PREFILL_KV_PORTS:-}"
IFS=',' read -ra decode_kv_ports <<<"${DECODE_KV_PORTS:-}"
for port in ${prefill_kv_ports[@]+"${prefill_kv_ports[@]}"}; do arguments+=(--prefill-kv-ports "$port"); done
for port in ${decode_kv_ports[@]+"${decode_kv_ports[@]}"}; do arguments+=(--decode-kv-ports "$port"); done
if nvidia-smi -L >/dev/null 2>&1; then
  for gpu in "${prefill_gpus[@]}"; do arguments+=(--prefill-devices "cuda:$gpu"); done
  for gpu in "${decode_gpus[@]}"; do arguments+=(--decode-devices "cuda:$gpu"); done
fi

here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
pdserve=$here/.venv/bin/pdserve
if [[ ! -x "$pdserve" ]] && ! pdserve=$(command -v pdserve); then
  echo "xpyd.sh: no pdserve: there is no $here/.venv (run make serve once), nor is it on PATH" >&2
  exit 127
fi
exec "$pdserve" up "${arguments[@]}" "$@"
