// Roles: every call queues its frame and sends what the socket takes at once. Then one of the
// calling threads drives: it polls, receives for everybody, and sends what was left over; the
// others sleep on a condition of their own. A driver whose own reply has come hands the role to
// another call. Only the driver closes or replaces the connection, so no thread polls a descriptor
// number that was reused.
#include "rendezvous/client/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "proto/os/not_inherited.h"
#include "proto/wire/handshake.h"
#include "proto/wire/store_wire.h"
#include "rendezvous/client/dial.h"

namespace ivy::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 64u << 10;
constexpr std::size_t kKeptBytes = 64u << 10;  // The capacity that the send buffer keeps.
constexpr std::chrono::hours kForever{24 * 366};

// Whether a call may be sent again when its answer was lost. kMay: it changes nothing, or the store
// tells a barrier's calls apart; kNumbered: the store does it once by its number; kMustNot.
enum class Repeat { kMay, kNumbered, kMustNot };

struct Call {
  Op op = Op::kPing;
  std::uint32_t id = 0;
  std::string payload;  // Without the timeout, if the call has one.
  Repeat repeat = Repeat::kMay;
  std::uint64_t number = 0;  // Only for kNumbered.
  bool again = false;        // Some bytes have left on a lost connection...
  TimePoint first_queued;    // ...not before this time.
  bool timed = false;
  TimePoint deadline;
  TimePoint give_up;
  bool queued = false;      // On the present connection.
  std::uint64_t begin = 0;  // Where its frame begins in all that this connection was to send.
  bool done = false;
  Result<std::string> result = std::string();
  std::condition_variable changed;
};

bool is_code(std::uint8_t kind) {
  switch (static_cast<Code>(kind)) {
    case Code::kCancelled:
    case Code::kInvalidArgument:
    case Code::kDeadlineExceeded:
    case Code::kNotFound:
    case Code::kAlreadyExists:
    case Code::kPermissionDenied:
    case Code::kResourceExhausted:
    case Code::kFailedPrecondition:
    case Code::kAborted:
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
    case Code::kUnauthenticated:
      return true;
  }
  return false;
}

TimePoint later(TimePoint from, std::chrono::milliseconds by) {
  if (by > kForever) return TimePoint::max();
  return from + std::max(by, std::chrono::milliseconds(0));
}

void put_keys(std::string& out, const std::vector<std::string>& keys) {
  put_u32(out, static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) put_text(out, key);
}

std::string texts(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) put_text(out, part);
  return out;
}

}  // namespace

struct Client::State {
  using Lock = std::unique_lock<std::mutex>;

  ~State() {
    if (fd >= 0) not_inherited::close(fd);
    if (wake >= 0) ::close(wake);
  }

  Result<std::string> call(Op op, std::string payload, Repeat repeat,
                           std::optional<Milliseconds> timeout = std::nullopt,
                           Limit limit = std::nullopt);
  template <class Read>
  auto read(Result<std::string> reply, const Read& fields)
      -> Result<decltype(fields(std::declval<PayloadReader&>()))>;
  Result<void> nothing(Result<std::string> reply) {
    const auto empty = read(std::move(reply), [](PayloadReader&) { return true; });
    return empty.ok() ? Result<void>() : empty.error();
  }
  Result<void> check_caller(std::size_t payload_bytes) const;

  // Called under the lock:
  std::optional<Error> verdict() const;
  void queue(Call& call);
  void write_some();
  void read_some();
  void take_frames();
  void take(WireFrame&& frame);
  void drive(Lock& lock, Call& own);
  void redial(Lock& lock, Call& own);
  void adopt(Dialled&& dialled);
  void lose();
  Error unclear() const {
    return Error{Code::kUnavailable, "the connection to the store at " + target.text +
                                         " was lost (" + last_loss +
                                         "): whether the request was served is not known"};
  }
  void finish(Call& call, Result<std::string> result);
  void finish_all(const Error& error);
  void give_up_on(Call& call);
  void hand_over();
  void wake_driver() const;
  void notice_idle_end(const Call& call);
  std::uint64_t new_arrival();
  std::uint64_t lowest_number() const;
  bool is_over(const Call& call) const {
    return call.done || cancelled || fatal || Clock::now() >= call.give_up;
  }

