# Instances of MIG on a simulated machine of two GPUs that are cut: a process sees one instance; ranks get those that
# CUDA_VISIBLE_DEVICES names, one each, or are refused; what is said and stored is that of the instance, not of its GPU.
# ctest: waits 20
. "$PTB_SOURCE/tests/mpi/run_common.sh"
{ cat "$PTB_SOURCE/tests/simcuda/machines/nvswitch.ini"; echo "mig = 1g.10gb 1g.10gb 3g.40gb"; } >cut.ini
export PTB_SIM=devices=2,machine=$folder/cut.ini
"$PTB_SOURCE/tests/simcuda/make_sysfs.sh" "$PTB_SOURCE/tests/simcuda/machines/nvswitch.ini" "$folder/sys"
export PTB_SYSFS=$folder/sys
h100="simulated NVIDIA H100 80GB HBM3"

# uuid GPU INSTANCE: of the simulated machine.
uuid() { printf 'MIG-73696d75-6c61-7465-6400-00000000%02x%02x' $(($2 + 1)) "$1"; }
kernel=("$PTBENCH" run kernels --kernel sum_squares --rows 128 --device cuda -n 1)

# what_is DATABASE PYTHON: runs the lines with the last run's `cases`, `placement` and `host`.
what_is() {
    "$PTBENCH" export --db "$1" last >export.json
    { cat <<'PYTHON'; echo "$2"; } >check.py
import json
def read(value):
    return json.loads(value) if isinstance(value, str) else value
run = json.load(open("export.json"))["runs"][0]
cases = run["repetitions"][0]["cases"]
placement = [p.get("cuda_visible_devices") for p in read(run["repetitions"][0]["placement"])]
host = read(run["hosts"])[0]
def uuid(gpu, instance):
    return f"MIG-73696d75-6c61-7465-6400-00000000{instance + 1:02x}{gpu:02x}"
PYTHON
    python3 check.py || fail "what is stored in $1"
}

# ---- one instance
try 0 "$PTBENCH" doctor --db x.db
has out "SIMULATED, not real hardware: 1 GPU can be used, an instance of MIG, $h100 MIG 1g.10gb, 10.0 GiB, sm_90, $(uuid 0 0); each"
has out "; GPUs 0 to 1: $h100, 80 GiB, PCIe 5 x16, 18 NVLinks 4.0 (NVSwitch), 478 GB/s each way: MIG is on, with instances 1g.10gb, 1g.10gb, 3g.40gb"
try 0 "$PTBENCH" run pairs --np 1 --device cuda --paths h2d,d2d --bytes 64K,1M -n 2 --db one.db
has err "4 cases measured (0 wrong), 0 skipped"
[ "$(grep -c "an instance of MIG has no NVLinks" err)" = 1 ] || fail "not said once that there are no counters: $(cat err)"
what_is one.db '
assert placement == [None], placement
for case in cases:
    facts = case["facts"]
    assert facts["device"] == "simulated NVIDIA H100 80GB HBM3 MIG 1g.10gb, 10.0 GiB, sm_90", facts
    assert facts["from_device"] == uuid(0, 0), facts
    assert not [m for m in case["metrics"] if m["name"].startswith(("nvlink", "expected"))], case["metrics"]
for number, gpu in enumerate(host["gpus"]["list"]):
    assert gpu["mig"] is True and gpu["memory_bytes"] == 80 << 30, gpu
    assert [(i["uuid"], i["name"][-11:], i["memory_bytes"] >> 30) for i in gpu["instances"]] == [
        (uuid(number, 0), "MIG 1g.10gb", 10), (uuid(number, 1), "MIG 1g.10gb", 10), (uuid(number, 2), "MIG 3g.40gb", 40)], gpu
'
# Whichever way it is named, and of whichever GPU.
for name in 1 GPU-73696d75-6c61-7465-6400-000000000001 "$(uuid 1 0)"; do
    CUDA_VISIBLE_DEVICES=$name try 0 "${kernel[@]}" --np 1 --db named.db
    what_is named.db 'assert cases[0]["facts"]["device"].endswith("sm_90, " + uuid(1, 0)), cases[0]["facts"]'
done
# No GPU's floors are judged by it.
device=$h100\ MIG\ 1g.10gb floors=yes
. "$PTB_SOURCE/tests/gpu/judge.sh"
know_gpu
[[ $floors = "no: an instance of MIG "* ]] || fail "floors of an instance are judged: $floors"
# Its memory, not that of its GPU, is what a dry run and a run go by.
for size in 0:1 2:0; do
    CUDA_VISIBLE_DEVICES=$(uuid 0 ${size%:*}) try 0 "$PTBENCH" run all_reduce --comm nccl --np 1 --bytes 6G --place out --dry-run
    [ "$(grep -c "skipped: not enough memory: 1 rank on this GPU needs about 19.33 GB .*, and 9.66 GB can be used" out)" = "${size#*:}" ] ||
        fail "6G in instance ${size%:*}: $(cat out)"
done
# Another kind of instance is another machine: what one has begun the other does not complete.
CUDA_VISIBLE_DEVICES=$(uuid 0 2) try 3 "$PTBENCH" run --resume last --db one.db
has err "was measured with"

