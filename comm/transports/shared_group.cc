#include "comm/transports/shared_group.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "comm/transports/futex.h"
#include "comm/transports/process_state.h"
#include "comm/transports/relax.h"
#include "comm/transports/remote_barrier.h"

namespace ivy::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// A processor's pause takes 5 to 150 ns by its model, so it is measured once.
std::uint32_t rounds_in(std::chrono::microseconds time) {
  static const double nanoseconds_per_round = [] {
    constexpr int kRounds = 2000;
    double best = 1e9;
    for (int attempt = 0; attempt < 3; ++attempt) {
      const auto start = steady_clock::now();
      for (int round = 0; round < kRounds; ++round) relax();
      const std::chrono::duration<double, std::nano> took = steady_clock::now() - start;
      best = std::min(best, took.count() / kRounds);
    }
    return std::max(best, 1.0);
  }();
  return static_cast<std::uint32_t>(static_cast<double>(time.count()) * 1000 /
                                    nanoseconds_per_round);
}

constexpr std::uint32_t kRoundsBeforeClock = 200;

// Yields before a wait sleeps: with more ranks than processors the one that is waited for runs
// meanwhile. Not everywhere: where each rank is a scheduling group of its own (by autogroup each
// session is one) a yield returns at once.
constexpr int kYieldsMax = 16;
// Waits until yields that did not help are tried again.
constexpr int kWaitsWithoutYields = 32;
// A sleeper looks around at least this often, whatever it was promised.
constexpr milliseconds kSleepSlice{200};

// The part of an entry's payload that is in the same cache line as its number.
constexpr std::size_t kFirstLineBytes = 64 - offsetof(EntryLine, payload);
const std::uint8_t* second_line(const EntryLine& entry) {
  return reinterpret_cast<const std::uint8_t*>(&entry) + 64;
}
// How much of an eager area take_next_lines() takes ahead of writing it.
constexpr std::size_t kTakenMost = 1024;
// How much of an eager area is fetched together with the entry: with more, lines would go to and
// fro between the writer and the waiter.
constexpr std::size_t kFetchedMost = 512;

// Waits shorter than this are not worth a look at who else is there.
constexpr milliseconds kWatchedAfter{100};
constexpr std::size_t kNamedMax = 8;

// True if that process is stopped, by a signal or a debugger; false if its state cannot be read.
bool is_stopped(std::int32_t pid) {
  const std::optional<char> state = process_state(pid);
  return state == 'T' || state == 't';
}

