// SPDX-License-Identifier: Apache-2.0
// The path of a call, from the outside in. Each step adds one thing:
//
//   carry_out()            A collective on host memory. Runs it in the calling thread, or passes it
//                          to queue() if it is asynchronous or if asynchronous work is unfinished.
//   run()                  Any other operation, in the same way: a barrier, a split, an operation
//                          on a device.
//   queue()                Runs a call on the thread of asynchronous operations and, unless the
//                          caller wants the Work, waits for it.
//   perform()              Runs the body, with turn_ locked. Numbers the operation, shows it to the
//                          other ranks and to `ivyctl why`, and starts its deadline. On failure,
//                          fail_operation() finds the cause and calls break_with().
//   carry_out_on_device()  A collective on device memory. If the ranks must synchronize, as for the
//                          first one, calls run() with DeviceBackend::run_synchronized(); otherwise
//                          calls enqueue_on_device().
//   enqueue_on_device()    Puts it on the stream (DeviceBackend::enqueue()) without locking turn_,
//                          or through queue() if that is needed to keep the order of the calls.
//
// Every failure ends in break_with(), which publishes the first one. The second half of the file
// leaves a communicator (finalize(), leave_group(), abort()) and makes groups: make_group() and
// split() agree on the members and call make_child(); make_group_of_members() involves only the
// members.
#include "comm/group/communicator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "comm/collectives/selector.h"
#include "comm/group/device/device_backend.h"
#include "comm/group/device/device_group.h"
#include "comm/group/group_rendezvous.h"
#include "comm/group/group_segment.h"
#include "comm/transports/liveness/failure_detectors.h"
#include "proto/contract/text.h"

