// SPDX-License-Identifier: Apache-2.0
// In this order: opening and starting the library (open(), take(), in_use(), load()), pointers and
// devices, thin wrappers of streams, events, copies and memory, and contexts (context_of(),
// Current).
#include "comm/nccl/driver.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <type_traits>

#include "proto/contract/text.h"

namespace ivy::comm::nccl {
namespace {

// Status codes and flags of cuda.h. The same numbers serve for HIP, unless noted.
constexpr int kNotReady = 600;
constexpr int kNotInitialized = 3;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr unsigned kNoTiming = 2;     // CU_EVENT_DISABLE_TIMING
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
// Attributes of a pointer (CU_POINTER_ATTRIBUTE_*).
constexpr int kMemoryType = 2;
constexpr int kIsManaged = 8;
constexpr int kDeviceOrdinal = 9;
constexpr unsigned kDeviceType = 2;   // CU_MEMORYTYPE_DEVICE
constexpr unsigned kUnifiedType = 4;  // CU_MEMORYTYPE_UNIFIED
// HIP's number for managed memory, which CUDA reports by kIsManaged.
constexpr unsigned kManagedType = 3;

// Returns the number of libraries that this process has loaded so far, as counted by the C library.
// Takes some ten nanoseconds; a dlopen() by name would search directories.
std::uint64_t libraries_loaded() {
  std::uint64_t count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* one, std::size_t, void* out) {
        *static_cast<std::uint64_t*>(out) = one->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

}  // namespace

struct Driver::Functions {
#define IVY_DRIVER(member, cuda, hip, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;
#include "comm/nccl/driver_functions.def"
};

namespace {

template <class Function>
bool take_one(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  if (found != nullptr) function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// CUDA's driver, and HIP's library of each ROCm release, the newest first.
constexpr const char* kLibraries[] = {"libcuda.so.1", "libamdhip64.so.7", "libamdhip64.so.6"};

// Explains why an installed driver finds no device: most often, a container lacks the device files.
std::string missing_device_files() {
  if (access("/dev/nvidiactl", F_OK) == 0 || access("/dev/kfd", F_OK) == 0) return "";
  return "; the device files (/dev/nvidia0, /dev/nvidiactl) do not exist";
}

// Returns the path in IVY_CUDA_LIB, or null if it is not set.
const char* named_driver() {
  const char* const named = std::getenv("IVY_CUDA_LIB");
  return named != nullptr && *named != '\0' ? named : nullptr;
}

Error no_driver(const std::string& what) {
  const std::string unset = named_driver() != nullptr
                                ? "unset IVY_CUDA_LIB, or set it to the driver's libcuda.so.1; "
                                : "";
  return Error{Code::kFailedPrecondition, what,
               unset + "start the worker where nvidia-smi works; in a container: --gpus all"};
}

// Returns the error for a device number that does not exist; it names the existing numbers.
Error no_device(int device, int count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return Error{
      Code::kFailedPrecondition,
      "device " + std::to_string(device) + " does not exist: this process sees " +
          std::to_string(count) + (count == 1 ? " device" : " devices") + ", numbered from 0" +
          (visible != nullptr ? std::string(" (CUDA_VISIBLE_DEVICES=") + visible + ")" : ""),
      "choose the device by the local rank, and start no more workers on a host than it has "
      "devices"};
}

std::atomic<const Driver*> started{nullptr};
std::atomic<const Driver*> mapped_driver{nullptr};
std::atomic<std::uint64_t> checked_at{0};  // libraries_loaded() at the last search for a driver.
std::mutex opening;

}  // namespace

Error Driver::error(const char* what, int status) const {
  const char* text = nullptr;
  if (functions_->get_error_text(status, &text) != 0 || text == nullptr) text = "unknown error";
  return Error{Code::kInternal,
               std::string(what) + ": " + text + " (" + std::to_string(status) + ")"};
}

Result<void> Driver::done(const char* what, int status) const {
  if (status != 0) return error(what, status);
  return {};
}

Result<Driver*> Driver::take(void* library, const std::string& path) {
  std::unique_ptr<Driver> driver(new Driver());
  driver->path_ = path;
  if (dlsym(library, "cuInit") == nullptr && dlsym(library, "hipInit") != nullptr) {
    driver->column_ = 1;
  }
  auto functions = std::make_unique<Functions>();
  const auto find = [&](auto& function, const char* cuda, const char* hip) -> Result<void> {
    const char* const name = driver->column_ == 0 ? cuda : hip;
    if (take_one(library, name, function)) return {};
    return no_driver(path + " is not a GPU driver: it lacks " + name);
  };
#define IVY_DRIVER(member, cuda, hip, ...) IVY_CHECK(find(functions->member, cuda, hip));
#include "comm/nccl/driver_functions.def"
  // The second version distinguishes the MIG instances of a device; drivers before 11.4 lack it.
  take_one(library, "cuDeviceGetUuid_v2", functions->get_uuid);
  driver->functions_ = functions.release();  // It lives until the process ends.
  driver->functions_->get_version(&driver->version_);
  return driver.release();  // It lives until the process ends.
}

Result<Driver*> Driver::open(bool only_if_mapped) {
  const int mode = RTLD_NOW | RTLD_LOCAL | (only_if_mapped ? RTLD_NOLOAD : 0);
  if (const char* const named = named_driver()) {
    void* const library = dlopen(named, mode);
    if (library != nullptr) return take(library, named);
    if (only_if_mapped) return nullptr;
    return no_driver(std::string("the GPU driver of IVY_CUDA_LIB cannot be loaded: ") + dlerror());
  }
  std::string reason;
  for (const char* const name : kLibraries) {
    void* const library = dlopen(name, mode);
    if (library != nullptr) return take(library, name);
    if (reason.empty() && !only_if_mapped) reason = dlerror();
  }
  if (only_if_mapped) return nullptr;
  return no_driver("no GPU driver was found on this host: " + reason);
}

// Checks without starting the driver: only the program may decide to do so, because the children
// that a process forks afterwards cannot use it.
bool Driver::is_started() const {
  int count = 0;
  return functions_->get_count(&count) != kNotInitialized;
}

const Driver* Driver::in_use() {
  if (const Driver* const driver = started.load(std::memory_order_acquire)) return driver;
  const Driver* driver = mapped_driver.load(std::memory_order_acquire);
  if (driver == nullptr) {
    const std::uint64_t loaded = libraries_loaded();
    if (loaded == checked_at.load(std::memory_order_relaxed)) return nullptr;
    const std::lock_guard lock(opening);
    checked_at.store(loaded, std::memory_order_relaxed);
    // A library that is not a driver counts as absent here; load() reports the reason.
    Result<Driver*> opened = open(true);
    if (!opened.ok() || *opened == nullptr) return nullptr;
    if (mapped_driver.load() == nullptr) mapped_driver.store(*opened, std::memory_order_release);
    driver = mapped_driver;
  }
  if (!driver->is_started()) return nullptr;
  started.store(driver, std::memory_order_release);
  return driver;
}

Result<const Driver*> Driver::load() {
  if (const Driver* const driver = in_use()) return driver;
  const std::lock_guard lock(opening);
  if (mapped_driver.load() == nullptr) mapped_driver.store(IVY_TRY(open(false)));
  const Driver* const driver = mapped_driver;
  const int status = driver->functions_->init(0);
  if (status != 0) {
    return no_driver("the GPU driver (" + driver->path_ +
                     ") failed to initialize: " + driver->error("cuInit", status).message +
                     (status == kNoDevice ? missing_device_files() : ""));
  }
  started.store(driver, std::memory_order_release);
  return driver;
}

std::optional<DeviceMemory> Driver::device_memory(const void* pointer) const {
  unsigned type = 0;
  unsigned is_managed = 0;
  int device = 0;
  int wanted[3] = {kMemoryType, kIsManaged, kDeviceOrdinal};
  void* values[3] = {&type, &is_managed, &device};
  // The driver reports type 0 for memory that it does not know.
  if (functions_->get_attributes(3, wanted, values, address(pointer)) != 0) return std::nullopt;
  const bool is_device = type == kDeviceType || type == kUnifiedType || is_managed != 0 ||
                         (column_ == 1 && type == kManagedType);
  if (!is_device) return std::nullopt;
  return DeviceMemory{device};
}

Result<int> Driver::device_count() const {
  int count = 0;
  const int status = functions_->get_count(&count);
  if (status != 0) return error("count the devices", status);
  return count;
}

Result<DeviceFacts> Driver::facts_of(int device) const {
  int handle = 0;
  int status = functions_->get_device(&handle, device);
  if (status == kInvalidDevice) return no_device(device, IVY_TRY(device_count()));
  unsigned char uuid[16] = {};
  if (status == 0) status = functions_->get_uuid(uuid, handle);
  char bus[32] = {};
  if (status == 0) status = functions_->get_bus(bus, sizeof bus, handle);
  if (status != 0) return error(("query device " + std::to_string(device)).c_str(), status);
  DeviceFacts facts;
  facts.uuid = hexadecimal({reinterpret_cast<const char*>(uuid), sizeof uuid});
  facts.bus = bus;
  return facts;
}

int Driver::current_device() const {
  int device = 0;
  return functions_->get_context_device(&device) == 0 ? device : 0;
}

Result<Event> Driver::make_event() const {
  Event event = nullptr;
  const int status = functions_->make_event(&event, kNoTiming);
  if (status != 0) return error("create an event", status);
  return event;
}

void Driver::free_event(Event event) const { functions_->free_event(event); }

Result<void> Driver::record(Event event, Stream stream) const {
  return done("record an event", functions_->record(event, stream));
}

Result<bool> Driver::is_done(Event event) const {
  const int status = functions_->query(event);
  if (status == 0) return true;
  if (status == kNotReady) return false;
  return error("the device", status);
}

Result<Stream> Driver::make_stream() const {
  Stream stream = nullptr;
  const int status = functions_->make_stream(&stream, kNonBlocking);
  if (status != 0) return error("create a stream", status);
  return stream;
}

void Driver::free_stream(Stream stream) const { functions_->free_stream(stream); }

Result<void> Driver::wait(Stream stream, Event event) const {
  return done("let a stream wait", functions_->wait(stream, event, 0));
}

Result<void> Driver::copy_to_host(void* to, const void* from, std::size_t bytes,
                                  Stream stream) const {
  if (bytes == 0) return {};
  return done("copy from the device", functions_->copy_to_host(to, address(from), bytes, stream));
}

Result<void> Driver::copy_to_device(void* to, const void* from, std::size_t bytes,
                                    Stream stream) const {
  if (bytes == 0) return {};
  return done("copy to the device", functions_->copy_to_device(address(to), from, bytes, stream));
}

Result<void> Driver::copy_on_device(void* to, const void* from, std::size_t bytes,
                                    Stream stream) const {
  if (bytes == 0 || to == from) return {};
  return done("copy on the device",
              functions_->copy_on_device(address(to), address(from), bytes, stream));
}

Result<void*> Driver::allocate(std::size_t bytes) const {
  std::uintptr_t memory = 0;
  const int status = functions_->allocate(&memory, bytes);
  if (status != 0) return error("allocate memory of the device", status);
  return reinterpret_cast<void*>(memory);
}

void Driver::free(void* memory) const { functions_->free(address(memory)); }

// Returns true if the driver gives no answer, so that the caller is not blamed for that.
bool Driver::is_of_device(Stream stream, int device) const {
  // The streams 0, 1 (CU_STREAM_LEGACY) and 2 (CU_STREAM_PER_THREAD) belong to every device.
  constexpr std::uintptr_t kLastDefault = 2;
  if (address(stream) <= kLastDefault) return true;
  int found = device;
  if (column_ == 1) return functions_->get_owner(stream, &found) != 0 || found == device;
  Context owner = nullptr;
  if (functions_->get_owner(stream, &owner) != 0) return true;
  const Result<Context> own = context_of(device);
  if (!own.ok() || *own == owner) return true;
  // A device may have more contexts than the primary one, so ask for the context's device.
  Context before = nullptr;
  functions_->get_current(&before);
  if (functions_->set_current(owner) != 0) return true;
  functions_->get_context_device(&found);
  functions_->set_current(before);
  return found == device;
}

bool Driver::is_capturing(Stream stream) const {
  int status = 0;  // The driver names it CU_STREAM_CAPTURE_STATUS_NONE.
  return functions_->get_capture(stream, &status) == 0 && status != 0;
}

void Driver::stay_out_of_captures() const {
  int mode = 2;  // The driver names it CU_STREAM_CAPTURE_MODE_RELAXED.
  functions_->exchange_capture_mode(&mode);
}

// Returns the primary context, which is retained once and never released. Frameworks use the same.
Result<Context> Driver::context_of(int device) const {
  const auto index = static_cast<std::size_t>(device);
  if (index < kContextsKept) {
    if (Context const known = contexts_[index].load(std::memory_order_acquire)) return known;
  }
  Context context = nullptr;
  int handle = 0;
  int status = functions_->get_device(&handle, device);
  if (status == 0) status = functions_->retain_primary(&context, handle);
  if (status != 0) return error("choose the device", status);
  if (index < kContextsKept) contexts_[index].store(context, std::memory_order_release);
  return context;
}

Driver::Current::Current(const Driver& driver, int device) : driver_(driver) {
  driver.functions_->get_current(&before_);
  const Result<Context> context = driver.context_of(device);
  if (!context.ok()) {
    result_ = context.error();
    return;
  }
  if (*context == before_) return;
  const int status = driver.functions_->set_current(*context);
  if (status != 0) result_ = driver.error("choose the device", status);
  is_changed_ = status == 0;
}

Driver::Current::~Current() {
  if (is_changed_) driver_.functions_->set_current(before_);
}

}  // namespace ivy::comm::nccl