  DialTarget target;
  Milliseconds request_timeout{};
  bool may_redial = true;
  Milliseconds repeat_for{};
  const pid_t process = getpid();
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::atomic<bool> cancelled = false;
  std::atomic<std::uint64_t> barrier_calls = 0;

  std::mutex mutex;
  int fd = -1;
  std::string broken;  // Why the connection is unusable; empty: it is usable.
  std::string last_loss;
  std::string epoch;
  WireDecoder decoder{kMaxFrameBytes};
  std::string unsent;
  std::uint64_t unsent_begin = 0;  // Bytes that this connection has sent.
  std::uint32_t next_id = 1;
  std::map<std::uint32_t, Call*> open;
  std::uint64_t next_number = 1;
  bool driving = false;
  int futile_dials = 0;  // Connections in a row that were lost before any reply came.
  std::optional<Error> fatal;
};

Result<void> Client::State::check_caller(std::size_t payload_bytes) const {
  if (getpid() != process) {
    return Error{Code::kFailedPrecondition, "this store client was made in process " +
                                                std::to_string(process) +
                                                "; make another one after a fork"};
  }
  constexpr std::size_t kHeadBytes = 64;
  if (payload_bytes + kHeadBytes > kMaxFrameBytes) {
    return Error{Code::kInvalidArgument, "a request of " + std::to_string(payload_bytes) +
                                             " bytes is longer than " +
                                             std::to_string(kMaxFrameBytes)};
  }
  return {};
}

Result<std::string> Client::State::call(Op op, std::string payload, Repeat repeat,
                                        std::optional<Milliseconds> timeout, Limit limit) {
  IVY_CHECK(check_caller(payload.size()));
  Call call;
  call.op = op;
  call.payload = std::move(payload);
  call.repeat = repeat;
  call.timed = timeout.has_value();
  call.deadline = later(Clock::now(), timeout.value_or(limit.value_or(request_timeout)));
  const bool for_ever = call.deadline == TimePoint::max();
  call.give_up = call.timed && !for_ever ? call.deadline + kAnswerGrace : call.deadline;
  if (limit) call.give_up = later(Clock::now(), *limit);
  Lock lock(mutex);
  if (const std::optional<Error> error = verdict()) return *error;
  while (next_id == 0 || open.contains(next_id)) ++next_id;
  call.id = next_id++;
  open.emplace(call.id, &call);
  if (repeat == Repeat::kNumbered) call.number = next_number++;
  if (fd >= 0 && broken.empty()) notice_idle_end(call);
  if (fd >= 0 && broken.empty()) {
    queue(call);
    write_some();
  }
  while (!is_over(call)) {
    if (!driving) {
      driving = true;
      drive(lock, call);
      driving = false;
    } else {
      if (!unsent.empty() || !broken.empty()) wake_driver();
      call.changed.wait_until(lock, std::min(call.give_up, Clock::now() + std::chrono::hours(1)));
    }
  }
  open.erase(call.id);
  if (!call.done) give_up_on(call);
  hand_over();
  return std::move(call.result);
}

// Returns the error that ends every call: cancelled, or lost for good.
std::optional<Error> Client::State::verdict() const {
  if (cancelled) return Error{Code::kCancelled, "the store client was cancelled"};
  return fatal;
}

// Detects that the connection ended while it was idle, before a request that must not be repeated
// goes out on it.
void Client::State::notice_idle_end(const Call& call) {
  if (call.repeat != Repeat::kMustNot || open.size() > 1) return;
  char byte = 0;
  const ssize_t count = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) broken = "it hung up";
}

// Returns the lowest number without an answer. An answered call may still be in `open`, until its
// thread takes the answer.
std::uint64_t Client::State::lowest_number() const {
  std::uint64_t lowest = next_number;
  for (const auto& [id, call] : open)
    if (call->number != 0 && !call->done) lowest = std::min(lowest, call->number);
  return lowest;
}