namespace ivy::comm {
namespace {

using std::chrono::nanoseconds;

OperationShape plain(Operation operation, MemoryKind memory = MemoryKind::kHost) {
  OperationShape shape;
  shape.operation = operation;
  shape.memory = memory;
  return shape;
}

// Returns the name of the child group `number`. With `color` < 0 the name has no color.
std::string child_name(const std::string& parent, std::uint64_t number, std::int32_t color) {
  std::string name = parent + "/" + std::to_string(number);
  if (color >= 0) name += "." + std::to_string(color);
  // Names are stored in fields of 64 bytes with their NUL (kNameBytes in status_page.h and in
  // peer_connections.cc), and the status page also shows "NAME (devices)". A long name becomes a
  // hash, which is the same on all ranks, whatever C++ library each one uses.
  if (name.size() > 48) name = "group-" + std::to_string(name_hash(name));
  return name;
}

Error error_of(const Outcome& outcome) {
  return Error{static_cast<Code>(outcome.code), outcome.failure().text};
}

// Converts an exception in an operation to a failure that names this rank and the operation,
// because the other ranks, which are in the same operation, receive it.
Failure failure_in(const OperationCall& call, const Membership& ranks,
                   const std::exception_ptr& thrown) {
  const Member& own = ranks.own_member();
  Failure failure;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& problem) {
    failure = failure_of(problem);
  }
  const std::string_view operation = comm_status::name_of(call.shape.operation);
  set_text(failure, name_of_rank(own.world_rank, own.host_name, own.pid) + ": " +
                        std::string(failure.text) + " in " + std::string(operation) + " " +
                        std::to_string(call.sequence) + " of communicator " + ranks.name());
  failure.rank = own.world_rank;
  failure.sequence = call.sequence;
  set_operation(failure, operation);
  return failure;
}

Failure abort_of(const Membership& ranks, const std::string& reason) {
  Failure failure = make_failure(FailureKind::kAborted,
                                 "rank " + std::to_string(ranks.rank()) + " aborted communicator " +
                                     ranks.name() + (reason.empty() ? "" : ": " + reason));
  failure.rank = ranks.own_member().world_rank;
  set_host(failure, ranks.own_member().host_name);
  return failure;
}

// Rejects an operation in a signal handler that has interrupted another one of this communicator.
// The interrupted operation continues only after the handler returns.
[[gnu::cold, gnu::noinline]] OperationResult rejected_in_handler(const Membership& ranks) {
  Failure failure =
      make_failure(FailureKind::kOther,
                   "this signal handler interrupts an operation on communicator " + ranks.name() +
                       ", so it cannot start another one there and wait for it; "
                       "set a flag, and check it between operations");
  failure.code = static_cast<std::int32_t>(Code::kFailedPrecondition);
  return {Outcome(failure), nullptr};
}

// Waits for queued work. If `interrupt` ends the call, aborts the communicator, which ends the
// work.
OperationResult wait_for(Communicator& communicator, const std::shared_ptr<Work>& work,
                         const Interrupt& interrupt) {
  constexpr std::chrono::milliseconds kForever(-1);
  if (interrupt.check == nullptr) return {*work->wait(kForever), nullptr};
  const InterruptScope scope(interrupt, &communicator);
  while (!InterruptScope::is_to_end()) {
    if (const std::optional<Outcome> outcome = work->wait(InterruptScope::kPeriod)) {
      return {*outcome, nullptr};
    }
  }
  communicator.abort("interrupted");
  return {*work->wait(kForever), nullptr};
}

std::unique_ptr<SharedGroup> make_local_group(JobMember& job, const Membership& ranks,
                                              std::shared_ptr<SharedSegment> segment,
                                              FailureDetector* detector) {
  SharedGroupOptions options;
  options.communicator = ranks.name();
  options.host = ranks.own_member().host_name;
  options.self = static_cast<std::uint32_t>(ranks.local_rank());
  for (const std::int32_t rank : ranks.local_ranks()) {
    const Member& member = ranks.members()[static_cast<std::size_t>(rank)];
    options.members.push_back({rank, member.world_rank, member.pid});
  }
  options.has_processor_each = job.machine().has_processor_each;
  options.is_overloaded = job.machine().is_overloaded;
  options.selector = std::make_shared<const SharedSelector>(
      static_cast<std::uint32_t>(ranks.local_size()), job.machine().caches);
  return std::make_unique<SharedGroup>(std::move(segment), std::move(options), detector);
}

HostMap host_map_of(const Membership& ranks) {
  std::vector<std::uint32_t> hosts;
  for (const Member& member : ranks.members()) hosts.push_back(member.host);
  return make_host_map(hosts, ranks.rank());
}

// Returns the error of a group whose shared memory could not be created. All ranks return it, and
// the parent is not broken.
Error shared_memory_error(const Membership& parent, const std::string& error) {
  return {Code::kResourceExhausted,
          "create a group of communicator " + parent.name() + ": " + error};
}

// Breaks a group that this rank could not create, because an operation of its parent failed here.
// Other ranks may have created the group, and would otherwise wait in it for this rank.
void break_unfinished(JobMember& job, const Membership& ranks,
                      std::shared_ptr<SharedSegment> segment, const Outcome& outcome) {
  const Failure& failure = outcome.failure();
  if (segment != nullptr) {
    make_local_group(job, ranks, std::move(segment), nullptr)->break_with(failure);
  }
  job.report(failure, ranks.name());
  if (ranks.node_count() > 1) job.records().agree(failure, ranks.name());
}

}  // namespace

Communicator::Communicator(JobMember& job, Membership ranks,
                           std::unique_ptr<FailureDetector> detector,
                           std::unique_ptr<SharedGroup> local, nanoseconds timeout)
    : job_(job),
      ranks_(std::move(ranks)),
      timeout_(timeout),
      detector_(std::move(detector)),
      local_(std::move(local)),
      across_(ranks_.node_count() > 1
                  ? std::make_unique<AcrossHosts>(job, ranks_, local_.get(), *detector_, failure_)
                  : nullptr),
      host_(host_map_of(ranks_), local_.get(), across_ != nullptr ? &across_->mesh() : nullptr,
            job.machine().has_processor_each),
      display_(job.rows(), ranks_, ranks_.name()),
      messages_(job, ranks_, local_.get(), failure_, *this),
      device_(std::make_unique<DeviceBackend>(DeviceContext{job, ranks_, host_, failure_, *this})) {
}

std::unique_ptr<Communicator> Communicator::open(JobMember& job, Membership ranks,
                                                 std::shared_ptr<SharedSegment> segment,
                                                 nanoseconds timeout) {
  std::unique_ptr<FailureDetector> detector =
      job.make_failure_detector(ranks.name(), ranks.members(), ranks.rank());
  detector = make_interruptible_detector(std::move(detector), abort_of(ranks, "interrupted"));
  std::unique_ptr<SharedGroup> local;
  if (segment != nullptr) local = make_local_group(job, ranks, std::move(segment), detector.get());
  return std::unique_ptr<Communicator>(
      new Communicator(job, std::move(ranks), std::move(detector), std::move(local), timeout));
}

