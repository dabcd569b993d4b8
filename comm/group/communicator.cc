#include "comm/group/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "comm/contract/ivycomm_types.h"
#include "comm/group/device_side.h"
#include "comm/group/job.h"
#include "comm/group/message_board.h"
#include "comm/join/roll_call.h"
#include "comm/transports/alarms.h"

namespace ivy::comm {
namespace {

using std::chrono::nanoseconds;

OperationShape plain(Operation operation) {
  OperationShape shape;
  shape.operation = operation;
  return shape;
}

OperationShape shaped(Operation operation, Dtype dtype, std::size_t count) {
  OperationShape shape = plain(operation);
  shape.dtype = dtype;
  shape.count = count;
  return shape;
}

comm_status::OperationRecord record_of(const OperationShape& shape, std::uint64_t sequence,
                                       std::uint32_t row, std::uint64_t now_ns) {
  comm_status::OperationRecord record;
  record.sequence = sequence;
  record.count = elements_of(shape);
  record.entered_ns = now_ns;
  record.communicator = static_cast<std::uint16_t>(row);
  record.operation = shape.operation;
  // The page's numbers begin with "none".
  if (has_data(shape.operation)) {
    record.dtype = static_cast<comm_status::Dtype>(static_cast<std::uint8_t>(shape.dtype) + 1);
  }
  if (reduces(shape.operation)) {
    record.reduction = static_cast<comm_status::Reduction>(static_cast<std::uint8_t>(shape.op) + 1);
  }
  return record;
}

// True if a rank can return from it before every other rank is known to have called the same.
bool can_be_left_early(Operation operation) {
  switch (operation) {
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kGather:
    case Operation::kGatherV:
    case Operation::kScatter:
    case Operation::kScatterV:
    case Operation::kScan:
    case Operation::kAllToAllV:  // Its counts are known to two ranks each.
      return true;
    default:
      return false;
  }
}

void copy_local(const void* send, void* receive, std::size_t bytes) {
  if (send != receive && bytes > 0) std::memmove(receive, send, bytes);
}

}  // namespace

Communicator::Communicator(Job& job, std::string name, std::vector<Seat> seats, std::int32_t rank,
                           std::unique_ptr<Alarm> alarm, std::unique_ptr<SharedGroup> local,
                           nanoseconds timeout)
    : job_(job),
      name_(std::move(name)),
      seats_(std::move(seats)),
      rank_(rank),
      local_ranks_(comm::local_ranks(seats_, rank)),
      timeout_(timeout),
      alarm_(std::move(alarm)),
      local_(std::move(local)),
      status_row_(job.take_row(name_)),
      name_hash_(comm_status::communicator_hash(name_)),
      device_(std::make_unique<DeviceSide>()) {
  if (status_row_) slot_.emplace(job_.control()->page().slot(job_.control()->slot()));
  const auto place = std::find(local_ranks_.begin(), local_ranks_.end(), rank_);
  local_rank_ = static_cast<std::int32_t>(place - local_ranks_.begin());
  std::map<std::uint32_t, std::int32_t> order;  // Hosts by their first rank.
  for (const Seat& seat : seats_) order.emplace(seat.host, static_cast<std::int32_t>(order.size()));
  node_rank_ = order.at(seats_[static_cast<std::size_t>(rank_)].host);
  node_count_ = static_cast<std::int32_t>(order.size());
  if (node_count_ > 1) span_hosts();
}

std::vector<TcpPeer> Communicator::tcp_peers() const {
  std::vector<TcpPeer> peers;
  for (const Seat& seat : seats_) {
    TcpPeer peer;
    peer.rank = static_cast<std::int32_t>(peers.size());
    peer.world_rank = seat.world_rank;
    peer.pid = seat.pid;
    peer.host = seat.host_name;
    peer.address = seat.address;
    peers.push_back(std::move(peer));
  }
  return peers;
}

void Communicator::span_hosts() {
  TcpMeshOptions options;
  options.communicator = name_;
  options.self = rank_;
  options.peers = tcp_peers();
  options.streams = job_.tcp_streams();
  if (!job_.has_processor_each()) options.spin = std::chrono::microseconds(0);
  std::vector<std::uint32_t> hosts;
  for (const Seat& seat : seats_) hosts.push_back(seat.host);
  entered_ = std::make_unique<EnteredOperations>();
  entered_->rank = rank_;
  options.compare = [this] { return compare(); };
  if (local_ != nullptr) {
    options.takes_turn = [this](std::uint64_t sequence, nanoseconds pause) {
      return local_->take_turn(sequence, pause);
    };
  }
  std::vector<std::int32_t> world_ranks;
  for (const Seat& seat : seats_) world_ranks.push_back(seat.world_rank);
  roll_call_ =
      std::make_unique<RollCall>(*entered_, std::move(world_ranks), job_.wait_records(name_),
                                 [this] { return is_broken_.load() || alarm_->look(); });
  options.watch = roll_call_.get();
  options.entered = entered_.get();
  if (local_ != nullptr) local_->set_watch(roll_call_.get());
  mesh_ = std::make_unique<TcpMesh>(*job_.listener(), std::move(options), alarm_.get());
  spanning_ = std::make_unique<SpanningGroup>(make_host_map(hosts, rank_), local_.get(), *mesh_,
                                              job_.tuning());
  if (job_.bell() != nullptr) job_.bell()->add(mesh_->bell());
}

PointToPoint& Communicator::messages() {
  const std::lock_guard lock(messages_mutex_);
  if (messages_ != nullptr) return *messages_;
  PointToPointOptions options;
  options.communicator = name_;
  options.self = rank_;
  options.member_of.assign(seats_.size(), -1);
  for (std::size_t member = 0; member < local_ranks_.size(); ++member) {
    options.member_of[static_cast<std::size_t>(local_ranks_[member])] =
        static_cast<std::int32_t>(member);
  }
  options.peers = tcp_peers();
  if (!job_.has_processor_each()) options.spin = std::chrono::microseconds(0);
  options.break_all = [this](const Failure& found) { return broken(found).failure(); };
  message_row_ = job_.take_row(name_);
  if (message_row_) {
    options.board = std::make_unique<MessageBoard>(
        job_.control()->page().slot(job_.control()->slot()), *message_row_, name_);
  }
  messages_ = std::make_unique<PointToPoint>(std::move(options), local_.get(), job_.listener(),
                                             job_.make_alarm(name_, seats_, rank_));
  // A failure found before messages_ existed could not break it: do it now.
  if (const std::optional<Failure> found = failure()) messages_->break_with(*found);
  return *messages_;
}

Outcome Communicator::exchange_messages(
    const std::vector<std::shared_ptr<MessageRequest>>& requests, const CallOptions& options) {
  if (is_broken_.load(std::memory_order_relaxed)) return broken(*failure());
  const Outcome outcome =
      messages().run(requests, options.timeout.count() != 0 ? options.timeout : timeout_);
  return outcome.code == 0 ? outcome : broken(outcome.failure());
}

void Communicator::post_message(const std::shared_ptr<MessageRequest>& request,
                                const CallOptions& options) {
  messages().post(request, options.timeout.count() != 0 ? options.timeout : timeout_);
}

Outcome Communicator::finish_messages() {
  PointToPoint* messages = nullptr;
  {
    const std::lock_guard lock(messages_mutex_);
    messages = messages_.get();
  }
  return messages != nullptr ? messages->finish_sends() : Outcome();
}

Communicator::~Communicator() {
  if (queue_.is_busy()) abort("the communicator was ended while operations ran");
  static_cast<void>(end_device());  // Its watcher uses what goes next.
  if (mesh_ != nullptr && job_.bell() != nullptr) job_.bell()->remove(mesh_->bell());
  // Its thread may be about to break this communicator, and asks for messages_ meanwhile.
  std::unique_ptr<PointToPoint> messages;
  {
    const std::lock_guard lock(messages_mutex_);
    messages = std::move(messages_);
  }
  messages.reset();
  if (message_row_) job_.give_back_row(*message_row_);
  if (status_row_) job_.give_back_row(*status_row_);
}

std::int32_t Communicator::world_rank(std::int32_t rank) const {
  if (rank < 0 || rank >= size()) return -1;
  return seats_[static_cast<std::size_t>(rank)].world_rank;
}

template <class Body>
Called Communicator::run(const OperationShape& shape, const CallOptions& options,
                         const Body& body) {
  const nanoseconds timeout = options.timeout.count() != 0 ? options.timeout : timeout_;
  if (!options.is_async && !queue_.is_busy()) {
    const std::lock_guard lock(turn_);
    return {perform(shape, timeout, body), nullptr};
  }
  auto work = std::make_shared<Work>();
  const bool is_queued = queue_.push(work, [this, shape, timeout, body] {
    const std::lock_guard lock(turn_);
    return perform(shape, timeout, body);
  });
  if (!is_queued) {
    Failure failure = make_failure(FailureKind::kOther, std::to_string(WorkQueue::kPendingMax) +
                                                            " operations of communicator " + name_ +
                                                            " are waiting; wait for some of them");
    failure.code = 8;  // ResourceExhausted; nothing was sent.
    return {Outcome(failure), nullptr};
  }
  if (options.is_async) return {{}, std::move(work)};
  return {*work->wait(std::chrono::milliseconds(-1)), nullptr};
}

Called Communicator::run_any(const OperationShape& shape, const CallOptions& options,
                             const std::function<bool(const OperationCall&)>& body) {
  return run(shape, options, body);
}

void Communicator::entered() {
  if (not_noted_ == nullptr) return;
  const OperationShape& shape = *std::exchange(not_noted_, nullptr);
  if (!slot_) return;
  record_ = record_of(shape, sequence_, *status_row_, clock_.now_ns());
  record_.communicator_hash = name_hash_;
  if (shape.root >= 0) record_.peer = world_rank(shape.root);
  slot_->enter(record_);
}

template <class Body>
Outcome Communicator::perform(const OperationShape& shape, nanoseconds timeout, const Body& body) {
  if (is_broken_.load(std::memory_order_relaxed)) {
    device_->is_told = true;
    return broken(*failure());
  }
  // What another rank of this host has found ends this operation before it begins.
  if (local_ != nullptr && local_->is_broken()) {
    if (const std::optional<Failure> found = local_->failure()) return broken(*found);
  }
  ++sequence_;
  if (entered_ != nullptr) entered_->enter(sequence_, fingerprint_of(shape));
  not_noted_ = &shape;
  // On one host publish our entry first (the others wait for it) and note the operation afterwards.
  const bool is_noted_later = local_ != nullptr && mesh_ == nullptr;
  if (local_ != nullptr) local_->enter(shape, sequence_, is_noted_later ? this : nullptr);
  if (!is_noted_later) entered();
  Deadline deadline(timeout);
  OperationCall call{shape, sequence_, deadline};
  bool is_well = false;
  std::exception_ptr thrown;
  try {
    is_well = body(call);
  } catch (const std::exception&) {
    thrown = std::current_exception();
  }
  entered();
  if (slot_) {
    record_.ended_ns = clock_.now_ns();
    record_.outcome = is_well ? comm_status::Outcome::kDone : comm_status::Outcome::kFailed;
    slot_->finish(record_);
  }
  may_be_ahead_ = can_be_left_early(shape.operation);
  if (is_well) return {};
  return end_badly(call, thrown);
}

// Apart from perform(): room for a Failure on its stack would be cleared in every operation, which
// takes as long as a tenth of a small one.
Outcome Communicator::end_badly(const OperationCall& call, const std::exception_ptr& thrown) {
  std::optional<Failure> found = local_ != nullptr ? local_->failure() : std::nullopt;
  if (!found && mesh_ != nullptr) found = mesh_->failure();
  if (!found) found = failure();
  // The other ranks are in the operation: break it for all of them.
  if (!found && thrown != nullptr) found = own_failure(thrown, call);
  if (!found) found = make_failure(FailureKind::kOther, "an operation failed without a reason");
  const Outcome outcome = broken(*found);
  // Hang up only now: a peer that finds the connection gone asks first what was found.
  is_to_hang_up_.store(true);
  if (mesh_ != nullptr && telling_.load() == 0) mesh_->hang_up();
  return outcome;
}

Failure Communicator::own_failure(const std::exception_ptr& thrown,
                                  const OperationCall& call) const {
  const Seat& own = seats_[static_cast<std::size_t>(rank_)];
  Failure failure;
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& problem) {
    failure = failure_of(problem);
  }
  const std::string_view operation = comm_status::name_of(call.shape.operation);
  set_text(failure, name_of_rank(own.world_rank, own.host_name, own.pid) + ": " +
                        std::string(failure.text) + " in " + std::string(operation) + " " +
                        std::to_string(call.sequence) + " of communicator " + name_);
  failure.rank = own.world_rank;
  failure.sequence = call.sequence;
  set_operation(failure, operation);
  return failure;
}

