// The communicator's collectives on device memory: all ranks meet as for any operation, so that
// mismatches and deaths are found before NCCL is asked; then NCCL does it, or, where NCCL has no
// such reduction or devices are shared, the data go through host memory (device_staging.cc).
#include <cstdlib>
#include <string_view>
#include <utility>

#include "comm/group/communicator.h"
#include "comm/group/device_side.h"
#include "comm/group/job.h"
#include "comm/nccl/reduction_plan.h"
#include "comm/transports/alarms.h"

namespace ivy::comm {
namespace {

using nccl::DeviceOperation;

// How long an operation on the device may still run after a rank of it has left.
constexpr std::chrono::seconds kLeftPatience{5};

Called refused(const std::string& text) {
  Failure failure = make_failure(FailureKind::kOther, text);
  failure.code = 3;  // InvalidArgument; nothing was sent.
  return {Outcome(failure), nullptr};
}

bool may_stage() {
  const char* const wanted = std::getenv("IVY_NCCL_STAGING");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

bool wants_staging(const DeviceOperation& operation) {
  if (operation.parts.empty() && operation.counts.empty()) return false;
  const OperationShape& shape = operation.shape;
  return nccl::plan_reduction(shape.operation, shape.dtype, shape.op).is_staged;
}

}  // namespace

std::optional<Failure> Communicator::device_trouble() {
  if (local_ != nullptr && local_->is_broken()) {
    if (std::optional<Failure> found = local_->failure()) return found;
  }
  if (is_broken_.load(std::memory_order_acquire)) return failure();
  const std::lock_guard lock(device_->alarm_mutex);
  if (device_->alarm == nullptr) device_->alarm = job_.make_alarm(name_, seats_, rank_);
  std::optional<Failure> found = device_->alarm->look();
  if (!found || !has_ended_well(*found)) return found;
  const auto now = std::chrono::steady_clock::now();
  if (!device_->left_at) device_->left_at = now;
  if (now - *device_->left_at < kLeftPatience) return std::nullopt;
  return found;
}

// True if the rank has finalized and not died: it may leave as soon as its own part of an operation
// is done, while others still wait for theirs.
bool Communicator::has_ended_well(const Failure& found) const {
  if (found.kind != FailureKind::kRankDied || local_ == nullptr) return false;
  for (std::size_t member = 0; member < local_ranks_.size(); ++member) {
    if (world_rank(local_ranks_[member]) == found.rank) {
      return local_->has_left(static_cast<std::uint32_t>(member));
    }
  }
  return false;
}

nccl::DeviceCommunicatorOptions Communicator::device_options() {
  nccl::DeviceCommunicatorOptions options;
  options.name = name_;
  options.key = job_.key("nccl/" + name_);
  options.store = size() > 1 ? job_.store() : nullptr;
  for (const Seat& seat : seats_) {
    options.rank_names.push_back(name_of_rank(seat.world_rank, seat.host_name, seat.pid));
    options.world_ranks.push_back(seat.world_rank);
    options.spans_hosts = options.spans_hosts || seat.host_name != seats_.front().host_name;
  }
  options.rank = rank_;
  options.host = seats_[static_cast<std::size_t>(rank_)].host_name;
  options.trouble = [this] { return device_trouble(); };
  options.found = [this](const Failure& failure) { broken(failure); };
  return options;
}

nccl::DeviceCommunicator& Communicator::device_communicator() {
  const std::lock_guard lock(device_->mutex);
  if (device_->nccl == nullptr) {
    device_->nccl = std::make_unique<nccl::DeviceCommunicator>(device_options());
  }
  return *device_->nccl;
}

// Aborts what runs on the device; says so where the device does not come back.
void Communicator::break_device() {
  nccl::DeviceCommunicator* device = nullptr;
  {
    const std::lock_guard lock(device_->mutex);
    device = device_->nccl.get();
  }
  if (device == nullptr) return;
  const std::optional<std::string> taint = device->break_with();
  if (!taint) return;
  const std::lock_guard lock(failure_mutex_);
  const std::string text = failure_->text;
  if (text.find(*taint) == std::string::npos) set_text(*failure_, text + "; " + *taint);
}

// Ends NCCL's part before this seat ends: waits for what was enqueued, or returns the failure that
// no call has returned yet.
Outcome Communicator::end_device() {
  nccl::DeviceCommunicator* device = nullptr;
  {
    const std::lock_guard lock(device_->mutex);
    device = device_->nccl.get();
  }
  if (device == nullptr) return {};
  if (const std::optional<Failure> failure = device->end()) return Outcome(*failure);
  const bool is_news = device->has_lost() && !device_->is_told.exchange(true);
  const std::optional<Failure> found = is_news ? failure() : std::nullopt;
  return found && found->kind != FailureKind::kAborted ? Outcome(*found) : Outcome();
}

Outcome Communicator::settle_device() { return queue_.is_busy() ? Outcome() : end_device(); }

bool Communicator::fail_on_device(Failure failure, const OperationCall& call) {
  device_->is_told = true;
  if (failure.sequence == 0) failure.sequence = call.sequence;
  if (failure.operation[0] == '\0') {
    set_operation(failure, comm_status::name_of(call.shape.operation));
  }
  broken(failure);
  return false;
}

// An operation that runs behind the caller's back has a stream of its own, which begins where the
// caller's stream was at the call: what the caller puts there later does not mix with it.
Result<nccl::Stream> Communicator::stream_behind(nccl::Stream stream, int device) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, device);
  IVY_CHECK(current.result());
  const std::lock_guard lock(device_->mutex);
  if (device_->stream == nullptr) device_->stream = IVY_TRY(driver->make_stream());
  device_->stream_device = device;
  const nccl::Event event = IVY_TRY(driver->make_event());
  Result<void> ordered = driver->record(event, stream);
  if (ordered.ok()) ordered = driver->wait(device_->stream, event);
  driver->free_event(event);
  IVY_CHECK(ordered);
  return device_->stream;
}

