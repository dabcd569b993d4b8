// SPDX-License-Identifier: Apache-2.0
// call() is the path of a request: send() queues its frame, await() either drives the connection
// (drive()) or sleeps until another thread that drives has received the answer (take_frames()).
// lose() and redial() handle a broken connection. Watches (watch(), next_change()) use the same
// connection and receive frames that answer no request.
#include "rendezvous/client/shared_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/contract/text.h"
#include "proto/os/clock.h"
#include "proto/wire/handshake.h"
#include "rendezvous/dialects/codec.h"

namespace ivy::store {
namespace {

constexpr std::uint64_t kNanosPerMilli = 1'000'000;
constexpr std::chrono::hours kForever{24 * 366};

std::uint64_t nanos(std::chrono::milliseconds time) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0)) * kNanosPerMilli;
}

std::uint64_t after(std::chrono::milliseconds time) {
  return time > kForever ? kNever : monotonic_ns() + nanos(time);
}

Error unclear_error(const std::string& store, const std::string& loss) {
  return {Code::kUnavailable, "the connection to the store at " + store + " was lost (" + loss +
                                  "), so it is unknown whether the request was served"};
}
Error ended_watch() { return {Code::kCancelled, "this watch has been cancelled"}; }
Error busy_watch() {
  return {Code::kFailedPrecondition,
          "another thread is already waiting for this watch's next change"};
}

}  // namespace