// Compares with what the ranks of other hosts have entered, as far as the store knows.
std::optional<Failure> Communicator::compare() {
  std::optional<Failure> different = job_.compare(name_, *entered_);
  if (different) different->rank = world_rank(different->rank);
  return different;
}

// Adds the host and pid of the blamed rank, if the finder did not know them.
void Communicator::add_place(Failure& failure) const {
  if (failure.host[0] != '\0') return;
  const auto seat = std::find_if(seats_.begin(), seats_.end(),
                                 [&](const Seat& each) { return each.world_rank == failure.rank; });
  if (seat == seats_.end()) return;
  set_host(failure, seat->host_name);
  if (failure.pid == 0) failure.pid = seat->pid;
}

Outcome Communicator::broken(const Failure& found) {
  Failure failure = found;
  add_place(failure);
  bool is_first = false;
  // An abort is final, and its rank tells the store; of other failures the first one counts,
  // whichever host found it.
  const bool is_abort = found.kind == FailureKind::kAborted;
  const bool is_own_abort = is_abort && found.rank == world_rank(rank_) && node_count_ > 1;
  // The store is asked without the lock, so that an abort meanwhile does not wait for its answer.
  const bool asks = node_count_ > 1 && !is_abort && !this->failure();
  const Failure agreed = asks ? job_.agree(failure, name_) : failure;
  {
    const std::lock_guard lock(failure_mutex_);
    is_first = !failure_.has_value();
    if (is_first) failure_ = agreed;
    failure = *failure_;
  }
  is_broken_.store(true, std::memory_order_release);
  if (is_first) {
    if (local_ != nullptr) local_->break_with(failure);
    {
      const std::lock_guard lock(messages_mutex_);
      if (messages_ != nullptr) messages_->break_with(failure);
    }
    job_.report(failure, name_);
    // Interrupt last: a store that hangs must not delay those that can be woken without it.
    if (is_own_abort && mesh_ != nullptr) mesh_->interrupt();
    if (is_own_abort) job_.agree(failure, name_);
  }
  break_device();
  return Outcome(*this->failure());
}

