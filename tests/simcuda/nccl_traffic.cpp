// What the simulated NCCL's operations put on links: counted in the device process, as each one ends. Rings
// pass each host once and leave it at another GPU in each channel; trees are chains inside hosts and a binary
// tree over them, mirrored in every second channel; NVLS sends to the switch (as symmetric
// kernels do), and a share to the network; messages go straight. Within a host all goes over NVLinks; between
// hosts over the network card with the number of the GPU, whose counters are files of the folder that
// PTB_SYSFS names (make_sysfs.sh), with the headers of its packets.
#include "tests/simcuda/nccl.hpp"
#include "tests/simcuda/shared.hpp"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

extern "C" void sim_link_traffic(int machine_device, uint64_t sent_bytes, uint64_t received_bytes);

namespace {
// RoCE v2: Ethernet, IP, UDP, BTH and checksums around each packet.
const double packet_bytes = 4096, header_bytes = 58;

struct host_ranks {
    uint64_t name;
    std::vector<int> ranks;
};

// One rank's view of an operation.
struct count {
    const sim_nccl_traffic_seat *seat;
    std::vector<host_ranks> hosts;
    double sent, received; // over NVLinks
    double out, in;        // over the network
    uint64_t host_of(int rank) const { return seat->shared->rank[rank].host.load(); }
};

void add_edge(count *c, int from, int to, double bytes)
{
    const int me = c->seat->rank;
    const bool is_near = c->host_of(from) == c->host_of(to);
    if (from == to)
        return;
    if (from == me)
        (is_near ? c->sent : c->out) += bytes;
    if (to == me)
        (is_near ? c->received : c->in) += bytes;
}

void find_hosts(count *c)
{
    for (int r = 0; r < c->seat->ranks; r++) {
        size_t h = 0;
        while (h < c->hosts.size() && c->hosts[h].name != c->host_of(r))
            h++;
        if (h == c->hosts.size())
            c->hosts.push_back({c->host_of(r), {}});
        c->hosts[h].ranks.push_back(r);
    }
}

// Bytes over each edge of the ring of one channel.
void add_ring(count *c, const sim_nccl_call *call, int channel, double bytes)
{
    std::vector<int> order;
    for (const host_ranks &h : c->hosts)
        for (size_t i = 0; i < h.ranks.size(); i++)
            order.push_back(h.ranks[(i + (size_t)channel + 1) % h.ranks.size()]);
    for (size_t i = 0; i < order.size(); i++) {
        const int from = order[i], to = order[(i + 1) % order.size()];
        const bool is_left_out = (call->function == SIM_NCCL_BROADCAST && to == call->root) ||
                                 (call->function == SIM_NCCL_REDUCE && from == call->root);
        if (!is_left_out)
            add_edge(c, from, to, bytes);
    }
}

void add_both_ways(count *c, int a, int b, double bytes)
{
    add_edge(c, a, b, bytes);
    add_edge(c, b, a, bytes);
}

void add_tree(count *c, int channel, double bytes)
{
    const size_t hosts = c->hosts.size();
    for (size_t h = 0; h < hosts; h++) {
        const std::vector<int> &ranks = c->hosts[channel % 2 ? hosts - 1 - h : h].ranks;
        const std::vector<int> &above = c->hosts[channel % 2 ? hosts - 1 - (h - 1) / 2 : (h - 1) / 2].ranks;
        const size_t g = ranks.size(), first = (size_t)channel;
        for (size_t i = 0; i + 1 < g; i++)
            add_both_ways(c, ranks[(first + i) % g], ranks[(first + i + 1) % g], bytes);
        if (h > 0)
            add_both_ways(c, ranks[first % g], above[first % above.size()], bytes);
    }
}

// The host's vectors' parts to the switch, and one's result from it; or one of the two. Each GPU's part goes
// to the network, which reduces it, and comes back.
void add_nvls(count *c, const sim_nccl_call *call, double bytes)
{
    double part = bytes;
    for (const host_ranks &h : c->hosts)
        if (h.name == c->host_of(c->seat->rank))
            part = bytes / (double)h.ranks.size();
    const bool reduces = call->function != SIM_NCCL_ALL_GATHER,
               gathers = call->function != SIM_NCCL_REDUCE_SCATTER;
    c->sent += (reduces ? bytes : 0) + (gathers ? part : 0);
    c->received += (reduces ? part : 0) + (gathers ? bytes : 0);
    if (c->hosts.size() > 1) {
        c->out += part;
        c->in += part;
    }
}

// Bytes over one edge of a ring, of the whole vector.
double of_ring(const sim_nccl_call *call, double bytes, double n)
{
    switch (call->function) {
    case SIM_NCCL_ALL_REDUCE:
        return 2 * (n - 1) / n * bytes;
    case SIM_NCCL_ALL_GATHER:
    case SIM_NCCL_REDUCE_SCATTER:
        return (n - 1) / n * bytes;
    default:
        return bytes;
    }
}

// Adds to the number in a file that other processes count in too.
void add_to_file(const char *path, uint64_t value)
{
    char text[32] = "";
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    flock(file, LOCK_EX);
    if (read(file, text, sizeof text - 1) >= 0) {
        const int length =
            snprintf(text, sizeof text, "%llu\n", (unsigned long long)(strtoull(text, NULL, 10) + value));
        if (pwrite(file, text, (size_t)length, 0) != length)
            fprintf(stderr, "simulated device: cannot write %s\n", path);
    }
    close(file);
}

bool has_port(const char *root, int rail)
{
    char path[600];
    snprintf(path, sizeof path, "%s/class/infiniband/mlx5_%d", root, rail);
    return access(path, F_OK) == 0;
}

void add_network(const count *c)
{
    char path[600];
    const char *root = getenv("PTB_SYSFS");
    if (!root || c->out + c->in <= 0)
        return;
    int rails = 0, rail = c->seat->gpu;
    while (has_port(root, rails))
        rails++;
    rail = rails ? rail % rails : 0;
    if (rail == c->seat->rail_moved[0])
        rail = c->seat->rail_moved[1];
    const char *words[2][2] = {{"tx_bytes", "rx_bytes"}, {"port_xmit_data", "port_rcv_data"}};
    for (int d = 0; d < 2; d++) {
        const double payload = d ? c->in : c->out;
        const double bytes = payload + ceil(payload / packet_bytes) * header_bytes;
        if (rails)
            snprintf(path, sizeof path, "%s/class/infiniband/mlx5_%d/ports/1/counters/%s", root, rail,
                     words[1][d]);
        else
            snprintf(path, sizeof path, "%s/class/net/eth0/statistics/%s", root, words[0][d]);
        add_to_file(path, (uint64_t)(rails ? bytes / 4 : bytes));
    }
}

void settle(count *c)
{
    if (sim_visible(0).instance < 0) // an instance of MIG has shared memory
        sim_link_traffic(c->seat->gpu, (uint64_t)c->sent, (uint64_t)c->received);
    add_network(c);
}
} // namespace

