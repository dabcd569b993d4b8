// The ranks of one host in one communicator, meeting in shared memory: entries (what each is in),
// chunk counters, and the wait for both. Collectives stand on this; it moves no data itself.
//
// Vocabulary: a *member* is a rank by its index on this host. Each operation begins with every
// member's *entry*: its number, its fingerprint and a few bytes. Small operations put their data in
// the entry or in the member's eager area of that number's parity; larger ones fill *slots* with
// *chunks*. Chunks are counted through the communicator's life, equally by all members, whether a
// member has data in a chunk or not.
//
// Reuse of memory, which makes every wait that is not written here unnecessary:
//   entry and eager area of operation k   are free again when every member has entered k + 1,
//                                          which begin() of operation k + 2 waits for;
//   slot of chunk c                        is free again when every member has drained chunk c,
//                                          which await_room(c + kSlotsPerMember) waits for.
// (A member enters k + 1 only after it has read what it needs of k.)
//
// Waiting: spin while there is a processor for every member, then yield, then futex. A publisher
// wakes only those who said that they sleep. Where members are crowded, each wake is another turn
// of the scheduler: they yield only as long as that helps, are woken only by the member that they
// wait for, and who waits for all entries is woken by the last of them.
//
// Every bool result: false means that the communicator is broken, and failure() says why; the
// caller returns at once. Thread: one at a time (the communicator's lock); break_with() and
// failure(): any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/contract/failure.h"
#include "comm/contract/fingerprint.h"
#include "comm/reduce/reduce.h"
#include "comm/transports/alarm.h"
#include "comm/transports/deadline.h"
#include "comm/transports/shared_segment.h"
#include "comm/transports/wait_watch.h"

namespace ivy::comm {

class Selector;

// How a member is called in messages.
struct MemberName {
  std::int32_t rank = 0;        // In the communicator.
  std::int32_t world_rank = 0;  // In the job.
  std::int32_t pid = 0;
};

struct SharedGroupOptions {
  std::string communicator;  // Its name in messages.
  std::string host;
  std::vector<MemberName> members;  // In local order.
  std::uint32_t self = 0;           // Index into members.
  bool has_processor_each = true;   // At least as many processors as ranks on this host: spin.
  bool is_crowded = false;          // Several ranks per processor: sleep until the last has come.
  std::chrono::microseconds spin{1000};
  // Which way collectives among these members take; all members choose alike. May be null where
  // there are none.
  std::shared_ptr<const Selector> selector;
};

class SharedGroup {
 public:
  // `alarm` may be null and outlives this.
  SharedGroup(std::shared_ptr<SharedSegment> segment, SharedGroupOptions options, Alarm* alarm);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  std::uint32_t size() const { return size_; }
  std::uint32_t self() const { return self_; }
  const MemberName& member(std::uint32_t member) const { return options_.members[member]; }
  std::int32_t rank_of(std::uint32_t member) const { return options_.members[member].rank; }
  const Selector& selector() const { return *options_.selector; }

  // Null, the default, if all ranks of the communicator are here. Call it before the first
  // operation.
  void set_watch(WaitWatch* watch) { watch_ = watch; }
  // The communicator enters an operation, of which begin() starts one step or several. `watch`,
  // null or longer-lived than this, is told when it has begun one.
  void enter(const OperationShape& shape, std::uint64_t sequence, EntryWatch* watch = nullptr) {
    entry_watch_ = watch;
    previous_shape_ = entered_shape_;
    entered_shape_ = shape;
    own().operation.store(sequence, std::memory_order_relaxed);
  }