void Client::State::queue(Call& call) {
  std::string frame_payload;
  auto kind = static_cast<std::uint8_t>(call.op);
  if (call.number != 0) {
    kind |= kNumberedOp;
    put_u64(frame_payload, call.number);
    put_u64(frame_payload, lowest_number());
    put_u8(frame_payload, call.again ? 1 : 0);
  }
  if (call.timed) {
    std::uint64_t left_ms = kForeverMs;
    if (call.deadline != TimePoint::max()) {
      const auto left = std::chrono::ceil<Milliseconds>(call.deadline - Clock::now());
      left_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left.count(), 0));
    }
    put_u64(frame_payload, left_ms);
  }
  frame_payload += call.payload;
  call.begin = unsent_begin + unsent.size();
  call.queued = true;
  if (!call.again) call.first_queued = Clock::now();
  append_frame(unsent, {kind, call.id}, frame_payload);
}

void Client::State::give_up_on(Call& call) {
  if (const std::optional<Error> error = verdict()) {
    call.result = *error;
    return;
  }
  const bool connected = fd >= 0 && broken.empty() && futile_dials == 0;
  call.result =
      connected ? Error{Code::kDeadlineExceeded, "store at " + target.text + ": no answer in time"}
                : Error{Code::kUnavailable, "store at " + target.text +
                                                ": the connection was lost (" + last_loss + ")"};
  if (!connected || !call.queued) return;
  // Cancel the request in the store, too.
  std::string payload;
  put_u32(payload, call.id);
  while (next_id == 0 || open.contains(next_id)) ++next_id;
  append_frame(unsent, {static_cast<std::uint8_t>(Op::kCancel), next_id++}, payload);
  write_some();
}

void Client::State::finish(Call& call, Result<std::string> result) {
  if (call.done) return;
  call.done = true;
  call.result = std::move(result);
  call.changed.notify_one();
}

void Client::State::finish_all(const Error& error) {
  for (const auto& [id, call] : open) finish(*call, error);
}

void Client::State::hand_over() {
  if (driving) return;
  const auto next =
      std::find_if(open.begin(), open.end(), [](const auto& entry) { return !entry.second->done; });
  if (next != open.end()) next->second->changed.notify_one();
}

void Client::State::wake_driver() const {
  const std::uint64_t one = 1;
  if (::write(wake, &one, sizeof one) < 0) return;  // Full: the driver is awake already.
}

void Client::State::write_some() {
  std::size_t sent = 0;
  while (sent < unsent.size()) {
    const ssize_t count =
        send(fd, unsent.data() + sent, unsent.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) broken = std::strerror(errno);
    break;
  }
  unsent_begin += sent;
  if (sent < unsent.size()) {
    unsent.erase(0, sent);
  } else if (unsent.capacity() > kKeptBytes) {
    unsent = {};
  } else {
    unsent.clear();
  }
}

void Client::State::read_some() {
  std::array<char, kReadBytes> buffer;
  const ssize_t count = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    broken = count == 0 ? "it hung up" : std::strerror(errno);
    return;
  }
  decoder.feed({buffer.data(), static_cast<std::size_t>(count)});
  take_frames();
}

void Client::State::take_frames() {
  while (broken.empty()) {
    Result<std::optional<WireFrame>> frame = decoder.next();
    if (!frame.ok()) {
      broken = frame.error().message;
    } else if (*frame) {
      take(std::move(**frame));
    } else {
      return;
    }
  }
}

// Ignores answers to calls that were given up.
void Client::State::take(WireFrame&& frame) {
  const auto found = open.find(frame.head.id);
  if (found == open.end()) return;
  Call& call = *found->second;
  if (frame.head.kind == 0) {
    futile_dials = 0;
    finish(call, std::move(frame.payload));
    return;
  }
  PayloadReader in(frame.payload);
  const std::string text(in.text());
  if (!in.done() || !is_code(frame.head.kind)) {
    broken = "a damaged reply";
    return;
  }
  futile_dials = 0;
  finish(call, Error{static_cast<Code>(frame.head.kind), text});
}

void Client::State::drive(Lock& lock, Call& own) {
  while (!is_over(own)) {
    if (!broken.empty()) lose();
    if (fd < 0) {
      if (!is_over(own)) redial(lock, own);
      continue;
    }
    const auto events = static_cast<short>(unsent.empty() ? POLLIN : POLLIN | POLLOUT);
    lock.unlock();
    const Result<short> ready = wait_ready(fd, events, own.give_up, {wake, &cancelled, true});
    lock.lock();
    if (!ready.ok() || *ready == 0) continue;
    if ((*ready & ~POLLOUT) != 0) read_some();
    if ((*ready & POLLOUT) != 0 && broken.empty()) write_some();
  }
}