void sim_nccl_count_collective(const sim_nccl_traffic_seat *seat, const sim_nccl_collective *work)
{
    const sim_nccl_call *call = &work->call;
    const bool is_spread = call->function == SIM_NCCL_ALL_GATHER || call->function == SIM_NCCL_REDUCE_SCATTER;
    const double bytes =
        (double)call->count * (double)sim_nccl_type_size(call->type) * (is_spread ? seat->ranks : 1);
    count c = {seat, {}, 0, 0, 0, 0};
    find_hosts(&c);
    if (!strcmp(work->algorithm, "NVLS") || !strcmp(work->algorithm, "SYMMETRIC")) {
        add_nvls(&c, call, bytes);
    } else {
        for (int channel = 0; channel < work->channels; channel++)
            if (!strcmp(work->algorithm, "TREE"))
                add_tree(&c, channel, bytes / work->channels);
            else
                add_ring(&c, call, channel, of_ring(call, bytes, seat->ranks) / work->channels);
    }
    settle(&c);
}

void sim_nccl_count_messages(const sim_nccl_traffic_seat *seat, const sim_nccl_message *list,
                             uint32_t messages)
{
    count c = {seat, {}, 0, 0, 0, 0};
    for (uint32_t i = 0; i < messages; i++) {
        const double bytes = (double)list[i].count * (double)sim_nccl_type_size(list[i].type);
        add_edge(&c, list[i].send ? seat->rank : list[i].peer, list[i].send ? list[i].peer : seat->rank,
                 bytes);
    }
    settle(&c);
}