  // Starts the next operation: afterwards this member may write its payload and its eager area.
  // `sequence` is the communicator's number, for messages.
  bool begin(const OperationShape& shape, std::uint64_t sequence, Deadline& deadline);
  // After begin(): members show about as many bytes in this operation, in the entry or, where that
  // does not hold them, in the eager area. Only for speed.
  void expect_shown(std::size_t bytes) { shown_[number_ & 1] = bytes; }
  std::uint8_t* own_payload() { return own_entry().payload; }
  std::uint8_t* own_eager() { return segment_->eager(self_, number_); }
  void publish_entry();
  // Waits until that member (every member) is in this operation; compares fingerprints.
  bool await_entry(std::uint32_t member) {
    return known_entry_[member] >= number_ || await_entry_of(member, number_);
  }
  bool await_entries();
  // Compares fingerprints with the members that are in this member's last operation by now; it may
  // have left before they came.
  bool compare_last();
  const std::uint8_t* payload(std::uint32_t member) const {
    return segment_->member(member).entry[number_ & 1].payload;
  }
  const std::uint8_t* eager(std::uint32_t member) const { return segment_->eager(member, number_); }

  // The number of the next `count` chunks' first one; every member takes the same.
  std::uint64_t take_chunks(std::uint64_t count);
  std::uint8_t* slot(std::uint32_t member, std::uint64_t chunk) const {
    return segment_->slot(member, chunk);
  }
  bool await_room(std::uint64_t chunk);
  void publish_filled(std::uint64_t chunk) { publish(own().progress.filled, chunk + 1); }
  void publish_reduced(std::uint64_t chunk) { publish(own().progress.reduced, chunk + 1); }
  void publish_drained(std::uint64_t chunk) { publish(own().progress.drained, chunk + 1); }
  bool await_filled(std::uint32_t member, std::uint64_t chunk) {
    return await_at_least(segment_->member(member).progress.filled, chunk + 1, member);
  }
  bool await_reduced(std::uint32_t member, std::uint64_t chunk) {
    return await_at_least(segment_->member(member).progress.reduced, chunk + 1, member);
  }

  // The members' own memory is only ever read (peer_memory.h).
  // What works between all members, in PeerMemory's bits. All ask in the same operations, after
  // publish_entry(); the first time they try it out and wait for each other. Nothing: broken.
  std::optional<std::uint64_t> reach() { return reach_ ? reach_ : find_reach(); }
  const std::optional<std::uint64_t>& known_reach() const { return reach_; }  // Asked before.
  // A member's memory, in this process where it is registered and kCanMap; false: broken.
  bool map(std::uint32_t member, const BufferPlace& place, const std::uint8_t** mapped);
  bool fetch(std::uint32_t member, const BufferPlace& place, void* to, std::size_t bytes,
             Stores stores);
  // Says that this member has read all it needs of the others' memory; a member returns only when
  // all have said so.
  void publish_fetched() { publish(own().progress.fetched, number_); }
  bool await_fetched();

  // Any thread may call what follows, which is for messages.
  //
  // True if that member has ended its communicator. What it had sent before is still there.
  bool has_left(std::uint32_t member) const {
    return segment_->member(member).attached.load(std::memory_order_acquire) == kHasLeft;
  }
  RingPlace ring(std::uint32_t from, std::uint32_t to) const { return segment_->ring(from, to); }
  // Read it before looking at the rings; mail_sleep() returns at once if anything came since.
  std::uint32_t mail_bell() const {
    return segment_->member(self_).mail.doorbell.load(std::memory_order_acquire);
  }
  void mail_sleep(std::uint32_t bell, std::chrono::nanoseconds at_most);
  // Tells that member that a ring between the two was written to or read from.
  void ring_mail(std::uint32_t member);

  // Breaks the communicator for every member of this host, unless it is broken already, and wakes
  // them.
  void break_with(const Failure& failure);
  // Cheap enough to be asked before every operation.
  bool is_broken() const { return header_.failure_state.load(std::memory_order_relaxed) != 0; }
  // The failure that this host's members share; nothing: the communicator is not broken.
  std::optional<Failure> failure() const;

  // Lets one of the members that wait long in that operation of the communicator ask the job's
  // store for all. False: another one has asked within `pause`. Any thread.
  bool take_turn(std::uint64_t sequence, std::chrono::nanoseconds pause);