Outcome Communicator::part() {
  if (const Outcome settled = settle_device(); settled.code != 0) return settled;
  if (size() == 1 || queue_.is_busy() || is_broken_.load()) return {};
  const Outcome sent = finish_messages();
  if (sent.code != 0) return sent;
  OperationShape shape = plain(Operation::kFinalize);
  {
    const std::lock_guard lock(turn_);
    if (!may_be_ahead_) return {};
    if (entered_ != nullptr) shape.count = entered_->hash;
  }
  const Called called = run(shape, {}, [this](const OperationCall& call) { return meet(call); });
  const bool is_news = called.outcome.code != 0 && called.outcome.code != IVY_CANCELLED;
  return is_news ? called.outcome : Outcome();
}

Outcome Communicator::leave() {
  if (const Outcome settled = settle_device(); settled.code != 0) return settled;
  if (size() == 1 || queue_.is_busy() || is_broken_.load()) return {};
  const Outcome sent = finish_messages();
  if (sent.code != 0) return sent;
  const std::lock_guard lock(turn_);
  std::optional<Failure> found;
  if (local_ != nullptr && !local_->entries().compare_last()) found = local_->failure();
  // Between hosts compare with what the others have entered, which the store knows.
  if (!found && entered_ != nullptr && may_be_ahead_) found = compare();
  // Other ranks' failures are theirs to report, but a mismatch concerns both sides.
  if (!found && local_ != nullptr) found = local_->failure();
  if (!found || found->kind != FailureKind::kMismatch) return {};
  return broken(*found);
}