// Decides which requests may be sent again: those of which no byte has left, and those that may be
// repeated.
void Client::State::lose() {
  not_inherited::close(fd);
  fd = -1;
  futile_dials += 1;
  last_loss = std::exchange(broken, {});
  for (const auto& [id, call] : open) {
    const bool begun = call->queued && call->begin < unsent_begin;
    call->queued = false;
    call->again |= begun;
    if (begun && call->repeat == Repeat::kMustNot) finish(*call, unclear());
  }
  unsent = {};
  unsent_begin = 0;
}

void Client::State::redial(Lock& lock, Call& own) {
  if (!may_redial) {
    fatal = Error{Code::kUnavailable,
                  "store at " + target.text + ": the connection was lost (" + last_loss + ")"};
    return finish_all(*fatal);
  }
  // Redials at growing intervals a store that greets and then loses each connection without a
  // reply.
  constexpr int kMostDoublings = 6;
  const Milliseconds pause = futile_dials <= 1
                                 ? Milliseconds(0)
                                 : Milliseconds(10) * (1 << std::min(futile_dials, kMostDoublings));
  lock.unlock();
  const TimePoint begin = std::min(own.deadline, Clock::now() + pause);
  const Result<short> waited = wait_ready(-1, 0, begin, {wake, &cancelled});
  Result<Dialled> dialled = waited.ok() ? dial_until(target, own.deadline, {wake, &cancelled})
                                        : Result<Dialled>(waited.error());
  lock.lock();
  if (dialled.ok()) return adopt(std::move(*dialled));
  const Error& error = dialled.error();
  if (error.code == Code::kCancelled) return;
  if (error.code == Code::kUnavailable) return finish(own, error);
  if (error.code == Code::kFailedPrecondition) fatal = error;
  finish_all(error);
}

void Client::State::adopt(Dialled&& dialled) {
  if (!epoch.empty() && epoch != dialled.epoch) {
    not_inherited::close(dialled.descriptor);
    fatal = Error{Code::kAborted, "EpochLost: the store at " + target.text +
                                      " was started anew and has lost what was in it"};
    return finish_all(*fatal);
  }
  fd = dialled.descriptor;
  epoch = std::move(dialled.epoch);
  decoder = std::move(dialled.decoder);
  for (const auto& [id, call] : open) {
    // After repeat_for the store may have forgotten the request.
    const bool is_old = call->again && Clock::now() - call->first_queued > repeat_for;
    if (is_old && call->number != 0) finish(*call, unclear());
    if (!call->done) queue(*call);
  }
  write_some();
  take_frames();  // Arrived with the welcome; our store sends none.
}

template <class Read>
auto Client::State::read(Result<std::string> reply, const Read& fields)
    -> Result<decltype(fields(std::declval<PayloadReader&>()))> {
  if (!reply.ok()) return reply.error();
  PayloadReader in(*reply);
  auto value = fields(in);
  if (in.done()) return value;
  const Lock lock(mutex);
  broken = "a damaged reply";
  return Error{Code::kDataLoss, "store at " + target.text + ": a damaged reply"};
}

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::~Client() = default;

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& options) {
  auto state = std::make_unique<State>();
  if (state->wake < 0) return errno_error(Code::kInternal, "make an event descriptor", errno);
  IVY_CHECK(parse_address(options.address, state->target));
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (options.job_id.size() != 32 ||
      options.job_id.find_first_not_of(kDigits) != std::string::npos) {
    return Error{Code::kInvalidArgument, "a job's id has 32 hexadecimal digits"};
  }
  state->target.job_id = options.job_id;
  state->target.token = options.token;
  state->target.generation = options.generation;
  state->target.rank = options.rank;
  const std::string session = random_bytes(sizeof state->target.session);
  std::memcpy(&state->target.session, session.data(), session.size());
  state->target.session |= 1;  // Never 0.
  state->request_timeout = options.request_timeout;
  state->may_redial = options.may_redial;
  state->repeat_for = std::min<Milliseconds>(options.repeat_for, kRepeatFor);
  Dialled dialled = IVY_TRY(dial_until(state->target, later(Clock::now(), options.connect_timeout),
                                       {state->wake, &state->cancelled}));
  state->adopt(std::move(dialled));
  return std::unique_ptr<Client>(new Client(std::move(state)));
}

