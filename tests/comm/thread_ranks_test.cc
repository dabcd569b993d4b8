// SPDX-License-Identifier: Apache-2.0
// Every path through memory and sockets with ranks that are threads of one process, so that
// ThreadSanitizer checks both sides; and the whole library with several ranks in one process.
#include "tests/comm/thread_ranks.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "comm/transports/shm/registered_memory.h"
#include "comm/transports/shm/shared_ring.h"
#include "tests/comm/operations.h"
#include "tests/support/eventually.h"

namespace ivy::comm::test {
namespace {

// ThreadSanitizer does not support streaming stores, which the scalar kernels do not use. Kernels
// are chosen once in a process, so this runs before the first test.
const bool kIsScalar = [] {
#ifdef __SANITIZE_THREAD__
  setenv("IVY_KERNELS", "scalar", 1);
#endif
  return true;
}();

using Words = std::vector<std::uint32_t>;

// Returns the input of rank `rank` at `index`.
std::uint32_t given(std::int32_t rank, std::size_t index, unsigned round) {
  return (static_cast<std::uint32_t>(rank) + 1) * 2654435761U +
         static_cast<std::uint32_t>(index) * 40503U + round;
}

std::uint32_t sum_of_given(std::int32_t ranks, std::size_t index, unsigned round) {
  std::uint32_t sum = 0;
  for (std::int32_t rank = 0; rank < ranks; ++rank) sum += given(rank, index, round);
  return sum;
}

void fill(std::uint32_t* words, std::size_t count, std::int32_t rank, unsigned round) {
  for (std::size_t i = 0; i < count; ++i) words[i] = given(rank, i, round);
}

// Checks a sample of the elements, including both ends, with is_right(i).
template <class IsRight>
void expect_all(std::size_t count, const char* operation, IsRight is_right) {
  for (std::size_t i = 0; i < count; i = i + 61 < count || i + 1 == count ? i + 61 : count - 1) {
    ASSERT_TRUE(is_right(i)) << operation << " of " << count << " at " << i;
  }
}

// One rank's buffers for `count` elements of every rank.
class Buffers {
 public:
  Buffers(std::size_t words, bool is_registered) : is_registered_(is_registered) {
    for (std::uint32_t** buffer : {&send, &receive}) {
      void* const memory =
          is_registered ? registered_memory::allocate(words * sizeof(std::uint32_t), this).value()
                        : malloc(words * sizeof(std::uint32_t));
      *buffer = static_cast<std::uint32_t*>(memory);
    }
  }
  ~Buffers() {
    for (std::uint32_t* const buffer : {send, receive}) {
      if (!is_registered_) free(buffer);
      if (is_registered_) registered_memory::release(buffer);
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  std::uint32_t* send = nullptr;
  std::uint32_t* receive = nullptr;

 private:
  const bool is_registered_;
};

// Runs every collective once, with varying data. The buffers are overwritten between calls, as in a
// real program.
void collect(ThreadRank& rank, Buffers& of, std::size_t count, unsigned round) {
  const std::int32_t size = rank.size();
  const auto ranks = static_cast<std::size_t>(size);
  const std::int32_t self = rank.rank();
  const std::int32_t root = static_cast<std::int32_t>(round) % size;
  const auto is_sum = [&](std::size_t i) { return of.receive[i] == sum_of_given(size, i, round); };

  fill(of.send, count * ranks, self, round);
  ASSERT_TRUE(rank.all_reduce(of.send, of.receive, count));
  expect_all(count, "all_reduce", is_sum);
  fill(of.receive, count, self, round);
  ASSERT_TRUE(rank.all_reduce(of.receive, of.receive, count));
  expect_all(count, "all_reduce in place", is_sum);

  ASSERT_TRUE(rank.reduce(of.send, of.receive, count, root));
  if (self == root) expect_all(count, "reduce", is_sum);

  ASSERT_TRUE(rank.all_to_all(of.send, of.receive, count));
  expect_all(count * ranks, "all_to_all", [&](std::size_t i) {
    const std::size_t own = static_cast<std::size_t>(self) * count + i % count;
    return of.receive[i] == given(static_cast<std::int32_t>(i / count), own, round);
  });

  ASSERT_TRUE(rank.reduce_scatter(of.send, of.receive, count));
  expect_all(count, "reduce_scatter", [&](std::size_t i) {
    const std::size_t own = static_cast<std::size_t>(self) * count + i;
    return of.receive[i] == sum_of_given(size, own, round);
  });

  const auto is_gathered = [&](std::size_t i) {
    return of.receive[i] == given(static_cast<std::int32_t>(i / count), i % count, round);
  };
  ASSERT_TRUE(rank.all_gather(of.send, of.receive, count));
  expect_all(count * ranks, "all_gather", is_gathered);
  ASSERT_TRUE(rank.gather(of.send, of.receive, count, root));
  if (self == root) expect_all(count * ranks, "gather", is_gathered);

  ASSERT_TRUE(rank.scatter(of.send, of.receive, count, root));
  expect_all(count, "scatter", [&](std::size_t i) {
    return of.receive[i] == given(root, static_cast<std::size_t>(self) * count + i, round);
  });

  ASSERT_TRUE(rank.scan(of.send, of.receive, count));
  expect_all(count, "scan",
             [&](std::size_t i) { return of.receive[i] == sum_of_given(self + 1, i, round); });

  ASSERT_TRUE(rank.barrier());
  ASSERT_TRUE(rank.broadcast(of.send, count, root));
  expect_all(count, "broadcast",
             [&](std::size_t i) { return of.send[i] == given(root, i, round); });
}

struct Shape {
  Hosts hosts;
  bool has_processor_each;
};

class ThreadRanksTest : public ::testing::TestWithParam<Shape> {
 protected:
  static ThreadRanksOptions options() {
    ThreadRanksOptions options;
    options.hosts = GetParam().hosts;
    options.has_processor_each = GetParam().has_processor_each;
    return options;
  }
};

std::string name_of_shape(const ::testing::TestParamInfo<Shape>& shape) {
  return hosts_text(shape.param.hosts) + (shape.param.has_processor_each ? "_spinning" : "");
}

// Sizes for inline data, eager areas, parts, chunks, copies by the kernel, and streaming stores.
TEST_P(ThreadRanksTest, RunsEveryCollective) {
  for (const bool is_registered : {false, true}) {
    run_thread_ranks(options(), [&](ThreadRank& rank) {
      unsigned round = 0;
      for (const std::size_t count : {1U, 25U, 600U, 2000U, 20'000U, 150'001U, 7U, 40'000U}) {
        Buffers buffers(count * static_cast<std::size_t>(rank.size()), is_registered);
        for (int turn = 0; turn < 3; ++turn) collect(rank, buffers, count, ++round);
        if (HasFatalFailure()) break;
        // Peers may have this memory mapped. They have finished with it when they reach the
        // barrier.
        ASSERT_TRUE(rank.barrier());
      }
    });
  }
}

// Consecutive small operations, so that entries and eager areas are reused immediately.
TEST_P(ThreadRanksTest, NoMemberRunsAheadByTwoOperations) {
  run_thread_ranks(options(), [&](ThreadRank& rank) {
    Words words(3000);
    for (unsigned round = 0; round < 300; ++round) {
      const std::size_t count = round % 3 == 0 ? 3000 : 5;
      const std::int32_t root = static_cast<std::int32_t>(round) % rank.size();
      fill(words.data(), count, rank.rank(), round);
      ASSERT_TRUE(rank.broadcast(words.data(), count, root));
      ASSERT_EQ(words[count - 1], given(root, count - 1, round)) << round;
      fill(words.data(), count, rank.rank(), round);
      ASSERT_TRUE(rank.all_reduce(words.data(), words.data(), count));
      ASSERT_EQ(words[0], sum_of_given(rank.size(), 0, round)) << round;
    }
  });
}

// A separate thread breaks the communicator while all members are busy.
TEST_P(ThreadRanksTest, AFailureEndsTheOperationOfEveryMember) {
  for (unsigned turn = 0; turn < 6; ++turn) {
    run_thread_ranks(options(), [&](ThreadRank& rank) {
      Words words(100'000, 1);
      // Between hosts, members notice through their connections, so open them first.
      ASSERT_TRUE(rank.all_reduce(words.data(), words.data(), words.size()));
      std::thread breaker;
      if (rank.rank() == 0) {
        breaker = std::thread([&rank, turn] {
          std::this_thread::sleep_for(std::chrono::microseconds(turn * 300));
          rank.break_with(make_failure(FailureKind::kAborted, "enough"));
        });
      }
      const std::size_t count = turn % 2 == 0 ? 3 : words.size();
      while (rank.all_reduce(words.data(), words.data(), count)) {
      }
      if (breaker.joinable()) breaker.join();
      // Members of the host know the reason; others only see the connection close.
      if (GetParam().hosts.size() == 1) {
        ASSERT_TRUE(rank.failure());
        EXPECT_STREQ(rank.failure()->text, "enough");
      }
      rank.end();
    });
  }
}

std::shared_ptr<MessageRequest> request(bool is_send, std::int32_t peer, std::int32_t tag,
                                        Words& words) {
  auto made = std::make_shared<MessageRequest>();
  made->is_send = is_send;
  made->peer = peer;
  made->tag = tag;
  made->data = words.data();
  made->bytes = words.size() * sizeof(std::uint32_t);
  return made;
}

// Two threads of every rank, and asynchronous messages at the same time, through one PointToPoint.
TEST_P(ThreadRanksTest, SendsMessagesFromSeveralThreads) {
  run_thread_ranks(options(), [](ThreadRank& rank) {
    const std::int32_t next = (rank.rank() + 1) % rank.size();
    const std::int32_t previous = (rank.rank() + rank.size() - 1) % rank.size();
    const auto talk = [&](std::int32_t tag) {
      for (unsigned round = 0; round < 40; ++round) {
        const std::size_t count = round % 4 == 0 ? 100'000 : 10;
        Words sent(count);
        Words received(count);
        Words sent_too(count);
        Words received_too(count);
        fill(sent.data(), count, rank.rank(), round);
        fill(sent_too.data(), count, rank.rank(), round + 1000);
        const auto posted = request(false, previous, tag + 1, received_too);
        rank.messages().post(posted, scaled_time(seconds(30)));
        rank.messages().post(request(true, next, tag + 1, sent_too), scaled_time(seconds(30)));
        const auto both = {request(true, next, tag, sent), request(false, previous, tag, received)};
        ASSERT_EQ(rank.messages().run(both, scaled_time(seconds(30))).code, 0);
        ASSERT_EQ(received.back(), given(previous, count - 1, round));
        const std::optional<Outcome> outcome = posted->work->wait(milliseconds(-1));
        ASSERT_EQ(outcome->code, 0);
        ASSERT_EQ(received_too.back(), given(previous, count - 1, round + 1000));
        // The buffer is freed next, so wait for the peer's confirmation that the message was
        // received.
        Words nothing(1);
        const auto done = {request(true, previous, tag + 2, nothing),
                           request(false, next, tag + 2, nothing)};
        ASSERT_EQ(rank.messages().run(done, scaled_time(seconds(30))).code, 0);
      }
    };
    std::thread second([&] { talk(10); });
    talk(20);
    second.join();
  });
}

// Ends messaging while some messages are in transit, or never arrive.
TEST_P(ThreadRanksTest, CancelsMessagesInProgress) {
  for (int turn = 0; turn < 6; ++turn) {
    run_thread_ranks(options(), [](ThreadRank& rank) {
      const std::int32_t next = (rank.rank() + 1) % rank.size();
      Words sent(30'000);
      Words received(30'000);
      const auto never = request(false, next, 99, received);
      rank.messages().post(request(true, next, 1, sent), scaled_time(seconds(30)));
      rank.messages().post(never, scaled_time(seconds(30)));
      rank.end();
      const std::optional<Outcome> outcome = never->work->wait(milliseconds(-1));
      EXPECT_NE(outcome->code, 0);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ThreadRanksTest,
                         ::testing::Values(Shape{one_host(2), false}, Shape{one_host(2), true},
                                           Shape{one_host(3), false}, Shape{one_host(4), true},
                                           Shape{host_each(2), false}, Shape{host_each(3), false},
                                           Shape{Hosts{2, 2}, false}, Shape{Hosts{2, 1}, true}),
                         name_of_shape);

TEST(RingThreadsTest, PassesBytesInOrder) {
  Result<RingEnds> ends = make_ring_in_one_mapping();
  ASSERT_TRUE(ends.ok());
  constexpr std::size_t kBytes = 3'000'000;  // Wraps around many times.
  const auto byte_at = [](std::size_t i) { return static_cast<std::uint8_t>(i * 31 + i / 256); };
  std::thread writer([&] {
    std::mt19937 random(1);
    std::vector<std::uint8_t> bytes;
    for (std::size_t sent = 0; sent < kBytes;) {
      bytes.resize(std::min<std::size_t>(1 + random() % 70'000, kBytes - sent));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_at(sent + i);
      const std::size_t written = ends->sink->write_some(bytes.data(), bytes.size());
      sent += written;
      if (written == 0) std::this_thread::yield();
    }
  });
  std::mt19937 random(2);
  std::vector<std::uint8_t> bytes(70'000);
  for (std::size_t received = 0; received < kBytes;) {
    const std::size_t got = ends->source->read_some(bytes.data(), 1 + random() % bytes.size());
    for (std::size_t i = 0; i < got; ++i) ASSERT_EQ(bytes[i], byte_at(received + i));
    received += got;
    if (got == 0) std::this_thread::yield();
  }
  writer.join();
}

// A side is notified only if it waits: has_unread() and take_writer_waits() report that.
TEST(RingThreadsTest, ReportsWhichSideToNotify) {
  Result<RingEnds> ends = make_ring_in_one_mapping();
  ASSERT_TRUE(ends.ok());
  std::vector<std::uint8_t> bytes(kRingBytes);
  EXPECT_FALSE(ends->sink->has_unread());
  ASSERT_EQ(ends->sink->write_some(bytes.data(), 100), 100U);
  EXPECT_TRUE(ends->sink->has_unread());
  ASSERT_EQ(ends->source->read_some(bytes.data(), 99), 99U);
  EXPECT_TRUE(ends->sink->has_unread());
  EXPECT_FALSE(ends->source->take_writer_waits()) << "the writer had room";
  ASSERT_EQ(ends->source->read_some(bytes.data(), 99), 1U);
  EXPECT_FALSE(ends->sink->has_unread());
  ASSERT_EQ(ends->sink->write_some(bytes.data(), kRingBytes), kRingBytes);
  EXPECT_FALSE(ends->source->take_writer_waits());
  EXPECT_EQ(ends->sink->write_some(bytes.data(), 1), 0U);
  EXPECT_TRUE(ends->source->take_writer_waits()) << "the writer waits for room";
  EXPECT_FALSE(ends->source->take_writer_waits()) << "a wait is reported once";
  ASSERT_TRUE(ends->sink->lend(bytes.data(), kMinLentBytes));
  ends->source->end_loan(LoanState::kRead);
  EXPECT_TRUE(ends->source->take_writer_waits()) << "the writer waits for its memory";
  EXPECT_FALSE(ends->source->take_writer_waits());
}

TEST(RingThreadsTest, LendsMessagesThatDoNotFitUntilTheLoanIsDeclined) {
  Result<RingEnds> ends = make_ring_in_one_mapping();
  ASSERT_TRUE(ends.ok());
  const std::vector<std::uint8_t> big(kRingBytes + 1);
  EXPECT_FALSE(ends->sink->lend(big.data(), kRingBytes - 1)) << "the message fits";
  ASSERT_TRUE(ends->sink->lend(big.data(), big.size()));
  EXPECT_EQ(ends->sink->loan(), LoanState::kOpen);
  EXPECT_EQ(ends->source->lent(), reinterpret_cast<std::uintptr_t>(big.data()));
  ends->source->end_loan(LoanState::kRead);
  EXPECT_EQ(ends->sink->loan(), LoanState::kRead);
  ASSERT_EQ(ends->sink->write_some(big.data(), kRingBytes - 10), kRingBytes - 10);
  EXPECT_FALSE(ends->sink->lend(big.data(), kMinLentBytes - 1)) << "too short to be lent";
  ASSERT_TRUE(ends->sink->lend(big.data() + 1, kMinLentBytes));
  ends->sink->revoke();
  EXPECT_EQ(ends->source->lent(), 0U);
  EXPECT_EQ(ends->sink->loan(), LoanState::kOpen);
  ends->source->end_loan(LoanState::kDeclined);
  EXPECT_EQ(ends->sink->loan(), LoanState::kDeclined);
  EXPECT_FALSE(ends->sink->lend(big.data(), big.size())) << "declined permanently";
}

// ---- The whole library -------------------------------------------------------------------------

// Several ranks of one process through the C interface: init, groups, work, messages of two
// threads, registered buffers and finalize.
class LibraryThreadsTest : public ::testing::Test {
 protected:
  LibraryThreadsTest() {
    char name[] = "/tmp/ivy-comm-test-XXXXXX";
    directory_ = mkdtemp(name);
    method_ = "file://" + directory_ + "/note";
  }
  ~LibraryThreadsTest() override { EXPECT_EQ(rmdir(directory_.c_str()), 0) << directory_; }

  void run(int ranks, const std::function<void(ivy_comm*, int rank)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ivy_options options = {};
        options.struct_bytes = sizeof options;
        options.init_method = method_.c_str();
        options.rank = rank;
        options.world_size = ranks;
        options.timeout_ms = scaled_time(seconds(30)).count();
        ivy_comm* world = nullptr;
        ASSERT_EQ(ivy_init(&options, &world), IVY_OK) << ivy_last_error();
        body(world, rank);
        EXPECT_EQ(ivy_finalize(world), IVY_OK) << ivy_last_error();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  std::string directory_;
  std::string method_;
};

void work_in_groups(ivy_comm* world, int rank) {
  ivy_comm* groups[2] = {};
  ASSERT_EQ(ivy_comm_split(world, 0, -rank, &groups[0]), IVY_OK) << ivy_last_error();
  ASSERT_EQ(ivy_comm_split(world, rank % 2, 0, &groups[1]), IVY_OK) << ivy_last_error();
  std::vector<std::vector<float>> values(20);
  std::vector<ivy_work*> works(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].assign(1 + i * 1999, 1);
    const ivy_call call = call_for_work(&works[i]);
    ASSERT_EQ(ivy_all_reduce(groups[i % 2], IVY_IN_PLACE, values[i].data(), values[i].size(),
                             IVY_F32, IVY_SUM, &call),
              IVY_OK);
    double queued = 0;
    double ran = 0;
    EXPECT_EQ(ivy_work_timing(works[i], &queued, &ran), IVY_OK);
  }
  // Meanwhile, calls an operation of the world in this thread.
  EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
  for (std::size_t i = values.size(); i-- > 0;) {
    ASSERT_EQ(ivy_work_wait(works[i], -1), IVY_OK) << ivy_last_error();
    EXPECT_EQ(values[i].back(), static_cast<float>(ivy_comm_size(groups[i % 2])));
    EXPECT_EQ(ivy_work_free(works[i]), IVY_OK);
  }
  EXPECT_EQ(ivy_comm_free(groups[0]), IVY_OK);  // The other one is freed with the world.
}

void talk_in_threads(ivy_comm* world, int rank) {
  const int size = ivy_comm_size(world);
  const auto talk = [&](int tag) {
    for (int round = 0; round < 20; ++round) {
      const int sent = rank * 1000 + round;
      int got = -1;
      ASSERT_EQ(ivy_sendrecv(world, &sent, 1, (rank + 1) % size, tag, &got, 1,
                             (rank + size - 1) % size, tag, IVY_I32, nullptr, nullptr),
                IVY_OK)
          << ivy_last_error();
      ASSERT_EQ(got, (rank + size - 1) % size * 1000 + round);
    }
  };
  std::thread second([&] { talk(1); });
  talk(2);
  second.join();
}

void use_registered_memory(ivy_comm* world) {
  constexpr std::size_t kCount = 100'000;
  for (int turn = 0; turn < 3; ++turn) {
    void* memory = nullptr;
    ASSERT_EQ(ivy_mem_alloc(world, kCount * sizeof(float), &memory), IVY_OK) << ivy_last_error();
    float* const values = static_cast<float*>(memory);
    std::fill(values, values + kCount, 1.0F);
    ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, values, kCount, IVY_F32, IVY_SUM, nullptr),
              IVY_OK)
        << ivy_last_error();
    EXPECT_EQ(values[kCount - 1], static_cast<float>(ivy_comm_size(world)));
    EXPECT_EQ(ivy_mem_free(memory), IVY_OK);
  }
}

TEST_F(LibraryThreadsTest, RunsSeveralRanksInOneProcess) {
  for (const int ranks : {2, 3}) {
    run(ranks, [](ivy_comm* world, int rank) {
      std::vector<float> send(4 * 30'000, 1);
      std::vector<float> receive(send.size());
      for (const NamedOperation& operation : operations()) {
        for (const std::size_t count : {std::size_t{3}, std::size_t{30'000}}) {
          ASSERT_EQ(operation.call(world, send.data(), receive.data(), count, nullptr), IVY_OK)
              << operation.name << ": " << ivy_last_error();
        }
      }
      work_in_groups(world, rank);
      talk_in_threads(world, rank);
      use_registered_memory(world);
    });
  }
}

// Aborts during operations in two threads of every rank, queued work and a message.
TEST_F(LibraryThreadsTest, AbortsDuringEveryOperation) {
  for (unsigned turn = 0; turn < 5; ++turn) {
    run(2, [turn](ivy_comm* world, int rank) {
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      std::vector<std::thread> threads;
      threads.emplace_back([&] {
        std::vector<float> values(turn % 2 == 0 ? 10 : 50'000, 1);
        while (ivy_all_reduce(group, IVY_IN_PLACE, values.data(), values.size(), IVY_F32, IVY_SUM,
                              nullptr) == IVY_OK) {
        }
      });
      threads.emplace_back([&] {
        int nothing = 0;
        EXPECT_EQ(ivy_recv(group, &nothing, 1, IVY_I32, IVY_ANY_SOURCE, 9, nullptr, nullptr),
                  IVY_CANCELLED);
      });
      ivy_work* message = nullptr;
      const ivy_call call = call_for_work(&message);
      int never = 0;
      ASSERT_EQ(ivy_recv(group, &never, 1, IVY_I32, 1 - rank, 8, nullptr, &call), IVY_OK);
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(turn * 700));
        EXPECT_EQ(ivy_comm_abort(group, "enough"), IVY_OK);
      }
      for (std::thread& thread : threads) thread.join();
      EXPECT_EQ(ivy_work_wait(message, -1), IVY_CANCELLED) << ivy_last_error();
      EXPECT_EQ(ivy_work_free(message), IVY_OK);
      EXPECT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    });
  }
}

}  // namespace
}  // namespace ivy::comm::test
