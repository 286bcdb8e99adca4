/* Stands in for libnvidia-ml.so.1: eight cards in the middle of a training, whose values wander from call to call. */
#include <string.h>

#define CARDS 8
#define MIB (1024ULL * 1024ULL)

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } use_t;

static unsigned long long state = 0x9E3779B97F4A7C15ULL;
static double watts[CARDS], heat[CARDS], used[CARDS];

static double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static int card(const void *handle) { return (int)((unsigned long)handle - 1); }

int nvmlInit_v2(void) {
    for (int i = 0; i < CARDS; i++) {
        watts[i] = 520 + 40 * uniform();
        heat[i] = 62 + 8 * uniform();
        used[i] = 81000 + 400 * uniform();
    }
    return 0;
}

int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = CARDS; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= CARDS) return 2;
    *handle = (void *)(unsigned long)(index + 1);
    return 0;
}

int nvmlDeviceGetName(const void *handle, char *name, unsigned length) {
    (void)handle;
    strncpy(name, "NVIDIA RTX PRO 6000 Blackwell Server Edition", length);
    return 0;
}

/* Milliwatts never repeat on a card at work; degrees do for seconds, memory moves when the allocator grows or trims. */
int nvmlDeviceGetPowerUsage(const void *handle, unsigned *milliwatts) {
    double *at = &watts[card(handle)];
    *at += (555 - *at) * 0.2 + 30 * (uniform() - 0.5);
    *milliwatts = (unsigned)(*at * 1000);
    return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(const void *handle, unsigned *milliwatts) {
    (void)handle;
    *milliwatts = 600000;
    return 0;
}

int nvmlDeviceGetTemperature(const void *handle, unsigned sensor, unsigned *degrees) {
    (void)sensor;
    double *at = &heat[card(handle)];
    *at += (67 - *at) * 0.02 + 0.6 * (uniform() - 0.5);
    *degrees = (unsigned)*at;
    return 0;
}

int nvmlDeviceGetUtilizationRates(const void *handle, use_t *use) {
    (void)handle;
    use->gpu = uniform() < 0.9 ? 96 + (unsigned)(5 * uniform()) : 60 + (unsigned)(36 * uniform());
    use->memory = use->gpu / 2;
    return 0;
}

int nvmlDeviceGetMemoryInfo(const void *handle, memory_t *memory) {
    double *at = &used[card(handle)];
    if (uniform() < 0.1) *at += 128 * (uniform() - 0.5);
    memory->total = 97887 * MIB;
    memory->used = (unsigned long long)*at * MIB;
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(const void *handle, memory_v2_t *memory) {
    memory_t one;
    nvmlDeviceGetMemoryInfo(handle, &one);
    memory->total = one.total;
    memory->reserved = 615 * MIB;
    memory->used = one.used;
    memory->free = one.free - memory->reserved;
    return 0;
}

static int nobody(unsigned *count) { *count = 0; return 0; }

int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count, void *found) {
    (void)handle, (void)found;
    return nobody(count);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle, unsigned *count, void *found) {
    (void)handle, (void)found;
    return nobody(count);
}
