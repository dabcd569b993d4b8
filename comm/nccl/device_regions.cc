// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/device_regions.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/driver.h"
#include "comm/nccl/enqueued.h"
#include "comm/nccl/library.h"

namespace ivy::comm::nccl {

void RegisteredRegions::deregister(const Entry& entry) {
  if (entry.window != nullptr) entry.nccl->deregister_window(entry.handle, entry.window);
  if (entry.buffer != nullptr) entry.nccl->deregister_buffer(entry.handle, entry.buffer);
}

void RegisteredRegions::use(const Functions& nccl, Handle handle,
                            const std::vector<DeviceRegion>& regions) {
  if (nccl.register_buffer == nullptr || nccl.deregister_buffer == nullptr) return;
  for (const DeviceRegion& region : regions) {
    const auto [entry, is_new] =
        entries_.try_emplace(region.serial, Entry{&nccl, handle, nullptr, nullptr});
    if (!is_new) continue;
    void*& buffer = entry->second.buffer;
    const Status status = nccl.register_buffer(handle, region.memory, region.bytes, &buffer);
    if (status != kSuccess) buffer = nullptr;
  }
}

void RegisteredRegions::add_window(const Functions& nccl, Handle handle, const DeviceRegion& region,
                                   void* window) {
  const auto entry =
      entries_.try_emplace(region.serial, Entry{&nccl, handle, nullptr, nullptr}).first;
  if (entry->second.window == nullptr) entry->second.window = window;
}

void RegisteredRegions::end() {
  for (const auto& [serial, entry] : std::exchange(entries_, {})) {
    if (!is_closed_) deregister(entry);
  }
}

void RegisteredRegions::close() {
  is_closed_ = true;
  const std::lock_guard lock(closing_);
  enqueued_ = nullptr;
}

bool RegisteredRegions::may_run(std::uint32_t serial) {
  const std::lock_guard lock(closing_);
  return enqueued_ != nullptr && enqueued_->is_using(serial);
}

void RegisteredRegions::drop(std::uint32_t serial) {
  // Every operation ends, at the latest by its timeout.
  while (may_run(serial)) std::this_thread::sleep_for(std::chrono::microseconds(200));
  const std::lock_guard lock(mutex);
  const auto found = entries_.find(serial);
  if (found == entries_.end()) return;
  if (!is_closed_) deregister(found->second);
  entries_.erase(found);
}

namespace device_regions {
namespace {

struct Registry {
  std::mutex mutex;                                // Guards the members below, except `count`.
  std::map<std::uintptr_t, DeviceRegion> regions;  // Ordered by their first address.
  std::vector<std::weak_ptr<RegisteredRegions>> users;
  std::uint32_t serials = 0;
  std::atomic<std::size_t> count{0};  // Number of regions. If it is 0, no lock is needed.
};

// Returns the registry, which is never destroyed, because memory may be freed during exit().
Registry& registry() {
  static auto* const one = new Registry;
  return *one;
}

std::uintptr_t number_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Frees the memory. Requires that region.device is this thread's current device.
void give_back(const Driver& driver, const DeviceRegion& region) {
  if (!region.is_nccls) return driver.free(region.memory);
  (*Library::load())->functions().free(region.memory);
}

Error no_room(std::size_t bytes, int device, const std::string& why) {
  return Error{Code::kResourceExhausted,
               "allocate " + std::to_string(bytes) + " bytes of device " + std::to_string(device) +
                   ": " + why,
               "free some memory of the device, or request less"};
}

// May hang in the driver or in NCCL.
Result<DeviceRegion> make_region(int device, std::size_t bytes) {
  const Driver* const driver = IVY_TRY(Driver::load());
  DeviceRegion region;
  region.bytes = bytes;
  region.device = device >= 0 ? device : driver->current_device();
  IVY_TRY(driver->facts_of(region.device));
  const Driver::Current current(*driver, region.device);
  IVY_CHECK(current.result());
  const Result<const Library*> library = Library::load();
  const Functions* const nccl = library.ok() ? &(*library)->functions() : nullptr;
  if (nccl == nullptr || nccl->allocate == nullptr || nccl->free == nullptr) {
    const Result<void*> memory = driver->allocate(bytes);
    if (!memory.ok()) return no_room(bytes, region.device, memory.error().message);
    region.memory = *memory;
    return region;
  }
  region.is_nccls = true;
  const Status status = nccl->allocate(&region.memory, bytes);
  if (status == kSuccess) return region;
  return no_room(bytes, region.device, "ncclMemAlloc: " + (*library)->name_of_error(status));
}

void take_if_inside(std::vector<DeviceRegion>& found, const void* buffer) {
  if (buffer == nullptr) return;
  Registry& all = registry();
  const auto after = all.regions.upper_bound(number_of(buffer));
  if (after == all.regions.begin()) return;
  const DeviceRegion& region = std::prev(after)->second;
  if (number_of(buffer) - number_of(region.memory) >= region.bytes) return;
  const bool is_known = std::any_of(found.begin(), found.end(), [&](const DeviceRegion& each) {
    return each.serial == region.serial;
  });
  if (!is_known) found.push_back(region);
}

}  // namespace

Result<void*> allocate(int device, std::size_t bytes,
                       std::chrono::steady_clock::time_point deadline) {
  if (const std::optional<std::string> why = taint()) {
    return Error{Code::kFailedPrecondition, *why};
  }
  if (device < 0) {
    // Resolve the current device here, because make_region() runs on another thread.
    const Driver* const driver = Driver::in_use();
    device = driver != nullptr ? driver->current_device() : 0;
  }
  const auto made = std::make_shared<Result<DeviceRegion>>(Error{Code::kInternal, ""});
  AbandonableCall abandonable;
  abandonable.call = [made, device, bytes] {
    *made = make_region(device, std::max<std::size_t>(bytes, 1));
  };
  abandonable.late = [made] {
    if (!made->ok()) return;
    const Driver& driver = *Driver::in_use();
    const Driver::Current current(driver, (*made)->device);
    give_back(driver, **made);
  };
  abandonable.what = "allocating memory of device " + std::to_string(device);
  abandonable.deadline = deadline;
  if (const MaybeFailure failure = call_abandonable(std::move(abandonable))) {
    return Error{Code::kDeadlineExceeded, failure->text};
  }
  if (!made->ok()) return made->error();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  DeviceRegion& region = **made;
  region.serial = ++all.serials;
  all.regions.emplace(number_of(region.memory), region);
  all.count.store(all.regions.size(), std::memory_order_release);
  return region.memory;
}

bool release(void* memory) {
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return false;
  DeviceRegion region;
  std::vector<std::shared_ptr<RegisteredRegions>> users;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.regions.find(number_of(memory));
    if (found == all.regions.end()) return false;
    region = found->second;
    all.regions.erase(found);
    all.count.store(all.regions.size(), std::memory_order_release);
    for (const auto& each : all.users) {
      if (auto user = each.lock()) users.push_back(std::move(user));
    }
  }
  const Driver* const driver = Driver::in_use();
  if (driver == nullptr) return true;
  const Driver::Current current(*driver, region.device);
  for (const auto& user : users) user->drop(region.serial);
  give_back(*driver, region);
  return true;
}

void add_user(const std::shared_ptr<RegisteredRegions>& user) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.users, [](const auto& each) { return each.expired(); });
  all.users.push_back(user);
}

std::vector<DeviceRegion> regions_of(const DeviceOperation& operation) {
  std::vector<DeviceRegion> found;
  Registry& all = registry();
  if (all.count.load(std::memory_order_acquire) == 0) return found;
  const std::lock_guard lock(all.mutex);
  take_if_inside(found, operation.collective.send.data);
  take_if_inside(found, operation.collective.receive.data);
  take_if_inside(found, operation.transfer.data);
  for (const Part& part : operation.collective.parts) {
    take_if_inside(found, part.send);
    take_if_inside(found, part.receive);
  }
  return found;
}

std::optional<DeviceRegion> region_at(const void* memory) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.regions.find(number_of(memory));
  if (found == all.regions.end()) return std::nullopt;
  return found->second;
}

}  // namespace device_regions
}  // namespace ivy::comm::nccl
