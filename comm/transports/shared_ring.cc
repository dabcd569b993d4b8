#include "comm/transports/shared_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace ivy::comm {
namespace {

static_assert((kRingBytes & (kRingBytes - 1)) == 0);

// The mapping, and at the maker the descriptor that the reader opens it by.
class Ring {
 public:
  Ring(void* memory, int descriptor)
      : memory_(static_cast<RingMemory*>(memory)), descriptor_(descriptor) {}
  ~Ring() {
    munmap(memory_, sizeof(RingMemory));
    if (descriptor_ >= 0) close(descriptor_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  RingMemory& operator*() const { return *memory_; }
  RingMemory* operator->() const { return memory_; }

 private:
  RingMemory* memory_;
  int descriptor_;
};

// Calls move(offset in the ring, count) for the one or two stretches of `count` bytes at
// `position`.
template <class Move>
void each_stretch(std::uint64_t position, std::size_t count, Move move) {
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
    const std::uint64_t room = kRingBytes - (written - ring_->read.load(std::memory_order_acquire));
    count = std::min<std::size_t>(count, room);
    if (count == 0) return 0;
    each_stretch(written, count, [&](std::size_t to, std::size_t from, std::size_t stretch) {
      std::memcpy(ring_->bytes + to, static_cast<const std::uint8_t*>(bytes) + from, stretch);
    });
    ring_->written.store(written + count, std::memory_order_release);
    return count;
  }
  StreamState state() const override { return StreamState::kOpen; }
  bool is_drained() const override {
    return ring_->read.load(std::memory_order_acquire) ==
           ring_->written.load(std::memory_order_relaxed);
  }
  int descriptor() const override { return -1; }

 private:
  const std::shared_ptr<Ring> shared_;  // By both ends in tests.
  Ring& ring_;
};

class RingSource final : public ByteSource {
 public:
  explicit RingSource(std::shared_ptr<Ring> ring) : shared_(std::move(ring)), ring_(*shared_) {}
  std::size_t read_some(void* bytes, std::size_t count) override {
    const std::uint64_t read = ring_->read.load(std::memory_order_relaxed);
    const std::uint64_t there = ring_->written.load(std::memory_order_acquire) - read;
    count = std::min<std::size_t>(count, there);
    if (count == 0) return 0;
    each_stretch(read, count, [&](std::size_t from, std::size_t to, std::size_t stretch) {
      std::memcpy(static_cast<std::uint8_t*>(bytes) + to, ring_->bytes + from, stretch);
    });
    ring_->read.store(read + count, std::memory_order_release);
    return count;
  }
  StreamState state() const override { return StreamState::kOpen; }
  int descriptor() const override { return -1; }

 private:
  const std::shared_ptr<Ring> shared_;  // By both ends in tests.
  Ring& ring_;
};

std::string file_of(const RingEntry& entry) {
  return "/proc/" + std::to_string(entry.pid) + "/fd/" + std::to_string(entry.descriptor);
}

Result<std::shared_ptr<Ring>> make_memory(int& descriptor) {
  descriptor = memfd_create("ivycomm-ring", MFD_CLOEXEC);
  if (descriptor < 0) return errno_error(Code::kResourceExhausted, "make a ring", errno);
  const int failed = posix_fallocate(descriptor, 0, sizeof(RingMemory));
  void* const memory = failed == 0 ? mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE,
                                          MAP_SHARED, descriptor, 0)
                                   : MAP_FAILED;
  if (memory == MAP_FAILED) {
    close(descriptor);
    return errno_error(Code::kResourceExhausted, "reserve memory for messages",
                       failed != 0 ? failed : errno);
  }
  return std::make_shared<Ring>(memory, descriptor);
}

}  // namespace

Result<std::unique_ptr<ByteSink>> make_ring(RingEntry& entry) {
  int descriptor = -1;
  std::shared_ptr<Ring> ring = IVY_TRY(make_memory(descriptor));
  entry.pid = getpid();
  entry.descriptor = descriptor;
  entry.state.store(1, std::memory_order_release);
  return std::unique_ptr<ByteSink>(new RingSink(std::move(ring)));
}

Result<RingEnds> make_ring_in_one_mapping() {
  int descriptor = -1;
  const std::shared_ptr<Ring> ring = IVY_TRY(make_memory(descriptor));
  return RingEnds{std::make_unique<RingSink>(ring), std::make_unique<RingSource>(ring)};
}

Result<std::unique_ptr<ByteSource>> find_ring(RingEntry& entry) {
  if (entry.state.load(std::memory_order_acquire) == 0) return std::unique_ptr<ByteSource>();
  const int descriptor = open(file_of(entry).c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    return errno_error(Code::kUnavailable, "open " + file_of(entry) + " for messages", errno);
  }
  struct stat status = {};
  void* memory = MAP_FAILED;
  if (fstat(descriptor, &status) == 0 && status.st_size == static_cast<off_t>(sizeof(RingMemory))) {
    memory = mmap(nullptr, sizeof(RingMemory), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  if (memory == MAP_FAILED) return Error{Code::kUnavailable, file_of(entry) + " is no ring"};
  return std::unique_ptr<ByteSource>(new RingSource(std::make_shared<Ring>(memory, -1)));
}

}  // namespace ivy::comm
