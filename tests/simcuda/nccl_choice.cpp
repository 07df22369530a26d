// Which algorithm and protocol the simulated NCCL says that it runs: NCCL_ALGO and NCCL_PROTO are read when a
// communicator is made, "word,word" or "function:word,word;function:^word" as the real one reads them
// (src/graph/tuning.cc, parseList).
#include "tests/simcuda/nccl.hpp"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <algorithm>

namespace {
const char *const function_names[SIM_NCCL_FUNCTIONS] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                                        "AllReduce"};
enum { TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT };
enum { LL, LL128, SIMPLE };
const char *const algorithm_words[SIM_NCCL_ALGORITHMS] = {
    "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
const char *const algorithm_names[SIM_NCCL_ALGORITHMS] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
const char *const protocol_words[SIM_NCCL_PROTOCOLS] = {"LL", "LL128", "Simple"};
const char *const protocol_names[SIM_NCCL_PROTOCOLS] = {"LL", "LL128", "SIMPLE"};

std::vector<std::string> split(const std::string &text, char at)
{
    std::vector<std::string> pieces;
    for (size_t from = 0; from <= text.size();) {
        size_t to = text.find(at, from);
        to = to == std::string::npos ? text.size() : to;
        if (to > from)
            pieces.push_back(text.substr(from, to - from));
        from = to + 1;
    }
    return pieces;
}

// One entry for all functions or for the one that is named.
bool read_entry(const std::string &entry, const char *const *words, int count, bool *list, bool *forced,
                std::string *why)
{
    const size_t colon = entry.find(':');
    const std::string prefix = colon == std::string::npos ? "" : entry.substr(0, colon);
    std::string rest = colon == std::string::npos ? entry : entry.substr(colon + 1);
    const bool set = rest.empty() || rest[0] != '^';
    bool found = false;
    if (!set)
        rest.erase(0, 1);
    for (int f = 0; f < SIM_NCCL_FUNCTIONS; f++) {
        if (!prefix.empty() && strcasecmp(prefix.c_str(), function_names[f]))
            continue;
        found = true;
        forced[f] = true;
        for (int w = 0; w < count; w++)
            list[f * count + w] = !set;
        for (const std::string &word : split(rest, ',')) {
            int w = 0;
            while (w < count && strcasecmp(word.c_str(), words[w]))
                w++;
            if (w == count) {
                *why = "Unrecognized element token \"" + word + "\" when parsing \"" + entry + "\"";
                return false;
            }
            list[f * count + w] = set;
        }
    }
    if (!found)
        *why = "Unrecognized prefix token \"" + prefix + "\" when parsing \"" + entry + "\"";
    return found;
}

// Before 2.24: one list for all functions, words that are not known count for nothing, and where nothing but
// CollNet or PAT is left, which no machine of ours has, so do all of them.
void read_plain(const char *text, const char *const *words, int count, bool *list)
{
    for (const std::string &word : split(text, ','))
        for (int w = 0; w < count; w++)
            if (!strcasecmp(word.c_str(), words[w]) &&
                (w != PAT || sim_nccl_version() >= NCCL_VERSION(2, 23, 0)))
                list[w] = true;
    if (count == SIM_NCCL_ALGORITHMS && !list[RING] && !list[TREE] && !list[NVLS] && !list[NVLS_TREE])
        list[RING] = list[TREE] = true;
    for (int i = count; i < SIM_NCCL_FUNCTIONS * count; i++)
        list[i] = list[i % count];
}

bool read_list(const char *variable, const char *const *words, int count, bool *list, bool *forced,
               std::string *why)
{
    const char *text = getenv(variable);
    for (int i = 0; i < SIM_NCCL_FUNCTIONS * count; i++)
        list[i] = true;
    if (!text)
        return true;
    if (sim_nccl_version() < NCCL_VERSION(2, 24, 0)) {
        std::fill(list, list + SIM_NCCL_FUNCTIONS * count, false);
        std::fill(forced, forced + SIM_NCCL_FUNCTIONS, true);
        read_plain(text, words, count, list);
        return true;
    }
    for (const std::string &entry : split(text, ';'))
        if (!read_entry(entry, words, count, list, forced, why))
            return false;
    return true;
}

// What the real one has kernels for (src/device/generate.py).
bool exists(int function, int algorithm)
{
    switch (algorithm) {
    case RING:
        return true;
    case COLLNET_DIRECT:
        return function == SIM_NCCL_ALL_REDUCE ||
               (function >= SIM_NCCL_ALL_GATHER && sim_nccl_version() >= NCCL_VERSION(2, 20, 0));
    case NVLS:
        return function >= SIM_NCCL_ALL_GATHER;
    case PAT:
        return function == SIM_NCCL_ALL_GATHER || function == SIM_NCCL_REDUCE_SCATTER;
    default:
        return function == SIM_NCCL_ALL_REDUCE;
    }
}

// Multicast in the switch adds, and finds extremes of integers and 16-bit floats.
bool nvls_can(const sim_nccl_call *call)
{
    const bool wide_float = call->type == ncclFloat32 || call->type == ncclFloat64;
    if (call->function == SIM_NCCL_ALL_GATHER)
        return true;
    if (call->type == ncclInt8 || call->type == ncclUint8 || call->op == ncclProd)
        return false;
    return call->op == ncclSum || call->op == ncclAvg || !wide_float;
}

// What a forced algorithm that this machine lacks becomes.
int replacement(int algorithm)
{
    if (sim_option("nccl_replace") > 0)
        return RING;
    switch (algorithm) {
    case NVLS_TREE:
        return NVLS;
    case COLLNET_DIRECT:
    case COLLNET_CHAIN:
    case PAT:
        return RING;
    default:
        return algorithm;
    }
}

int choose_algorithm(const ncclComm *comm, const sim_nccl_call *call, uint64_t bytes)
{
    const int f = call->function;
    const bool *enabled = comm->choice.algorithm[f];
    if (!comm->choice.forced_algorithm[f])
        return f == SIM_NCCL_ALL_REDUCE && bytes < (64 << 10) && comm->ranks > 2 ? TREE : RING;
    const int order[] = {RING, TREE, NVLS, NVLS_TREE, COLLNET_DIRECT, COLLNET_CHAIN, PAT};
    for (int algorithm : order) {
        const bool multicast = algorithm == NVLS || algorithm == NVLS_TREE;
        if (enabled[algorithm] && exists(f, algorithm) && (!multicast || nvls_can(call)))
            return replacement(algorithm);
    }
    return -1;
}

int choose_protocol(const ncclComm *comm, const sim_nccl_call *call, int algorithm, uint64_t bytes)
{
    const bool *enabled = comm->choice.protocol[call->function];
    if (algorithm != RING && algorithm != TREE)
        return enabled[SIMPLE] ? SIMPLE : -1;
    const int wanted = bytes < (16 << 10) ? LL : bytes < (1 << 20) ? LL128 : SIMPLE;
    if (enabled[wanted])
        return wanted;
    for (int p = 0; p < SIM_NCCL_PROTOCOLS; p++)
        if (enabled[p])
            return p;
    return -1;
}
} // namespace