SharedConnection::SharedConnection(const ClientOptions& options)
    : request_timeout_(options.request_timeout),
      may_redial_(options.may_redial),
      repeat_for_ns_(nanos(std::min<Milliseconds>(options.repeat_for, kRepeatFor))),
      process_(getpid()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<SharedConnection>> SharedConnection::connect(const ClientOptions& options) {
  std::unique_ptr<SharedConnection> made(new SharedConnection(options));
  if (!made->wake_) return errno_error(Code::kInternal, "create an event descriptor", errno);
  DialTarget& target = made->target_;
  IVY_CHECK(parse_target(options.address, target));
  if (options.job_id.size() != 32 || !is_hexadecimal(options.job_id))
    return Error{Code::kInvalidArgument, "a job id must have 32 hexadecimal digits"};
  target.job_id = options.job_id;
  target.token = options.token;
  target.generation = options.generation;
  target.rank = options.rank;
  const std::string session = random_bytes(sizeof target.session);
  std::memcpy(&target.session, session.data(), session.size());
  target.session |= 1;  // Zero would mean "no session".
  made->adopt(IVY_TRY(
      dial_until(target, after(options.connect_timeout), {made->wake_.get(), &made->cancelled_})));
  return made;
}

Result<ReplyBody> SharedConnection::query(const Request& request, Times times) {
  Call outgoing;
  outgoing.op = put_native(outgoing.payload, request);
  outgoing.repeat = numbered_of(request) != nullptr ? Repeat::kNumbered
                    : command_of(request).writes    ? Repeat::kMustNot
                                                    : Repeat::kMay;
  const std::string reply = IVY_TRY(call(outgoing, times));
  PayloadReader in(reply);
  Result<ReplyBody> answer = take_native_answer(request, in);
  return answer.ok() ? std::move(answer) : reject("a damaged reply");
}

Result<void> SharedConnection::ping() {
  Call outgoing;
  put_text(outgoing.payload, "ping");
  const std::string echo = IVY_TRY(call(outgoing, {}));
  if (echo == outgoing.payload) return {};
  return reject("a damaged reply");
}

Error SharedConnection::reject(const char* what) {
  const Lock lock(mutex_);
  socket_.set_broken(what);
  return Error{Code::kDataLoss, "store at " + target_.text + ": " + what};
}

std::uint64_t SharedConnection::new_arrival() {
  const std::uint64_t arrival = target_.session + barrier_calls_++;
  return arrival == 0 ? 1 : arrival;
}

void SharedConnection::cancel() {
  if (!check_caller(0).ok()) return;
  cancelled_ = true;
  wake_driver();
  const Lock lock(mutex_);
  for (const auto& [id, call] : in_flight_) call->changed.notify_one();
  // The store then removes the client and its waits.
  socket_.shut_down();
}

Result<void> SharedConnection::check_caller(std::size_t payload_bytes) const {
  if (getpid() != process_) {
    return Error{Code::kFailedPrecondition, "this store client was created in process " +
                                                std::to_string(process_) +
                                                "; create another one after a fork"};
  }
  constexpr std::size_t kHeadBytes = 64;
  if (payload_bytes + kHeadBytes > kMaxFrameBytes) {
    return Error{Code::kInvalidArgument, "a request of " + std::to_string(payload_bytes) +
                                             " bytes is longer than " +
                                             std::to_string(kMaxFrameBytes)};
  }
  return {};
}

Result<std::string> SharedConnection::call(Call& call, Times times) {
  IVY_CHECK(check_caller(call.payload.size()));
  call.timed = times.timeout.has_value();
  call.deadline_ns = after(times.timeout.value_or(times.limit.value_or(request_timeout_)));
  call.give_up_ns = call.timed && call.deadline_ns != kNever
                        ? call.deadline_ns + nanos(kAnswerGrace)
                        : call.deadline_ns;
  if (times.limit) call.give_up_ns = after(*times.limit);
  Lock lock(mutex_);
  if (const std::optional<Error> error = verdict()) return *error;
  if (call.id == 0) call.id = next_id();
  if (!in_flight_.emplace(call.id, &call).second) return busy_watch();
  if (call.repeat == Repeat::kNumbered) call.number = next_number_++;
  // Do not send a request that must not be repeated on a connection that the store has closed.
  if (socket_.is_usable() && call.repeat == Repeat::kMustNot && in_flight_.size() == 1)
    socket_.notice_end();
  if (socket_.is_usable()) {
    send(call);
    socket_.write_some();
  }
  return await(lock, call);
}

Result<std::string> SharedConnection::await(Lock& lock, Call& call) {
  while (!is_over(call)) {
    if (!driving_) {
      driving_ = true;
      drive(lock, call);
      driving_ = false;
    } else {
      if (socket_.has_unsent() || !socket_.broken().empty()) wake_driver();
      constexpr std::uint64_t kHour = 3'600'000 * kNanosPerMilli;
      const std::uint64_t now_ns = monotonic_ns();
      const std::uint64_t left_ns = call.give_up_ns > now_ns ? call.give_up_ns - now_ns : 0;
      call.changed.wait_for(lock, std::chrono::nanoseconds(std::min(left_ns, kHour)));
    }
  }
  in_flight_.erase(call.id);
  if (!call.done) give_up_on(call);
  hand_over();
  return std::move(call.result);
}

bool SharedConnection::is_over(const Call& call) const {
  const std::uint64_t now_ns = monotonic_ns();
  return call.done || cancelled_ || fatal_ || now_ns >= call.give_up_ns;
}

Result<std::uint32_t> SharedConnection::watch(std::string_view prefix) {
  IVY_CHECK(check_caller(prefix.size()));
  std::uint32_t id = 0;
  {
    const Lock lock(mutex_);
    id = next_id();
    watches_.add(id, prefix);
  }
  const Result<void> opened = open_watch(id);
  if (opened.ok()) return id;
  end_watch(id);
  return opened.error();
}

Result<void> SharedConnection::open_watch(std::uint32_t watch) {
  Call outgoing;
  outgoing.id = watch;
  {
    const Lock lock(mutex_);
    if (!watches_.has(watch)) return ended_watch();
    outgoing.op = put_native(outgoing.payload, Watch{watches_.prefix(watch)});
    watches_.note_requested(watch);
  }
  const Result<std::string> answer = call(outgoing, {});
  if (answer.ok()) return {};
  const Lock lock(mutex_);
  watches_.note_rejected(watch);
  return answer.error();
}

Result<Changed> SharedConnection::next_change(std::uint32_t watch, Milliseconds timeout) {
  IVY_CHECK(check_caller(0));
  const std::uint64_t end_ns = after(timeout);
  Lock lock(mutex_);
  while (true) {
    if (!watches_.has(watch)) return ended_watch();
    if (in_flight_.contains(watch)) return busy_watch();
    if (std::optional<Changed> change = watches_.next(watch)) return std::move(*change);
    if (const std::optional<Error> error = verdict()) return *error;
    if (watches_.must_reopen(watch)) {
      lock.unlock();
      IVY_CHECK(open_watch(watch));
      lock.lock();
      continue;
    }
    Call own;
    own.id = watch;
    own.listens = true;
    own.deadline_ns = own.give_up_ns = end_ns;
    in_flight_.emplace(watch, &own);
    const Result<std::string> change = await(lock, own);
    if (!change.ok()) return change.error();
  }
}

void SharedConnection::end_watch(std::uint32_t watch) {
  if (!check_caller(0).ok()) return;
  const Lock lock(mutex_);
  if (!watches_.has(watch)) return;
  watches_.remove(watch);
  const auto listening = in_flight_.find(watch);
  if (listening != in_flight_.end()) listening->second->finish(std::string());
  wake_driver();
  if (!socket_.is_usable()) return;
  cancel_request(watch);
}

std::uint32_t SharedConnection::next_id() {
  while (++last_id_ == 0 || in_flight_.contains(last_id_) || watches_.has(last_id_)) continue;
  return last_id_;
}

// Returns the error that ends every call: Cancelled, or the reason why the connection is lost for
// good.
std::optional<Error> SharedConnection::verdict() const {
  if (cancelled_) return Error{Code::kCancelled, "the store client was cancelled"};
  return fatal_;
}

// Returns the lowest number without an answer. An answered call may still be in flight, until its
// thread takes the answer.
std::uint64_t SharedConnection::lowest_number() const {
  std::uint64_t lowest = next_number_;
  for (const auto& [id, call] : in_flight_)
    if (call->number != 0 && !call->done) lowest = std::min(lowest, call->number);
  return lowest;
}

void SharedConnection::send(Call& call) {
  std::string payload;
  auto kind = static_cast<std::uint8_t>(call.op);
  const std::uint64_t now_ns = monotonic_ns();
  if (call.number != 0) {
    kind |= kNumberedOp;
    put_numbered(payload, {call.number, lowest_number(), call.again});
  }
  if (call.timed && call.deadline_ns == kNever) {
    put_u64(payload, kForeverMs);
  } else if (call.timed) {
    const std::uint64_t left_ns = call.deadline_ns > now_ns ? call.deadline_ns - now_ns : 0;
    put_u64(payload, (left_ns + kNanosPerMilli - 1) / kNanosPerMilli);
  }
  payload += call.payload;
  call.queued = true;
  if (!call.again) call.first_queued_ns = now_ns;
  call.begin = socket_.queue({kind, call.id}, payload);
}

void SharedConnection::give_up_on(Call& call) {
  if (const std::optional<Error> error = verdict()) {
    call.result = *error;
    return;
  }
  const bool is_connected = socket_.is_usable() && failed_dials_ == 0;
  const std::string store = "store at " + target_.text + ": ";
  call.result = is_connected ? Error{Code::kDeadlineExceeded, store + "no answer in time"}
                             : Error{Code::kUnavailable,
                                     store + "the connection was lost (" + last_loss_ + ")"};
  if (call.listens)
    call.result = Error{Code::kDeadlineExceeded, "no key below the watched prefix has changed"};
  if (!is_connected || !call.queued) return;
  cancel_request(call.id);
}

// Makes the store remove this client's waiting request.
void SharedConnection::cancel_request(std::uint32_t id) {
  std::string payload;
  put_u32(payload, id);
  socket_.queue({static_cast<std::uint8_t>(Op::kCancel), next_id()}, payload);
  socket_.write_some();
}

void SharedConnection::Call::finish(Result<std::string> answer) {
  if (done) return;
  done = true;
  result = std::move(answer);
  changed.notify_one();
}

void SharedConnection::finish_all(const Error& error) {
  for (const auto& [id, call] : in_flight_) call->finish(error);
}

void SharedConnection::hand_over() {
  if (driving_) return;
  const auto next = std::find_if(in_flight_.begin(), in_flight_.end(),
                                 [](const auto& entry) { return !entry.second->done; });
  if (next != in_flight_.end()) next->second->changed.notify_one();
}

void SharedConnection::wake_driver() const {
  const std::uint64_t one = 1;
  // Fails only if the eventfd is full; the driver is then about to wake up anyway.
  if (::write(wake_.get(), &one, sizeof one) < 0) return;
}

void SharedConnection::take_frames() {
  while (std::optional<WireFrame> frame = socket_.next()) take(std::move(*frame));
}

// Ignores answers to abandoned calls.
void SharedConnection::take(WireFrame&& frame) {
  const auto found = in_flight_.find(frame.head.id);
  if (frame.head.kind == 0 && watches_.has(frame.head.id)) {
    if (!watches_.take(frame.head.id, frame.payload)) socket_.set_broken("a damaged change");
    if (found != in_flight_.end()) found->second->finish(std::string());
    failed_dials_ = 0;
    return;
  }
  if (found == in_flight_.end()) return;
  Call& call = *found->second;
  if (frame.head.kind == 0) {
    failed_dials_ = 0;
    return call.finish(std::move(frame.payload));
  }
  PayloadReader in(frame.payload);
  std::optional<Error> error = take_error(frame.head.kind, in);
  if (!error) return socket_.set_broken("a damaged reply");
  failed_dials_ = 0;
  call.finish(std::move(*error));
}

void SharedConnection::drive(Lock& lock, Call& own) {
  while (!is_over(own)) {
    if (!socket_.broken().empty()) lose();
    if (!socket_.is_open()) {
      if (!is_over(own)) redial(lock, own);
      continue;
    }
    const int descriptor = socket_.descriptor();
    const auto events = static_cast<short>(socket_.has_unsent() ? POLLIN | POLLOUT : POLLIN);
    lock.unlock();
    const Result<short> ready =
        wait_ready(descriptor, events, own.give_up_ns, {wake_.get(), &cancelled_, true});
    lock.lock();
    if (!ready.ok() || *ready == 0) continue;
    if ((*ready & ~POLLOUT) != 0) {
      socket_.read_some();
      take_frames();
    }
    if ((*ready & POLLOUT) != 0 && socket_.is_usable()) socket_.write_some();
  }
}

// Closes the connection. Requests may be sent again if none of their bytes was sent, or if they may
// be repeated; all others fail.
void SharedConnection::lose() {
  const FrameSocket lost = std::exchange(socket_, FrameSocket());
  failed_dials_ += 1;
  last_loss_ = lost.broken();
  watches_.invalidate();
  for (const auto& [id, call] : in_flight_) {
    const bool begun = call->queued && call->begin < lost.sent_bytes();
    call->queued = false;
    call->again |= begun;
    if (begun && call->repeat == Repeat::kMustNot)
      call->finish(unclear_error(target_.text, last_loss_));
    if (call->listens) call->finish(std::string());  // It waits for a watch that has lapsed.
  }
}

void SharedConnection::redial(Lock& lock, Call& own) {
  if (!may_redial_) {
    fatal_ = Error{Code::kUnavailable,
                   "store at " + target_.text + ": the connection was lost (" + last_loss_ + ")"};
    return finish_all(*fatal_);
  }
  // A store may greet each connection and lose it before it replies; redial such a store at growing
  // intervals.
  constexpr int kMaxDoublings = 6;
  const Milliseconds pause(failed_dials_ <= 1 ? 0
                                              : 10 * (1 << std::min(failed_dials_, kMaxDoublings)));
  lock.unlock();
  const Result<short> waited =
      wait_ready(-1, 0, std::min(own.deadline_ns, after(pause)), {wake_.get(), &cancelled_});
  Result<Dialled> dialled = waited.ok()
                                ? dial_until(target_, own.deadline_ns, {wake_.get(), &cancelled_})
                                : Result<Dialled>(waited.error());
  lock.lock();
  if (dialled.ok()) return adopt(std::move(*dialled));
  const Error& error = dialled.error();
  if (error.code == Code::kCancelled) return;
  if (error.code == Code::kUnavailable) return own.finish(error);
  if (error.code == Code::kFailedPrecondition) fatal_ = error;
  finish_all(error);
}

void SharedConnection::adopt(Dialled&& dialled) {
  if (!epoch_.empty() && epoch_ != dialled.epoch) {
    fatal_ = Error{Code::kAborted, "EpochLost: the store at " + target_.text +
                                       " was restarted and has lost its contents"};
    return finish_all(*fatal_);
  }
  socket_ = FrameSocket(std::move(dialled.socket), std::move(dialled.decoder));
  epoch_ = std::move(dialled.epoch);
  for (const auto& [id, call] : in_flight_) {
    // After repeat_for the store may have forgotten the request.
    const bool is_old = call->again && monotonic_ns() - call->first_queued_ns > repeat_for_ns_;
    if (is_old && call->number != 0) call->finish(unclear_error(target_.text, last_loss_));
    if (!call->done) send(*call);
  }
  socket_.write_some();
  take_frames();  // They arrived with the welcome; ivyrun's store sends none.
}

}  // namespace ivy::store
