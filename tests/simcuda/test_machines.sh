#!/bin/bash
# The machines of tests/simcuda/machines, as NVML and /sys would show them: what `ptbench doctor` says of them and
# of their faults, and what a run stores.
# ctest: waits 12
set -u
machines=$PTB_SOURCE/tests/simcuda/machines
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "FAIL: $*"
    failed=1
}

# doctor on a machine; its lines about parts in $work/said
ask() { # machine.ini devices
    PTB_SIM="machine=$1,devices=$2" PTB_SYSFS=$work/sys "$PTBENCH" doctor --db "$work/x.db" >"$work/all" 2>"$work/err"
    grep -E '^[a-z]+ +(gpus|nccl|gpu build) ' "$work/all" >"$work/said"
}
says() { # words
    grep -qF -- "$1" "$work/said" || fail "doctor does not say '$1': $(cat "$work/said")"
}

# What the build's headers are of: the simulated libraries are, too.
nccl=$("$PTBENCH" version | awk '$1 == "nccl" { split($2, v, "."); print v[1] * 10000 + v[2] * 100 + v[3] }')
cuda=$("$PTBENCH" version | awk '$1 == "cuda" { print $2 }')

# ---- sound machines
for machine in nvswitch pcie rails direct; do
    rm -rf "$work/sys"
    "$PTB_SOURCE/tests/simcuda/make_sysfs.sh" "$machines/$machine.ini" "$work/sys" || fail "$machine: no /sys"
    gpus=$(sed -n 's/^sysfs.gpus = //p' "$machines/$machine.ini")
    ask "$machines/$machine.ini" "$gpus"
    says "ok       gpus"
    says "SIMULATED, not real hardware: $gpus GPUs can be used"
    says "; GPUs 0 to $((gpus - 1)): simulated $(sed -n 's/^name = //p' "$machines/$machine.ini"),"
    says "driver $(sed -n 's/^driver = //p' "$machines/$machine.ini"), which supports CUDA $cuda;"
    PTB_SIM="machine=$machines/$machine.ini,devices=$gpus" PTB_SYSFS=$work/sys \
        "$PTBENCH" run barrier --np 1 -n 1 --db "$work/$machine.db" >/dev/null 2>&1 || fail "$machine: run"
    "$PTBENCH" export --db "$work/$machine.db" last >"$work/$machine.json" || fail "$machine: export"
done
ask "$machines/nvswitch.ini" 8
says "18 NVLinks 4.0 (NVSwitch), 478 GB/s each way"
if [ "$nccl" -ge 22800 ]; then says "ok       nccl"; else says "warning  nccl"; fi # that lacks functions
ask "$machines/direct.ini" 4
says "6 NVLinks 2.0 (direct), 155 GB/s each way"

python3 - "$work" <<'PYTHON' || fail "what is stored"
import json, sys
def read(name):
    run = json.load(open(f"{sys.argv[1]}/{name}.json"))["runs"][0]
    hosts = run["hosts"]
    host = (json.loads(hosts) if isinstance(hosts, str) else hosts)[0]
    return run, host
