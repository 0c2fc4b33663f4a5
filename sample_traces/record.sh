#!/usr/bin/env bash
# Makes the recorded traces again, in sample_traces/recorded. Needs nsys, the extra `workloads` and, for
# the traces of MPI, mpirun of Open MPI with mpi4py in the Python that MPI_PYTHON names.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRACEKIT_STORE=$work/store PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1
mpi_python=${MPI_PYTHON:-python}
mpirun=${MPIRUN:-mpirun}

record() { # NAME OPTIONS... -- PROGRAM...
  tracekit record --reports "$work" --name "$1" --format json --output "$work/$1.json" "${@:2}"
  local report
  for report in "$work/$1"/*.nsys-rep; do
    nsys export --type sqlite --output "$work/whole.sqlite" --force-overwrite true "$report" >"$work/log"
    local part
    part=$(basename "$report" .nsys-rep)
    [[ $part == report ]] && part="" || part="_$part"
    python sample_traces/trim.py "$work/whole.sqlite" "sample_traces/recorded/$1$part.sqlite"
  done
}

train=(-m workloads.train --network lenet --gpus 2 --batch 32 --steps 10 --warm-up 2 --device cpu)
record lenet_p2p --trace nvtx -- python "${train[@]}" --method p2p --evaluate-every 5
record lenet_gloo --trace nvtx -- python "${train[@]}" --method gloo --no-layers
record pipeline_1f1b --trace nvtx -- \
  python "${train[@]}" --method pipeline --schedule 1f1b --micro-batches 4 --no-layers
record lenet_mpi --trace nvtx,mpi -- \
  "$mpirun" --oversubscribe -n 2 "$mpi_python" "${train[@]}" --method mpi --bucket-mb 0.05 --no-layers
record mpi_latency --trace nvtx,mpi -- \
  "$mpirun" --oversubscribe -n 2 "$mpi_python" -m workloads.latency --repeats 10
