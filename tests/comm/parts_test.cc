// SPDX-License-Identifier: Apache-2.0
// Parts that need no other process: identity, descriptions of operations, and the division of
// memory and work.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/collectives/host_collectives.h"
#include "comm/collectives/shared_parts.h"
#include "comm/contract/device_log.h"
#include "comm/contract/fingerprint.h"
#include "comm/join/identity.h"
#include "comm/transports/shm/huge_pages.h"
#include "comm/transports/shm/peer_memory.h"
#include "comm/transports/shm/registered_memory.h"
#include "comm/transports/shm/shared_layout.h"
#include "comm/transports/shm/shared_segment.h"
#include "proto/wire/control_wire.h"

namespace {

std::atomic<int> allocations_to_interrupt{0};

}  // namespace

// Replaces the C library's function in this program. In many kernels a signal interrupts it.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (allocations_to_interrupt > 0) {
    --allocations_to_interrupt;
    return EINTR;
  }
  return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace ivy::comm {
namespace {

// ---- Registered memory --------------------------------------------------------------------------

// Returns true if a lookup of a buffer both started and returned in the middle half of the time
// that the allocation of a large buffer took.
bool is_found_while_one_is_made(const void* buffer) {
  using Clock = std::chrono::steady_clock;
  std::atomic<bool> is_made{false};
  Clock::time_point begun;
  Clock::time_point ended;
  std::thread making([&] {
    begun = Clock::now();
    const Result<void*> large = registered_memory::allocate(std::size_t{512} << 20, &is_made);
    ended = Clock::now();
    is_made = true;
    EXPECT_TRUE(large.ok() && registered_memory::release(*large));
  });
  std::vector<std::pair<Clock::time_point, Clock::time_point>> asked;
  while (!is_made) {
    const auto before = Clock::now();
    EXPECT_TRUE(registered_memory::location_of(buffer, 1).is_registered());
    asked.emplace_back(before, Clock::now());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  making.join();
  const auto quarter = (ended - begun) / 4;
  return std::any_of(asked.begin(), asked.end(), [&](const auto& each) {
    return each.first >= begun + quarter && each.second <= ended - quarter;
  });
}

TEST(RegisteredMemoryTest, FindsBuffersDuringAConcurrentAllocation) {
  int owner = 0;
  const Result<void*> buffer = registered_memory::allocate(4096, &owner);
  ASSERT_TRUE(buffer.ok()) << buffer.error().message;
  bool is_found = false;
  for (int attempt = 0; attempt < 3 && !is_found; ++attempt) {
    is_found = is_found_while_one_is_made(*buffer);
  }
  EXPECT_TRUE(is_found);
  EXPECT_TRUE(registered_memory::release(*buffer));
}

// ---- Identity ----------------------------------------------------------------------------------

using Variables = std::map<std::string, std::string, std::less<>>;

Result<Identity> identify_in(const Variables& variables, const IdentityRequest& request = {}) {
  return identify(request, [&](std::string_view name) {
    const auto found = variables.find(name);
    return found != variables.end() ? std::optional(found->second) : std::nullopt;
  });
}

Variables ivyrun_variables() {
  return {{"IVY_RANK", "3"},        {"IVY_WORLD_SIZE", "4"}, {"IVY_NODE_RANK", "1"},
          {"IVY_NUM_NODES", "2"},   {"IVY_STORE", "host:1"}, {"IVY_JOB_ID", "abc"},
          {"IVY_TOKEN_FILE", "/t"}, {"IVY_GENERATION", "2"}, {"IVY_CONTROL", "/c"}};
}

TEST(IdentityTest, MakesAWorldOfOneFromAnEmptyEnvironment) {
  const Result<Identity> identity = identify_in({});
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->bootstrap, Bootstrap::kSingle);
  EXPECT_EQ(identity->world_size, 1U);
}

TEST(IdentityTest, ReadsIvyrunsVariables) {
  const Result<Identity> identity = identify_in(ivyrun_variables());
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->bootstrap, Bootstrap::kStore);
  EXPECT_EQ(identity->rank, 3U);
  EXPECT_EQ(identity->world_size, 4U);
  EXPECT_EQ(identity->host_key, "1");
  EXPECT_TRUE(identity->spans_hosts);
  EXPECT_EQ(identity->store_address, "host:1");
  EXPECT_EQ(identity->attempt.generation, 2U);
  EXPECT_EQ(identity->control_path, "/c");
}

TEST(IdentityTest, SelfIgnoresTheEnvironment) {
  IdentityRequest request;
  request.init_method = "self://";
  const Result<Identity> identity = identify_in(ivyrun_variables(), request);
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->world_size, 1U);
}

