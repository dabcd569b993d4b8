// SPDX-License-Identifier: Apache-2.0
// The part of NVML's binary interface that is used (versioned symbols, stable since R470), and the
// library itself, loaded at run time. Thread: any; NVML may be called from several at the same
// time.
#pragma once

#include <string>

namespace ivy::nvml {

using Status = int;
inline constexpr Status kSuccess = 0;
inline constexpr Status kInsufficientSize = 7;
inline constexpr Status kTimeout = 10;
inline constexpr Status kGpuIsLost = 15;
inline constexpr unsigned long long kNotAvailable = ~0ULL;
inline constexpr unsigned kMaxDevices = 64;
inline constexpr unsigned kTextBytes = 96;

struct DeviceTag;
using Device = DeviceTag*;
struct EventSetTag;
using EventSet = EventSetTag*;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};

struct ProcessInfo {  // Layout of nvmlDeviceGetComputeRunningProcesses_v2 and _v3.
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct Utilization {  // In percent over the last sample, which covers 1/6 to 1 s.
  unsigned gpu;
  unsigned memory;
};

struct FabricInfo {  // Layout of version 2, for drivers from R545 on.
  unsigned version;
  unsigned char cluster[16];
  Status status;
  unsigned clique;
  unsigned char state;
  unsigned health;
};
inline constexpr unsigned kFabricInfo2 = sizeof(FabricInfo) | (2u << 24);
inline constexpr unsigned char kFabricCompleted = 3;

union FieldNumber {
  double real;
  unsigned number;
  unsigned long long large;
  unsigned short small;
};
struct FieldValue {
  unsigned field;
  unsigned scope;
  long long at_us;
  long long latency_us;
  int type;
  Status status;
  FieldNumber value;
};
enum FieldType { kReal, kUnsigned, kUnsignedLong, kUnsignedLarge, kSignedLarge, kSigned, kShort };

struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;
  unsigned gpu_instance;
  unsigned compute_instance;
};
inline constexpr unsigned long long kXidEvent = 0x8;

// The NVML library and the functions that every query needs.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Returns why NVML could not be loaded or lacks a required function; empty if it can be used.
  const std::string& error() const { return error_; }
  std::string text_of(Status status) const;
  // Leaves `function` null if the driver is too old to have the symbol.
  template <class Function>
  void load_optional(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address_of(symbol));
  }

  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*by_index)(unsigned, Device*) = nullptr;
  Status (*uuid)(Device, char*, unsigned) = nullptr;
  Status (*pci_info)(Device, PciInfo*) = nullptr;
  // Null if the driver is too old.
  const char* (*error_string)(Status) = nullptr;
  Status (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;
  Status (*memory)(Device, Memory*) = nullptr;
  // MIG instances; drivers before R450 lack these functions.
  Status (*mig_mode)(Device, unsigned* current, unsigned* pending) = nullptr;
  Status (*max_slices)(Device, unsigned*) = nullptr;
  Status (*slice_by_index)(Device, unsigned, Device*) = nullptr;

 private:
  void* address_of(const char* symbol) const;
  template <class Function>
  void load(Function& function, const char* symbol) {
    load_optional(function, symbol);
    if (function == nullptr && error_.empty())
      error_ = std::string("libnvidia-ml.so.1 has no ") + symbol;
  }

  void* handle_;
  std::string error_;
};

// Returns a text property of the device; empty if NVML has none.
std::string device_text(Status (*get)(Device, char*, unsigned), Device device);
// Returns its PCI address in the kernel's format; empty if unknown.
std::string device_bdf(const Library& library, Device device);

}  // namespace ivy::nvml
