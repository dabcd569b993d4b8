// SPDX-License-Identifier: Apache-2.0
// In this order: the reasons to reject an operation; creation and end of the NCCL communicator;
// admit() and choose_path(), which every operation passes first; the two paths after that,
// run_synchronized() and enqueue() (join_group() inside a group); the way through host memory
// (run_staged()); and windows and splits.
#include "comm/group/device/device_backend.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "comm/group/device/device_group.h"
#include "comm/group/device/device_staging.h"
#include "comm/nccl/abandonable_call.h"
#include "comm/nccl/reduction_plan.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "proto/os/clock.h"

namespace ivy::comm {
namespace {

using nccl::DeviceOperation;

[[gnu::cold, gnu::noinline]] Failure rejection(const std::string& text) {
  Failure failure = make_failure(FailureKind::kOther, text);
  failure.code = static_cast<std::int32_t>(Code::kInvalidArgument);
  return failure;
}

bool may_stage() {
  const char* const wanted = std::getenv("IVY_NCCL_STAGING");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

// Limit of operations that a rank may put on streams before the device has finished the first one.
std::size_t max_enqueued() {
  constexpr std::size_t kMaxAhead = 1024;
  const char* const wanted = std::getenv("IVY_DEVICE_AHEAD");
  const long number = wanted != nullptr ? std::strtol(wanted, nullptr, 10) : 0;
  return number > 0 ? static_cast<std::size_t>(number) : kMaxAhead;
}

// Returns whether a broken world's NCCL communicator is kept for the world of its survivors.
bool may_shrink(const Membership& ranks) {
  const char* const wanted = std::getenv("IVY_NCCL_SHRINK");
  return wanted != nullptr && std::string_view(wanted) == "1" && ranks.name() == "world";
}

nccl::ReturnWhen return_when(const DeviceOperation& operation) {
  if (operation.is_captured) return nccl::ReturnWhen::kCaptured;
  return operation.is_enqueued ? nccl::ReturnWhen::kEnqueued : nccl::ReturnWhen::kDone;
}

bool wants_staging(const OperationShape& shape) {
  return reduces(shape.operation) &&
         nccl::plan_reduction(shape.operation, shape.dtype, shape.op).is_staged;
}

// Returns why the operation cannot be a message or part of an NCCL group, or an empty text if it
// can.
[[gnu::noinline]] std::string why_not_enqueued(const DeviceOperation& operation, bool is_async,
                                               bool is_begun) {
  const bool is_message = operation.is_message();
  if (!is_begun) {
    return std::string(is_message ? ": a message" : ": an operation in a group") +
           " cannot be the communicator's first operation on a device, for which all ranks "
           "synchronize; "
           "call ivy_prepare_device (in Python prepare_device) before; if ranks share a device "
           "(IVY_OVERSUBSCRIBE=1), copy to the host";
  }
  if (DeviceGroup::current() == nullptr) return "";
  if (wants_staging(operation.collective.shape) || device_check_mode() == DeviceCheckMode::kEvery) {
    return ": this operation synchronizes the ranks before it starts, which is impossible in a "
           "group";
  }
  if (!operation.is_enqueued && !is_async) {
    return ": it cannot be waited for inside a group; set IVY_ENQUEUE or call.work";
  }
  return "";
}

// Returns why the operation cannot be part of a graph, or an empty text if it can.
[[gnu::noinline]] std::string why_not_captured(const DeviceOperation& operation, bool is_prepared,
                                               bool is_async) {
  if (!is_prepared) {
    return ": the stream is being captured into a graph, and this is the communicator's first "
           "operation on a device, for which NCCL is started; call ivy_prepare_device (in Python "
           "prepare_device) or any operation on a device before the capture";
  }
  if (wants_staging(operation.collective.shape)) {
    return ": the stream is being captured into a graph, but NCCL has no such reduction, and the "
           "path through host memory cannot be captured";
  }
  if (device_check_mode() == DeviceCheckMode::kEvery) {
    return ": the stream is being captured into a graph, but IVY_DEVICE_CHECK=every synchronizes "
           "all ranks before each operation; unset it";
  }
  if (!operation.is_enqueued && !is_async) {
    return ": the stream is being captured into a graph, so the call cannot wait for its "
           "result; set IVY_ENQUEUE";
  }
  return "";
}

MaybeFailure failure_to_select(const nccl::Driver::Current& current) {
  if (current.result().ok()) return std::nullopt;
  return make_failure(FailureKind::kTransport, current.result().error().message);
}

nccl::DeviceCommunicator::Started begin_operation(const DeviceOperation& operation,
                                                  std::chrono::nanoseconds timeout,
                                                  const std::shared_ptr<Work>& work) {
  nccl::DeviceCommunicator::Started one;
  one.operation = &operation;
  one.watched.shape = operation.collective.shape;
  one.watched.number = operation.number;
  one.watched.timeout = timeout;
  one.returns_when = return_when(operation);
  if (work == nullptr) return one;
  if (!operation.is_captured) one.returns_when = nccl::ReturnWhen::kEnqueued;
  one.watched.on_end = [work](const MaybeFailure& failure) {
    work->finish(failure ? Outcome(*failure) : Outcome());
  };
  return one;
}

}  // namespace

DeviceBackend::DeviceBackend(DeviceContext context)
    : context_(std::move(context)),
      max_enqueued_(max_enqueued()),
      check_(context_.ranks, context_.job.records().store(),
             context_.job.key("device/" + context_.ranks.name() + "/")),
      detector_(context_.job, context_.ranks, context_.host, context_.failure),
      display_(context_.job, context_.ranks) {}

DeviceBackend::~DeviceBackend() {
  published_part_ = nullptr;
  part_.reset();
}

nccl::DeviceCommunicatorOptions DeviceBackend::options() {
  const Membership& ranks = context_.ranks;
  nccl::DeviceCommunicatorOptions options;
  options.name = ranks.name();
  options.key = context_.job.key("nccl/" + ranks.name());
  options.store = ranks.size() > 1 ? context_.job.store() : nullptr;
  for (const Member& member : ranks.members()) {
    options.rank_names.push_back(name_of_rank(member.world_rank, member.host_name, member.pid));
    options.world_ranks.push_back(member.world_rank);
    options.spans_hosts = options.spans_hosts || member.host_name != ranks.members()[0].host_name;
  }
  options.rank = ranks.rank();
  options.host = ranks.own_member().host_name;
  options.owner = this;
  is_revoked_after_death_ = may_shrink(ranks);
  options.parent = std::exchange(parent_, nullptr);
  return options;
}

std::string DeviceBackend::why_late(const nccl::Enqueued& operation) {
  if (operation.number != 0) return check_.why_late(operation);
  return "has rank " + std::to_string(operation.shape.root) +
         " called its part, in the same order among its operations on devices?";
}

void DeviceBackend::keep_revoked(std::unique_ptr<nccl::RevokedHandle> revoked) {
  const std::lock_guard lock(mutex_);
  revoked_ = std::move(revoked);
}

nccl::DeviceCommunicator& DeviceBackend::create_nccl_part() {
  const std::lock_guard lock(mutex_);
  if (part_ == nullptr) {
    part_ = std::make_unique<nccl::DeviceCommunicator>(options());
    published_part_ = part_.get();
  }
  return *part_;
}

InheritedDeviceState DeviceBackend::release_device_state() {
  const std::lock_guard lock(mutex_);
  InheritedDeviceState inherited;
  inherited.revoked = std::move(revoked_);
  inherited.key = context_.job.key("nccl/" + context_.ranks.name());
  inherited.members = context_.ranks.members();
  return inherited;
}

MaybeFailure DeviceBackend::tick(const nccl::Enqueued* oldest) {
  display_.show(oldest, check_.last_operation());
  return check_.tick(oldest);
}

void DeviceBackend::abort() {
  *is_broken_ = true;
  nccl::DeviceCommunicator* const device = nccl_part();
  if (device == nullptr) return;
  if (const std::optional<std::string> taint = device->abort()) {
    context_.failure.add_text(*taint);
  }
}

Outcome DeviceBackend::end() {
  nccl::DeviceCommunicator* const device = nccl_part();
  if (device == nullptr) return {};
  if (const MaybeFailure failure = device->end()) return Outcome(*failure);
  if (!device->enqueued().has_lost() || is_failure_returned_.exchange(true)) return {};
  const MaybeFailure found = context_.failure.get();
  return found && found->kind != FailureKind::kAborted ? Outcome(*found) : Outcome();
}

bool DeviceBackend::fail(Failure failure, const OperationCall& call) {
  is_failure_returned_ = true;
  if (failure.sequence == 0) failure.sequence = call.sequence;
  if (failure.operation[0] == '\0') {
    set_operation(failure, comm_status::name_of(call.shape.operation));
  }
  context_.handler.break_all(failure);
  return false;
}

MaybeFailure DeviceBackend::admit(DeviceOperation& operation, bool is_async) {
  OperationShape& shape = operation.collective.shape;
  shape.memory = MemoryKind::kDevice;
  if (operation.is_message() || DeviceGroup::current() != nullptr) {
    // The ranks also synchronize for the first collective if NCCL's part was created by a split.
    const bool is_begun = is_prepared() && (operation.is_message() || has_begun_);
    const std::string why = why_not_enqueued(operation, is_async, is_begun);
    if (!why.empty()) return rejection(describe(shape) + why);
  }
  if (wants_staging(shape) && !may_stage()) {
    return rejection(describe(shape) + ": NCCL has no " + std::string(reduce_op_name(shape.op)) +
                     " of " + std::string(dtype_name(shape.dtype)) + " for " +
                     std::string(comm_status::name_of(shape.operation)) +
                     ", and IVY_NCCL_STAGING=0 forbids the path through host memory");
  }
  const nccl::DeviceCommunicator* const device = nccl_part();
  const int used = device != nullptr ? device->device() : -1;
  if (used >= 0 && used != operation.device) {
    return rejection("the buffers are on device " + std::to_string(operation.device) +
                     ", but this rank's device in communicator " + context_.ranks.name() + " is " +
                     std::to_string(used));
  }
  const nccl::Driver* const driver = nccl::Driver::in_use();
  if (driver != nullptr && !streams_.has(*driver, operation, used >= 0)) {
    const std::string own = "device " + std::to_string(operation.device);
    return rejection(describe(shape) + ": the buffers are on " + own +
                     ", but the stream was created for another device; pass a stream of " + own);
  }
  operation.is_captured = driver != nullptr && driver->is_capturing(operation.stream);
  if (operation.is_captured) {
    const std::string why = why_not_captured(operation, used >= 0, is_async);
    if (!why.empty()) return rejection(describe(shape) + why);
  }
  if (!is_async) return std::nullopt;
  const Result<void> given = side_.give(operation);
  if (!given.ok()) return rejection(given.error().message);
  return std::nullopt;
}

DevicePath DeviceBackend::choose_path(DeviceOperation& operation) {
  if (operation.is_message()) return DevicePath::kEnqueued;
  const bool is_first = !has_begun_.load() && !has_begun_.exchange(true);
  const OperationShape& shape = operation.collective.shape;
  if (is_first || mode_ == DeviceCheckMode::kEvery || wants_staging(shape)) {
    return DevicePath::kSynchronized;
  }
  operation.number = check_.count_enqueued(shape, operation.is_captured);
  return DevicePath::kEnqueued;
}

void DeviceBackend::note_synchronized(OperationShape& shape) {
  check_.begin_synchronized(shape);
  if (nccl::DeviceCommunicator* const device = nccl_part()) device->enqueued().stay_awake();
}

bool DeviceBackend::run_synchronized(const OperationCall& call, const DeviceOperation& operation) {
  nccl::DeviceCommunicator& device = create_nccl_part();
  if (wants_staging(operation.collective.shape) || device.is_shared()) {
    return run_staged(call, operation);
  }
  if (!context_.host.barrier(call)) return false;
  if (!continue_unless(device.prepare(operation.device, call.deadline), call)) return false;
  if (device.is_shared()) return run_staged(call, operation);
  nccl::DeviceCommunicator::Started one = begin_operation(operation, call.deadline.left(), nullptr);
  one.watched.number = call.sequence;
  const nccl::Driver::Current current(*nccl::Driver::in_use(), operation.device);
  MaybeFailure failure = failure_to_select(current);
  if (!failure) failure = nccl::start_and_finish(device, one);
  return continue_unless(failure, call);
}

Outcome DeviceBackend::fail_enqueued(const Failure& failure) {
  is_failure_returned_ = true;
  context_.handler.break_all(failure);
  const MaybeFailure first = context_.failure.get();
  return Outcome(first ? *first : failure);
}

// Marks the position of the operation, which is on its stream, for `work`. Requires that the device
// is this thread's current one.
Outcome DeviceBackend::mark_end(const DeviceOperation& operation,
                                const std::shared_ptr<Work>& work) {
  if (work == nullptr) return {};
  Result<std::shared_ptr<nccl::StreamMark>> behind =
      nccl::StreamMark::behind(*nccl::Driver::in_use(), operation.device, operation.stream);
  if (!behind.ok()) {
    return fail_enqueued(make_failure(FailureKind::kTransport, behind.error().message));
  }
  work->set_mark(std::move(*behind), is_broken_);
  if (operation.is_captured) work->finish_captured();
  return {};
}

Outcome DeviceBackend::enqueue(const DeviceOperation& operation, std::chrono::nanoseconds timeout,
                               const std::shared_ptr<Work>& work) {
  nccl::DeviceCommunicator& device = *nccl_part();
  if (!operation.is_captured) device.enqueued().await_room(max_enqueued_);
  const std::lock_guard lock(enqueue_mutex_);
  if (context_.failure.is_set()) return fail_enqueued(*context_.failure.get());
  nccl::DeviceCommunicator::Started one = begin_operation(operation, timeout, work);
  const nccl::Driver::Current current(*nccl::Driver::in_use(), operation.device);
  MaybeFailure failure = failure_to_select(current);
  if (!failure) failure = nccl::start_and_finish(device, one);
  return failure ? fail_enqueued(*failure) : mark_end(operation, work);
}

class DeviceBackend::Grouped final : public GroupedOperation {
 public:
  Grouped(DeviceBackend& backend, const DeviceOperation& operation,
          std::chrono::nanoseconds timeout, const std::shared_ptr<Work>& work)
      : backend_(backend),
        operation_(operation),
        work_(work),
        started_(begin_operation(operation_, timeout, work)) {}

