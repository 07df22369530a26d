#!/bin/bash
# make_sysfs.sh MACHINE.ini FOLDER: what of /sys ptbench reads, for a machine of tests/simcuda/machines.
# GPUs have the bus addresses of the simulated device (sim_pci_bus_id); half of them are on each NUMA node.
set -eu
machine=$1
mkdir -p "$2"
cd "$2"

value() { # key
    sed -n "s/^sysfs\.$1 = //p" "$machine"
}

device() { # path-below-devices numa-node
    mkdir -p "devices/$1" bus/pci/devices
    echo "$2" >"devices/$1/numa_node"
    ln -sfn "../../../devices/$1" "bus/pci/devices/${1##*/}"
}

rdma() { # name address link-layer rate
    local folder=class/infiniband/$1/ports/1
    mkdir -p "$folder/counters"
    ln -sfn "../../../bus/pci/devices/$2" "class/infiniband/$1/device"
    echo "$3" >"$folder/link_layer"
    echo "4: ACTIVE" >"$folder/state"
    echo "$4" >"$folder/rate"
    echo 0 >"$folder/counters/port_xmit_data"
    echo 0 >"$folder/counters/port_rcv_data"
}

interface() { # name address speed
    mkdir -p "class/net/$1/statistics"
    ln -sfn "../../../bus/pci/devices/$2" "class/net/$1/device"
    echo "$3" >"class/net/$1/speed"
    echo up >"class/net/$1/operstate"
    echo 0 >"class/net/$1/statistics/tx_bytes"
    echo 0 >"class/net/$1/statistics/rx_bytes"
}

card() { # number address
    case $(value nic_kind) in
    InfiniBand) rdma "mlx5_$1" "$2" InfiniBand "$(value nic_rate)" ;;
    Ethernet_rdma) rdma "mlx5_$1" "$2" Ethernet "$(value nic_rate)" ;;
    *) interface "eth$1" "$2" "$(value nic_rate)" ;;
    esac
}

gpus=$(value gpus)
nics=$(value nics)
for ((i = 0; i < gpus; i++)); do
    bus=$((0x18 + i * 0x11))
    node=$((2 * i / gpus))
    switch=$(printf 'pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0' $((bus - 3)) $((bus - 3)) $((bus - 2)))
    device "$(printf '%s/0000:%02x:00.0/0000:%02x:00.0' "$switch" $((bus - 1)) $bus)" $node
    if [ "$i" -lt "$nics" ]; then
        address=$(printf '0000:%02x:00.0' $((bus + 1)))
        if [ "$(value nic_at)" = switch ]; then
            device "$(printf '%s/0000:%02x:01.0/%s' "$switch" $((bus - 1)) "$address")" $node
        else
            device "$(printf 'pci0000:%02x/0000:%02x:02.0/%s' $((bus - 6)) $((bus - 6)) "$address")" $node
        fi
        card "$i" "$address"
    fi
done