std::unique_ptr<Communicator> Communicator::of_world(JobMember& job, World world) {
  return open(job, Membership("world", std::move(world.members), world.self),
              std::move(world.segment), world.timeout);
}

Communicator::~Communicator() {
  if (queue_.is_busy()) abort("the communicator was closed while operations were running");
  static_cast<void>(device_->end());  // First, because the device's thread uses the other members.
  messages_.close();
}

Outcome Communicator::exchange_messages(
    const std::vector<std::shared_ptr<MessageRequest>>& requests, const CallOptions& options) {
  if (failure_.is_set()) return break_with(*failure());
  const InterruptScope scope(options.interrupt, this);
  const Outcome outcome = messages_.open().run(requests, timeout_of(options), options.wait_limit);
  return outcome.code == 0 ? outcome : break_with(outcome.failure());
}

void Communicator::post_message(const std::shared_ptr<MessageRequest>& request,
                                const CallOptions& options) {
  messages_.open().post(request, timeout_of(options));
}

OperationResult Communicator::carry_out(Collective&& collective, const CallOptions& options) {
  device_->begin_synchronized(collective.shape);
  if (!options.is_async && !queue_.is_busy()) {
    if (InterruptScope::is_checking(this)) return rejected_in_handler(ranks_);
    const InterruptScope scope(options.interrupt, this);
    const std::lock_guard lock(turn_);
    return {perform(collective.shape, timeout_of(options),
                    [&](const OperationCall& call) { return host_.run(call, collective); }),
            nullptr};
  }
  return queue(options, [this, timeout = timeout_of(options), collective = std::move(collective)] {
    const std::lock_guard lock(turn_);
    return perform(collective.shape, timeout,
                   [&](const OperationCall& call) { return host_.run(call, collective); });
  });
}

OperationResult Communicator::run(OperationShape shape, const CallOptions& options, Body body) {
  device_->begin_synchronized(shape);
  if (options.is_async || queue_.is_busy()) {
    return queue(options, [this, shape, timeout = timeout_of(options), body = std::move(body)] {
      const std::lock_guard lock(turn_);
      return perform(shape, timeout, body);
    });
  }
  if (InterruptScope::is_checking(this)) return rejected_in_handler(ranks_);
  const InterruptScope scope(options.interrupt, this);
  const std::lock_guard lock(turn_);
  return {perform(shape, timeout_of(options), body), nullptr};
}

// Runs the call on the thread of asynchronous operations, after all that were queued before.
// Returns the Work if the caller requested an asynchronous call, and otherwise waits for the
// outcome. Rejects the call if too much work is queued; that does not break the communicator.
OperationResult Communicator::queue(const CallOptions& options, std::function<Outcome()> call) {
  auto work = std::make_shared<Work>();
  if (!queue_.push(work, std::move(call))) {
    Failure failure =
        make_failure(FailureKind::kOther, std::to_string(WorkQueue::kPendingMax) +
                                              " operations of communicator " + ranks_.name() +
                                              " are queued; wait for some of them");
    failure.code = static_cast<std::int32_t>(Code::kResourceExhausted);
    return {Outcome(failure), nullptr};
  }
  if (options.is_async) return {{}, std::move(work)};
  return wait_for(*this, work, options.interrupt);
}

// Requires turn_. `body` returns false, or throws, if the operation failed.
template <class AnyBody>
Outcome Communicator::perform(const OperationShape& shape, nanoseconds timeout,
                              const AnyBody& body) {
  if (failure_.is_set()) {
    device_->failure_was_returned();
    return break_with(*failure());
  }
  // A failure that another rank of this host has found ends this operation before it starts.
  if (local_ != nullptr && local_->is_broken()) {
    if (const MaybeFailure found = local_->failure()) {
      device_->failure_was_returned();
      return break_with(*found);
    }
  }
  ++sequence_;
  if (across_ != nullptr) across_->entered().enter(sequence_, fingerprint_of(shape));
  display_.begin(shape, sequence_);
  // On one host, the operation's body publishes this rank's entry first, because the others wait
  // for it, and shows the operation afterwards.
  const bool is_shown_later = local_ != nullptr && across_ == nullptr;
  if (local_ != nullptr) local_->enter(shape, sequence_, is_shown_later ? &display_ : nullptr);
  if (!is_shown_later) display_.entered();
  Deadline deadline(timeout);
  OperationCall call{shape, sequence_, deadline};
  bool is_ok = false;
  std::exception_ptr thrown;
  try {
    is_ok = body(call);
  } catch (const std::exception&) {
    thrown = std::current_exception();
  }
  display_.finish(is_ok);
  device_->end_synchronized();
  may_be_ahead_ = has_trait(shape.operation, comm_status::traits::kLeftEarly);
  if (is_ok) return {};
  return fail_operation(call, thrown);
}