void Client::cancel() {
  if (!state_->check_caller(0).ok()) return;
  state_->cancelled = true;
  state_->wake_driver();
  const State::Lock lock(state_->mutex);
  for (const auto& [id, call] : state_->open) call->changed.notify_one();
  // The store then sees the client as gone, and forgets its waits.
  if (state_->fd >= 0) ::shutdown(state_->fd, SHUT_RDWR);
}

Result<void> Client::set(std::string_view key, std::string_view value, Limit limit) {
  return state_->nothing(
      state_->call(Op::kSet, texts({key, value}), Repeat::kNumbered, std::nullopt, limit));
}

Result<void> Client::set_once(std::string_view key, std::string_view value, Limit limit) {
  return state_->nothing(
      state_->call(Op::kSetOnce, texts({key, value}), Repeat::kNumbered, std::nullopt, limit));
}

namespace {
std::string one_text(PayloadReader& in) { return std::string(in.text()); }
std::uint64_t one_number(PayloadReader& in) { return in.u64(); }
bool one_bool(PayloadReader& in) { return in.u8() == 1; }
}  // namespace

Result<std::string> Client::get(std::string_view key, Limit limit) {
  return state_->read(state_->call(Op::kGet, texts({key}), Repeat::kMay, std::nullopt, limit),
                      one_text);
}

Result<std::string> Client::wait_get(std::string_view key, Milliseconds timeout) {
  return state_->read(state_->call(Op::kWaitGet, texts({key}), Repeat::kMay, timeout), one_text);
}

Result<void> Client::wait(const std::vector<std::string>& keys, Milliseconds timeout, Limit limit) {
  std::string payload;
  put_keys(payload, keys);
  return state_->nothing(state_->call(Op::kWait, std::move(payload), Repeat::kMay, timeout, limit));
}

Result<bool> Client::check(const std::vector<std::string>& keys, Limit limit) {
  std::string payload;
  put_keys(payload, keys);
  return state_->read(
      state_->call(Op::kCheck, std::move(payload), Repeat::kMay, std::nullopt, limit), one_bool);
}

Result<std::int64_t> Client::add(std::string_view key, std::int64_t delta) {
  std::string payload = texts({key});
  put_u64(payload, static_cast<std::uint64_t>(delta));
  return state_->read(state_->call(Op::kAdd, std::move(payload), Repeat::kMustNot),
                      [](PayloadReader& in) { return in.i64(); });
}

Result<std::pair<bool, std::optional<std::string>>> Client::compare_set(
    std::string_view key, const std::optional<std::string>& expected, std::string_view desired,
    Limit limit) {
  std::string payload = texts({key});
  put_u8(payload, expected ? 1 : 0);
  payload += texts({expected ? std::string_view(*expected) : std::string_view(), desired});
  return state_->read(
      state_->call(Op::kCompareSet, std::move(payload), Repeat::kMustNot, std::nullopt, limit),
      [](PayloadReader& in) {
        std::pair<bool, std::optional<std::string>> outcome;
        outcome.first = in.u8() == 1;
        const bool exists = in.u8() == 1;
        std::string current(in.text());
        if (exists) outcome.second = std::move(current);
        return outcome;
      });
}

Result<std::uint64_t> Client::append(std::string_view key, std::string_view value) {
  return state_->read(state_->call(Op::kAppend, texts({key, value}), Repeat::kMustNot), one_number);
}

Result<bool> Client::remove(std::string_view key) {
  return state_->read(state_->call(Op::kDelete, texts({key}), Repeat::kNumbered), one_bool);
}

Result<std::vector<std::string>> Client::multi_get(const std::vector<std::string>& keys,
                                                   Limit limit) {
  std::string payload;
  put_keys(payload, keys);
  return state_->read(
      state_->call(Op::kMultiGet, std::move(payload), Repeat::kMay, std::nullopt, limit),
      [&](PayloadReader& in) {
        std::vector<std::string> values;
        for (std::size_t i = 0; i < keys.size() && in.ok(); ++i) values.emplace_back(in.text());
        return values;
      });
}