const char *sim_nccl_function_name(int function)
{
    static const char *const rest[] = {"Send", "Recv", "AlltoAll", "Gather", "Scatter"};
    return function < SIM_NCCL_FUNCTIONS ? function_names[function] : rest[function - SIM_NCCL_FUNCTIONS];
}

bool sim_nccl_read_choice(sim_nccl_choice *choice, std::string *why)
{
    *choice = {};
    return read_list("NCCL_ALGO", algorithm_words, SIM_NCCL_ALGORITHMS, &choice->algorithm[0][0],
                     choice->forced_algorithm, why) &&
           read_list("NCCL_PROTO", protocol_words, SIM_NCCL_PROTOCOLS, &choice->protocol[0][0],
                     choice->forced_protocol, why);
}

ncclResult_t sim_nccl_choose(ncclComm *comm, const sim_nccl_call *call, sim_nccl_run *run)
{
    const uint64_t bytes = call->count * sim_nccl_type_size(call->type);
    const int algorithm = choose_algorithm(comm, call, bytes);
    const int protocol = algorithm < 0 ? -1 : choose_protocol(comm, call, algorithm, bytes);
    if ((algorithm < 0 || protocol < 0) && sim_nccl_version() < NCCL_VERSION(2, 24, 0))
        return sim_nccl_refuse(comm, ncclInternalError, "Error : no algorithm/protocol available");
    if (algorithm < 0 || protocol < 0)
        return sim_nccl_refuse(comm, ncclInvalidUsage,
                               std::string("Error : no algorithm/protocol available for function ") +
                                   sim_nccl_function_name(call->function) + " with datatype " +
                                   sim_nccl_type_name(call->type) + ". NCCL_ALGO or NCCL_PROTO was set.");
    int channels = (int)(bytes >> 16) + 1;
    channels = channels > 16 ? 16 : channels;
    channels = channels > comm->channels_max ? comm->channels_max : channels;
    channels = channels < comm->channels_min ? comm->channels_min : channels;
    *run = {algorithm_names[algorithm], protocol_names[protocol], channels, false};
    return ncclSuccess;
}
