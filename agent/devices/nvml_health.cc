// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/nvml_health.h"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include "agent/devices/nvml_processes.h"
#include "agent/devices/small_files.h"
#include "proto/os/clock.h"

namespace ivy {
namespace {

constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;
constexpr unsigned kRecoveryActionField = 230;
constexpr unsigned kLinkCountField = 91;
// More links than any GPU has.
constexpr unsigned kMaxLinks = 64;
constexpr unsigned kWaitMilliseconds = 60'000;
constexpr std::size_t kMaxXids = 256;

// Numbers of NVML_FI_DEV_*. A counter exists once per link (scope), or once for all links.
struct LinkCounter {
  unsigned field;
  bool is_per_link;
  const char* one;
  const char* many;
};

constexpr std::array kLinkCounters{
    LinkCounter{215, true, "NVLink recovery", "NVLink recoveries"},
    LinkCounter{208, true, "NVLink packet received with an error",
                "NVLink packets received with errors"},
    LinkCounter{295, true, "NVLink block sent again", "NVLink blocks sent again"},
    // Counters of GPUs before NVLink 5.
    LinkCounter{38, false, "NVLink flow control CRC error", "NVLink flow control CRC errors"},
    LinkCounter{45, false, "NVLink data CRC error", "NVLink data CRC errors"},
    LinkCounter{52, false, "NVLink replay", "NVLink replays"},
    LinkCounter{59, false, "NVLink link recovery", "NVLink link recoveries"},
    LinkCounter{160, false, "NVLink ECC error", "NVLink ECC errors"},
};

std::optional<std::uint64_t> field_number(const nvml::FieldValue& value) {
  if (value.status != nvml::kSuccess) return std::nullopt;
  switch (value.type) {
    case nvml::kUnsigned:
    case nvml::kSigned:
      return value.value.number;
    case nvml::kShort:
      return value.value.small;
    case nvml::kReal:
      return static_cast<std::uint64_t>(std::max(value.value.real, 0.0));
    default:
      return value.value.large;
  }
}

nvml::FieldValue field_of(unsigned field, unsigned scope = 0) {
  nvml::FieldValue value{};
  value.field = field;
  value.scope = scope;
  value.status = -1;  // A driver that does not know the field may leave the status unchanged.
  return value;
}

// If a process is in another PID namespace, its number belongs to no process here, or to a wrong
// one.
std::string process_name(int pid) { return first_line("/proc/" + std::to_string(pid) + "/comm"); }

}  // namespace

NvmlHealth::NvmlHealth() {
  error_ = library_.error();
  if (!error_.empty()) return;
  const nvml::Status begun = library_.init();
  if (begun != nvml::kSuccess) {
    error_ = "nvmlInit: " + library_.text_of(begun);
    return;
  }
  library_.load_optional(calls_.field_values, "nvmlDeviceGetFieldValues");
  library_.load_optional(calls_.ecc_errors, "nvmlDeviceGetTotalEccErrors");
  library_.load_optional(calls_.utilization, "nvmlDeviceGetUtilizationRates");
  library_.load_optional(calls_.create_events, "nvmlEventSetCreate");
  library_.load_optional(calls_.register_events, "nvmlDeviceRegisterEvents");
  library_.load_optional(calls_.wait_event, "nvmlEventSetWait_v2");
}

void NvmlHealth::read_links(nvml::Device device, GpuHealth& gpu) const {
  // Query the fields one by one: a driver that does not know one of them may reject the whole
  // request.
  const auto query = [&](unsigned field) -> std::optional<std::uint64_t> {
    nvml::FieldValue value = field_of(field);
    if (calls_.field_values(device, 1, &value) != nvml::kSuccess) return std::nullopt;
    return field_number(value);
  };
  gpu.recovery_action = static_cast<int>(query(kRecoveryActionField).value_or(-1));
  const auto links =
      static_cast<unsigned>(std::min<std::uint64_t>(query(kLinkCountField).value_or(0), kMaxLinks));
  if (links == 0) return;
  for (const LinkCounter& counter : kLinkCounters) {
    std::vector<nvml::FieldValue> values;
    for (unsigned link = 0; link < (counter.is_per_link ? links : 1); ++link)
      values.push_back(field_of(counter.field, link));
    if (calls_.field_values(device, static_cast<int>(values.size()), values.data()) !=
        nvml::kSuccess)
      continue;
    std::optional<std::uint64_t> sum;
    for (const nvml::FieldValue& value : values)
      if (const std::optional<std::uint64_t> number = field_number(value))
        sum = sum.value_or(0) + *number;
    if (sum) gpu.counters.push_back({counter.one, counter.many, *sum});
  }
}

GpuHealth NvmlHealth::read_gpu(nvml::Device device, int index) const {
  GpuHealth gpu;
  gpu.index = index;
  gpu.bdf = nvml::device_bdf(library_, device);
  unsigned long long errors = 0;
  const nvml::Status status = calls_.ecc_errors == nullptr
                                  ? nvml::kTimeout
                                  : calls_.ecc_errors(device, kUncorrected, kVolatile, &errors);
  gpu.is_lost = status == nvml::kGpuIsLost;
  if (status == nvml::kSuccess)
    gpu.counters.push_back({"uncorrected ECC error", "uncorrected ECC errors", errors});
  if (calls_.field_values != nullptr && !gpu.is_lost) read_links(device, gpu);
  return gpu;
}

std::vector<GpuHealth> NvmlHealth::read_gpus() const {
  std::vector<GpuHealth> gpus;
  unsigned count = 0;
  if (!error_.empty() || library_.count(&count) != nvml::kSuccess) return gpus;
  for (unsigned i = 0; i < std::min(count, nvml::kMaxDevices); ++i) {
    nvml::Device device = nullptr;
    // A lost GPU may not have a handle any more. It is then missing, which the comparison reports.
    if (library_.by_index(i, &device) == nvml::kSuccess)
      gpus.push_back(read_gpu(device, static_cast<int>(i)));
  }
  return gpus;
}

// NVML does not report utilization for MIG instances.
int NvmlHealth::busy_percent_of(nvml::Device device) const {
  nvml::Utilization rates{};
  const bool is_known =
      calls_.utilization != nullptr && calls_.utilization(device, &rates) == nvml::kSuccess;
  return is_known ? static_cast<int>(std::min(rates.gpu, 100U)) : -1;
}

std::vector<HeldMemory> NvmlHealth::read_memory() const {
  std::vector<HeldMemory> all;
  unsigned count = 0;
  if (!error_.empty() || library_.count(&count) != nvml::kSuccess) return all;
  for (unsigned i = 0; i < std::min(count, nvml::kMaxDevices); ++i) {
    nvml::Device device = nullptr;
    if (library_.by_index(i, &device) != nvml::kSuccess) continue;
    std::vector<nvml::Device> instances = nvml::is_in_mig_mode(library_, device)
                                              ? nvml::slices_of(library_, device)
                                              : std::vector<nvml::Device>{device};
    for (const nvml::Device instance : instances) {
      HeldMemory held;
      held.device = "GPU " + std::to_string(i);
      held.uuid = nvml::device_text(library_.uuid, instance);
      held.bytes = nvml::memory_in_use(library_, instance);
      held.busy_percent = busy_percent_of(instance);
      for (const nvml::DeviceUser& user : nvml::device_users(library_, instance))
        held.holders.push_back({user.pid, user.bytes, process_name(user.pid)});
      all.push_back(std::move(held));
    }
  }
  return all;
}

void NvmlHealth::listen() {
  nvml::EventSet events = nullptr;
  unsigned count = 0;
  if (!error_.empty() || calls_.create_events == nullptr || calls_.register_events == nullptr ||
      calls_.wait_event == nullptr || calls_.create_events(&events) != nvml::kSuccess ||
      library_.count(&count) != nvml::kSuccess)
    return;
  bool any = false;
  for (unsigned i = 0; i < std::min(count, nvml::kMaxDevices); ++i) {
    nvml::Device device = nullptr;
    any |= library_.by_index(i, &device) == nvml::kSuccess &&
           calls_.register_events(device, nvml::kXidEvent, events) == nvml::kSuccess;
  }
  if (any) std::thread([this, events] { take_events(events); }).detach();
}

void NvmlHealth::take_events(nvml::EventSet events) {
  for (;;) {
    nvml::EventData event{};
    const nvml::Status status = calls_.wait_event(events, &event, kWaitMilliseconds);
    if (status == nvml::kTimeout) continue;
    // A lost device would produce events without end; the next reading reports it.
    if (status != nvml::kSuccess) return;
    if (event.type != nvml::kXidEvent) continue;
    XidRecord xid;
    xid.at_ns = static_cast<std::uint64_t>(monotonic_ns());
    xid.bdf = nvml::device_bdf(library_, event.device);
    xid.number = static_cast<unsigned>(event.data);
    const std::lock_guard lock(mutex_);
    if (xids_.size() < kMaxXids) xids_.push_back(std::move(xid));
  }
}

std::vector<XidRecord> NvmlHealth::xids() const {
  const std::lock_guard lock(mutex_);
  return xids_;
}

void NvmlHealth::forget_xids() {
  const std::lock_guard lock(mutex_);
  xids_.clear();
}

}  // namespace ivy
