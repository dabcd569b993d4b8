// SPDX-License-Identifier: Apache-2.0
// A test double of libcuda.so.1: devices, contexts, memory, streams and events that behave like
// CUDA's as far as libivycomm and the test double of NCCL use them. Memory of its devices is memory
// of this process, identified by its address; a stream is a thread that runs one task after the
// other. It is not an accelerator, and its timings have no meaning.
//
// CUDA_DOUBLE in the environment, separated by commas:
//   no_device         cuInit finds no device
//   devices=N         the number of devices (64)
//   hang_call=cuInit  cuInit never returns
// Memory freed by cuMemFreeAsync is unusable immediately: an operation that uses it afterwards
// breaks the device, and from then on every event reports an error.
// Tasks on a stream that is being captured are added to a graph: a list, in the order of the calls,
// of all captured streams. Querying an event of a graph invalidates the capture, as in CUDA.
// Streams and events must be created, used and destroyed with a current context, because the driver
// may require one.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define DOUBLE_API extern "C" __attribute__((visibility("default")))

namespace {

using Result = int;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kNoDevice = 100;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kNotReady = 600;
constexpr Result kIllegalAddress = 700;
constexpr Result kCaptureInvalidated = 901;
constexpr Result kCapturedEvent = 907;
constexpr int kDevicesMax = 256;

bool is_reported(const char* word) {
  const char* const script = std::getenv("CUDA_DOUBLE");
  return script != nullptr && std::strstr(script, word) != nullptr;
}

int device_count() {
  const char* const script = std::getenv("CUDA_DOUBLE");
  const char* const devices = script != nullptr ? std::strstr(script, "devices=") : nullptr;
  return devices != nullptr ? std::atoi(devices + 8) : 64;
}

// A graph during its capture and afterwards.
struct Graph {
  std::mutex mutex;
  std::vector<std::function<void()>> tasks;
  bool is_spoilt = false;
};
using SharedGraph = std::shared_ptr<Graph>;

class StreamThread {
 public:
  StreamThread() : thread_([this] { run(); }) { thread_.detach(); }
  void push(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (graph_ != nullptr) {
      const std::lock_guard graph_lock(graph_->mutex);
      graph_->tasks.push_back(std::move(task));
      return;
    }
    tasks_.push_back(std::move(task));
    has_work_.notify_all();
  }
  SharedGraph graph() {
    const std::lock_guard lock(mutex_);
    return graph_;
  }
  void capture_into(SharedGraph graph) {
    const std::lock_guard lock(mutex_);
    graph_ = std::move(graph);
  }
  void* context = nullptr;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      has_work_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::function<void()>> tasks_;
  SharedGraph graph_;   // Null if it is not being captured.
  std::thread thread_;  // Runs until the process exits, because tests use few streams.
};

struct EventState {
  std::mutex mutex;
  std::condition_variable has_ended;
  SharedGraph graph;  // The graph that contains it, or null.
  std::uint64_t recorded = 0;
  std::uint64_t ended = 0;
};
using SharedEvent = std::shared_ptr<EventState>;

struct Memory {
  std::size_t bytes;
  int device;
};

std::atomic<bool> is_initialized{false};
char contexts[kDevicesMax];  // A device's context is the address of its byte here.
thread_local void* current = nullptr;
std::atomic<int> calls_without_context{0};

bool has_context() {
  if (current == nullptr) ++calls_without_context;
  return current != nullptr;
}

std::mutex memory_mutex;
std::map<std::uintptr_t, Memory>& memory() {
  static auto* const all = new std::map<std::uintptr_t, Memory>();
  return *all;
}

std::set<std::uintptr_t>& freed() {  // By cuMemFreeAsync. Guarded by memory_mutex.
  static auto* const all = new std::set<std::uintptr_t>();
  return *all;
}
std::atomic<bool> is_spoilt{false};

StreamThread& stream_of(void* stream) {
  static auto* const by_default = new StreamThread();
  return stream == nullptr ? *by_default : *static_cast<StreamThread*>(stream);
}

int device_of(const void* context) {
  return static_cast<int>(static_cast<const char*>(context) - contexts);
}

// Returns the device that owns this memory, or -1.
int find_device(std::uintptr_t address, std::size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  auto after = memory().upper_bound(address);
  if (after == memory().begin()) return -1;
  const auto& [begin, one] = *--after;
  return address + bytes <= begin + one.bytes ? one.device : -1;
}

Result copy(std::uintptr_t to, std::uintptr_t from, std::size_t bytes, void* stream) {
  stream_of(stream).push([=] {
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
  return 0;
}

}  // namespace

DOUBLE_API Result cuInit(unsigned) {
  while (is_reported("hang_call=cuInit")) pause();
  if (is_reported("no_device")) return kNoDevice;
  is_initialized = true;
  return 0;
}

DOUBLE_API Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

DOUBLE_API Result cuDeviceGetCount(int* count) {
  if (!is_initialized) return kNotInitialized;
  *count = device_count();
  return 0;
}

DOUBLE_API Result cuDeviceGet(int* device, int ordinal) {
  if (!is_initialized) return kNotInitialized;
  if (ordinal < 0 || ordinal >= device_count()) return kInvalidDevice;
  *device = ordinal;
  return 0;
}

DOUBLE_API Result cuDeviceGetUuid(unsigned char* uuid, int device) {
  std::memset(uuid, 0xd0, 16);
  uuid[15] = static_cast<unsigned char>(device);
  return 0;
}

DOUBLE_API Result cuDeviceGetPCIBusId(char* text, int length, int device) {
  const std::string bus = "0000:" + std::to_string(10 + device) + ":00.0";
  std::strncpy(text, bus.c_str(), static_cast<std::size_t>(length) - 1);
  return 0;
}

DOUBLE_API Result cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}

DOUBLE_API Result cuCtxSetCurrent(void* context) {
  current = context;
  return 0;
}

DOUBLE_API Result cuCtxGetDevice(int* device) {
  if (current == nullptr) return kInvalidContext;
  *device = device_of(current);
  return 0;
}

DOUBLE_API Result cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device];
  return 0;
}