 private:
  MemberBlock& own() { return segment_->member(self_); }
  EntryLine& own_entry() { return own().entry[number_ & 1]; }
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_release);
    wake_sleepers();
  }
  void wake_sleepers() {
    // The store above must be seen before the sleepers are looked for; see sleep(). Where the
    // kernel makes every processor take a barrier for the one who is about to sleep, the one who
    // publishes needs none: it would wait here until the line has come from the other processor.
    if (has_remote_barrier_) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    if (header_.sleepers.load(std::memory_order_relaxed) != 0) ring_doorbells(self_ + 1);
  }
  bool await_at_least(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                      std::uint32_t member) {
    if (counter.load(std::memory_order_acquire) >= value) return true;
    return await_slowly(counter, value, member, {});
  }
  void tell_entry();
  // Memory that is read as soon as an entry is there, and so fetched together with it.
  struct Shown {
    const std::uint8_t* begin = nullptr;
    std::size_t bytes = 0;
    void fetch() const {
      for (std::size_t at = 0; at < bytes; at += 64) __builtin_prefetch(begin + at, 0, 3);
    }
  };
  Shown shown_by(std::uint32_t member, std::uint64_t number) const;
  bool await_slowly(const std::atomic<std::uint64_t>& counter, std::uint64_t value,
                    std::uint32_t member, const Shown& shown);
  void take_next_lines();
  bool await_entry_of(std::uint32_t member, std::uint64_t number);
  // Stands for a member: whichever has not entered this number.
  static constexpr std::uint32_t kWhoeverIsAbsent = ~std::uint32_t{0};
  bool await_entries_of(std::uint64_t number);
  bool await_arrivals(std::uint64_t number);
  void count_arrival();
  std::uint32_t first_absent() const;
  bool spin(const std::atomic<std::uint64_t>& counter, std::uint64_t value);
  bool yield(const std::atomic<std::uint64_t>& counter, std::uint64_t value);
  void sleep(const std::atomic<std::uint64_t>& counter, std::uint64_t value, std::uint32_t member);
  bool may_go_on(std::uint32_t member);
  std::optional<std::uint64_t> find_reach();
  bool fail_to_reach(std::uint32_t member, const std::string& what);
  void ring_doorbells(std::uint32_t asleep);
  void add_operation(Failure& failure) const;
  std::string name_of(std::uint32_t member) const;
  std::vector<std::uint32_t> absent_members() const;
  std::uint32_t furthest_behind(const std::vector<std::uint32_t>& absent) const;
  LongWait long_wait(std::uint32_t member);
  bool give_up(std::uint32_t member);
  Failure timeout_failure(std::uint32_t blamed, const std::string& because) const;
  Failure mismatch_failure(std::uint32_t member, const Fingerprint& theirs,
                           const Fingerprint& ours) const;

  const std::shared_ptr<SharedSegment> segment_;  // Shared by members that are threads (tests).
  SegmentHeader& header_;
  const SharedGroupOptions options_;
  Alarm* const alarm_;
  std::mutex finding_;  // Guards own().failure until it is published.
  WaitWatch* watch_ = nullptr;
  EntryWatch* entry_watch_ = nullptr;  // Null once told.
  const std::uint32_t size_;
  const std::uint32_t self_;
  const std::uint32_t spins_;  // Rounds of the processor's pause.
  const bool has_remote_barrier_;
  int yields_;                    // For the next wait; see yield().
  int waits_without_yields_ = 0;  // Since yields_ is 0.

  std::uint64_t number_ = 0;    // Number of this group's operation.
  std::uint64_t sequence_ = 0;  // Number of the communicator's operation.
  std::uint64_t next_chunk_ = 0;
  OperationShape shape_;
  // The communicator's operation; previous_shape_ has the one before.
  OperationShape entered_shape_;
  OperationShape previous_shape_;
  Deadline* deadline_ = nullptr;              // Limits the operation under way.
  std::size_t shown_[2] = {0, 0};             // expect_shown(), by the number's parity.
  std::uint32_t known_here_ = 0;              // Others known to be in this operation.
  std::vector<std::uint64_t> known_entry_;    // Highest number seen and compared, by member.
  std::vector<std::uint64_t> known_drained_;  // Chunks known to be drained, by member.
  PeerMemory peers_;
  std::optional<std::uint64_t> reach_;
};

}  // namespace ivy::comm