// Finds the failure of an operation, breaks the communicator with it, and closes the connections.
// Not part of perform(), where a Failure on the stack would be cleared in every operation; that
// takes a tenth of the time of a small one.
Outcome Communicator::fail_operation(const OperationCall& call, const std::exception_ptr& thrown) {
  MaybeFailure found = local_ != nullptr ? local_->failure() : std::nullopt;
  if (!found && across_ != nullptr) found = across_->mesh_failure();
  if (!found) found = failure();
  // The other ranks are in the operation, so an exception breaks it for all of them.
  if (!found && thrown != nullptr) found = failure_in(call, ranks_, thrown);
  if (!found) found = make_failure(FailureKind::kOther, "an operation failed without a reason");
  device_->failure_was_returned();
  const Outcome outcome = break_with(*found);
  // Hang up only now: a peer whose connection closes queries the stored failure first.
  if (across_ != nullptr) across_->operation_failed();
  return outcome;
}

// Breaks the communicator here and on all ranks. Returns the failure that broke it, which is the
// first one: another call or another host may have found one before.
Outcome Communicator::break_with(Failure failure) {
  ranks_.add_host(failure);
  // An abort is final, and its rank stores it. Of other failures, the first one in the store wins,
  // whichever host found it.
  const bool is_abort = failure.kind == FailureKind::kAborted;
  const bool is_own_abort =
      is_abort && failure.rank == ranks_.own_member().world_rank && across_ != nullptr;
  // Query the store without a lock, so that a concurrent abort need not wait for its answer.
  if (across_ != nullptr && !is_abort && !failure_.is_set()) {
    failure = job_.records().agree(failure, ranks_.name());
  }
  if (failure_.set(failure)) {
    if (local_ != nullptr) local_->break_with(failure);
    messages_.break_with(failure);
    job_.report(failure, ranks_.name());
    // Interrupt last, because a store that hangs must not delay the ranks that can be woken without
    // it.
    if (is_own_abort) across_->interrupt();
    // Ranks on the aborting rank's host that have learned of the abort also hang up, possibly
    // before the aborting rank has stored it. Their peers would then blame the connection, so each
    // of these ranks stores the abort.
    if (is_abort && across_ != nullptr) job_.records().agree(failure, ranks_.name());
  }
  device_->abort();
  return Outcome(*this->failure());
}

// The common first step of leaving. Returns the outcome if leaving ends here, or nothing to
// continue. Does not wait for the queue's work.
std::optional<Outcome> Communicator::prepare_to_leave() {
  if (Outcome settled = finish_device_work(); settled.code != 0) return settled;
  if (ranks_.size() == 1 || queue_.is_busy() || failure_.is_set()) return Outcome();
  if (Outcome sent = messages_.finish_sends(); sent.code != 0) return sent;
  return std::nullopt;
}

Outcome Communicator::finish_device_work() { return queue_.is_busy() ? Outcome() : device_->end(); }

Outcome Communicator::finalize() {
  if (const std::optional<Outcome> ended = prepare_to_leave()) return *ended;
  OperationShape shape = plain(Operation::kFinalize);
  {
    const std::lock_guard lock(turn_);
    if (!may_be_ahead_) return {};
    // Ranks with different earlier operations get a mismatch.
    if (across_ != nullptr) shape.count = across_->entered().hash;
  }
  const OperationResult called =
      run(shape, {}, [this](const OperationCall& call) { return host_.barrier(call); });
  // An abort while this rank was leaving is not reported: its last operation has succeeded, and the
  // rank that aborted reports the abort.
  const bool was_cancelled = called.outcome.code == static_cast<std::int32_t>(Code::kCancelled);
  return was_cancelled ? Outcome() : called.outcome;
}