std::string seconds_text(nanoseconds time) {
  const auto tenths = std::chrono::duration_cast<milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

SharedGroup::SharedGroup(std::shared_ptr<SharedSegment> segment, SharedGroupOptions options,
                         Alarm* alarm)
    : segment_(std::move(segment)),
      header_(segment_->header()),
      options_(std::move(options)),
      alarm_(alarm),
      size_(static_cast<std::uint32_t>(options_.members.size())),
      self_(options_.self),
      spins_(options_.has_processor_each ? rounds_in(options_.spin) : 0),
      has_remote_barrier_(spins_ != 0 && join_remote_barriers()),
      yields_(kYieldsMax),
      known_entry_(size_, 0),
      known_drained_(size_, 0) {
  own().pid = options_.members[self_].pid;
  own().probe = peers_.own_probe(segment_->descriptor());
  own().attached.store(kIsHere, std::memory_order_release);
}

SharedGroup::~SharedGroup() { own().attached.store(kHasLeft, std::memory_order_release); }

bool SharedGroup::begin(const OperationShape& shape, std::uint64_t sequence, Deadline& deadline) {
  shape_ = shape;
  sequence_ = sequence;
  deadline_ = &deadline;
  // The next entry is written in the place of the one before the last.
  if (number_ > 0 && !await_entries_of(number_)) return false;
  ++number_;
  known_here_ = 0;
  shown_[number_ & 1] = 0;
  return true;
}

void SharedGroup::tell_entry() {
  if (entry_watch_ != nullptr) std::exchange(entry_watch_, nullptr)->entered();
}

void SharedGroup::publish_entry() {
  EntryLine& entry = own_entry();
  const Fingerprint fingerprint = fingerprint_of(shape_);
  entry.fingerprint[0] = fingerprint.words[0];
  entry.fingerprint[1] = fingerprint.words[1];
  publish(entry.sequence, number_);
  tell_entry();
  if (options_.is_crowded) count_arrival();
}

// All members have entered this operation: none reads any more what this member showed in the one
// before, and it is the place of what it shows in the next one. Its lines come meanwhile.
void SharedGroup::take_next_lines() {
  const EntryLine& entry = own().entry[(number_ + 1) & 1];
  const std::size_t shown = shown_[(number_ + 1) & 1];
  take_line(&entry);
  if (shown > kFirstLineBytes && shown <= kInlineBytes) take_line(second_line(entry));
  if (shown <= kInlineBytes) return;
  const std::uint8_t* const eager = segment_->eager(self_, number_ + 1);
  const std::size_t bytes = std::min(shown, kTakenMost);
  for (std::size_t begin = 0; begin < bytes; begin += 64) take_line(eager + begin);
}

bool SharedGroup::await_entries() { return await_entries_of(number_); }

bool SharedGroup::await_entries_of(std::uint64_t number) {
  if (options_.is_crowded && !await_arrivals(number)) return false;
  for (std::uint32_t step = 1; step < size_; ++step) {
    const std::uint32_t member = self_ + step < size_ ? self_ + step : self_ + step - size_;
    if (known_entry_[member] < number && !await_entry_of(member, number)) return false;
  }
  return true;
}

// No member enters an operation before all have entered the one before, so `number * size_`
// arrivals mean that every member has entered this one.
bool SharedGroup::await_arrivals(std::uint64_t number) {
  const std::uint64_t all = number * size_;
  if (header_.arrivals.load(std::memory_order_acquire) >= all) return true;
  // Report a mismatch with those that have arrived now: the others may never come.
  for (std::uint32_t member = 0; member < size_; ++member) {
    const EntryLine& theirs = segment_->member(member).entry[number & 1];
    const bool is_news = member != self_ && known_entry_[member] < number &&
                         theirs.sequence.load(std::memory_order_acquire) >= number;
    if (is_news && !await_entry_of(member, number)) return false;
  }
  return await_slowly(header_.arrivals, all, kWhoeverIsAbsent, {});
}

void SharedGroup::count_arrival() {
  const std::uint64_t arrivals = header_.arrivals.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (arrivals % size_ != 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_.sleepers.load(std::memory_order_relaxed) != 0) ring_doorbells(kForArrivals);
}

// The first member that has not yet entered the current operation.
std::uint32_t SharedGroup::first_absent() const {
  for (std::uint32_t step = 1; step < size_; ++step) {
    const std::uint32_t member = self_ + step < size_ ? self_ + step : self_ + step - size_;
    const EntryLine& theirs = segment_->member(member).entry[number_ & 1];
    if (theirs.sequence.load(std::memory_order_relaxed) < number_) return member;
  }
  return self_ + 1 < size_ ? self_ + 1 : 0;
}

SharedGroup::Shown SharedGroup::shown_by(std::uint32_t member, std::uint64_t number) const {
  const std::size_t bytes = shown_[number & 1];
  if (bytes <= kFirstLineBytes || bytes > kFetchedMost) return {};
  if (bytes > kInlineBytes) return {segment_->eager(member, number), bytes};
  return {second_line(segment_->member(member).entry[number & 1]), 1};
}

bool SharedGroup::await_entry_of(std::uint32_t member, std::uint64_t number) {
  const EntryLine& theirs = segment_->member(member).entry[number & 1];
  const Shown shown = shown_by(member, number);
  shown.fetch();
  if (theirs.sequence.load(std::memory_order_acquire) < number &&
      !await_slowly(theirs.sequence, number, member, shown)) {
    return false;
  }
  const EntryLine& ours = own().entry[number & 1];
  if (theirs.fingerprint[0] != ours.fingerprint[0] ||
      theirs.fingerprint[1] != ours.fingerprint[1]) {
    break_with(mismatch_failure(member, Fingerprint{{theirs.fingerprint[0], theirs.fingerprint[1]}},
                                Fingerprint{{ours.fingerprint[0], ours.fingerprint[1]}}));
    return false;
  }
  known_entry_[member] = number;
  if (number == number_ && ++known_here_ == size_ - 1) take_next_lines();
  return true;
}

bool SharedGroup::compare_last() {
  // With this fence at least one of two members that look at the same time sees the other's entry.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_ || known_entry_[member] >= number_) continue;
    const EntryLine& theirs = segment_->member(member).entry[number_ & 1];
    if (theirs.sequence.load(std::memory_order_acquire) != number_) continue;
    if (!await_entry_of(member, number_)) return false;
  }
  return true;
}

