// SPDX-License-Identifier: Apache-2.0
/* A test double of NVML (libnvidia-ml.so.1): answers from the text file that NVML_DOUBLE names.
 *
 *   gpu BDF UUID MINOR MIG(0|1) MODEL...    user PID BYTES    slice GI CI UUID
 *   memory BYTES    busy PERCENT    ecc ERRORS    field NUMBER SCOPE VALUE    fabric BYTE CLIQUE
 *   lost
 *
 * Each line belongs to the gpu or slice before it; a cluster's UUID is that byte 16 times. The file
 * is read again whenever devices are counted. Error events are the lines (BDF NUMBER) of a second
 * file, $NVML_DOUBLE.xid, which may be appended at any time. With NVML_DOUBLE=hang, nvmlInit never
 * returns; with crash, it crashes; with refuse, it returns an error. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kGpus = 16, kSlices = 8, kUsers = 20, kFields = 16 };

struct Device {
  char bdf[32], uuid[96], model[96];
  unsigned minor, is_mig, gpu_instance, compute_instance;
  unsigned users, pids[kUsers];
  unsigned long long bytes[kUsers];
  unsigned slices;
  struct Device* slice[kSlices];
  unsigned long long memory, ecc, values[kFields];
  unsigned fields, numbers[kFields], scopes[kFields];
  unsigned cluster, clique, is_lost;
  unsigned is_measured, busy;
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
  } else if (last && sscanf(line, "memory %llu", &last->memory) == 1) {
  } else if (last && sscanf(line, "busy %u", &last->busy) == 1) {
    last->is_measured = 1;
  } else if (last && sscanf(line, "ecc %llu", &last->ecc) == 1) {
  } else if (last && sscanf(line, "fabric %x %u", &last->cluster, &last->clique) == 2) {
  } else if (last && strncmp(line, "lost", 4) == 0) {
    last->is_lost = 1;
  } else if (last && last->fields < kFields &&
             sscanf(line, "field %u %u %llu", &last->numbers[last->fields],
                    &last->scopes[last->fields], &last->values[last->fields]) == 3) {
    ++last->fields;
  } else if (last && sscanf(line, "user %u %llu", &last->pids[last->users],
                            &last->bytes[last->users]) == 2) {
    ++last->users;
  }
}

static void forget(void) {
  for (unsigned i = 0; i < gpu_count; ++i)
    while (gpus[i].slices > 0) free(gpus[i].slice[--gpus[i].slices]);
  gpu_count = 0;
}

static int load(const char* name) {
  FILE* file = fopen(name, "r");
  if (!file) return 999;
  char line[512];
  forget();
  while (fgets(line, sizeof line, file)) take_line(line);
  fclose(file);
  return 0;
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
  return load(name);
}

int nvmlShutdown(void) {
  forget();
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
  load(getenv("NVML_DOUBLE"));
  *count = gpu_count;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (index >= gpu_count) return 2;
  if (gpus[index].is_lost) return 15;
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

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, unsigned long long* total_free_used) {
  total_free_used[0] = 80ull << 30;
  total_free_used[1] = (80ull << 30) - device->memory;
  total_free_used[2] = device->memory;
  return 0;
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned* gpu_memory) {
  if (!device->is_measured) return 3; /* not supported */
  gpu_memory[0] = device->busy;
  gpu_memory[1] = 0;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
                                unsigned long long* errors) {
  if (type != 1 || counter != 0) return 3; /* not supported */
  *errors = device->ecc;
  return 0;
}

typedef struct {
  unsigned field, scope;
  long long at, latency;
  int type, status;
  unsigned long long value;
} FieldValue;
int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, FieldValue* values) {
  for (int i = 0; i < count; ++i) {
    values[i].status = 3; /* not supported */
    for (unsigned k = 0; k < device->fields; ++k) {
      if (device->numbers[k] != values[i].field || device->scopes[k] != values[i].scope) continue;
      values[i].status = 0;
      values[i].type = 3; /* unsigned long long */
      values[i].value = device->values[k];
    }
  }
  return 0;
}

typedef struct {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
  unsigned health;
} FabricInfo;
int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, FabricInfo* info) {
  if (info->version != (sizeof *info | 2u << 24)) return 25; /* version */
  memset(info->cluster, (int)device->cluster, sizeof info->cluster);
  info->clique = device->clique;
  info->status = 0;
  info->state = device->cluster ? 3 : 0;
  return 0;
}

typedef struct {
  nvmlDevice_t device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} EventData;
int nvmlEventSetCreate(void** set) {
  *set = gpus;
  return 0;
}
int nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, void* set) {
  return device && types == 8 && set == gpus ? 0 : 2;
}
int nvmlEventSetWait_v2(void* set, EventData* event, unsigned milliseconds) {
  static unsigned reported;
  if (set != gpus) return 2;
  char name[512], line[128], bdf[32];
  snprintf(name, sizeof name, "%s.xid", getenv("NVML_DOUBLE"));
  for (unsigned waited = 0; waited < milliseconds; waited += 20, usleep(20000)) {
    FILE* file = fopen(name, "r");
    if (!file) continue;
    unsigned number = 0, lines = 0;
    while (lines <= reported && fgets(line, sizeof line, file)) ++lines;
    fclose(file);
    if (lines <= reported || sscanf(line, "%31s %u", bdf, &number) != 2) continue;
    ++reported;
    for (unsigned i = 0; i < gpu_count; ++i)
      if (strcmp(gpus[i].bdf, bdf) == 0) event->device = &gpus[i];
    event->type = 8;
    event->data = number;
    return 0;
  }
  return 10; /* timeout */
}