Outcome Communicator::leave_group() {
  if (const std::optional<Outcome> ended = prepare_to_leave()) return *ended;
  const std::lock_guard lock(turn_);
  MaybeFailure found;
  if (local_ != nullptr && !local_->entries().compare_last()) found = local_->failure();
  // Between hosts, compare with the operations that the others have recorded in the store.
  if (!found && across_ != nullptr && may_be_ahead_) found = across_->compare();
  // Other failures are reported by the ranks that found them, but a mismatch concerns both sides.
  if (!found && local_ != nullptr) found = local_->failure();
  if (!found || found->kind != FailureKind::kMismatch) return {};
  return break_with(*found);
}

void Communicator::abort(const std::string& reason) {
  if (across_ != nullptr) across_->begin_abort();
  break_with(abort_of(ranks_, reason));
  if (across_ != nullptr) across_->end_abort(turn_);
}

// Flattened into one function, like start() of the C interface and start_and_finish() of comm/nccl:
// NCCL's own call evicts the processor's branch history, so every further call and return on this
// path is expensive.
[[gnu::flatten]] OperationResult Communicator::carry_out_on_device(
    nccl::DeviceOperation&& operation, const CallOptions& options) {
  if (const MaybeFailure rejected = device_->admit(operation, options.is_async)) {
    return {Outcome(*rejected), nullptr};
  }
  const OperationShape shape = operation.collective.shape;
  if (device_->choose_path(operation) == DevicePath::kEnqueued)
    return enqueue_on_device(std::move(operation), options);
  return run(shape, options, [this, operation = std::move(operation)](const OperationCall& call) {
    // Show it now, because the ranks may wait for the device before they synchronize.
    display_.entered();
    return device_->run_synchronized(call, operation);
  });
}

// Puts an operation on its stream without synchronizing the ranks. If asynchronous work is queued,
// the operation is queued after it, so that it reaches the stream in the order of the calls.
OperationResult Communicator::enqueue_on_device(nccl::DeviceOperation&& operation,
                                                const CallOptions& options) {
  const nanoseconds timeout = timeout_of(options);
  auto work = options.is_async ? std::make_shared<Work>() : nullptr;
  const auto called = [&](Outcome outcome) {
    const bool is_ok = outcome.code == 0;
    return OperationResult{std::move(outcome), is_ok ? std::move(work) : nullptr};
  };
  if (DeviceGroup::current() != nullptr && !failure_.is_set())
    return called(device_->join_group(operation, timeout, work));
  // Another thread may be in the first operation, which prepares the device while it holds turn_.
  // Locking and unlocking turn_ waits for that thread; nothing needs to be guarded.
  if (!device_->is_prepared()) {
    const std::lock_guard lock(turn_);
  }
  if (!queue_.is_busy() && device_->is_prepared() && !failure_.is_set()) {
    const InterruptScope scope(options.interrupt, this);
    return called(device_->enqueue(operation, timeout, work));
  }
  const OperationShape shape = operation.collective.shape;
  return queue(options, [this, shape, timeout, operation = std::move(operation)] {
    // The device remains unprepared if ranks share devices. The ranks then synchronize for every
    // operation, and its data is copied through host memory.
    if (device_->is_prepared() && !failure_.is_set()) {
      return device_->enqueue(operation, timeout, nullptr);
    }
    const std::lock_guard lock(turn_);
    return perform(shape, timeout, [&](const OperationCall& call) {
      return device_->run_synchronized(call, operation);
    });
  });
}

OperationResult Communicator::prepare_device(const nccl::DeviceRegion& region,
                                             const CallOptions& options) {
  device_->begin_prepare();
  OperationShape shape = plain(Operation::kInit, MemoryKind::kDevice);
  shape.count = region.bytes;  // Ranks with different sizes get a mismatch.
  return run(shape, options,
             [this, region](const OperationCall& call) { return device_->prepare(call, region); });
}

