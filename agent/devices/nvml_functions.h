// SPDX-License-Identifier: Apache-2.0
// NVML's binary interface, as far as it is used: versioned symbols, stable since R470; and the
// library that is found at run time. Thread: any; NVML itself may be called from several.
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

struct ProcessInfo {  // As nvmlDeviceGetComputeRunningProcesses_v2 and _v3 have it.
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

struct Utilization {  // In percent of the last sample, between 1/6 and 1 s.
  unsigned gpu;
  unsigned memory;
};

struct FabricInfo {  // As in version 2, which drivers from R545 on know.
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

// The NVML library, which every query needs.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Why it is not there, or lacks one of the functions below; empty: it has them all.
  const std::string& error() const { return error_; }
  std::string text_of(Status status) const;
  // Null where the driver is too old for it.
  template <class Function>
  void load_if_there(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(address_of(symbol));
  }

  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*count)(unsigned*) = nullptr;
  Status (*by_index)(unsigned, Device*) = nullptr;
  Status (*uuid)(Device, char*, unsigned) = nullptr;
  Status (*pci_info)(Device, PciInfo*) = nullptr;
  // Null in drivers that are too old.
  const char* (*error_string)(Status) = nullptr;
  Status (*processes)(Device, unsigned* count, ProcessInfo*) = nullptr;
  Status (*memory)(Device, Memory*) = nullptr;
  // Parts of a GPU: drivers before R450 know none.
  Status (*mig_mode)(Device, unsigned* current, unsigned* pending) = nullptr;
  Status (*max_slices)(Device, unsigned*) = nullptr;
  Status (*slice_by_index)(Device, unsigned, Device*) = nullptr;

 private:
  void* address_of(const char* symbol) const;
  template <class Function>
  void load(Function& function, const char* symbol) {
    load_if_there(function, symbol);
    if (function == nullptr && error_.empty())
      error_ = std::string("libnvidia-ml.so.1 has no ") + symbol;
  }

  void* handle_;
  std::string error_;
};

// A text of the device; empty when NVML has none.
std::string device_text(Status (*get)(Device, char*, unsigned), Device device);
// Its PCI address in the kernel's form; empty: unknown.
std::string device_bdf(const Library& library, Device device);

}  // namespace ivy::nvml