  nccl::DeviceCommunicator::Started& started() { return started_; }

  Outcome finish(const MaybeFailure& ended) override {
    const nccl::Driver::Current current(*nccl::Driver::in_use(), operation_.device);
    const MaybeFailure found = backend_.nccl_part()->finish(started_, true, ended);
    const Outcome outcome =
        found ? backend_.fail_enqueued(*found) : backend_.mark_end(operation_, work_);
    if (found && work_ != nullptr) work_->finish(outcome);
    return outcome;
  }

 private:
  DeviceBackend& backend_;
  const DeviceOperation operation_;  // started_ refers to it.
  const std::shared_ptr<Work> work_;
  nccl::DeviceCommunicator::Started started_;
};

Outcome DeviceBackend::join_group(const DeviceOperation& operation,
                                  std::chrono::nanoseconds timeout,
                                  const std::shared_ptr<Work>& work) {
  DeviceGroup& group = *DeviceGroup::current();
  nccl::DeviceCommunicator& device = *nccl_part();
  auto grouped = std::make_unique<Grouped>(*this, operation, timeout, work);
  const std::lock_guard lock(enqueue_mutex_);
  if (context_.failure.is_set()) return fail_enqueued(*context_.failure.get());
  const nccl::Driver::Current current(*nccl::Driver::in_use(), operation.device);
  MaybeFailure failure = failure_to_select(current);
  if (!failure) failure = group.open();
  if (!failure) failure = device.start(grouped->started(), true);
  if (failure) return fail_enqueued(*failure);
  group.add(device, std::move(grouped));
  return {};
}

bool DeviceBackend::run_staged(const OperationCall& call, const DeviceOperation& operation) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, operation.device);
  if (const MaybeFailure failure = failure_to_select(current)) return fail(*failure, call);
  if (operation.after != nullptr) {
    const Result<void> held = operation.after->hold_back(operation.stream);
    if (!held.ok()) return fail(make_failure(FailureKind::kTransport, held.error().message), call);
  }
  nccl::DeviceCommunicator& device = create_nccl_part();
  Staging staging(operation, context_.ranks.rank());
  return continue_unless(staging.copy_out(device, call.deadline), call) &&
         context_.host.run(call, staging.on_host()) &&
         continue_unless(staging.copy_back(device, call.deadline), call);
}

bool DeviceBackend::prepare(const OperationCall& call, const nccl::DeviceRegion& region) {
  nccl::DeviceCommunicator& device = create_nccl_part();
  if (!context_.host.barrier(call)) return false;
  if (!continue_unless(device.prepare(region.device, call.deadline), call)) return false;
  if (region.memory == nullptr || device.is_shared()) return true;
  return continue_unless(device.add_window(region, call.deadline), call);
}

bool DeviceBackend::split(const OperationCall& call, std::int32_t color, std::int32_t key,
                          const std::string& name,
                          std::unique_ptr<nccl::DeviceCommunicator>& child) {
  if (!context_.host.barrier(call)) return false;
  color = std::max(color, nccl::kNoColor);
  return continue_unless(create_nccl_part().split(color, key, name, call.deadline, child), call);
}

void DeviceBackend::adopt(std::unique_ptr<nccl::DeviceCommunicator> device) {
  if (device == nullptr) return;
  device->join(options());
  part_ = std::move(device);
  published_part_ = part_.get();
}

}  // namespace ivy::comm