# ---- two ranks
two=$(uuid 0 0),$(uuid 0 2)
CUDA_VISIBLE_DEVICES=$two try 0 "$PTBENCH" doctor --db x.db
has out "2 GPUs can be used, instances of MIG, the first $h100 MIG 1g.10gb"
# As many as are named is how many ranks there are.
CUDA_VISIBLE_DEVICES=$two try 0 "$PTBENCH" run pairs --device cuda --paths d2d,peer,peer-kernel --pairs ring --bytes 64K -n 2 --db two.db
has err "2 cases measured (0 wrong), 4 skipped"
has err "device 0 cannot reach device 1: an instance of MIG has no access to the memory of others"
what_is two.db '
assert placement == [uuid(0, 0), uuid(0, 2)], placement
own = {case["params"]["from"]: case["facts"] for case in cases if case["params"]["path"] == "d2d"}
assert own["0"]["from_device"] == uuid(0, 0) and own["1"]["from_device"] == uuid(0, 2), own
assert " MIG 1g.10gb, 10.0 GiB" in own["0"]["device"] and " MIG 3g.40gb, 40.0 GiB" in own["1"]["device"], own
'
# NCCL takes both for one GPU, unless it is new enough and allowed to have more ranks on it; of two GPUs it takes them.
CUDA_VISIBLE_DEVICES=$two try 3 "$PTBENCH" run all_reduce --comm nccl --bytes 4K --place out -n 1 --db nccl.db
has err "ranks 0 and 1 are on one GPU (bus 0000:18:00), which NCCL does not take, nor in two instances of MIG"
CUDA_VISIBLE_DEVICES=$(uuid 0 0),$(uuid 1 2) try 0 "$PTBENCH" run all_reduce --comm nccl --bytes 4K --place out -n 1 --db nccl.db
has err "1 case measured (0 wrong), 0 skipped"
what_is nccl.db '
assert placement == [uuid(0, 0), uuid(1, 2)], placement
assert cases[0]["facts"]["not_counted"] == "rank 0: an instance of MIG has no NVLinks", cases[0]["facts"]
assert cases[0]["facts"]["buffers"] != "symmetric window" and "expected" not in [m["name"] for m in cases[0]["metrics"]]
'
# A suite asks for GPUs of the host, of which each rank has its one.
printf '[kernels]\ndevice = cuda\nkernel = sum_squares\nrows = 128\nrequires = gpu>=2\n' >suite.ini
CUDA_VISIBLE_DEVICES=$two try 0 "$PTBENCH" run suite.ini -n 1 --db suite.db
has err "1 case measured (0 wrong), 0 skipped"

# ---- too few
try 3 "${kernel[@]}" --np 2 --db few.db
has err "ranks 0 and 1 of host $(hostname) have the same device, $h100 MIG 1g.10gb, 10.0 GiB, sm_90, $(uuid 0 0). A process sees one instance of MIG: name one for each rank of a host, CUDA_VISIBLE_DEVICES=MIG-...,MIG-..."
CUDA_VISIBLE_DEVICES=$two try 3 "${kernel[@]}" --np 3 --db few.db
has err "ranks 0 and 2 of host $(hostname) have the same device, $h100 MIG 1g.10gb"
CUDA_VISIBLE_DEVICES=$two try 0 "${kernel[@]}" --np 3 --share-gpu --db few.db
has err "1 case measured (0 wrong), 0 skipped"

# ---- names that are not there
CUDA_VISIBLE_DEVICES=$(uuid 0 0),$(uuid 0 5) try 3 "${kernel[@]}" --np 2 --db none.db
has err "no GPU can be used: CUDA_VISIBLE_DEVICES=\"$(uuid 0 5)\" names no GPU of this machine: see nvidia-smi -L"
CUDA_VISIBLE_DEVICES=$(uuid 0 0),$(uuid 0 5) try 0 "$PTBENCH" doctor --db x.db
has out "warning  gpus           SIMULATED, not real hardware: 1 GPU can be used, an instance of MIG"
has out "; CUDA_VISIBLE_DEVICES names what is no instance here: $(uuid 0 5)"
CUDA_VISIBLE_DEVICES=$(uuid 0 5) try 3 "${kernel[@]}" --np 1 --db none.db
has err "no GPU can be used: CUDA_VISIBLE_DEVICES=\"$(uuid 0 5)\" names no GPU of this machine"

# ---- MIG is on, and nothing was made of it
echo "gpu0.mig = 1" >>cut.ini
try 0 "$PTBENCH" doctor --db x.db
has out "warning  gpus           SIMULATED, not real hardware: 1 GPU can be used, an instance of MIG, $h100 MIG 1g.10gb, 10.0 GiB, sm_90, $(uuid 1 0);"
has out "; GPU 0: $h100, 80 GiB, PCIe 5 x16, 18 NVLinks 4.0 (NVSwitch), 478 GB/s each way: MIG is on, and no instance is seen, so nothing can run there: nvidia-smi mig -cgi makes instances"
finish