DOUBLE_API Result cuPointerGetAttributes(unsigned count, const int* attributes, void** values,
                                         std::uintptr_t pointer) {
  if (!is_initialized) return kNotInitialized;
  const int device = find_device(pointer, 0);
  for (unsigned i = 0; i < count; ++i) {
    unsigned value = 0;
    if (attributes[i] == 2) value = device >= 0 ? 2 : 0;
    if (attributes[i] == 9) value = device >= 0 ? static_cast<unsigned>(device) : ~0U;
    std::memcpy(values[i], &value, sizeof value);
  }
  return 0;
}

DOUBLE_API Result cuMemAlloc_v2(std::uintptr_t* pointer, std::size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  // Not in the heap, like memory of a real driver.
  void* const memory_of_device = mmap(nullptr, std::max<std::size_t>(bytes, 1),
                                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_of_device == MAP_FAILED) return kOutOfMemory;
  *pointer = reinterpret_cast<std::uintptr_t>(memory_of_device);
  const std::lock_guard lock(memory_mutex);
  memory()[*pointer] = {bytes, device_of(current)};
  return 0;
}

DOUBLE_API Result cuMemFree_v2(std::uintptr_t pointer) {
  const std::lock_guard lock(memory_mutex);
  // CUDA waits for operations that use the memory. Here the address is never reused, which has the
  // same effect.
  return memory().erase(pointer) == 0 ? kInvalidValue : 0;
}

DOUBLE_API Result cuMemFreeAsync(std::uintptr_t pointer, void*) {
  const std::lock_guard lock(memory_mutex);
  freed().insert(pointer);
  return memory().erase(pointer) == 0 ? kInvalidValue : 0;
}

DOUBLE_API Result cuMemcpyDtoHAsync_v2(void* to, std::uintptr_t from, std::size_t bytes,
                                       void* stream) {
  if (find_device(from, bytes) < 0) return kInvalidValue;
  return copy(reinterpret_cast<std::uintptr_t>(to), from, bytes, stream);
}

DOUBLE_API Result cuMemcpyHtoDAsync_v2(std::uintptr_t to, const void* from, std::size_t bytes,
                                       void* stream) {
  if (find_device(to, bytes) < 0) return kInvalidValue;
  // When CUDA returns, it has read host memory that is not pinned.
  const char* const begin = static_cast<const char*>(from);
  stream_of(stream).push([to, data = std::vector<char>(begin, begin + bytes)] {
    std::memcpy(reinterpret_cast<void*>(to), data.data(), data.size());
  });
  return 0;
}

DOUBLE_API Result cuMemcpyDtoDAsync_v2(std::uintptr_t to, std::uintptr_t from, std::size_t bytes,
                                       void* stream) {
  if (find_device(to, bytes) < 0 || find_device(from, bytes) < 0) return kInvalidValue;
  return copy(to, from, bytes, stream);
}

DOUBLE_API Result cuStreamCreate(void** stream, unsigned) {
  if (!has_context()) return kInvalidContext;
  auto* const made = new StreamThread();
  made->context = current;
  *stream = made;
  return 0;
}

DOUBLE_API Result cuStreamGetCtx(void* stream, void* context) {
  *static_cast<void**>(context) = stream_of(stream).context;
  return 0;
}

