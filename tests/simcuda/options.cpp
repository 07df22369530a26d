// The settings of the simulated device (PTB_SIM), and which GPUs the machine has.
#include "tests/simcuda/shared.hpp"

#include <map>
#include <sstream>
#include <vector>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *find(const char *name)
{
    const char *at = getenv("PTB_SIM");
    const size_t length = strlen(name);
    while (at && *at) {
        if (!strncmp(at, name, length) && at[length] == '=')
            return at + length + 1;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    return NULL;
}

long sim_option(const char *name)
{
    const char *value = find(name);
    return value ? strtol(value, NULL, 0) : -1;
}

bool sim_option_text(const char *name, char *text, size_t bytes)
{
    const char *value = find(name);
    if (!value)
        return false;
    snprintf(text, bytes, "%.*s", (int)strcspn(value, ","), value);
    return true;
}

// Whether this process has the faults.
static bool is_chosen_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    const long wanted = sim_option("rank");
    if (wanted < 0)
        return true;
    for (const char *name : names) {
        const char *rank = getenv(name);
        if (rank)
            return strtol(rank, NULL, 10) == wanted;
    }
    return wanted == 0;
}

uint64_t sim_fault(const char *option)
{
    const long wanted = sim_option(option);
    return wanted > 0 && is_chosen_rank() ? (uint64_t)wanted : 0;
}

int sim_machine_devices(void)
{
    const long count = sim_option("devices");
    return count >= 0 && count <= 64 ? (int)count : 8;
}

void sim_uuid(int machine_device, unsigned char uuid[16])
{
    memset(uuid, 0, 16);
    memcpy(uuid, "simulated", 9);
    uuid[15] = (unsigned char)machine_device;
}

void sim_pci_bus_id(int machine_device, char text[16])
{
    snprintf(text, 16, "0000:%02x:00.0", (0x18 + machine_device * 0x11) & 0xff);
}

// ---- the machine file

namespace {
// "key = value" of the file.
const std::map<std::string, std::string> &machine()
{
    static const std::map<std::string, std::string> values = [] {
        std::map<std::string, std::string> found;
        char path[512], line[512], key[64], value[256];
        if (!sim_option_text("machine", path, sizeof path))
            return found;
        FILE *file = fopen(path, "r");
        if (!file) {
            fprintf(stderr, "simulated device: PTB_SIM names the machine %s, which cannot be read\n", path);
            exit(2);
        }
        while (fgets(line, sizeof line, file))
            if (sscanf(line, " %63[a-z_0-9.] = %255[^\n]", key, value) == 2)
                found[key] = value;
        fclose(file);
        return found;
    }();
    return values;
}
} // namespace

std::string sim_machine_text(unsigned gpu, const char *key, const char *otherwise)
{
    const std::string own = "gpu" + std::to_string(gpu) + "." + key;
    for (const std::string &name : {own, std::string(key)}) {
        auto found = machine().find(name);
        if (found != machine().end())
            return found->second;
    }
    return otherwise;
}

// ---- instances of MIG

namespace {
// "1g.10gb": the number-th word of "mig"; "" where there are not so many, or it says only whether MIG is on.
std::string size_of(int gpu, int number)
{
    std::istringstream words(sim_machine_text((unsigned)gpu, "mig", "0"));
    std::string word;
    for (int i = 0; i <= number; i++)
        if (!(words >> word) || word.find('g') == std::string::npos)
            return "";
    return word;
}
} // namespace

int sim_instances(int gpu)
{
    int count = 0;
    while (!size_of(gpu, count).empty())
        count++;
    return count;
}

std::string sim_instance_name(int gpu, int instance)
{
    const std::string name = "simulated " + sim_machine_text((unsigned)gpu, "name", "GPU");
    return instance < 0 ? name : name + " MIG " + size_of(gpu, instance);
}

uint64_t sim_instance_bytes(int gpu, int instance)
{
    const std::string size = size_of(gpu, instance);
    return strtoull(size.c_str() + size.find('.') + 1, NULL, 10) << 30;
}

std::string sim_uuid_text(int gpu, int instance)
{
    unsigned char uuid[16];
    std::string text = instance < 0 ? "GPU-" : "MIG-";
    sim_uuid(gpu, uuid);
    uuid[14] = (unsigned char)(instance + 1);
    for (int b = 0; b < 16; b++) {
        char digits[8];
        snprintf(digits, sizeof digits, "%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", uuid[b]);
        text += digits;
    }
    return text;
}

// ---- what CUDA shows

namespace {
bool is_cut(int gpu)
{
    return sim_machine_text((unsigned)gpu, "mig", "0") != "0";
}

// An entry of the list: a number, or the whole text of a UUID (the devices differ in their last digits only:
// a prefix is not enough to tell them apart). gpu -1: it names nothing.
sim_shown find(const std::string &entry)
{
    for (int gpu = 0; gpu < sim_machine_devices(); gpu++) {
        for (int i = 0; i < sim_instances(gpu); i++)
            if (entry == sim_uuid_text(gpu, i))
                return {gpu, i};
        // Of a GPU that is cut its first instance is shown, if there is one.
        if (entry == sim_uuid_text(gpu, -1) || entry == std::to_string(gpu))
            return is_cut(gpu) ? sim_shown{sim_instances(gpu) ? gpu : -1, 0} : sim_shown{gpu, -1};
    }
    return {-1, -1};
}

// All that are shown; as CUDA: no further one beside an instance, and none beyond the first entry that names
// none.
std::vector<sim_shown> shown()
{
    std::vector<sim_shown> all;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    std::istringstream entries(visible ? visible : "");
    std::string entry;
    while (visible && std::getline(entries, entry, ',')) {
        const sim_shown one = find(entry);
        if (one.gpu < 0 || (one.instance >= 0 && !all.empty()))
            return all;
        all.push_back(one);
        if (one.instance >= 0)
            return all;
    }
    for (int gpu = 0; !visible && gpu < sim_machine_devices(); gpu++) {
        if (sim_instances(gpu))
            return {{gpu, 0}};
        if (!is_cut(gpu))
            all.push_back({gpu, -1});
    }
    return all;
}
} // namespace

// CUDA, too, reads the variable once.
static std::vector<sim_shown> &read_once()
{
    static std::vector<sim_shown> all = shown();
    return all;
}

void sim_look_again(void)
{
    read_once() = shown();
}

sim_shown sim_visible(int index)
{
    const std::vector<sim_shown> &all = read_once();
    return index < (int)all.size() ? all[(size_t)index] : sim_shown{-1, -1};
}

int sim_visible_device(int index)
{
    return sim_visible(index).gpu;
}

uint64_t sim_gpu_bytes(void)
{
    static const long mib = sim_option("memory");
    return (uint64_t)(mib > 0 ? mib : 16384) << 20;
}

uint64_t sim_visible_bytes(int index)
{
    const sim_shown one = sim_visible(index);
    return one.instance >= 0 ? sim_instance_bytes(one.gpu, one.instance) : sim_gpu_bytes();
}
