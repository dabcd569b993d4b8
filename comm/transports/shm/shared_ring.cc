// SPDX-License-Identifier: Apache-2.0
#include "comm/transports/shm/shared_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy::comm {
namespace {

static_assert((kRingBytes & (kRingBytes - 1)) == 0);

class Ring {
 public:
  explicit Ring(void* memory) : memory_(static_cast<RingMemory*>(memory)) {}
  ~Ring() { munmap(memory_, sizeof(RingMemory)); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  RingMemory& operator*() const { return *memory_; }
  RingMemory* operator->() const { return memory_; }

 private:
  RingMemory* memory_;
};

// Calls move(offset in the ring, count) for the one or two contiguous parts of `count` bytes at
// `position`.
template <class Move>
void for_each_part(std::uint64_t position, std::size_t count, Move move) {
  const std::size_t begin = position & (kRingBytes - 1);
  const std::size_t first = std::min(count, kRingBytes - begin);
  move(begin, std::size_t{0}, first);
  if (count > first) move(std::size_t{0}, first, count - first);
}

class RingSink final : public ByteSink {
 public:
  explicit RingSink(std::shared_ptr<Ring> ring) : shared_(std::move(ring)), ring_(*shared_) {}
  std::size_t write_some(const void* bytes, std::size_t count) override {
    const std::uint64_t written = ring_->written.load(std::memory_order_relaxed);
    if (free_bytes(written) < count) request_room();
    count = std::min<std::size_t>(count, free_bytes(written));
    if (count == 0) return 0;
    for_each_part(written, count, [&](std::size_t to, std::size_t from, std::size_t stretch) {
      std::memcpy(ring_->bytes + to, static_cast<const std::uint8_t*>(bytes) + from, stretch);
    });
    ring_->written.store(written + count, std::memory_order_release);
    return count;
  }
  bool has_unread() const override {
    return ring_->read.load(std::memory_order_acquire) !=
           ring_->written.load(std::memory_order_relaxed);
  }
  StreamState state() const override { return StreamState::kOpen; }
  int descriptor() const override { return -1; }
  bool lend(const void* bytes, std::size_t count) override {
    const std::uint64_t room = free_bytes(ring_->written.load(std::memory_order_relaxed));
    if (is_declined_ || count < kMinLentBytes || count < room) return false;
    ++loans_;
    ring_->lent.store(reinterpret_cast<std::uintptr_t>(bytes), std::memory_order_relaxed);
    return true;
  }
  void revoke() override {
    ring_->lent.store(0, std::memory_order_relaxed);
    // Before any change of the lent memory; pairs with lent().
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  LoanState loan() const override {
    const std::uint64_t ended = ring_->loans_ended.load(std::memory_order_acquire);
    if (ended / 2 < loans_) return LoanState::kOpen;
    is_declined_ = (ended & 1) != 0;
    return is_declined_ ? LoanState::kDeclined : LoanState::kRead;
  }

 private:
  std::uint64_t free_bytes(std::uint64_t written) const {
    return kRingBytes - (written - ring_->read.load(std::memory_order_acquire));
  }
  // Check for room again afterwards, because the reader may just have made some.
  void request_room() {
    if (ring_->wants_room.load(std::memory_order_relaxed) == 0) {
      ring_->wants_room.store(1, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  const std::shared_ptr<Ring> shared_;  // Shared by both ends in tests.
  Ring& ring_;
  std::uint64_t loans_ = 0;
  mutable bool is_declined_ = false;  // This ring no longer lends.
};

class RingSource final : public ByteSource {
 public:
  explicit RingSource(std::shared_ptr<Ring> ring) : shared_(std::move(ring)), ring_(*shared_) {}
  std::size_t read_some(void* bytes, std::size_t count) override {
    const std::uint64_t read = ring_->read.load(std::memory_order_relaxed);
    const std::uint64_t available = ring_->written.load(std::memory_order_acquire) - read;
    count = std::min<std::size_t>(count, available);
    if (count == 0) return 0;
    for_each_part(read, count, [&](std::size_t from, std::size_t to, std::size_t stretch) {
      std::memcpy(static_cast<std::uint8_t*>(bytes) + to, ring_->bytes + from, stretch);
    });
    ring_->read.store(read + count, std::memory_order_release);
    return count;
  }
  bool take_writer_waits() override {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool wants_room = ring_->wants_room.load(std::memory_order_relaxed) != 0;
    if (wants_room) ring_->wants_room.store(0, std::memory_order_relaxed);
    return std::exchange(has_ended_loan_, false) || wants_room;
  }
  StreamState state() const override { return StreamState::kOpen; }
  int descriptor() const override { return -1; }
  std::uint64_t lent() const override {
    // After a copy of the lent memory: an acquire load alone would not wait for the copy's loads.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ring_->lent.load(std::memory_order_relaxed);
  }
  void end_loan(LoanState how) override {
    const std::uint64_t ended = ring_->loans_ended.load(std::memory_order_relaxed) / 2 + 1;
    ring_->loans_ended.store(2 * ended + (how == LoanState::kDeclined ? 1 : 0),
                             std::memory_order_release);
    has_ended_loan_ = true;
  }

 private:
  const std::shared_ptr<Ring> shared_;  // Shared by both ends in tests.
  Ring& ring_;
  bool has_ended_loan_ = false;
};

Result<std::shared_ptr<Ring>> map_ring(int descriptor, std::size_t offset) {
  void* const memory = mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE, MAP_SHARED,
                            descriptor, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) {
    return errno_error(Code::kResourceExhausted, "map memory for messages", errno);
  }
  return std::make_shared<Ring>(memory);
}

// Reserves the pages now, so that a lack of memory is an error here and not a SIGBUS at the first
// access.
Result<std::shared_ptr<Ring>> reserve_ring(int descriptor, std::size_t offset) {
  const int failed = reserve_space(descriptor, offset, sizeof(RingMemory));
  if (failed != 0) {
    return errno_error(Code::kResourceExhausted, "reserve memory for messages", failed);
  }
  return map_ring(descriptor, offset);
}

std::size_t offset_of(const RingLocation& location, std::uint32_t number) {
  return location.offset + (number - 1) * SegmentGeometry::kRingStride;
}

}  // namespace

Result<std::unique_ptr<ByteSink>> make_ring(const RingLocation& location) {
  const std::uint32_t number = location.rings_made.fetch_add(1) + 1;
  if (number > location.ring_count) {
    return Error{Code::kResourceExhausted, "more than " + std::to_string(location.ring_count) +
                                               " pairs of ranks of this host send messages"};
  }
  std::shared_ptr<Ring> ring =
      IVY_TRY(reserve_ring(location.descriptor, offset_of(location, number)));
  location.entry.number.store(number, std::memory_order_release);
  return std::unique_ptr<ByteSink>(new RingSink(std::move(ring)));
}

Result<RingEnds> make_ring_in_one_mapping() {
  const Descriptor file(memfd_create("ivycomm-ring", MFD_CLOEXEC));
  if (!file) return errno_error(Code::kResourceExhausted, "create a ring", errno);
  const std::shared_ptr<Ring> ring = IVY_TRY(reserve_ring(file.get(), 0));
  return RingEnds{std::make_unique<RingSink>(ring), std::make_unique<RingSource>(ring)};
}

Result<std::unique_ptr<ByteSource>> find_ring(const RingLocation& location) {
  const std::uint32_t number = location.entry.number.load(std::memory_order_acquire);
  if (number == 0) return std::unique_ptr<ByteSource>();
  if (number > location.ring_count)
    return Error{Code::kDataLoss, "the directory of rings is damaged"};
  std::shared_ptr<Ring> ring = IVY_TRY(map_ring(location.descriptor, offset_of(location, number)));
  return std::unique_ptr<ByteSource>(new RingSource(std::move(ring)));
}

}  // namespace ivy::comm