Called Communicator::on_device(nccl::DeviceOperation operation, const CallOptions& options) {
  operation.shape.place = Place::kDevice;
  operation.factor = options.factor;
  if (wants_staging(operation) && !may_stage()) {
    return refused(describe(operation.shape) + ": NCCL has no " +
                   std::string(reduce_op_name(operation.shape.op)) + " of " +
                   std::string(dtype_name(operation.shape.dtype)) + " for " +
                   std::string(comm_status::name_of(operation.shape.operation)) +
                   ", and IVY_NCCL_STAGING=0 forbids the way through host memory");
  }
  {
    const std::lock_guard lock(device_->mutex);
    const int used = device_->nccl != nullptr ? device_->nccl->device() : -1;
    if (used >= 0 && used != operation.device) {
      return refused("the buffers are on device " + std::to_string(operation.device) +
                     ", but this rank's device in communicator " + name_ + " is " +
                     std::to_string(used));
    }
  }
  if (options.is_async) {
    const Result<nccl::Stream> stream = stream_behind(operation.stream, operation.device);
    if (!stream.ok()) return refused(stream.error().message);
    operation.stream = *stream;
    operation.is_enqueued = false;
  }
  const OperationShape shape = operation.shape;
  return run_any(shape, options,
                 [this, operation = std::move(operation)](const OperationCall& call) {
                   return carry_out_on_device(call, operation);
                 });
}

bool Communicator::carry_out_on_device(const OperationCall& call,
                                       const nccl::DeviceOperation& operation) {
  entered();  // Note the operation now: some ranks wait for the device before they meet.
  nccl::DeviceCommunicator& device = device_communicator();
  if (wants_staging(operation) || device.is_shared()) return carry_out_staged(call, operation);
  if (!meet(call)) return false;
  if (const std::optional<Failure> failure = device.prepare(operation.device, call.deadline)) {
    return fail_on_device(*failure, call);
  }
  if (device.is_shared()) return carry_out_staged(call, operation);
  const std::optional<Failure> failure = device.carry_out(operation, call.sequence, call.deadline);
  return !failure || fail_on_device(*failure, call);
}

Called Communicator::prepare_device(int device, const CallOptions& options) {
  OperationShape shape;
  shape.operation = Operation::kInit;
  shape.place = Place::kDevice;
  return run_any(shape, options, [this, device](const OperationCall& call) {
    if (!meet(call)) return false;
    const std::optional<Failure> failure = device_communicator().prepare(device, call.deadline);
    return !failure || fail_on_device(*failure, call);
  });
}

// Collective over this communicator: where it has NCCL, its groups get theirs from it. `color` < 0:
// this rank is in no group.
Result<std::unique_ptr<nccl::DeviceCommunicator>> Communicator::split_device(
    std::int32_t color, std::int32_t key, const std::string& name) {
  std::unique_ptr<nccl::DeviceCommunicator> child;
  {
    const std::lock_guard lock(device_->mutex);
    if (device_->nccl == nullptr || !device_->nccl->is_prepared()) return child;
  }
  OperationShape shape;
  shape.operation = Operation::kGroup;
  shape.place = Place::kDevice;
  const Called called = run_any(shape, {}, [&](const OperationCall& call) {
    if (!meet(call)) return false;
    const std::optional<Failure> failure = device_communicator().split(
        std::max(color, nccl::kNoColor), key, name, call.deadline, child);
    return !failure || fail_on_device(*failure, call);
  });
  if (called.outcome.code == 0) return child;
  return Error{static_cast<Code>(called.outcome.code), called.outcome.failure().text};
}

void Communicator::adopt_device(std::unique_ptr<nccl::DeviceCommunicator> device) {
  if (device == nullptr) return;
  device->join(device_options());
  device_->nccl = std::move(device);
}

}  // namespace ivy::comm