TEST(IdentityTest, NamesTheWrongVariable) {
  struct Case {
    const char* variable;
    const char* value;  // Null: not set.
    const char* named;
  };
  const Case cases[] = {{"IVY_RANK", "x", "IVY_RANK"},
                        {"IVY_RANK", "4", "IVY_RANK"},
                        {"IVY_RANK", "-1", "IVY_RANK"},
                        {"IVY_WORLD_SIZE", nullptr, "IVY_WORLD_SIZE"},
                        {"IVY_WORLD_SIZE", "0", "world of 0"},
                        {"IVY_WORLD_SIZE", "4 ", "IVY_WORLD_SIZE"},
                        {"IVY_STORE", nullptr, "IVY_STORE"},
                        {"IVY_JOB_ID", nullptr, "IVY_JOB_ID"},
                        {"IVY_TOKEN_FILE", "", "IVY_TOKEN_FILE"},
                        {"IVY_GENERATION", "two", "IVY_GENERATION"}};
  for (const Case& wrong : cases) {
    Variables variables = ivyrun_variables();
    variables.erase(wrong.variable);
    if (wrong.value != nullptr) variables[wrong.variable] = wrong.value;
    const Result<Identity> identity = identify_in(variables);
    ASSERT_FALSE(identity.ok()) << wrong.variable;
    EXPECT_EQ(identity.error().code, Code::kFailedPrecondition) << wrong.variable;
    EXPECT_NE(identity.error().message.find(wrong.named), std::string::npos)
        << identity.error().message;
  }
}

TEST(IdentityTest, NamesBothSourcesThatDisagree) {
  IdentityRequest request;
  request.rank = 1;
  const Result<Identity> identity = identify_in(ivyrun_variables(), request);
  ASSERT_FALSE(identity.ok());
  EXPECT_NE(identity.error().message.find("rank 1"), std::string::npos);
  EXPECT_NE(identity.error().message.find("ivyrun set 3"), std::string::npos);
  request.rank = 3;
  request.world_size = 4;
  EXPECT_TRUE(identify_in(ivyrun_variables(), request).ok());
}

// ---- Fingerprint -------------------------------------------------------------------------------