// Makes a group. Collective over this communicator. `ranks` are the group's members; returns null
// if they do not include this rank. First, the members on each host create shared memory
// (share_group_segment()). Then, if this communicator uses NCCL, NCCL splits it. There are two
// kinds of failure:
// - An operation of this communicator fails. A member then also breaks the group, because other
//   members may have created it (`fail_creation`).
// - A rank cannot create or open the shared memory. All ranks get that rank's error
//   (`shared.trouble`) and return it; this communicator remains usable.
Result<std::unique_ptr<Communicator>> Communicator::make_child(
    const std::string& name, const std::vector<std::int32_t>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), ranks_.rank());
  const bool is_member = found != ranks.end();
  const auto self = static_cast<std::int32_t>(found - ranks.begin());
  std::vector<Member> members;
  std::vector<std::int32_t> local;
  for (const std::int32_t rank : is_member ? ranks : std::vector<std::int32_t>()) {
    members.push_back(ranks_.members()[static_cast<std::size_t>(rank)]);
    if (members.back().host == ranks_.own_member().host) local.push_back(rank);
  }
  GroupSegment shared;
  const auto fail_creation = [&](const Outcome& outcome) {
    if (is_member) {
      break_unfinished(job_, Membership(name, members, self), std::move(shared.segment), outcome);
    }
    return error_of(outcome);
  };
  OperationResult called = run(plain(Operation::kGroup), {}, [&](const OperationCall& call) {
    return share_group_segment(call, ranks_, host_, local, shared);
  });
  if (called.outcome.code != 0) return fail_creation(called.outcome);
  if (!shared.error.empty()) return shared_memory_error(ranks_, shared.error);
  // If this communicator uses NCCL, its groups get their NCCL communicators from it. The group's
  // first rank serves as its color, which differs between all groups of a split.
  std::unique_ptr<nccl::DeviceCommunicator> device;
  if (device_->is_prepared()) {
    called = run(plain(Operation::kGroup, MemoryKind::kDevice), {}, [&](const OperationCall& call) {
      return device_->split(call, is_member ? ranks.front() : -1, self, name, device);
    });
    if (called.outcome.code != 0) return fail_creation(called.outcome);
  }
  if (!is_member) return std::unique_ptr<Communicator>();
  std::unique_ptr<Communicator> child =
      open(job_, Membership(name, std::move(members), self), std::move(shared.segment), timeout_);
  child->device_->adopt(std::move(device));
  return child;
}

Result<std::unique_ptr<Communicator>> Communicator::make_group(
    std::span<const std::int32_t> ranks) {
  OperationShape shape = plain(Operation::kGroup);
  shape.count = counts_fingerprint(std::vector<std::size_t>(ranks.begin(), ranks.end()));
  ++children_;
  const OperationResult called =
      run(shape, {}, [this](const OperationCall& call) { return host_.barrier(call); });
  if (called.outcome.code != 0) return error_of(called.outcome);
  return make_child(child_name(ranks_.name(), children_, -1),
                    std::vector<std::int32_t>(ranks.begin(), ranks.end()));
}

Result<std::unique_ptr<Communicator>> Communicator::split(std::int32_t color, std::int32_t key) {
  ++children_;
  struct Choice {
    std::int32_t color;
    std::int32_t key;
  };
  const Choice own = {color, key};
  std::vector<Choice> choices(ranks_.members().size());
  Collective exchange;
  exchange.shape = plain(Operation::kSplit);
  exchange.send = {&own, sizeof own, {}};
  exchange.receive = {choices.data(), 0, Blocks::even(choices.size(), sizeof own)};
  const OperationResult called = carry_out(std::move(exchange), {});
  if (called.outcome.code != 0) return error_of(called.outcome);
  std::vector<std::int32_t> ranks;
  const auto choice_of = [&](std::int32_t rank) { return choices[static_cast<std::size_t>(rank)]; };
  for (std::int32_t rank = 0; rank < ranks_.size() && color >= 0; ++rank) {
    if (choice_of(rank).color == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::int32_t left, std::int32_t right) {
    return choice_of(left).key < choice_of(right).key;
  });
  return make_child(child_name(ranks_.name(), children_, color), ranks);
}

Result<std::unique_ptr<Communicator>> Communicator::make_group_of_members(
    const std::string& name, std::span<const std::int32_t> ranks, std::chrono::milliseconds timeout,
    MaybeFailure& death) {
  std::vector<Member> chosen;
  for (const std::int32_t rank : ranks) {
    chosen.push_back(ranks_.members()[static_cast<std::size_t>(rank)]);
  }
  const auto self = std::find(ranks.begin(), ranks.end(), ranks_.rank()) - ranks.begin();
  Membership members(name, std::move(chosen), static_cast<std::int32_t>(self));
  const nanoseconds limit = timeout.count() != 0 ? nanoseconds(timeout) : timeout_;
  std::shared_ptr<SharedSegment> segment = IVY_TRY(form_group_segment(
      job_, members, std::chrono::duration_cast<std::chrono::milliseconds>(limit), death));
  return open(job_, std::move(members), std::move(segment), limit);
}

}  // namespace ivy::comm