std::uint64_t SharedGroup::take_chunks(std::uint64_t count) {
  return std::exchange(next_chunk_, next_chunk_ + count);
}

bool SharedGroup::await_room(std::uint64_t chunk) {
  if (chunk < kSlotsPerMember) return true;
  const std::uint64_t needed = chunk - kSlotsPerMember + 1;
  for (std::uint32_t member = 0; member < size_; ++member) {
    if (member == self_ || known_drained_[member] >= needed) continue;
    const std::atomic<std::uint64_t>& drained = segment_->member(member).progress.drained;
    if (!await_at_least(drained, needed, member)) return false;
    known_drained_[member] = drained.load(std::memory_order_relaxed);
  }
  return true;
}

bool SharedGroup::spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  for (std::uint32_t round = 0; round < spins_; ++round) {
    relax();
    if (counter.load(std::memory_order_acquire) >= value) return true;
    // This line is shared by all and written once, at the end: the look costs nothing.
    if (header_.failure_state.load(std::memory_order_relaxed) != 0) return false;
  }
  return yield(counter, value);
}

// Among crowded members yields fewer and fewer times if that was in vain, and then only now and
// again.
bool SharedGroup::yield(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
  if (yields_ == 0 && ++waits_without_yields_ == kWaitsWithoutYields) {
    waits_without_yields_ = 0;
    yields_ = kYieldsMax;
  }
  for (int round = 0; round < yields_; ++round) {
    sched_yield();
    if (counter.load(std::memory_order_acquire) < value) continue;
    yields_ = kYieldsMax;
    return true;
  }
  if (options_.is_crowded) yields_ /= 2;
  return false;
}

void SharedGroup::sleep(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                        std::uint32_t member) {
  SleepLine& line = own().sleep;
  const std::atomic<std::uint32_t>* news = alarm_ != nullptr ? alarm_->word() : nullptr;
  const std::uint32_t news_before = news != nullptr ? news->load(std::memory_order_acquire) : 0;
  const std::uint32_t bell = line.doorbell.load(std::memory_order_acquire);
  line.asleep.store(!options_.is_crowded         ? kForAnyone
                    : member == kWhoeverIsAbsent ? kForArrivals
                                                 : member + 1,
                    std::memory_order_relaxed);
  // Sequentially consistent, against the fence of wake_sleepers() or in its place: either the
  // publisher sees the sleeper, or the sleeper sees what was published.
  header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (options_.has_processor_each) remote_barrier();
  const bool is_over = counter.load(std::memory_order_acquire) >= value ||
                       header_.failure_state.load(std::memory_order_acquire) != 0;
  if (!is_over) {
    nanoseconds at_most = std::min<nanoseconds>(kSleepSlice, deadline_->left());
    if (alarm_ != nullptr) at_most = std::min<nanoseconds>(at_most, alarm_->poll_interval());
    if (at_most > nanoseconds::zero()) {
      futex_wait({&line.doorbell, bell}, {news, news_before}, at_most);
    }
  }
  header_.sleepers.fetch_sub(1, std::memory_order_relaxed);
  line.asleep.store(0, std::memory_order_relaxed);
}

bool SharedGroup::may_go_on(std::uint32_t member) {
  if (header_.failure_state.load(std::memory_order_acquire) != 0) return false;
  if (alarm_ != nullptr) {
    std::optional<Failure> bad_news = alarm_->look(rank_of(member));
    if (bad_news) {
      add_operation(*bad_news);
      break_with(*bad_news);
      return false;
    }
  }
  if (deadline_->left() <= nanoseconds::zero()) return give_up(member);
  if (watch_ != nullptr && steady_clock::now() - deadline_->since() >= kWatchedAfter) {
    watch_->waits(long_wait(member));
  }
  return true;
}

bool SharedGroup::await_slowly(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                               std::uint32_t member, const Shown& shown) {
  tell_entry();
  // The clock, and the pause of some processors, cost as much as a message that comes in time.
  for (std::uint32_t round = std::min(spins_, kRoundsBeforeClock); round > 0; --round) {
    relax();
    shown.fetch();
    if (counter.load(std::memory_order_acquire) >= value) return true;
  }
  deadline_->since();
  while (!spin(counter, value)) {
    // A rank that died or left after it had done its part harms nobody who waits for that part.
    const std::uint32_t waited_for = member == kWhoeverIsAbsent ? first_absent() : member;
    if (!may_go_on(waited_for)) return counter.load(std::memory_order_acquire) >= value;
    sleep(counter, value, member);
    if (counter.load(std::memory_order_acquire) >= value) return true;
  }
  return true;
}

