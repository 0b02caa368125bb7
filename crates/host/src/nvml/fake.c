// Fake libnvidia-ml that answers according to a script. The script's file name is the library's name with .script
// appended. Initialisations and shutdowns are recorded in a .log file. See testing.rs for the script's format.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Values of a figure, one per call. The last value is repeated, and a negative value is an error code.
typedef struct {
    long long value[64];
    int count, next;
} Series;

typedef struct Device {
    char name[96], uuid[96];
    Series capability, total, used, utilisation, power, clock, energy, handle, mig, mode, persistence, pstate, most_sm, most_memory, bus,
        throttling, received, sent, stalls;
    int instances;
    struct Device *parts[8];
} Device;

static Device devices[32];
static int all_devices, cards[32], card_count, running;
static int init_error, count_error, cuda;
static char driver[80], script[4096], log_file[4096];

static void note(const char *what) {
    FILE *file = fopen(log_file, "a");
    if (file) {
        fprintf(file, "%s\n", what);
        fclose(file);
    }
}

static void series(Series *into, const char *text) {
    char *end;
    for (into->count = into->next = 0; into->count < 64; into->count++) {
        long long value = strtoll(text, &end, 10);
        if (end == text) break;
        into->value[into->count] = value;
        text = end;
    }
}

static int take(Series *from, long long *value) {
    if (!running) return 1;
    if (from->count == 0) return 3;
    int at = __atomic_fetch_add(&from->next, 1, __ATOMIC_RELAXED);
    *value = from->value[at < from->count ? at : from->count - 1];
    return *value < 0 ? (int)-*value : 0;
}

static void read_script(void) {
    Dl_info self;
    memset(devices, 0, sizeof devices);
    all_devices = card_count = init_error = count_error = 0;
    cuda = 12080;
    strcpy(driver, "570.133.07");
    if (!dladdr((void *)read_script, &self)) return;
    snprintf(script, sizeof script, "%s.script", self.dli_fname);
    snprintf(log_file, sizeof log_file, "%s.log", self.dli_fname);
    FILE *file = fopen(script, "r");
    if (!file) return;
    char line[1024];
    Device *device = NULL, *card = NULL;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *word = line + strspn(line, " "), *rest = strchr(word, ' ');
        if (rest) *rest++ = 0;
        else rest = word + strlen(word);
        if (!strcmp(word, "init")) init_error = atoi(rest);
        else if (!strcmp(word, "count")) count_error = atoi(rest);
        else if (!strcmp(word, "hang")) sleep(atoi(rest));
        else if (!strcmp(word, "cuda")) cuda = atoi(rest);
        else if (!strcmp(word, "driver")) snprintf(driver, sizeof driver, "%s", rest);
        else if (!strcmp(word, "device")) {
            device = card = &devices[all_devices];
            cards[card_count++] = all_devices++;
        } else if (!strcmp(word, "instance") && card) {
            device = &devices[all_devices++];
            card->parts[card->instances++] = device;
        } else if (!device) continue;
        else if (!strcmp(word, "name")) snprintf(device->name, sizeof device->name, "%s", rest);
        else if (!strcmp(word, "uuid")) snprintf(device->uuid, sizeof device->uuid, "%s", rest);
        else if (!strcmp(word, "capability")) series(&device->capability, rest);
        else if (!strcmp(word, "total")) series(&device->total, rest);
        else if (!strcmp(word, "used")) series(&device->used, rest);
        else if (!strcmp(word, "utilisation")) series(&device->utilisation, rest);
        else if (!strcmp(word, "milliwatts")) series(&device->power, rest);
        else if (!strcmp(word, "mhz")) series(&device->clock, rest);
        else if (!strcmp(word, "millijoules")) series(&device->energy, rest);
        else if (!strcmp(word, "throttling")) series(&device->throttling, rest);
        else if (!strcmp(word, "pcie-received")) series(&device->received, rest);
        else if (!strcmp(word, "pcie-sent")) series(&device->sent, rest);
        else if (!strcmp(word, "handle")) series(&device->handle, rest);
        else if (!strcmp(word, "most-sm-mhz")) series(&device->most_sm, rest);
        else if (!strcmp(word, "most-memory-mhz")) series(&device->most_memory, rest);
        else if (!strcmp(word, "bus-bits")) series(&device->bus, rest);
        else if (!strcmp(word, "mig")) series(&device->mig, rest);
        else if (!strcmp(word, "mode")) series(&device->mode, rest);
        else if (!strcmp(word, "persistence")) series(&device->persistence, rest);
        else if (!strcmp(word, "pstate")) series(&device->pstate, rest);
        else if (!strcmp(word, "stalls")) series(&device->stalls, rest);
    }
    fclose(file);
}