prints = set()
for name, gpus, nics, kind in (("nvswitch", 8, 8, "InfiniBand"), ("pcie", 4, 1, "Ethernet"), ("rails", 8, 8, "RoCE"),
                               ("direct", 4, 1, "InfiniBand")):
    run, host = read(name)
    prints.add(host["fingerprint"])
    assert host["gpus"]["simulated"] is True
    assert len(host["gpus"]["list"]) == gpus and len(host["nics"]) == nics, name
    assert all(nic["kind"] == kind and nic["up"] for nic in host["nics"]), name
    assert [g["numa_node"] for g in host["gpus"]["list"]] == [2 * i // gpus for i in range(gpus)], name
    for i, gpu in enumerate(host["gpus"]["list"]):
        distances = list(gpu["nics"].values())
        if name == "pcie":
            assert distances == ["NODE" if i < 2 else "SYS"], (i, distances)
        elif name == "direct":
            assert distances == ["PIX" if i == 0 else "NODE" if i == 1 else "SYS"], (i, distances)
        else: # a rail of its own in the same switch, half of the others on the same node
            wanted = ["PIX" if r == i else "NODE" if r // 4 == i // 4 else "SYS" for r in range(8)]
            assert distances == wanted, (name, i, distances)
assert len(prints) == 4, "machines with other GPUs have other fingerprints"
PYTHON

# ---- faults, one machine file each
faulty() { # key = value
    { cat "$machines/nvswitch.ini"; echo "$1"; } >"$work/faulty.ini"
    ask "$work/faulty.ini" 8
}
faulty "gpu3.ecc_uncorrected = 5"
says "warning  gpus"
says "; GPU 3: simulated NVIDIA H100 80GB HBM3, 80 GiB, PCIe 5 x16, 18 NVLinks 4.0 (NVSwitch), 478 GB/s each way: 5 uncorrectable ECC errors"
says "; GPUs 4 to 7: "
faulty "gpu7.lost = 1"
says "warning  gpus"
says "; GPU 7: lost: it does not answer"
faulty "throttle = 0x40"
says "warning  gpus"
says "slowed down, thermal slowdown by hardware"
faulty "throttle = 0x4"
says "ok       gpus"
says "slowed down, power cap"
faulty "gpu0.pcie_width_now = 8"
says "PCIe runs at x8 instead of x16"
faulty "gpu5.dead_link = 2"
says "warning  gpus"
says "the GPUs do not have the same number of NVLinks up"
faulty "gpu4.mig = 1"
says "warning  gpus"
says "7 GPUs can be used"
says "; GPU 4: simulated NVIDIA H100 80GB HBM3, 80 GiB, PCIe 5 x16, 18 NVLinks 4.0 (NVSwitch), 478 GB/s each way: MIG is on, and no instance is seen"
faulty "persistence = 0"
says "persistence mode is off"
faulty "nvml_error = 18"
says "warning  gpus"
says "NVML does not start: Driver/library version mismatch; the driver was updated without a restart"

# ---- no GPU
PTB_SIM=devices=0 "$PTBENCH" doctor --db "$work/x.db" >"$work/said" 2>/dev/null
code=$?
[ $code -eq 0 ] || [ $code -eq 3 ] || fail "doctor without GPUs ends with $code"
says "no GPU can be used: the simulated machine has none"
# One error of CUDA each; what it says of itself, and what to do.
refused() { # settings words...
    PTB_SIM=$1 "$PTBENCH" doctor --db "$work/x.db" >"$work/said" 2>/dev/null
    shift
    for words in "no GPU can be used: " "$@"; do
        says "$words"
    done
    ! grep -q "CUDA 0\.0" "$work/said" || fail "a version that is none: $(cat "$work/said")"
}
refused no_gpu=802 "system not yet initialized (cudaErrorSystemNotReady)" "nvidia-fabricmanager"
refused no_gpu=803 "(cudaErrorSystemDriverMismatch)" "reboot or reload the module"
refused no_gpu=804 "(cudaErrorCompatNotSupportedOnDevice)" "cuda-compat"
refused no_gpu=34 "(cudaErrorStubLibrary)" "off LD_LIBRARY_PATH"
refused no_gpu=3 "(cudaErrorInitializationError)" "whether nvidia-smi works"
refused no_gpu=46 "(cudaErrorDevicesUnavailable)" "compute mode"
refused no_gpu=805 "(cudaErrorMpsConnectionFailed)" "nvidia-cuda-mps-control"
refused no_gpu=304 "(cudaErrorOperatingSystem)" "/dev/nvidia*"
refused no_gpu=999 "(cudaErrorUnknown)" "Xid"
refused no_gpu=800 "(cudaErrorNotPermitted): see whether nvidia-smi works"
refused no_gpu=35,driver=11020 "the driver is too old: it supports CUDA 11.2, and this program needs "
refused no_gpu=35,driver=0 "libcuda.so.1 does not say which CUDA it supports" "install the NVIDIA driver again"
# What a run stores is the cause itself.
PTB_SIM=no_gpu=802 "$PTBENCH" run all_reduce --comm nccl,host --np 2 -b 8 -e 8 -n 1 --db "$work/why.db" >"$work/out" 2>"$work/err" ||
    fail "host beside GPUs that cannot be used: $(cat "$work/err")"
PTB_SIM=no_gpu=802 "$PTBENCH" run step --np 1 --device cuda --layers 1 --hidden 64 --heads 1 --db "$work/why.db" >"$work/out" 2>"$work/err"
[ $? -eq 3 ] || fail "a step without a GPU"
"$PTBENCH" export --db "$work/why.db" 1 >"$work/said"
says "device 'cuda': no GPU can be used: system not yet initialized (cudaErrorSystemNotReady)"
"$PTBENCH" export --db "$work/why.db" 2 >"$work/said"
says '"reason": "no GPU can be used: system not yet initialized (cudaErrorSystemNotReady)'

CUDA_VISIBLE_DEVICES='' "$PTBENCH" doctor --db "$work/x.db" >"$work/said" 2>/dev/null
says "CUDA_VISIBLE_DEVICES=\"\" names no GPU"

# ---- one process a GPU: two ranks have GPUs of their own, or are refused by name
PTB_SIM=devices=1 "$PTBENCH" run all_reduce --comm nccl --np 2 -b 8 -e 8 -n 1 --db "$work/x.db" >"$work/out" 2>"$work/err"
[ $? -eq 3 ] || fail "two ranks on one GPU were not refused"
grep -q "ranks 0 and 1 of host .* have the same device, simulated GPU, .*GPU-.*--share-gpu" "$work/err" ||
    fail "two ranks on one GPU: $(cat "$work/err")"
PTB_SIM=devices=2 "$PTBENCH" run all_reduce --comm nccl --np 2 -b 8 -e 8 -n 1 --db "$work/x.db" >"$work/out" 2>"$work/err" ||
    fail "two ranks on two GPUs: $(cat "$work/err")"
PTB_SIM=devices=1 "$PTBENCH" run kernels --kernel sum_squares --rows 128 --device cuda --np 2 --share-gpu -n 1 \
    --db "$work/x.db" >"$work/out" 2>"$work/err" || fail "--share-gpu: $(cat "$work/err")"
grep -q "1 case measured" "$work/err" || fail "--share-gpu measured nothing: $(cat "$work/err")"
exit $failed
