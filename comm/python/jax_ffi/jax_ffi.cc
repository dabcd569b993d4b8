// SPDX-License-Identifier: Apache-2.0
// handle() is the path of a call: it converts XLA's call frame to a Request, carry_out() checks it
// and calls libivycomm (collective(), or exchange() for messages), wait() waits for the result and
// lets Ctrl-C interrupt it, and report() converts a failure to an XLA error. The exported functions
// are at the end.
#include "comm/python/jax_ffi/jax_ffi.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/python/jax_ffi/interrupt.h"
#include "comm/python/jax_ffi/xla_ffi.h"

namespace ivy::jax {
namespace {

constexpr int64_t kSliceMs = 50;  // Interval of the checks for Ctrl-C, as in ivycomm/waiting.py.
constexpr int32_t kMetadata = 1, kScalar = 3;

struct Group {
  ivy_comm* comm = nullptr;
  int rank = 0;
  int size = 0;
};

struct Fault {
  int code = IVY_OK;
  std::string text;
  ivy_failure failure = {};
};

std::mutex state_mutex;
std::unordered_map<int64_t, Group> groups;  // The mutex guards it and last_fault.
Fault last_fault;
ivy_jax_functions library;  // Both are written before any handler runs, and never again.
ivy_jax_interpreter interpreter;
int interface_minor = 0;

struct Attribute {
  int64_t operation = 0, group = 0, op = 0, peer = -1, source = -1, tag = 0, source_tag = -1,
          timeout_ms = 0;
};

struct Array {
  void* data;
  size_t count;
  int type;
};

// One call, as its frame describes it.
struct Request {
  Attribute attribute;
  Group group;
  std::vector<Array> inputs, outputs;
  bool is_on_gpu = false;
  void* stream = nullptr;
};

Fault rejected(int code, std::string text) {
  Fault fault{code, std::move(text), {}};
  fault.failure.rank = fault.failure.exit_code = -1;
  return fault;
}

Fault library_fault(int code) {
  if (code == IVY_OK) return {};
  Fault fault{code, {}, {}};
  const char* text = library.last_error();
  fault.text = text == nullptr ? "" : text;
  fault.failure.struct_bytes = sizeof fault.failure;
  library.last_failure(&fault.failure);
  return fault;
}

struct Element {
  xla::ElementType xla_type;
  int ivy_type;
};

using enum xla::ElementType;
constexpr Element kElements[] = {{kPred, IVY_BOOL},     {kS8, IVY_I8},          {kS16, IVY_I16},
                                 {kS32, IVY_I32},       {kS64, IVY_I64},        {kU8, IVY_U8},
                                 {kU16, IVY_U16},       {kU32, IVY_U32},        {kU64, IVY_U64},
                                 {kF16, IVY_F16},       {kBf16, IVY_BF16},      {kF32, IVY_F32},
                                 {kF64, IVY_F64},       {kC64, IVY_C64},        {kC128, IVY_C128},
                                 {kF8E5m2, IVY_F8E5M2}, {kF8E4m3fn, IVY_F8E4M3}};

// Returns -1 for a type that libivycomm does not know.
int element_number(xla::ElementType type) {
  for (const Element& element : kElements)
    if (element.xla_type == type) return element.ivy_type;
  return -1;
}

// Returns all buffers but the first, which is the token.
std::vector<Array> arrays_of(const xla::Buffers& buffers) {
  std::vector<Array> arrays;
  for (int64_t at = 1; at < buffers.count; ++at) {
    const xla::Buffer& buffer = *buffers.buffers[at];
    size_t count = 1;
    for (int64_t axis = 0; axis < buffer.dimension_count; ++axis)
      count *= static_cast<size_t>(buffer.dimensions[axis]);
    arrays.push_back({buffer.data, count, element_number(buffer.type)});
  }
  return arrays;
}

Attribute attribute_of(const xla::Attributes& given) {
  Attribute read;
  const std::pair<std::string_view, int64_t*> fields[] = {{"operation", &read.operation},
                                                          {"group", &read.group},
                                                          {"op", &read.op},
                                                          {"peer", &read.peer},
                                                          {"source", &read.source},
                                                          {"tag", &read.tag},
                                                          {"source_tag", &read.source_tag},
                                                          {"timeout_ms", &read.timeout_ms}};
  for (int64_t at = 0; at < given.count; ++at) {
    if (given.kinds[at] != kScalar) continue;
    const auto& scalar = *static_cast<const xla::Scalar*>(given.values[at]);
    const std::string_view name(given.names[at]->data, given.names[at]->size);
    for (const auto& [known, value] : fields)
      if (known == name && scalar.type == xla::ElementType::kS64)
        *value = *static_cast<const int64_t*>(scalar.value);
  }
  return read;
}

// `divided` elements of the input make `multiplied` elements of the result.
struct Ratio {
  size_t multiplied, divided;
};

Ratio ratio_of(int64_t operation, size_t size) {
  switch (operation) {
    case IVY_JAX_ALL_GATHER:
    case IVY_JAX_GATHER:
      return {size, 1};
    case IVY_JAX_REDUCE_SCATTER:
    case IVY_JAX_SCATTER:
      return {1, size};
    default:
      return {1, 1};
  }
}

// Checks the sizes of the buffers, because a program may have been compiled for another group and
// libivycomm takes sizes as given.
bool fits(const Request& request) {
  const int64_t operation = request.attribute.operation;
  if (operation > IVY_JAX_ALL_TO_ALL) return true;
  const auto size = static_cast<size_t>(request.group.size);
  const Ratio ratio = ratio_of(operation, size);
  if (request.outputs.empty() || request.inputs.size() < request.outputs.size()) return false;
  for (size_t at = 0; at < request.outputs.size(); ++at) {
    const Array &in = request.inputs[at], &out = request.outputs[at];
    if (in.type != out.type || in.count * ratio.multiplied != out.count * ratio.divided)
      return false;
    if (operation == IVY_JAX_ALL_TO_ALL && in.count % size != 0) return false;
  }
  return true;
}

bool can_travel(const std::vector<Array>& arrays) {
  return std::all_of(arrays.begin(), arrays.end(),
                     [](const Array& each) { return each.type >= 0; });
}

Fault check(const Request& request) {
  if (request.group.comm == nullptr)
    return rejected(
        IVY_FAILED_PRECONDITION,
        "the group that this program was compiled for was freed, or belongs to an earlier "
        "world: compile the program again");
  if (!fits(request))
    return rejected(IVY_INVALID_ARGUMENT,
                    "the program was compiled for a group of a different size than " +
                        std::to_string(request.group.size) +
                        ": jax.clear_caches() makes JAX compile it again");
  if (!can_travel(request.inputs) || !can_travel(request.outputs))
    return rejected(IVY_INVALID_ARGUMENT, "arrays of this element type cannot be sent");
  return {};
}

// A call that is under way. Destroyed only when it is done.
class Pending {
 public:
  explicit Pending(const Request& request) {
    call.struct_bytes = sizeof call;
    call.timeout_ms = request.attribute.timeout_ms;
    if (request.is_on_gpu) {
      call.stream = request.stream;
      call.flags = IVY_ENQUEUE | IVY_DEVICE_MEMORY;
    } else {
      call.work = &work;
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() {
    if (work != nullptr) library.work_free(work);
  }

  ivy_call call = {};
  ivy_work* work = nullptr;
};

int all_reduce(const Request& request, const ivy_call* call) {
  std::vector<const void*> send;
  std::vector<void*> recv;
  std::vector<size_t> counts;
  for (size_t at = 0; at < request.outputs.size(); ++at) {
    send.push_back(request.inputs[at].data);
    recv.push_back(request.outputs[at].data);
    // XLA may give one buffer for both.
    if (send.back() == recv.back()) send.back() = IVY_IN_PLACE;
    counts.push_back(request.outputs[at].count);
  }
  return library.all_reduce_coalesced(request.group.comm, counts.size(), send.data(), recv.data(),
                                      counts.data(), request.outputs[0].type,
                                      static_cast<int>(request.attribute.op), call);
}

int reduction(const Request& request, const ivy_call* call) {
  const Array &in = request.inputs[0], &out = request.outputs[0];
  const Group& group = request.group;
  const int op = static_cast<int>(request.attribute.op);
  const int root = static_cast<int>(request.attribute.peer);
  const void* send = in.data == out.data ? IVY_IN_PLACE : in.data;
  switch (request.attribute.operation) {
    case IVY_JAX_REDUCE: {
      const bool is_root = group.rank == root;
      return library.reduce(group.comm, is_root ? send : in.data, is_root ? out.data : nullptr,
                            in.count, in.type, op, root, call);
    }
    case IVY_JAX_SCAN:
      return library.scan(group.comm, send, out.data, in.count, in.type, op, call);
    default:
      return library.reduce_scatter(group.comm, in.data, out.data, out.count, in.type, op, call);
  }
}

int movement(const Request& request, const ivy_call* call) {
  const Array &in = request.inputs[0], &out = request.outputs[0];
  const Group& group = request.group;
  const int root = static_cast<int>(request.attribute.peer);
  const bool is_root = group.rank == root;
  switch (request.attribute.operation) {
    case IVY_JAX_BROADCAST:
      return library.broadcast(group.comm, out.data, out.count, out.type, root, call);
    case IVY_JAX_ALL_GATHER:
      return library.all_gather(group.comm, in.data, out.data, in.count, in.type, call);
    case IVY_JAX_GATHER:
      return library.gather(group.comm, in.data, is_root ? out.data : nullptr, in.count, in.type,
                            root, call);
    case IVY_JAX_SCATTER:
      return library.scatter(group.comm, is_root ? in.data : nullptr, out.data, out.count, out.type,
                             root, call);
    default:
      return library.all_to_all(group.comm, in.data, out.data,
                                in.count / static_cast<size_t>(group.size), in.type, call);
  }
}

int collective(const Request& request, const ivy_call* call) {
  switch (request.attribute.operation) {
    case IVY_JAX_ALL_REDUCE:
      return all_reduce(request, call);
    case IVY_JAX_REDUCE:
    case IVY_JAX_SCAN:
    case IVY_JAX_REDUCE_SCATTER:
      return reduction(request, call);
    case IVY_JAX_BARRIER:
      return library.barrier(request.group.comm, call);
    default:
      return movement(request, call);
  }
}

// Holds an exception that a signal handler raised until the interpreter continues. Guarded by the
// GIL.
struct Raised {
  void *type = nullptr, *value = nullptr, *trace = nullptr;
};
Raised raised;

int raise_again(void*) {
  interpreter.PyErr_Restore(raised.type, raised.value, raised.trace);
  raised = {};
  return -1;
}

// Runs pending signal handlers and returns whether one has raised an exception. Call it only in the
// main thread, where CPython runs handlers. XLA would replace the exception by its own, so it is
// raised again when the interpreter continues.
bool has_handler_raised() {
  const int lock = interpreter.PyGILState_Ensure();
  const bool has_raised = interpreter.PyErr_CheckSignals() != 0;
  if (has_raised) {
    interpreter.PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
    interpreter.Py_AddPendingCall(raise_again, nullptr);
  }
  interpreter.PyGILState_Release(lock);
  return has_raised;
}

bool is_main_thread() { return syscall(SYS_gettid) == getpid(); }

// Waits until the work is done and returns its result. Ctrl-C aborts its communicator.
Fault wait(const Pending& pending) {
  if (pending.work == nullptr) return {};
  std::optional<InterruptWatch> watch;
  const bool is_main = is_main_thread();
  bool is_over = false;
  for (;;) {
    const int code = library.work_wait(pending.work, is_over ? IVY_FOREVER : kSliceMs);
    int is_done = code != IVY_DEADLINE_EXCEEDED;
    if (!is_done) library.work_test(pending.work, &is_done);
    if (is_done)
      return library_fault(code == IVY_DEADLINE_EXCEEDED ? library.work_wait(pending.work, 0)
                                                         : code);
    // Only calls that take longer than a slice pay for a watch.
    if (!watch && !is_main) watch.emplace();
    is_over = is_main ? has_handler_raised() : watch->has_been_interrupted();
    if (is_over) library.work_abort(pending.work);
  }
}

Fault finish(int code, const Pending& pending) {
  return code == IVY_OK ? wait(pending) : library_fault(code);
}

// Posts the receive first, because both sides may be about to send to each other.
Fault exchange(const Request& request) {
  const Attribute& how = request.attribute;
  const bool sends = how.operation != IVY_JAX_RECV && how.peer >= 0;
  const bool receives = how.operation != IVY_JAX_SEND && how.source >= 0;
  Pending sending(request), receiving(request);
  if (receives) {
    const Array& out = request.outputs[0];
    const int code = library.recv(request.group.comm, out.data, out.count, out.type,
                                  static_cast<int>(how.source), static_cast<int>(how.source_tag),
                                  nullptr, &receiving.call);
    if (code != IVY_OK) return library_fault(code);
  }
  Fault fault;
  if (sends) {
    const Array& in = request.inputs[0];
    fault =
        finish(library.send(request.group.comm, in.data, in.count, in.type,
                            static_cast<int>(how.peer), static_cast<int>(how.tag), &sending.call),
               sending);
    if (fault.code != IVY_OK && receives && receiving.work != nullptr)
      library.work_abort(receiving.work);
  }
  const Fault received = receives ? wait(receiving) : Fault{};
  return fault.code != IVY_OK ? fault : received;
}

Fault carry_out(const Request& request) {
  if (const Fault fault = check(request); fault.code != IVY_OK) return fault;
  if (request.attribute.operation >= IVY_JAX_SEND) return exchange(request);
  Pending pending(request);
  return finish(collective(request, &pending.call), pending);
}

xla::Error* report(const xla::CallFrame& frame, Fault fault) {
  if (fault.code == IVY_OK) return nullptr;
  const std::string text = "ivycomm: " + fault.text;
  xla::ErrorArguments arguments{sizeof(xla::ErrorArguments), nullptr, text.c_str(), fault.code};
  {
    const std::lock_guard lock(state_mutex);
    last_fault = std::move(fault);
  }
  return frame.api->create_error(&arguments);
}

// XLA asks each handler once, without arguments, for the version of the interface that it uses.
bool has_answered_metadata(const xla::CallFrame& frame) {
  for (const xla::Extension* each = frame.extensions; each != nullptr; each = each->next) {
    if (each->type != kMetadata) continue;
    xla::Metadata& metadata = *reinterpret_cast<const xla::MetadataExtension*>(each)->metadata;
    metadata.version.major_version = xla::kMajor;
    metadata.version.minor_version = std::min(interface_minor, xla::kNewestMinor);
    metadata.traits = 0;
    return true;
  }
  return false;
}

xla::Error* handle(const xla::CallFrame& frame, bool is_on_gpu) {
  if (interface_minor > 0 && has_answered_metadata(frame)) return nullptr;
  if (frame.struct_size < offsetof(xla::CallFrame, attributes) + sizeof(xla::Attributes))
    return report(
        frame,
        rejected(
            IVY_FAILED_PRECONDITION,
            "XLA's call structure is smaller than in jaxlib 0.4.31, the oldest supported version"));
  Request request;
  request.attribute = attribute_of(frame.attributes);
  request.inputs = arrays_of(frame.arguments);
  request.outputs = arrays_of(frame.results);
  request.is_on_gpu = is_on_gpu;
  if (is_on_gpu) {
    xla::StreamArguments arguments{sizeof(xla::StreamArguments), nullptr, frame.context, nullptr};
    if (xla::Error* error = frame.api->get_stream(&arguments)) return error;
    request.stream = arguments.stream;
  }
  {
    const std::lock_guard lock(state_mutex);
    const auto group = groups.find(request.attribute.group);
    if (group != groups.end()) request.group = group->second;
  }
  return report(frame, carry_out(request));
}

}  // namespace
}  // namespace ivy::jax

using namespace ivy::jax;

int ivy_jax_set_functions(const ivy_jax_functions* functions, const ivy_jax_interpreter* python,
                          int minor) {
  if (functions->struct_bytes < sizeof *functions || minor < 0) return IVY_INVALID_ARGUMENT;
  library = *functions;
  interpreter = *python;
  interface_minor = minor;
  return IVY_OK;
}

int ivy_jax_set_group(int64_t number, ivy_comm* comm, int rank, int size) {
  const std::lock_guard lock(state_mutex);
  if (comm == nullptr) {
    groups.erase(number);
  } else {
    groups[number] = {comm, rank, size};
  }
  return IVY_OK;
}

int ivy_jax_last_failure(char* text, size_t text_bytes, ivy_failure* failure) {
  const std::lock_guard lock(state_mutex);
  if (text_bytes > 0) {
    const size_t length = std::min(last_fault.text.size(), text_bytes - 1);
    std::copy_n(last_fault.text.data(), length, text);
    text[length] = '\0';
  }
  *failure = last_fault.failure;
  return last_fault.code;
}

void* ivy_jax_on_host(void* frame) {
  return handle(*static_cast<const ivy::xla::CallFrame*>(frame), false);
}

void* ivy_jax_on_gpu(void* frame) {
  return handle(*static_cast<const ivy::xla::CallFrame*>(frame), true);
}

void ivy_jax_pass(void*, const void**) {}