DOUBLE_API Result cuStreamDestroy_v2(void*) { return has_context() ? 0 : kInvalidContext; }

DOUBLE_API Result cuEventCreate(void** event, unsigned) {
  if (!has_context()) return kInvalidContext;
  *event = new SharedEvent(std::make_shared<EventState>());
  return 0;
}

DOUBLE_API Result cuEventDestroy_v2(void* event) {
  if (!has_context()) return kInvalidContext;
  delete static_cast<SharedEvent*>(event);
  return 0;
}

DOUBLE_API Result cuEventRecord(void* event, void* stream) {
  if (!has_context()) return kInvalidContext;
  const SharedEvent state = *static_cast<SharedEvent*>(event);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(state->mutex);
    state->graph = stream_of(stream).graph();
    if (state->graph != nullptr) return 0;
    number = ++state->recorded;
  }
  stream_of(stream).push([state, number] {
    const std::lock_guard lock(state->mutex);
    state->ended = number;
    state->has_ended.notify_all();
  });
  return 0;
}

DOUBLE_API Result cuEventQuery(void* event) {
  if (!has_context()) return kInvalidContext;
  if (is_spoilt) return kIllegalAddress;
  EventState& state = **static_cast<SharedEvent*>(event);
  const std::lock_guard lock(state.mutex);
  if (state.graph != nullptr) {
    state.graph->is_spoilt = true;
    return kCapturedEvent;
  }
  return state.ended == state.recorded ? 0 : kNotReady;
}

DOUBLE_API Result cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (!has_context()) return kInvalidContext;
  const SharedEvent state = *static_cast<SharedEvent*>(event);
  if (state->graph != nullptr) {
    stream_of(stream).capture_into(state->graph);
    return 0;
  }
  const std::uint64_t number = state->recorded;
  stream_of(stream).push([state, number] {
    std::unique_lock lock(state->mutex);
    state->has_ended.wait(lock, [&] { return state->ended >= number; });
  });
  return 0;
}

DOUBLE_API Result cuStreamIsCapturing(void* stream, int* status) {
  *status = stream_of(stream).graph() != nullptr ? 1 : 0;
  return 0;
}

DOUBLE_API Result cuThreadExchangeStreamCaptureMode(int*) { return 0; }

DOUBLE_API Result cuStreamBeginCapture_v2(void* stream, int) {
  stream_of(stream).capture_into(std::make_shared<Graph>());
  return 0;
}

DOUBLE_API Result cuStreamEndCapture(void* stream, void** graph) {
  const SharedGraph captured = stream_of(stream).graph();
  stream_of(stream).capture_into(nullptr);
  if (captured == nullptr || captured->is_spoilt) return kCaptureInvalidated;
  *graph = new SharedGraph(captured);
  return 0;
}

DOUBLE_API Result cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  *made = new SharedGraph(*static_cast<SharedGraph*>(graph));
  return 0;
}

DOUBLE_API Result cuGraphLaunch(void* graph, void* stream) {
  stream_of(stream).push([graph = *static_cast<SharedGraph*>(graph)] {
    for (const auto& task : graph->tasks) task();
  });
  return 0;
}

DOUBLE_API Result cuStreamSynchronize(void* stream) {
  void* event = nullptr;
  cuEventCreate(&event, 0);
  cuEventRecord(event, stream);
  EventState& state = **static_cast<SharedEvent*>(event);
  {
    std::unique_lock lock(state.mutex);
    state.has_ended.wait(lock, [&] { return state.ended == state.recorded; });
  }
  return cuEventDestroy_v2(event);
}

DOUBLE_API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  stream_of(stream).push([=] { function(data); });
  return 0;
}

DOUBLE_API Result cuGetErrorString(Result status, const char** text) {
  *text = status == kNoDevice         ? "no CUDA-capable device is detected"
          : status == kIllegalAddress ? "an illegal memory access was encountered"
                                      : "error of the stand-in";
  return 0;
}

// Returns the number of calls that lacked a current context.
DOUBLE_API int cuda_double_contexts_missed() { return calls_without_context; }

// For the test double of NCCL, which rejects memory that does not belong to a device.
DOUBLE_API int cuda_double_owns(const void* pointer, std::size_t bytes) {
  return find_device(reinterpret_cast<std::uintptr_t>(pointer), bytes) >= 0 ? 1 : 0;
}

// Called when an operation of the test double of NCCL uses this memory. Returns 0 if it was freed.
DOUBLE_API int cuda_double_touch(const void* pointer) {
  const std::lock_guard lock(memory_mutex);
  if (!freed().contains(reinterpret_cast<std::uintptr_t>(pointer))) return 1;
  is_spoilt = true;
  return 0;
}