Result<void> Client::multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(entries.size()));
  for (const auto& [key, value] : entries) payload += texts({key, value});
  return state_->nothing(state_->call(Op::kMultiSet, std::move(payload), Repeat::kNumbered));
}

Result<std::uint64_t> Client::push(std::string_view queue, std::string_view value) {
  return state_->read(state_->call(Op::kQueuePush, texts({queue, value}), Repeat::kMustNot),
                      one_number);
}

Result<std::string> Client::pop(std::string_view queue, Milliseconds timeout) {
  return state_->read(state_->call(Op::kQueuePop, texts({queue}), Repeat::kMustNot, timeout),
                      one_text);
}

Result<std::uint64_t> Client::queue_length(std::string_view queue) {
  return state_->read(state_->call(Op::kQueueLength, texts({queue}), Repeat::kMay), one_number);
}

Result<std::vector<std::string>> Client::list(std::string_view prefix, Limit limit) {
  std::vector<std::string> all;
  std::string after;
  while (true) {
    std::string payload = texts({prefix});
    put_u32(payload, 0);
    payload += texts({after});
    bool more = false;
    const std::size_t before = all.size();
    const Result<bool> page =
        state_->read(state_->call(Op::kList, std::move(payload), Repeat::kMay, std::nullopt, limit),
                     [&](PayloadReader& in) {
                       more = in.u8() == 1;
                       const std::uint32_t count = in.u32();
                       for (std::uint32_t i = 0; i < count && in.ok(); ++i)
                         all.emplace_back(in.text());
                       return true;
                     });
    if (!page.ok()) return page.error();
    if (!more) return all;
    // Each page must advance the list, or the loop would never end.
    if (all.size() == before || all.back() <= after || all.size() > kMaxKeys)
      return Error{Code::kDataLoss, "store at " + state_->target.text + ": a list without end"};
    after = all.back();
  }
}

Result<std::uint64_t> Client::count(std::string_view prefix) {
  return state_->read(state_->call(Op::kCount, texts({prefix}), Repeat::kMay), one_number);
}

// Returns a number that is unique among all arrivals of all clients; a request that is sent again
// keeps it.
std::uint64_t Client::State::new_arrival() {
  const std::uint64_t arrival = target.session + barrier_calls++;
  return arrival == 0 ? 1 : arrival;
}

std::uint64_t Client::new_arrival() { return state_->new_arrival(); }

namespace {

std::string arrival_at(std::string_view name, std::uint32_t size, std::uint32_t member,
                       std::uint64_t arrival) {
  std::string payload = texts({name});
  put_u32(payload, size);
  put_u32(payload, member);
  put_u64(payload, arrival);
  return payload;
}

}  // namespace

Result<std::uint64_t> Client::barrier(std::string_view name, std::uint32_t size,
                                      std::uint32_t member, Milliseconds timeout,
                                      std::optional<std::uint64_t> arrival) {
  std::string payload = arrival_at(name, size, member, arrival ? *arrival : new_arrival());
  return state_->read(state_->call(Op::kBarrier, std::move(payload), Repeat::kMay, timeout),
                      one_number);
}

Result<Client::Meeting> Client::barrier_without_losses(std::string_view name, std::uint32_t size,
                                                       std::uint32_t member, Milliseconds timeout) {
  std::string payload = arrival_at(name, size, member, new_arrival());
  put_u8(payload, 1);
  const Result<std::uint64_t> told = state_->read(
      state_->call(Op::kBarrier, std::move(payload), Repeat::kMay, timeout), one_number);
  if (!told.ok()) return told.error();
  const auto number = static_cast<std::int64_t>(*told);
  if (number >= 0) return Meeting{*told, std::nullopt};
  return Meeting{0, static_cast<std::uint32_t>(-1 - number)};
}

Result<std::string> Client::why() {
  return state_->read(state_->call(Op::kWhy, {}, Repeat::kMay), one_text);
}

Result<void> Client::ping() {
  const std::string text = "ping";
  const Result<std::string> echo =
      state_->read(state_->call(Op::kPing, texts({text}), Repeat::kMay), one_text);
  if (!echo.ok()) return echo.error();
  if (*echo == text) return {};
  return Error{Code::kDataLoss, "store at " + state_->target.text + ": a damaged reply"};
}

}  // namespace ivy::store