TEST(FingerprintTest, ConvertsBackToTheShape) {
  for (const Operation operation :
       {Operation::kAllReduce, Operation::kBroadcast, Operation::kGatherV, Operation::kBarrier}) {
    for (const std::int32_t root : {-1, 0, 70'000}) {
      OperationShape shape;
      shape.operation = operation;
      shape.dtype = Dtype::kF8E5m2;
      shape.op = ReduceOp::kPremulSum;
      shape.root = root;
      shape.count = (std::uint64_t{1} << 40) + 7;
      shape.has_parts = root == 0;
      shape.memory = root == 0 ? MemoryKind::kHost : MemoryKind::kDevice;
      const OperationShape back = shape_of(fingerprint_of(shape));
      EXPECT_EQ(back.operation, operation);
      EXPECT_EQ(back.dtype, shape.dtype);
      EXPECT_EQ(back.op, shape.op);
      EXPECT_EQ(back.root, root);
      EXPECT_EQ(back.count, shape.count);
      EXPECT_EQ(back.has_parts, shape.has_parts);
      EXPECT_EQ(back.memory, shape.memory);
    }
  }
}

TEST(FingerprintTest, RejectsImpossibleFingerprints) {
  OperationShape shape;
  shape.operation = Operation::kAllReduce;
  shape.dtype = Dtype::kF8E5m2;
  shape.op = ReduceOp::kPremulSum;
  EXPECT_TRUE(is_possible(fingerprint_of(shape)));
  shape.dtype = static_cast<Dtype>(kDtypeCount);
  EXPECT_FALSE(is_possible(fingerprint_of(shape)));
  shape.dtype = Dtype::kF32;
  shape.op = static_cast<ReduceOp>(kReduceOpCount);
  EXPECT_FALSE(is_possible(fingerprint_of(shape)));
}

TEST(FingerprintTest, DescribesTheOperation) {
  OperationShape shape;
  shape.operation = Operation::kAllReduce;
  shape.dtype = Dtype::kF32;
  shape.count = 1000;
  EXPECT_EQ(describe(shape), "all_reduce(sum) of 1000 f32");
  shape.operation = Operation::kBroadcast;
  shape.root = 2;
  EXPECT_EQ(describe(shape), "broadcast of 1000 f32 from rank 2");
  shape.operation = Operation::kReduce;
  EXPECT_EQ(describe(shape), "reduce(sum) of 1000 f32 to rank 2");
  shape = {};
  shape.operation = Operation::kBarrier;
  EXPECT_EQ(describe(shape), "barrier");
}

// Fingerprints come from other processes and are printed in errors.
TEST(FingerprintTest, DescribesAnyBytes) {
  for (std::uint64_t operation = 0; operation < 256; ++operation) {
    for (const std::uint64_t rest : {0x00d0U, 0xd000U, 0xffffU, 0x1109U}) {
      const Fingerprint words = {{operation | rest << 8, ~std::uint64_t{0}}};
      EXPECT_FALSE(describe(shape_of(words)).empty()) << operation;
    }
  }
}

TEST(FingerprintTest, DistinguishesTheOrderOfCounts) {
  const std::size_t counts[] = {1, 2, 3};
  const std::size_t others[] = {1, 3, 2};
  EXPECT_EQ(counts_fingerprint(counts), counts_fingerprint(counts));
  EXPECT_NE(counts_fingerprint(counts), counts_fingerprint(others));
}

// ---- The log of operations on devices ----------------------------------------------------------

// A rank that has queued more operations than its log keeps, like the capture of a large graph.
TEST(DeviceLogTest, DoesNotShowDroppedOperations) {
  const auto reduce_of = [](std::uint64_t count) {
    OperationShape shape;
    shape.operation = Operation::kAllReduce;
    shape.count = count;
    return fingerprint_of(shape);
  };
  DeviceLog fast(0);
  DeviceLog slow(1);
  constexpr std::uint64_t kCalled = DeviceLog::kKept + 100;
  for (std::uint64_t number = 1; number <= kCalled; ++number) {
    fast.enter(reduce_of(number));
    if (number <= 40) slow.enter(reduce_of(number));
  }
  const DeviceRecord record = fast.record(20);
  const std::optional<DeviceDifference> difference = slow.compare(record);
  EXPECT_FALSE(difference.has_value()) << difference->own << ", " << difference->other;
  EXPECT_EQ(record.first, 101u);
  EXPECT_EQ(record.window[0], reduce_of(101));
}

// ---- Geometry ----------------------------------------------------------------------------------

TEST(GeometryTest, PlacesAreasWithoutOverlap) {
  for (const std::uint32_t members : {1U, 2U, 7U, 64U, kMembersMax}) {
    SegmentGeometry geometry;
    geometry.member_count = members;
    EXPECT_GE(geometry.member_offset(0), sizeof(SegmentHeader));
    EXPECT_EQ(geometry.member_offset(0) % kLineBytes, 0U);
    EXPECT_GE(geometry.ring_offset(0, 0),
              geometry.member_offset(members - 1) + sizeof(MemberBlock));
    EXPECT_GE(geometry.data_offset(0),
              geometry.ring_offset(members - 1, members - 1) + sizeof(RingEntry));
    EXPECT_EQ(geometry.data_offset(0) % 4096, 0U);
    EXPECT_EQ(geometry.total_bytes(),
              geometry.data_offset(members - 1) + SegmentGeometry::kDataBytes);
    EXPECT_GE(geometry.rings_offset(), geometry.total_bytes());
    // Each ring is mapped separately, also with the largest pages of arm64.
    EXPECT_EQ(geometry.rings_offset() % 65'536, 0U);
    EXPECT_EQ(SegmentGeometry::kRingStride % 65'536, 0U);
    EXPECT_LE(geometry.rings_bytes(), control::kMaxSegmentBytes);
  }
}

TEST(SliceTest, SlicesCoverTheBufferInWholeLines) {
  for (const std::size_t element : {1U, 2U, 4U, 8U, 16U}) {
    for (const std::uint32_t members : {1U, 2U, 3U, 7U, 16U}) {
      for (const std::size_t count : {0U, 1U, 15U, 64U, 1031U, 65'536U}) {
        std::size_t next = 0;
        for (std::uint32_t member = 0; member < members; ++member) {
          const shared_parts::Slice slice = shared_parts::slice_of(count, element, members, member);
          EXPECT_EQ(slice.begin, next);
          if (slice.count > 0) {
            EXPECT_EQ(slice.begin * element % 64, 0U);
          }
          next = slice.begin + slice.count;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

TEST(HostMapTest, GroupsRanksByHost) {
  const HostMap map = make_host_map({0, 1, 0, 2, 1, 0}, 4);
  ASSERT_EQ(map.host_count(), 3U);
  EXPECT_EQ(map.rank_count(), 6U);
  EXPECT_EQ(map.hosts[0], (std::vector<std::int32_t>{0, 2, 5}));
  EXPECT_EQ(map.hosts[1], (std::vector<std::int32_t>{1, 4}));
  EXPECT_EQ(map.own_host(), 1U);
  EXPECT_EQ(map.own_member(), 1U);
  EXPECT_EQ(map.own_ranks(), map.hosts[1]);
}

// ---- Registered and peers' memory --------------------------------------------------------------

TEST(RegisteredMemoryTest, FindsOnlyItsOwnBytes) {
  const int owner = 0;
  const Result<void*> made = registered_memory::allocate(10'000, &owner);
  ASSERT_TRUE(made.ok()) << made.error().message;
  auto* const memory = static_cast<std::uint8_t*>(*made);
  EXPECT_EQ(memory[9'999], 0);
  EXPECT_TRUE(registered_memory::location_of(memory, 10'000).is_registered());
  EXPECT_EQ(registered_memory::location_of(memory + 5'000, 5'000).offset, 5'000U);
  // The region is rounded up to a page, but bytes after that do not belong to it.
  EXPECT_FALSE(registered_memory::location_of(memory + 5'000, 10'000).is_registered());
  EXPECT_FALSE(registered_memory::location_of(&owner, sizeof owner).is_registered());
  EXPECT_FALSE(registered_memory::release(memory + 4096));
  registered_memory::unregister_all(&owner);
  EXPECT_FALSE(registered_memory::location_of(memory, 1).is_registered());
  memory[0] = 1;  // The memory still exists.
  EXPECT_TRUE(registered_memory::release(memory));
  EXPECT_FALSE(registered_memory::release(memory));
}

TEST(RegisteredMemoryTest, RejectsMoreMemoryThanAvailable) {
  const Result<void*> made = registered_memory::allocate(std::size_t{1} << 50, nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, Code::kResourceExhausted);
  EXPECT_NE(made.error().message.find("registered memory"), std::string::npos);
}

TEST(RegisteredMemoryTest, ReservesMemoryDespiteSignals) {
  allocations_to_interrupt = 2;
  const Result<void*> made = registered_memory::allocate(std::size_t{3} << 20, nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(registered_memory::release(*made));
}

TEST(SharedSegmentTest, ReservesMemoryDespiteSignals) {
  allocations_to_interrupt = 2;
  const auto segment = SharedSegment::create(2);
  EXPECT_TRUE(segment.ok()) << segment.error().message;
}

// Reads smaps for the mapping that starts at this address.
std::size_t bytes_on_huge_pages(const void* address) {
  char begin[32];
  std::snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<std::uintptr_t>(address));
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool is_available = false;
  while (std::getline(maps, line)) {
    if (line.starts_with(begin)) is_available = true;
    if (is_available && line.starts_with("ShmemPmdMapped:")) {
      return std::stoull(line.substr(line.find_first_of("0123456789"))) * 1024;
    }
  }
  return 0;
}

TEST(RegisteredMemoryTest, UsesHugePagesForLargeRegions) {
  constexpr std::size_t kBytes = 2 * huge_pages::kBytes + 10'000;
  const int file = memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, huge_pages::kBytes), 0);
  void* const probe = huge_pages::map(file, huge_pages::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  ASSERT_NE(probe, nullptr);
  *static_cast<char*>(probe) = 1;
  const bool has_any = madvise(probe, huge_pages::kBytes, 25 /* MADV_COLLAPSE */) == 0;
  munmap(probe, huge_pages::kBytes);
  close(file);

  const Result<void*> made = registered_memory::allocate(kBytes, nullptr);
  ASSERT_TRUE(made.ok()) << made.error().message;
  auto* const memory = static_cast<std::uint8_t*>(*made);
  for (std::size_t i = 0; i < kBytes; i += 4096) ASSERT_EQ(memory[i], 0);
  memory[kBytes - 1] = 7;
  PeerMemory peers;
  const BufferLocation place = registered_memory::location_of(memory + kBytes - 1, 1);
  const std::uint8_t* const mapped = peers.map(getpid(), place);
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(*mapped, 7);
  if (has_any) {
    EXPECT_EQ(bytes_on_huge_pages(memory), 2 * huge_pages::kBytes);
    EXPECT_EQ(bytes_on_huge_pages(mapped - place.offset), 2 * huge_pages::kBytes);
  }
  EXPECT_TRUE(registered_memory::release(memory));
  if (!has_any) GTEST_SKIP() << "this kernel has no huge pages for memory files";
}

TEST(PeerMemoryTest, AcceptsOnlyTheValueThatThePeerShowed) {
  PeerMemory own;
  PeerMemory other;
  const int segment = memfd_create("test", MFD_CLOEXEC);
  Probe probe = other.own_probe(segment);
  EXPECT_EQ(own.try_out(probe, segment), PeerMemory::kCanRead | PeerMemory::kCanMap);
  probe.value += 2;  // Another process with the same pid.
  EXPECT_EQ(own.try_out(probe, segment), PeerMemory::kCanMap);
  probe.descriptor = -1;
  EXPECT_EQ(own.try_out(probe, segment), 0U);
  close(segment);
}

TEST(PeerMemoryTest, ContinuesAfterAPartialReadAndReportsErrors) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, 2 * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::vector<std::uint8_t> to(2 * page, 1);
  const auto from = reinterpret_cast<std::uintptr_t>(memory);
  EXPECT_EQ(PeerMemory::read(getpid(), to.data(), from, to.size()), 0);
  EXPECT_EQ(to.back(), 0);
  mprotect(static_cast<std::uint8_t*>(memory) + page, page, PROT_NONE);
  EXPECT_EQ(PeerMemory::read(getpid(), to.data(), from, to.size()), EFAULT);
  munmap(memory, 2 * page);
}

TEST(PeerMemoryTest, MapsRegisteredMemory) {
  const int owner = 0;
  const Result<void*> made = registered_memory::allocate(8192, &owner);
  ASSERT_TRUE(made.ok());
  auto* const memory = static_cast<std::uint8_t*>(*made);
  memory[5000] = 7;
  PeerMemory peers;
  const std::uint8_t* const mapped =
      peers.map(getpid(), registered_memory::location_of(memory + 5000, 1));
  ASSERT_NE(mapped, nullptr);
  EXPECT_EQ(*mapped, 7);
  memory[5000] = 8;
  EXPECT_EQ(*mapped, 8);
  EXPECT_TRUE(registered_memory::release(memory));
  EXPECT_EQ(*mapped, 0);  // The memory was freed, but the address stays mapped.
}

// Returns the size of a memory file in bytes, or -1 if the descriptor is closed.
std::int64_t bytes_in(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 ? status.st_blocks * 512 : -1;
}

// After an abort, a peer may still read memory that its owner frees. It then reads zeros, for which
// the kernel allocates pages until the peer unmaps the memory.
TEST(PeerMemoryTest, KeepsPagesOfAFreedRegionUntilTheyAreUnmapped) {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  constexpr std::size_t kPage = 4096;
  const Result<void*> made = registered_memory::allocate(kBytes, nullptr);
  ASSERT_TRUE(made.ok());
  const BufferLocation place = registered_memory::location_of(*made, kBytes);
  const int watch = dup(place.descriptor);
  EXPECT_GE(bytes_in(watch), static_cast<std::int64_t>(kBytes));
  {
    PeerMemory peers;
    const std::uint8_t* const mapped = peers.map(getpid(), place);
    ASSERT_NE(mapped, nullptr);
    EXPECT_TRUE(registered_memory::release(*made));
    EXPECT_EQ(bytes_in(watch), 0);
    for (std::size_t page = 0; page < 3; ++page) EXPECT_EQ(mapped[page * kPage], 0);
    EXPECT_GE(bytes_in(watch), static_cast<std::int64_t>(kPage));
    EXPECT_LE(bytes_in(watch), static_cast<std::int64_t>(kBytes));
    // A later operation can no longer map it.
    PeerMemory later;
    EXPECT_EQ(later.map(getpid(), place), nullptr);
  }
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_EQ(all.find("ivycomm-buffer"), std::string::npos) << "the last mapping must be removed";
  close(watch);
}

TEST(BlocksTest, TreatsEqualPartsLikeAListOfParts) {
  const Blocks even = Blocks::even(3, 40);
  const Blocks list(std::vector<Block>{{0, 40}, {40, 40}, {80, 40}});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(even[i].offset, list[i].offset);
    EXPECT_EQ(even[i].bytes, list[i].bytes);
  }
  EXPECT_EQ(even.longest(), 40U);
  EXPECT_EQ(even.total(), list.total());
  EXPECT_EQ(Blocks(std::vector<Block>{{9, 2}, {0, 9}}).longest(), 9U);
}

}  // namespace
}  // namespace ivy::comm