int nvmlInit_v2(void) {
    if (!running) read_script();
    if (init_error) return init_error;
    running++;
    note("init");
    return 0;
}

int nvmlShutdown(void) {
    if (!running) return 1;
    running--;
    note("shutdown");
    return 0;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static int text(const char *from, char *room, unsigned size) {
    if (!running) return 1;
    if (!*from) return 3;
    if (strlen(from) >= size) return 7;
    strcpy(room, from);
    return 0;
}

int nvmlSystemGetDriverVersion(char *room, unsigned size) { return text(driver, room, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!running) return 1;
    *version = cuda;
    return cuda ? 0 : 13;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = card_count;
    return running ? count_error : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index >= (unsigned)card_count) return 2;
    *device = &devices[cards[index]];
    long long ignored;
    return (*device)->handle.count ? take(&(*device)->handle, &ignored) : 0;
}

int nvmlDeviceGetName(Device *device, char *room, unsigned size) { return text(device->name, room, size); }
int nvmlDeviceGetUUID(Device *device, char *room, unsigned size) { return text(device->uuid, room, size); }

// Two numbers, as in `capability 9 0`: reads both without consuming them.
int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    if (!device->capability.count) return 3;
    if (device->capability.value[0] < 0) return (int)-device->capability.value[0];
    *major = (int)device->capability.value[0];
    *minor = (int)device->capability.value[1];
    return 0;
}

// Struct nvmlMemory_t. Sizes in the script are in MiB.
int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long memory[3]) {
    long long total, used = 0;
    int error = take(&device->total, &total);
    if (!error && device->used.count) error = take(&device->used, &used);
    if (error) return error;
    memory[0] = (unsigned long long)total << 20;
    memory[2] = (unsigned long long)used << 20;
    memory[1] = memory[0] - memory[2];
    return 0;
}

static int number(Series *from, unsigned *into) {
    long long value;
    int error = take(from, &value);
    if (!error) *into = (unsigned)value;
    return error;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned rates[2]) {
    long long seconds;
    if (device->stalls.count && !take(&device->stalls, &seconds)) sleep((unsigned)seconds);
    rates[1] = 0;
    return number(&device->utilisation, rates);
}
int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) { return number(&device->power, milliwatts); }
int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *mhz) {
    return type == 1 ? number(&device->clock, mhz) : 2;
}
int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *mhz) {
    return type == 1 ? number(&device->most_sm, mhz) : type == 2 ? number(&device->most_memory, mhz) : 2;
}
int nvmlDeviceGetMemoryBusWidth(Device *device, unsigned *bits) { return number(&device->bus, bits); }
static int longer(Series *from, unsigned long long *into) {
    long long value;
    int error = take(from, &value);
    if (!error) *into = (unsigned long long)value;
    return error;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    return longer(&device->energy, millijoules);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) {
    return longer(&device->throttling, bits);
}
// Returns immediately; a real driver takes 20 ms.
int nvmlDeviceGetPcieThroughput(Device *device, int direction, unsigned *kilobytes) {
    return number(direction == 0 ? &device->sent : &device->received, kilobytes);
}
int nvmlDeviceGetMigMode(Device *device, unsigned *now, unsigned *after) {
    int error = number(&device->mig, now);
    *after = *now;
    return error;
}
int nvmlDeviceGetComputeMode(Device *device, unsigned *mode) { return number(&device->mode, mode); }
int nvmlDeviceGetPersistenceMode(Device *device, unsigned *mode) { return number(&device->persistence, mode); }
int nvmlDeviceGetPerformanceState(Device *device, unsigned *state) { return number(&device->pstate, state); }
int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    (void)device;
    *count = 7;
    return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **part) {
    if (index >= (unsigned)device->instances) return 6;
    *part = device->parts[index];
    return 0;
}