void SharedGroup::ring_doorbells(std::uint32_t asleep) {
  for (std::uint32_t member = 0; member < size_; ++member) {
    SleepLine& line = segment_->member(member).sleep;
    const std::uint32_t waits_for = line.asleep.load(std::memory_order_relaxed);
    if (member == self_ || (waits_for != asleep && waits_for != kForAnyone)) continue;
    line.doorbell.fetch_add(1, std::memory_order_release);
    futex_wake_all(line.doorbell);
  }
}

void SharedGroup::mail_sleep(std::uint32_t bell, nanoseconds at_most) {
  SleepLine& line = segment_->member(self_).mail;
  line.asleep.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_.failure_state.load(std::memory_order_acquire) == 0) {
    futex_wait({&line.doorbell, bell}, {}, at_most);
  }
  line.asleep.fetch_sub(1, std::memory_order_relaxed);
}

void SharedGroup::ring_mail(std::uint32_t member) {
  SleepLine& line = segment_->member(member).mail;
  // Count in every case, so that a look that began before this is not followed by a sleep.
  line.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst) != 0) futex_wake_all(line.doorbell);
}

void SharedGroup::break_with(const Failure& failure) {
  {
    const std::lock_guard lock(finding_);  // Any thread of this member may find a failure.
    if (is_broken()) return;
    own().failure = failure;
    std::uint32_t none = 0;
    if (!header_.failure_state.compare_exchange_strong(none, self_ + 1)) return;
  }
  for (std::uint32_t member = 0; member < size_; ++member) {
    SleepLine& line = segment_->member(member).sleep;
    line.doorbell.fetch_add(1, std::memory_order_release);
    futex_wake_all(line.doorbell);
    ring_mail(member);
  }
}

std::optional<Failure> SharedGroup::failure() const {
  const std::uint32_t finder = header_.failure_state.load(std::memory_order_acquire);
  if (finder == 0) return std::nullopt;
  return segment_->member(finder - 1).failure;
}

bool SharedGroup::take_turn(std::uint64_t sequence, nanoseconds pause) {
  // One word holds both: milliseconds, and enough of the number to tell neighbours apart.
  constexpr int kSequenceBits = 16;
  const auto pause_ms = static_cast<std::uint64_t>(pause / milliseconds(1));
  const auto now =
      static_cast<std::uint64_t>(steady_clock::now().time_since_epoch() / milliseconds(1));
  const std::uint64_t number = sequence & ((std::uint64_t{1} << kSequenceBits) - 1);
  std::uint64_t last = header_.asked.load(std::memory_order_relaxed);
  const bool is_same = (last & ((std::uint64_t{1} << kSequenceBits) - 1)) == number;
  if (is_same && now - (last >> kSequenceBits) < pause_ms) return false;
  return header_.asked.compare_exchange_strong(last, now << kSequenceBits | number,
                                               std::memory_order_relaxed);
}

void SharedGroup::add_operation(Failure& failure) const {
  if (failure.sequence == 0) {
    set_text(failure, std::string(failure.text) + " during " + describe(shape_) + ", operation " +
                          std::to_string(sequence_) + " of communicator " + options_.communicator);
  }
  failure.sequence = sequence_;
  set_operation(failure, comm_status::name_of(shape_.operation));
}

std::string SharedGroup::name_of(std::uint32_t member) const {
  const MemberName& name = options_.members[member];
  return "rank " + std::to_string(name.rank) + " (" + options_.host + ", pid " +
         std::to_string(name.pid) + ")";
}

// Members that have not entered this operation of the communicator.
std::vector<std::uint32_t> SharedGroup::absent_members() const {
  std::vector<std::uint32_t> absent;
  for (std::uint32_t member = 0; member < size_; ++member) {
    const MemberBlock& block = segment_->member(member);
    if (member != self_ && block.operation.load(std::memory_order_relaxed) < sequence_) {
      absent.push_back(member);
    }
  }
  return absent;
}

// The absent member that has entered the fewest operations: those that entered more may wait for
// it.
std::uint32_t SharedGroup::furthest_behind(const std::vector<std::uint32_t>& absent) const {
  return *std::min_element(
      absent.begin(), absent.end(), [&](std::uint32_t one, std::uint32_t other) {
        return segment_->member(one).operation.load(std::memory_order_relaxed) <
               segment_->member(other).operation.load(std::memory_order_relaxed);
      });
}