std::optional<Failure> Communicator::failure() {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Communicator::abort(const std::string& reason) {
  Failure failure = make_failure(FailureKind::kAborted, "rank " + std::to_string(rank_) +
                                                            " aborted communicator " + name_ +
                                                            (reason.empty() ? "" : ": " + reason));
  failure.rank = world_rank(rank_);
  set_host(failure, seats_[static_cast<std::size_t>(rank_)].host_name);
  ++telling_;
  broken(failure);
  --telling_;
  if (mesh_ != nullptr) hang_up_after_abort();
}

// An operation under way hangs up by itself, unless it has seen that this thread was not ready.
void Communicator::hang_up_after_abort() {
  mesh_->interrupt();
  while (!turn_.try_lock()) {
    if (!is_to_hang_up_.load()) return;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  mesh_->hang_up();
  turn_.unlock();
}

ReduceRule Communicator::rule(Dtype dtype, ReduceOp op, const CallOptions& options) const {
  ReduceRule rule;
  rule.dtype = dtype;
  rule.op = op;
  rule.divisor = static_cast<std::uint32_t>(size());
  rule.factor = options.factor;
  return rule;
}

namespace {

// Reduces in a world of one, which still scales, averages and normalises.
void reduce_alone(const ReduceRule& rule, const void* send, void* receive, std::size_t count) {
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.divisor = 1;
  reduction.factors = rule.op == ReduceOp::kPremulSum ? &rule.factor : nullptr;
  reduce(reduction, &send, 1, receive, nullptr, count);
}

}  // namespace

Called Communicator::barrier(const CallOptions& options) {
  return run(plain(Operation::kBarrier), options,
             [this](const OperationCall& call) { return meet(call); });
}

bool Communicator::meet(const OperationCall& call) {
  if (spanning_ != nullptr) return spanning_->barrier(call);
  return local_ == nullptr || shared_barrier(*local_, call);
}

Called Communicator::all_reduce(const void* send, void* receive, std::size_t count, Dtype dtype,
                                ReduceOp op, const CallOptions& options) {
  OperationShape shape = shaped(Operation::kAllReduce, dtype, count);
  shape.op = op;
  const ReduceRule how = rule(dtype, op, options);
  return run(shape, options, [this, send, receive, count, how](const OperationCall& call) {
    return all_reduce_to(call, how, send, receive, count);
  });
}

Called Communicator::all_reduce_coalesced(std::vector<const void*> send, std::vector<void*> receive,
                                          std::vector<std::size_t> counts, Dtype dtype, ReduceOp op,
                                          const CallOptions& options) {
  OperationShape shape = shaped(Operation::kAllReduce, dtype, counts_fingerprint(counts));
  shape.has_parts = true;
  shape.op = op;
  const ReduceRule how = rule(dtype, op, options);
  return run(shape, options,
             [this, send = std::move(send), receive = std::move(receive),
              counts = std::move(counts), how](const OperationCall& call) {
               return all_reduce_parts(call, how, send, receive, counts);
             });
}

// Every step's entry shows the fingerprint of all parts, so that ranks whose parts differ find it
// out in the first one, whatever their steps are.
bool Communicator::all_reduce_parts(const OperationCall& call, const ReduceRule& how,
                                    const std::vector<const void*>& send,
                                    const std::vector<void*>& receive,
                                    const std::vector<std::size_t>& counts) {
  const std::size_t element = how.input_bytes();
  const PartSizes sizes =
      size() == 1 ? PartSizes() : part_sizes(spanning_ != nullptr, job_.has_processor_each());
  for (const PartStep& step : plan_parts(counts, element, sizes)) {
    if (!step.is_packed) {
      char nothing = 0;
      const bool is_empty = step.count == 0;
      const void* const from = is_empty ? &nothing : send[step.first];
      void* const to = is_empty ? &nothing : receive[step.first];
      if (!all_reduce_to(call, how, from, to, step.count)) return false;
      continue;
    }
    char* const packed = parts_scratch_.memory(step.count * element);
    const auto each_packed = [&](auto visit) {
      char* next = packed;
      for (std::size_t part = step.first; part < step.end; ++part) {
        if (!is_packed(counts[part], element, sizes)) continue;
        visit(part, next, counts[part] * element);
        next += counts[part] * element;
      }
    };
    each_packed(
        [&](std::size_t part, char* to, std::size_t bytes) { std::memcpy(to, send[part], bytes); });
    if (!all_reduce_to(call, how, packed, packed, step.count)) return false;
    each_packed([&](std::size_t part, const char* from, std::size_t bytes) {
      std::memcpy(receive[part], from, bytes);
    });
  }
  return true;
}

bool Communicator::all_reduce_to(const OperationCall& call, const ReduceRule& how, const void* send,
                                 void* receive, std::size_t count) {
  if (spanning_ != nullptr) return spanning_->all_reduce(call, how, send, receive, count);
  if (local_ != nullptr) return shared_all_reduce(*local_, call, how, send, receive, count);
  reduce_alone(how, send, receive, count);
  return true;
}

Called Communicator::reduce(const void* send, void* receive, std::size_t count, Dtype dtype,
                            ReduceOp op, std::int32_t root, const CallOptions& options) {
  OperationShape shape = shaped(Operation::kReduce, dtype, count);
  shape.op = op;
  shape.root = root;
  const ReduceRule how = rule(dtype, op, options);
  return run(shape, options, [this, send, receive, count, how, root](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->reduce(call, how, send, receive, count, root);
    if (local_ != nullptr) {
      return shared_reduce(*local_, call, how, send, receive, count,
                           static_cast<std::uint32_t>(root));
    }
    reduce_alone(how, send, receive, count);
    return true;
  });
}

Called Communicator::broadcast(void* buffer, std::size_t count, Dtype dtype, std::int32_t root,
                               const CallOptions& options) {
  OperationShape shape = shaped(Operation::kBroadcast, dtype, count);
  shape.root = root;
  const std::size_t bytes = count * element_bytes(dtype);
  return run(shape, options, [this, buffer, bytes, root](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->broadcast(call, buffer, bytes, root);
    return local_ == nullptr ||
           shared_broadcast(*local_, call, buffer, bytes, static_cast<std::uint32_t>(root));
  });
}

Called Communicator::all_gather(const OperationShape& shape, const void* send, void* receive,
                                const Blocks& blocks, const CallOptions& options) {
  return run(shape, options, [this, send, receive, blocks](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->all_gather(call, send, receive, blocks);
    if (local_ != nullptr) return shared_all_gather(*local_, call, send, receive, blocks);
    copy_local(send, static_cast<char*>(receive) + blocks[0].offset, blocks[0].bytes);
    return true;
  });
}

Called Communicator::reduce_scatter(const OperationShape& shape, const void* send, void* receive,
                                    const Ranges& ranges, const CallOptions& options) {
  const ReduceRule how = rule(shape.dtype, shape.op, options);
  return run(shape, options, [this, send, receive, ranges, how](const OperationCall& call) {
    const std::size_t own = ranges[static_cast<std::size_t>(rank_)].count;
    if (send != receive || ranges.longest() <= ranges[0].count) {
      return reduce_scatter_to(call, how, send, receive, ranges);
    }
    // The result would be written over blocks that others have not read yet.
    std::vector<char> result(std::max<std::size_t>(1, own * element_bytes(how.dtype)));
    if (!reduce_scatter_to(call, how, send, result.data(), ranges)) return false;
    copy_local(result.data(), receive, own * element_bytes(how.dtype));
    return true;
  });
}

bool Communicator::reduce_scatter_to(const OperationCall& call, const ReduceRule& how,
                                     const void* send, void* receive, const Ranges& ranges) {
  if (spanning_ != nullptr) return spanning_->reduce_scatter(call, how, send, receive, ranges);
  if (local_ == nullptr) {
    reduce_alone(how, send, receive, ranges[0].count);
    return true;
  }
  return shared_reduce_scatter(*local_, call, how, send, receive, ranges);
}

Called Communicator::gather(const OperationShape& shape, const void* send, std::size_t send_bytes,
                            void* receive, const Blocks& blocks, const CallOptions& options) {
  const std::int32_t root = shape.root;
  return run(shape, options,
             [this, send, send_bytes, receive, blocks, root](const OperationCall& call) {
               if (spanning_ != nullptr) {
                 return spanning_->gather(call, send, send_bytes, receive, blocks, root);
               }
               if (local_ != nullptr) {
                 return shared_gather(*local_, call, send, send_bytes, receive, blocks,
                                      static_cast<std::uint32_t>(root));
               }
               copy_local(send, static_cast<char*>(receive) + blocks[0].offset, send_bytes);
               return true;
             });
}

Called Communicator::scatter(const OperationShape& shape, const void* send, const Blocks& blocks,
                             void* receive, std::size_t receive_bytes, const CallOptions& options) {
  const std::int32_t root = shape.root;
  return run(shape, options,
             [this, send, blocks, receive, receive_bytes, root](const OperationCall& call) {
               if (spanning_ != nullptr) {
                 return spanning_->scatter(call, send, blocks, receive, receive_bytes, root);
               }
               if (local_ != nullptr) {
                 return shared_scatter(*local_, call, send, blocks, receive, receive_bytes,
                                       static_cast<std::uint32_t>(root));
               }
               copy_local(static_cast<const char*>(send) + blocks[0].offset, receive,
                          receive_bytes);
               return true;
             });
}

Called Communicator::all_to_all(const OperationShape& shape, const void* send,
                                const Blocks& send_blocks, void* receive,
                                const Blocks& receive_blocks, const CallOptions& options) {
  return run(
      shape, options,
      [this, send, send_blocks, receive, receive_blocks](const OperationCall& call) {
        if (spanning_ != nullptr) {
          return spanning_->all_to_all(call, send, send_blocks, receive, receive_blocks);
        }
        if (local_ != nullptr) {
          return shared_all_to_all(*local_, call, send, send_blocks, receive, receive_blocks);
        }
        copy_local(static_cast<const char*>(send) + send_blocks[0].offset,
                   static_cast<char*>(receive) + receive_blocks[0].offset, send_blocks[0].bytes);
        return true;
      });
}

Called Communicator::scan(const void* send, void* receive, std::size_t count, Dtype dtype,
                          ReduceOp op, const CallOptions& options) {
  OperationShape shape = shaped(Operation::kScan, dtype, count);
  shape.op = op;
  ReduceRule how = rule(dtype, op, options);
  how.divisor = static_cast<std::uint32_t>(rank_ + 1);
  return run(shape, options, [this, send, receive, count, how](const OperationCall& call) {
    if (spanning_ != nullptr) return spanning_->scan(call, how, send, receive, count);
    if (local_ != nullptr) return shared_scan(*local_, call, how, send, receive, count);
    reduce_alone(how, send, receive, count);
    return true;
  });
}

namespace {

// Long enough for the path of a segment.
constexpr std::size_t kTextBytes = 192;

Error error_of(const Outcome& outcome) {
  return Error{static_cast<Code>(outcome.code), outcome.failure().text};
}

}  // namespace

std::string Communicator::child_name(std::int32_t color) {
  std::string name = name_ + "/" + std::to_string(children_);
  if (color >= 0) name += "." + std::to_string(color);
  // Names travel in fields of fixed size.
  if (name.size() > 48) {
    const std::string whole = name;
    name = "group-" + std::to_string(std::hash<std::string>()(whole));
  }
  return name;
}

// Exchanges a short text among the ranks of this host.
bool Communicator::exchange_text(const OperationCall& call, const std::string& own,
                                 std::vector<std::string>& all) {
  const auto members = static_cast<std::size_t>(local_size());
  std::vector<char> send(kTextBytes, 0);
  std::vector<char> receive(kTextBytes * members, 0);
  std::memcpy(send.data(), own.data(), std::min(own.size(), kTextBytes - 1));
  const Blocks blocks = Blocks::even(members, kTextBytes);
  if (local_ == nullptr) {
    receive = send;
  } else if (!shared_all_gather(*local_, call, send.data(), receive.data(), blocks)) {
    return false;
  }
  all.clear();
  for (std::size_t member = 0; member < members; ++member) {
    all.emplace_back(receive.data() + member * kTextBytes);
  }
  return true;
}

// Between hosts, sets `trouble` to that of the first rank which has one.
bool Communicator::agree_on_trouble(const OperationCall& call, std::string& trouble) {
  if (spanning_ == nullptr) return true;
  std::int32_t first = trouble.empty() ? size() : rank_;
  const ReduceRule lowest = rule(Dtype::kI32, ReduceOp::kMin, {});
  if (!spanning_->all_reduce(call, lowest, &first, &first, 1)) return false;
  if (first == size()) return true;
  char text[kTextBytes] = {};
  std::memcpy(text, trouble.data(), std::min(trouble.size(), kTextBytes - 1));
  if (!spanning_->broadcast(call, text, kTextBytes, first)) return false;
  trouble = text;
  return true;
}

// Shares the new group's memory on this host, by descriptor or by name; `trouble` says why the
// first rank that could not do so failed, the same on all ranks of this host. false: broken.
bool Communicator::try_to_share(const OperationCall& call,
                                const std::vector<std::int32_t>& local_ranks, bool is_named,
                                std::unique_ptr<SharedSegment>& segment, std::string& trouble) {
  const bool takes_part = local_ranks.size() > 1;
  const auto members = static_cast<std::uint32_t>(local_ranks.size());
  const bool is_maker = takes_part && local_ranks.front() == rank_;
  std::string own_trouble;
  const auto take = [&](Result<std::unique_ptr<SharedSegment>> found) {
    if (found.ok()) {
      segment = std::move(found).value();
    } else {
      own_trouble =
          found.error().message + " (" + seats_[static_cast<std::size_t>(rank_)].host_name + ")";
    }
  };
  segment.reset();
  if (is_maker) {
    take(is_named ? SharedSegment::create_named(members) : SharedSegment::create(members));
  }
  std::vector<std::string> paths;
  if (!exchange_text(call, segment != nullptr ? segment->path() : "", paths)) return false;
  if (takes_part && !is_maker) {
    const auto maker = std::find(local_ranks_.begin(), local_ranks_.end(), local_ranks.front());
    const std::string& path = paths[static_cast<std::size_t>(maker - local_ranks_.begin())];
    // If there is no path, the maker says why.
    if (!path.empty()) take(SharedSegment::attach_path(path, members));
  }
  std::vector<std::string> troubles;
  if (!exchange_text(call, own_trouble, troubles)) return false;
  if (segment != nullptr) segment->unlink_name();
  const auto first = std::find_if(troubles.begin(), troubles.end(),
                                  [](const std::string& each) { return !each.empty(); });
  trouble = first != troubles.end() ? *first : "";
  return true;
}

// Every rank of this communicator takes part, also those who are in no new group: they only keep
// the exchanges in step. It is one operation, however it goes on which host, and all ranks come out
// of it with the same result. `local_ranks`: of the new group on this host; empty: not in it.
Result<std::unique_ptr<SharedSegment>> Communicator::share_segment(
    const std::vector<std::int32_t>& local_ranks) {
  std::unique_ptr<SharedSegment> segment;
  std::string trouble;
  const Called called = run(plain(Operation::kGroup), {}, [&](const OperationCall& call) {
    // Retry under a name if a rank may not open the other's descriptor.
    if (!try_to_share(call, local_ranks, false, segment, trouble)) return false;
    if (!trouble.empty() && !try_to_share(call, local_ranks, true, segment, trouble)) return false;
    return agree_on_trouble(call, trouble);
  });
  if (called.outcome.code != 0) return error_of(called.outcome);
  if (trouble.empty()) return segment;
  return Error{Code::kResourceExhausted, "make a group of communicator " + name_ + ": " + trouble};
}

Result<std::unique_ptr<Communicator>> Communicator::make_child(
    const std::string& name, const std::vector<std::int32_t>& ranks) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  std::vector<Seat> seats;
  std::vector<std::int32_t> local;
  const std::uint32_t host = seats_[static_cast<std::size_t>(rank_)].host;
  if (place != ranks.end()) {
    for (const std::int32_t rank : ranks) {
      seats.push_back(seats_[static_cast<std::size_t>(rank)]);
      if (seats.back().host == host) local.push_back(rank);
    }
  }
  std::unique_ptr<SharedSegment> segment = IVY_TRY(share_segment(local));
  const auto self = static_cast<std::int32_t>(place - ranks.begin());
  const bool is_member = place != ranks.end();
  // The group's first rank stands for it: all colours of a split differ.
  std::unique_ptr<nccl::DeviceCommunicator> device =
      IVY_TRY(split_device(is_member ? ranks.front() : -1, self, name));
  if (!is_member) return std::unique_ptr<Communicator>();
  LocalPart part = make_local_part(job_, name, seats, self, std::move(segment));
  auto child = std::make_unique<Communicator>(
      job_, name, std::move(seats), self, std::move(part.alarm), std::move(part.group), timeout_);
  child->adopt_device(std::move(device));
  return child;
}

Result<std::unique_ptr<Communicator>> Communicator::make_group(
    std::span<const std::int32_t> ranks) {
  OperationShape shape = plain(Operation::kGroup);
  const std::vector<std::size_t> list(ranks.begin(), ranks.end());
  shape.count = counts_fingerprint(list);
  ++children_;
  const Called called = run(shape, {}, [this](const OperationCall& call) { return meet(call); });
  if (called.outcome.code != 0) return error_of(called.outcome);
  return make_child(child_name(-1), std::vector<std::int32_t>(ranks.begin(), ranks.end()));
}

Result<std::unique_ptr<Communicator>> Communicator::split(std::int32_t color, std::int32_t key) {
  ++children_;
  struct Choice {
    std::int32_t color;
    std::int32_t key;
  };
  const Choice own = {color, key};
  std::vector<Choice> choices(seats_.size());
  const Blocks blocks = Blocks::even(seats_.size(), sizeof(Choice));
  const Called called = all_gather(plain(Operation::kSplit), &own, choices.data(), blocks, {});
  if (called.outcome.code != 0) return error_of(called.outcome);
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < size() && color >= 0; ++rank) {
    if (choices[static_cast<std::size_t>(rank)].color == color) ranks.push_back(rank);
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::int32_t left, std::int32_t right) {
    return choices[static_cast<std::size_t>(left)].key <
           choices[static_cast<std::size_t>(right)].key;
  });
  return make_child(child_name(color), ranks);
}

}  // namespace ivy::comm
