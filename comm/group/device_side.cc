#include "comm/group/device_side.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "comm/group/device_staging.h"
#include "comm/nccl/apart.h"
#include "comm/nccl/reduction_plan.h"
#include "comm/transports/alarms.h"

namespace ivy::comm {
namespace {

using nccl::DeviceOperation;

// How long an operation on the device may still run after a rank of it has left.
constexpr std::chrono::seconds kLeftPatience{5};

Failure refusal(const std::string& text) {
  Failure failure = make_failure(FailureKind::kOther, text);
  failure.code = static_cast<std::int32_t>(Code::kInvalidArgument);
  return failure;
}

bool may_stage() {
  const char* const wanted = std::getenv("IVY_NCCL_STAGING");
  return wanted == nullptr || std::string_view(wanted) != "0";
}

bool wants_staging(const OperationShape& shape) {
  return reduces(shape.operation) &&
         nccl::plan_reduction(shape.operation, shape.dtype, shape.op).is_staged;
}

}  // namespace

DeviceSide::~DeviceSide() {
  nccl_.reset();
  if (stream_ == nullptr || nccl::is_tainted()) return;
  const nccl::Driver* const driver = nccl::Driver::in_use();
  const nccl::Driver::Current current(*driver, stream_device_);
  driver->free_stream(stream_);
}

// Whether waiting is in vain. Asked by any thread.
std::optional<Failure> DeviceSide::trouble() {
  SharedGroup* const local = context_.host.local();
  if (local != nullptr && local->is_broken()) {
    if (std::optional<Failure> found = local->failure()) return found;
  }
  if (context_.failure.is_set()) return context_.failure.get();
  const std::lock_guard lock(alarm_mutex_);
  const Membership& ranks = context_.ranks;
  if (alarm_ == nullptr) {
    alarm_ = context_.job.make_alarm(ranks.name(), ranks.seats(), ranks.rank());
  }
  std::optional<Failure> found = alarm_->look();
  if (!found || !has_ended_well(*found)) return found;
  const auto now = std::chrono::steady_clock::now();
  if (!left_at_) left_at_ = now;
  if (now - *left_at_ < kLeftPatience) return std::nullopt;
  return found;
}

// True if the rank has finalized and not died: it may leave as soon as its own part of an operation
// is done, while others still wait for theirs.
bool DeviceSide::has_ended_well(const Failure& found) const {
  SharedGroup* const local = context_.host.local();
  if (found.kind != FailureKind::kRankDied || local == nullptr) return false;
  std::uint32_t member = 0;
  for (const std::int32_t rank : context_.ranks.local_ranks()) {
    if (context_.ranks.world_rank(rank) == found.rank) return local->has_left(member);
    ++member;
  }
  return false;
}

nccl::DeviceCommunicatorOptions DeviceSide::options() {
  const Membership& ranks = context_.ranks;
  nccl::DeviceCommunicatorOptions options;
  options.name = ranks.name();
  options.key = context_.job.key("nccl/" + ranks.name());
  options.store = ranks.size() > 1 ? context_.job.store() : nullptr;
  for (const Seat& seat : ranks.seats()) {
    options.rank_names.push_back(name_of_rank(seat.world_rank, seat.host_name, seat.pid));
    options.world_ranks.push_back(seat.world_rank);
    options.spans_hosts = options.spans_hosts || seat.host_name != ranks.seats()[0].host_name;
  }
  options.rank = ranks.rank();
  options.host = ranks.own_seat().host_name;
  options.trouble = [this] { return trouble(); };
  options.found = context_.break_all;
  return options;
}

nccl::DeviceCommunicator& DeviceSide::communicator() {
  const std::lock_guard lock(mutex_);
  if (nccl_ == nullptr) nccl_ = std::make_unique<nccl::DeviceCommunicator>(options());
  return *nccl_;
}

nccl::DeviceCommunicator* DeviceSide::existing() {
  const std::lock_guard lock(mutex_);
  return nccl_.get();
}

void DeviceSide::abort() {
  nccl::DeviceCommunicator* const device = existing();
  if (device == nullptr) return;
  if (const std::optional<std::string> taint = device->break_with()) {
    context_.failure.add_text(*taint);
  }
}

Outcome DeviceSide::end() {
  nccl::DeviceCommunicator* const device = existing();
  if (device == nullptr) return {};
  if (const std::optional<Failure> failure = device->end()) return Outcome(*failure);
  if (!device->has_lost() || is_failure_returned_.exchange(true)) return {};
  const std::optional<Failure> found = context_.failure.get();
  return found && found->kind != FailureKind::kAborted ? Outcome(*found) : Outcome();
}

bool DeviceSide::fail(Failure failure, const OperationCall& call) {
  is_failure_returned_ = true;
  if (failure.sequence == 0) failure.sequence = call.sequence;
  if (failure.operation[0] == '\0') {
    set_operation(failure, comm_status::name_of(call.shape.operation));
  }
  context_.break_all(failure);
  return false;
}

Result<nccl::Stream> DeviceSide::stream_behind(nccl::Stream stream, int device) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, device);
  IVY_CHECK(current.result());
  const std::lock_guard lock(mutex_);
  if (stream_ == nullptr) stream_ = IVY_TRY(driver->make_stream());
  stream_device_ = device;
  const nccl::Event event = IVY_TRY(driver->make_event());
  Result<void> ordered = driver->record(event, stream);
  if (ordered.ok()) ordered = driver->wait(stream_, event);
  driver->free_event(event);
  IVY_CHECK(ordered);
  return stream_;
}

