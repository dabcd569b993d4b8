/* A test double of NVML (libnvidia-ml.so.1): answers from the text file that NVML_DOUBLE names.
 *
 *   gpu BDF UUID MINOR MIG(0|1) MODEL...    user PID BYTES    slice GI CI UUID
 *
 * "user" and "slice" belong to the gpu, or to the slice, before them. NVML_DOUBLE=hang: nvmlInit
 * never returns; =crash: it dies; =refuse: it reports an error. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kGpus = 16, kSlices = 8, kUsers = 20 };

struct Device {
  char bdf[32], uuid[96], model[96];
  unsigned minor, is_mig, gpu_instance, compute_instance;
  unsigned users, pids[kUsers];
  unsigned long long bytes[kUsers];
  unsigned slices;
  struct Device* slice[kSlices];
};
typedef struct Device* nvmlDevice_t;

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bdf[32];
} PciInfo;
typedef struct {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
} ProcessInfo;

static struct Device gpus[kGpus];
static unsigned gpu_count;

static void take_line(const char* line) {
  static struct Device* last;
  struct Device* gpu = gpu_count > 0 ? &gpus[gpu_count - 1] : NULL;
  struct Device next;
  memset(&next, 0, sizeof next);
  if (sscanf(line, "gpu %31s %95s %u %u %95[^\n]", next.bdf, next.uuid, &next.minor, &next.is_mig,
             next.model) == 5) {
    if (gpu_count == kGpus) abort();
    gpus[gpu_count] = next;
    last = &gpus[gpu_count++];
  } else if (gpu && sscanf(line, "slice %u %u %95s", &next.gpu_instance, &next.compute_instance,
                           next.uuid) == 3) {
    last = gpu->slice[gpu->slices++] = malloc(sizeof next);
    *last = next;
  } else if (last && sscanf(line, "user %u %llu", &last->pids[last->users],
                            &last->bytes[last->users]) == 2) {
    ++last->users;
  }
}

int nvmlInit_v2(void) {
  const char* name = getenv("NVML_DOUBLE");
  if (!name) return 9; /* driver not loaded */
  if (strcmp(name, "refuse") == 0) return 18;
  if (strcmp(name, "crash") == 0) raise(SIGSEGV);
  if (strcmp(name, "hang") == 0) {
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }
  FILE* file = fopen(name, "r");
  if (!file) return 999;
  char line[512];
  gpu_count = 0;
  while (fgets(line, sizeof line, file)) take_line(line);
  fclose(file);
  return 0;
}

int nvmlShutdown(void) {
  for (unsigned i = 0; i < gpu_count; ++i)
    while (gpus[i].slices > 0) free(gpus[i].slice[--gpus[i].slices]);
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 18 ? "Driver/library version mismatch" : "Driver Not Loaded";
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  snprintf(text, size, "535.104.05");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = gpu_count;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (index >= gpu_count) return 2;
  *device = &gpus[index];
  return 0;
}
int nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned size) {
  snprintf(text, size, "%s", device->uuid);
  return 0;
}
int nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned size) {
  snprintf(text, size, "%s", device->model);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, PciInfo* info) {
  memset(info, 0, sizeof *info);
  snprintf(info->bdf, sizeof info->bdf, "0000%s", device->bdf); /* Eight digits of domain. */
  return 0;
}
int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned* minor) {
  *minor = device->minor;
  return 0;
}
int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned* current, unsigned* pending) {
  *current = *pending = device->is_mig;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned* count) {
  *count = device->is_mig ? 7 : 0;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t* slice) {
  if (index >= device->slices) return 6; /* not found */
  *slice = device->slice[index];
  return 0;
}
int nvmlDeviceGetGpuInstanceId(nvmlDevice_t slice, unsigned* number) {
  *number = slice->gpu_instance;
  return 0;
}
int nvmlDeviceGetComputeInstanceId(nvmlDevice_t slice, unsigned* number) {
  *number = slice->compute_instance;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                            ProcessInfo* infos) {
  const unsigned room = *count;
  *count = device->users;
  if (device->users > room) return 7; /* insufficient size */
  for (unsigned i = 0; i < device->users; ++i)
    infos[i] = (ProcessInfo){device->pids[i], device->bytes[i], 0, 0};
  return 0;
}