// Finds the member to blame, as far as it can be seen here: a stopped process before one that does
// something else, and either before one that is in the operation and waits itself.
LongWait SharedGroup::long_wait(std::uint32_t member) {
  LongWait wait;
  wait.sequence = sequence_;
  wait.waited = steady_clock::now() - deadline_->since();
  wait.waits_for = rank_of(member);
  const std::vector<std::uint32_t> absent = absent_members();
  std::vector<std::uint32_t> suspects = absent;
  if (absent.empty()) {
    for (std::uint32_t other = 0; other < size_; ++other) {
      if (other != self_) suspects.push_back(other);
    }
  }
  const auto stopped = std::find_if(suspects.begin(), suspects.end(), [&](std::uint32_t other) {
    return is_stopped(options_.members[other].pid);
  });
  if (stopped == suspects.end() && absent.empty()) return wait;
  const std::uint32_t culprit = stopped != suspects.end() ? *stopped : furthest_behind(absent);
  wait.culprit = rank_of(culprit);
  wait.is_absent = stopped == suspects.end();
  wait.because = name_of(culprit) + (stopped != suspects.end() ? " is stopped" : "");
  if (absent.empty()) return wait;
  wait.because += stopped != suspects.end() ? " and did not enter it" : " did not enter it";
  const std::uint64_t last = segment_->member(culprit).operation.load(std::memory_order_relaxed);
  if (last > 0) wait.because += "; the last that it entered is operation " + std::to_string(last);
  if (last > 0 && last + 1 == sequence_) wait.because += ", " + describe(previous_shape_);
  if (absent.size() == 1) return wait;
  std::string others;
  for (std::size_t i = 0; i < absent.size() && i < kNamedMax; ++i) {
    others += (i == 0 ? "" : ", ") + std::to_string(rank_of(absent[i]));
  }
  wait.because += "; ranks " + others + (absent.size() > kNamedMax ? ", ..." : "") + " are missing";
  return wait;
}

// Handles the timeout. False: the communicator is broken, now or before.
bool SharedGroup::give_up(std::uint32_t member) {
  const LongWait wait = long_wait(member);
  std::uint32_t blamed = member;
  std::string because = wait.because;
  if (watch_ != nullptr) {
    const std::optional<Suspicion> suspicion = watch_->time_is_over(wait);
    if (suspicion && suspicion->rank != wait.culprit) {
      Failure failure = timeout_failure(member, suspicion->because);
      // The blamed rank need not be on this host: the communicator adds its place.
      failure.rank = watch_->world_rank(suspicion->rank);
      failure.pid = 0;
      set_host(failure, "");
      break_with(failure);
      return false;
    }
  }
  for (std::uint32_t other = 0; other < size_; ++other) {
    if (wait.culprit >= 0 && rank_of(other) == wait.culprit) blamed = other;
  }
  if (because.empty()) {
    because = "every rank of this host is in it, and " + name_of(member) + " does not go on";
  }
  break_with(timeout_failure(blamed, because));
  return false;
}

Failure SharedGroup::timeout_failure(std::uint32_t blamed, const std::string& because) const {
  const std::string text = describe(shape_) + ", operation " + std::to_string(sequence_) +
                           " of communicator " + options_.communicator + " on " + options_.host +
                           ": no progress for " +
                           seconds_text(steady_clock::now() - deadline_->since()) + "; " + because;
  Failure failure = make_failure(FailureKind::kTimeout, text);
  failure.rank = options_.members[blamed].world_rank;
  failure.pid = options_.members[blamed].pid;
  failure.sequence = sequence_;
  set_host(failure, options_.host);
  set_operation(failure, comm_status::name_of(shape_.operation));
  return failure;
}

Failure SharedGroup::mismatch_failure(std::uint32_t member, const Fingerprint& theirs,
                                      const Fingerprint& ours) const {
  const std::string text = "operation " + std::to_string(sequence_) + " of communicator " +
                           options_.communicator + " differs between ranks: rank " +
                           std::to_string(options_.members[self_].rank) + " calls " +
                           describe_beside(shape_of(ours), shape_of(theirs)) + ", rank " +
                           std::to_string(options_.members[member].rank) + " calls " +
                           describe_beside(shape_of(theirs), shape_of(ours));
  Failure failure = make_failure(FailureKind::kMismatch, text);
  failure.rank = options_.members[member].world_rank;
  failure.sequence = sequence_;
  set_host(failure, options_.host);
  set_operation(failure, comm_status::name_of(shape_.operation));
  return failure;
}

}  // namespace ivy::comm