std::optional<Failure> DeviceSide::admit(DeviceOperation& operation, bool is_async) {
  OperationShape& shape = operation.collective.shape;
  shape.place = Place::kDevice;
  if (wants_staging(shape) && !may_stage()) {
    return refusal(describe(shape) + ": NCCL has no " + std::string(reduce_op_name(shape.op)) +
                   " of " + std::string(dtype_name(shape.dtype)) + " for " +
                   std::string(comm_status::name_of(shape.operation)) +
                   ", and IVY_NCCL_STAGING=0 forbids the way through host memory");
  }
  const nccl::DeviceCommunicator* const device = existing();
  const int used = device != nullptr ? device->device() : -1;
  if (used >= 0 && used != operation.device) {
    return refusal("the buffers are on device " + std::to_string(operation.device) +
                   ", but this rank's device in communicator " + context_.ranks.name() + " is " +
                   std::to_string(used));
  }
  if (!is_async) return std::nullopt;
  const Result<nccl::Stream> stream = stream_behind(operation.stream, operation.device);
  if (!stream.ok()) return refusal(stream.error().message);
  operation.stream = *stream;
  operation.is_enqueued = false;
  return std::nullopt;
}

bool DeviceSide::carry_out(const OperationCall& call, const DeviceOperation& operation) {
  nccl::DeviceCommunicator& device = communicator();
  if (wants_staging(operation.collective.shape) || device.is_shared()) {
    return carry_out_staged(call, operation);
  }
  if (!context_.host.meet(call)) return false;
  if (!check(device.prepare(operation.device, call.deadline), call)) return false;
  if (device.is_shared()) return carry_out_staged(call, operation);
  return check(device.carry_out(operation, call.sequence, call.deadline), call);
}

bool DeviceSide::carry_out_staged(const OperationCall& call, const DeviceOperation& operation) {
  const nccl::Driver* const driver = nccl::Driver::in_use();
  IVY_ASSERT(driver != nullptr);
  const nccl::Driver::Current current(*driver, operation.device);
  if (!current.result().ok()) {
    return fail(make_failure(FailureKind::kTransport, current.result().error().message), call);
  }
  nccl::DeviceCommunicator& device = communicator();
  Staging staging(operation, context_.ranks.rank());
  return check(staging.copy_out(device, call.deadline), call) &&
         context_.host.carry_out(call, staging.on_host()) &&
         check(staging.copy_back(device, call.deadline), call);
}

bool DeviceSide::prepare(const OperationCall& call, int device) {
  return context_.host.meet(call) && check(communicator().prepare(device, call.deadline), call);
}

bool DeviceSide::is_prepared() {
  const std::lock_guard lock(mutex_);
  return nccl_ != nullptr && nccl_->is_prepared();
}

bool DeviceSide::split(const OperationCall& call, std::int32_t color, std::int32_t key,
                       const std::string& name, std::unique_ptr<nccl::DeviceCommunicator>& child) {
  if (!context_.host.meet(call)) return false;
  color = std::max(color, nccl::kNoColor);
  return check(communicator().split(color, key, name, call.deadline, child), call);
}

void DeviceSide::adopt(std::unique_ptr<nccl::DeviceCommunicator> device) {
  if (device == nullptr) return;
  device->join(options());
  nccl_ = std::move(device);
}

}  // namespace ivy::comm
