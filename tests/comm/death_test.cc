// SPDX-License-Identifier: Apache-2.0
// A rank dies in every way, at every moment, in every operation. Each survivor soon gets an error
// that names it, and keeps getting that error. No rank hangs. These worlds have no supervisor.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <random>
#include <span>
#include <string_view>
#include <thread>

#include "tests/comm/operations.h"
#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

enum class Way : std::uint8_t { kKill, kExit, kAbort };
constexpr Way kWays[] = {Way::kKill, Way::kExit, Way::kAbort};

enum class Moment : std::uint8_t { kBefore, kBetween, kInside };
constexpr Moment kMoments[] = {Moment::kBefore, Moment::kBetween, Moment::kInside};

struct Board {
  std::atomic<std::int64_t> died_ms{0};
};

[[noreturn]] void die(Way way, bool is_other_thread, Board& board) {
  board.died_ms = monotonic_ms();
  if (way == Way::kKill) kill(getpid(), SIGKILL);
  if (way == Way::kExit && !is_other_thread) std::exit(0);
  if (way == Way::kAbort) std::abort();
  _exit(0);
}

struct Death {
  Hosts hosts;
  int victim;
  Way way;
  Moment moment;
  const NamedOperation* operation;
  std::size_t count;
  unsigned delay;              // Operations, or tens of microseconds.
  bool is_registered = false;  // Uses buffers of ivy_mem_alloc.
  int streams = 0;             // Between two ranks of different hosts. 0: the default.
};

void expect_named(const Death& death, int code, Board& board) {
  const std::int64_t now = monotonic_ms();
  const std::string text = ivy_last_error();
  const ivy_failure failure = last_failure();
  EXPECT_EQ(code, IVY_UNAVAILABLE) << text;
  EXPECT_EQ(failure.rank, death.victim) << text;
  EXPECT_NE(text.find("rank " + std::to_string(death.victim)), std::string::npos) << text;
  EXPECT_LT(now - board.died_ms, scaled_time(seconds(1)).count()) << text;
}

using Floats = std::span<float>;

// Returns floats that are all 1, in `plain` unless the buffers are registered.
Floats make_floats(const Death& death, ivy_comm* comm, std::vector<float>& plain) {
  const std::size_t count = death.count * static_cast<std::size_t>(ivy_comm_size(comm));
  void* memory = nullptr;
  if (death.is_registered) {
    EXPECT_EQ(ivy_mem_alloc(comm, count * sizeof(float), &memory), IVY_OK) << ivy_last_error();
  } else {
    plain.resize(count);
  }
  const Floats floats(death.is_registered ? static_cast<float*>(memory) : plain.data(), count);
  std::fill(floats.begin(), floats.end(), 1.0F);
  return floats;
}

void run_victim(const Death& death, ivy_comm* comm, Floats send, Floats receive, Board& board) {
  if (death.moment == Moment::kBefore) die(death.way, false, board);
  std::thread killer;
  if (death.moment == Moment::kInside) {
    killer = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(10 * death.delay));
      die(death.way, true, board);
    });
  }
  for (unsigned done = 0;; ++done) {
    if (death.moment == Moment::kBetween && done == death.delay) die(death.way, false, board);
    death.operation->call(comm, send.data(), receive.data(), death.count, nullptr);
  }
}

void run_survivor(const Death& death, ivy_comm* comm, Floats send, Floats receive, Board& board) {
  int code = IVY_OK;
  while (code == IVY_OK) {
    code = death.operation->call(comm, send.data(), receive.data(), death.count, nullptr);
  }
  expect_named(death, code, board);
  const std::string first = ivy_last_error();
  EXPECT_EQ(ivy_barrier(comm, nullptr), IVY_UNAVAILABLE);
  EXPECT_EQ(ivy_last_error(), first);
}

void expect_survivors_know(const Death& death) {
  Shared<Board> board;
  WorldOptions options;
  options.deadline = seconds(10);
  const std::vector<RankEnd> ends = run_world(
      death.hosts,
      [&](int rank) {
        if (death.streams > 0) setenv("IVY_TCP_STREAMS", std::to_string(death.streams).c_str(), 1);
        const World world;
        ASSERT_TRUE(world);
        std::vector<float> plain_send;
        std::vector<float> plain_receive;
        const Floats send = make_floats(death, world, plain_send);
        const Floats receive = make_floats(death, world, plain_receive);
        // Waits until all survivors have joined.
        ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
        if (rank == death.victim) {
          run_victim(death, world, send, receive, *board);
        } else {
          run_survivor(death, world, send, receive, *board);
        }
      },
      options);
  SCOPED_TRACE(std::string(death.operation->name) + " of " + std::to_string(death.count) +
               ", way " + std::to_string(static_cast<int>(death.way)) + ", moment " +
               std::to_string(static_cast<int>(death.moment)) + ", delay " +
               std::to_string(death.delay));
  expect_ok(ends, death.victim);
  EXPECT_FALSE(ends[static_cast<std::size_t>(death.victim)].is_late);
}

// Variants run with other sizes in one world than in the next.
bool takes_turn(const NamedOperation& operation, const Hosts& hosts) {
  const auto index = static_cast<std::size_t>(&operation - operations().data());
  return (index + static_cast<std::size_t>(hosts.front() / 2) + hosts.size()) % 2 == 0;
}

class DeathTest : public ::testing::TestWithParam<Hosts> {};

// Tests every operation, with the ways, moments and victims in turn.
TEST_P(DeathTest, IsNamedToEverySurvivor) {
  const char* const seed = std::getenv("IVY_TEST_SEED");
  std::mt19937 random(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 42);
  auto turn = static_cast<unsigned>(random() % 9);
  for (const NamedOperation& operation : operations()) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{100'003}}) {
      if (operation.is_variant && takes_turn(operation, GetParam()) == (count > 3)) continue;
      Death death = {GetParam(),
                     0,
                     kWays[turn % 3],
                     kMoments[turn / 3 % 3],
                     &operation,
                     count,
                     static_cast<unsigned>(random() % 200)};
      death.victim = static_cast<int>(random() % static_cast<unsigned>(rank_count(death.hosts)));
      ++turn;
      expect_survivors_know(death);
      if (HasFailure()) return;
    }
  }
}

// ---- Asynchronous work --------------------------------------------------------------------------

// Sends a message to the next rank and receives one from the previous rank, both as work.
int post_messages(ivy_comm* comm, Floats send, Floats receive, ivy_work* (&works)[2]) {
  const int size = ivy_comm_size(comm);
  const int rank = ivy_comm_rank(comm);
  const ivy_call first = call_for_work(&works[0]);
  const ivy_call second = call_for_work(&works[1]);
  const int code =
      ivy_recv(comm, receive.data(), 1000, IVY_F32, (rank + size - 1) % size, 0, nullptr, &first);
  if (code != IVY_OK) return code;
  return ivy_send(comm, send.data(), 1000, IVY_F32, (rank + 1) % size, 0, &second);
}

// Starts two works at once, so that one waits in the queue. Returns the first code that is not
// IVY_OK.
int run_works(const NamedOperation* operation, ivy_comm* comm, Floats send, Floats receive,
              std::size_t count) {
  ivy_work* works[2] = {};
  int code = IVY_OK;
  if (operation == nullptr) {
    code = post_messages(comm, send, receive, works);
  } else {
    for (ivy_work*& work : works) {
      const ivy_call call = call_for_work(&work);
      if (code == IVY_OK) code = operation->call(comm, send.data(), receive.data(), count, &call);
    }
  }
  for (ivy_work* const work : works) {
    if (work == nullptr) continue;
    // Only the text of the last failure is kept, so stop at the first one.
    if (code == IVY_OK) code = ivy_work_wait(work, -1);
    ivy_work_free(work);
  }
  return code;
}

// All kinds of work, and messages (null). The victim dies while its own work is running.
TEST_P(DeathTest, IsNamedByWorkOfEveryKind) {
  std::mt19937 random(11);
  std::vector<const NamedOperation*> kinds = {nullptr};
  for (const NamedOperation& operation : operations()) {
    const std::string_view name = operation.name;
    if (name != "sendrecv" && name != "split" && name != "group") kinds.push_back(&operation);
  }
  unsigned turn = 0;
  for (const NamedOperation* const operation : kinds) {
    Death death = {GetParam(), 0, kWays[++turn % 3], Moment::kInside, operation, 20'003, 0};
    death.victim = static_cast<int>(random() % static_cast<unsigned>(rank_count(death.hosts)));
    const auto after = std::chrono::microseconds(random() % 3000);
    SCOPED_TRACE(operation != nullptr ? operation->name : "messages");
    Shared<Board> board;
    WorldOptions options;
    options.deadline = seconds(10);
    const std::vector<RankEnd> ends = run_world(
        death.hosts,
        [&](int rank) {
          const World world;
          ASSERT_TRUE(world);
          std::vector<float> plain_send;
          std::vector<float> plain_receive;
          const Floats send = make_floats(death, world, plain_send);
          const Floats receive = make_floats(death, world, plain_receive);
          ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
          std::thread killer;
          if (rank == death.victim) {
            killer = std::thread([&] {
              std::this_thread::sleep_for(after);
              die(death.way, true, *board);
            });
          }
          int code = IVY_OK;
          while (code == IVY_OK || rank == death.victim) {
            code = run_works(operation, world, send, receive, death.count);
          }
          expect_named(death, code, *board);
        },
        options);
    expect_ok(ends, death.victim);
    if (HasFailure()) return;
  }
}

// During operations that read memory of other ranks: through the kernel, and in registered buffers.
TEST_P(DeathTest, IsNamedWhileOthersReadItsMemory) {
  std::mt19937 random(7);
  unsigned turn = 0;
  for (const NamedOperation& operation : operations()) {
    const std::string_view name = operation.name;
    const bool reads = name == "all_reduce" || name == "broadcast" || name == "all_gather" ||
                       name == "reduce_scatter" || name == "all_to_all";
    if (!reads) continue;
    for (const bool is_registered : {false, true}) {
      Death death = {GetParam(),
                     0,
                     kWays[++turn % 3],
                     Moment::kInside,
                     &operation,
                     std::size_t{500'003},
                     static_cast<unsigned>(random() % 400),
                     is_registered};
      death.victim = static_cast<int>(random() % static_cast<unsigned>(rank_count(death.hosts)));
      expect_survivors_know(death);
      if (HasFailure()) return;
    }
  }
}

class StreamsDeathTest : public DeathTest {};

// Between hosts, over several connections for each pair, also before the additional ones exist.
TEST_P(StreamsDeathTest, IsNamedOverSeveralStreams) {
  std::mt19937 random(11);
  auto turn = 0U;
  for (const NamedOperation& operation : operations()) {
    if (operation.is_variant && !takes_turn(operation, GetParam())) continue;
    Death death = {GetParam(),
                   0,
                   kWays[turn % 3],
                   kMoments[turn / 3 % 3],
                   &operation,
                   std::size_t{500'003},
                   static_cast<unsigned>(random() % 300)};
    death.victim = static_cast<int>(random() % static_cast<unsigned>(rank_count(death.hosts)));
    death.streams = 3;
    ++turn;
    expect_survivors_know(death);
    if (HasFailure()) return;
  }
}

std::string name_of_world(const ::testing::TestParamInfo<Hosts>& world) {
  return hosts_text(world.param);
}

INSTANTIATE_TEST_SUITE_P(Worlds, DeathTest,
                         ::testing::Values(one_host(2), one_host(4), host_each(2), host_each(4),
                                           Hosts{2, 2}, Hosts{3, 1}),
                         name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, StreamsDeathTest,
                         ::testing::Values(host_each(2), host_each(4), Hosts{2, 2}, Hosts{3, 1}),
                         name_of_world);

// A stopped rank is alive: only the timeout ends the wait, and it names the rank.
class StoppedTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(StoppedTest, FailsAtTheTimeoutAndNotBefore) {
  WorldOptions options;
  options.stopped_rank = rank_count(GetParam()) - 1;
  const std::vector<RankEnd> ends = run_world(
      GetParam(),
      [&](int rank) {
        const World world;
        ASSERT_TRUE(world);
        ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
        if (rank == options.stopped_rank) raise(SIGSTOP);
        const ivy_call call = call_with_timeout(milliseconds(400));
        float value = 1;
        const std::int64_t begun = monotonic_ms();
        const int code = ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_SUM, &call);
        const std::string text = ivy_last_error();
        EXPECT_EQ(code, IVY_DEADLINE_EXCEEDED) << text;
        // Whichever ranks wait for each other, the stopped one is blamed.
        EXPECT_EQ(last_failure().rank, options.stopped_rank) << text;
        EXPECT_NE(text.find("rank " + std::to_string(options.stopped_rank)), std::string::npos)
            << text;
        EXPECT_GE(monotonic_ms() - begun, 300) << text;
        EXPECT_LT(monotonic_ms() - begun, 400 + scaled_time(seconds(1)).count()) << text;
      },
      options);
  expect_ok(ends, options.stopped_rank);
}

// Runs every operation that can be work, each in its own group, all at once. A rank that an
// operation does not need gets the error in the next operation.
class StoppedInAnyTest : public StoppedTest {};

TEST_P(StoppedInAnyTest, IsBlamed) {
  constexpr std::size_t kCount = 60'003;
  std::vector<const NamedOperation*> kinds;
  for (const NamedOperation& operation : operations()) {
    const std::string_view name = operation.name;
    if (name != "sendrecv" && name != "split" && name != "group") kinds.push_back(&operation);
  }
  WorldOptions options;
  options.stopped_rank = rank_count(GetParam()) - 1;
  const auto body = [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const auto ranks = static_cast<std::size_t>(ivy_comm_size(world));
    std::vector<ivy_comm*> groups(kinds.size());
    for (ivy_comm*& group : groups) {
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      // Makes the members known to each other.
      ASSERT_EQ(ivy_barrier(group, nullptr), IVY_OK) << ivy_last_error();
    }
    if (rank == options.stopped_rank) raise(SIGSTOP);
    std::vector<std::vector<float>> buffers(2 * kinds.size(), std::vector<float>(kCount * ranks));
    std::vector<std::array<ivy_work*, 2>> works(kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      ivy_call call = call_with_timeout(milliseconds(500));
      call.work = &works[i][0];
      ASSERT_EQ(kinds[i]->call(groups[i], buffers[2 * i].data(), buffers[2 * i + 1].data(), kCount,
                               &call),
                IVY_OK);
      call.work = &works[i][1];
      ASSERT_EQ(ivy_barrier(groups[i], &call), IVY_OK);
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      int code = ivy_work_wait(works[i][0], -1);
      if (code == IVY_OK) code = ivy_work_wait(works[i][1], -1);
      const std::string text = ivy_last_error();
      EXPECT_EQ(code, IVY_DEADLINE_EXCEEDED) << kinds[i]->name << ": " << text;
      EXPECT_EQ(last_failure().rank, options.stopped_rank) << kinds[i]->name << ": " << text;
      for (ivy_work* const work : works[i]) ivy_work_free(work);
    }
  };
  expect_ok(run_world(GetParam(), body, options), options.stopped_rank);
}

// The late rank is busy outside the library; only its last operation is known.
TEST(LateTest, NamesItsLastOperationInTheTimeout) {
  Shared<std::atomic<bool>> is_over;
  for (const Hosts& hosts : {one_host(3), Hosts{1, 2}}) {
    *is_over = false;
    expect_ok(run_world(hosts, [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      float value = 1;
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      ASSERT_EQ(ivy_all_reduce(world, IVY_IN_PLACE, &value, 1, IVY_F32, IVY_SUM, nullptr), IVY_OK);
      if (rank == 2) {
        EXPECT_TRUE(ivy::test::eventually([&] { return is_over->load(); }, seconds(20)));
        return;
      }
      const ivy_call call = call_with_timeout(milliseconds(400));
      EXPECT_EQ(ivy_barrier(world, &call), IVY_DEADLINE_EXCEEDED);
      const std::string text = ivy_last_error();
      EXPECT_NE(text.find("the last that it entered is operation 2, all_reduce(sum) of 1 f32"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("rank 2 ("), std::string::npos) << text;
      *is_over = true;
    }));
    if (HasFailure()) return;
  }
}

// The root has not arrived at the barrier, because the late rank has not arrived at the reduce.
TEST(LateTest, DoesNotBlameARankThatWaitsForTheLateOne) {
  Shared<std::atomic<bool>> is_over;
  for (const Hosts& hosts : {one_host(3), Hosts{1, 1, 1}, Hosts{2, 1}}) {
    *is_over = false;
    expect_ok(run_world(hosts, [&](int rank) {
      const World world;
      ASSERT_TRUE(world);
      ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
      if (rank == 2) {
        EXPECT_TRUE(ivy::test::eventually([&] { return is_over->load(); }, seconds(20)));
        return;
      }
      float value = 1;
      const ivy_call long_call = call_with_timeout(seconds(20));
      const int reduced = ivy_reduce(world, &value, &value, 1, IVY_F32, IVY_SUM, 0, &long_call);
      EXPECT_EQ(reduced, rank == 0 ? IVY_DEADLINE_EXCEEDED : IVY_OK) << ivy_last_error();
      const ivy_call call = call_with_timeout(milliseconds(700));
      EXPECT_EQ(ivy_barrier(world, &call), IVY_DEADLINE_EXCEEDED);
      EXPECT_EQ(last_failure().rank, 2) << ivy_last_error();
      *is_over = true;
    }));
    if (HasFailure()) return;
  }
}

// ---- Memory after an error ---------------------------------------------------------------------

constexpr float kCanary = 4711;

bool is_untouched(Floats floats) {
  return std::all_of(floats.begin(), floats.end(), [](float value) { return value == kCanary; });
}

// A call that has returned an error, even one that waited for work, has given the buffers back: no
// rank may write to them any more.
class GivenBackTest : public ::testing::TestWithParam<Hosts> {};

TEST_P(GivenBackTest, NoRankWritesAfterAnError) {
  constexpr std::size_t kCount = 60'003;
  constexpr unsigned kMicros[] = {0, 50, 150, 400, 1000, 2500};
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    std::vector<std::pair<std::string, Floats>> given_back;
    std::deque<std::vector<float>> plain;
    unsigned turn = 0;
    for (const NamedOperation& operation : operations()) {
      const std::string_view name = operation.name;
      if (name == "barrier" || name == "split" || name == "group") continue;
      for (const bool is_work : {false, true}) {
        Death how = {GetParam(), 0, Way::kAbort, Moment::kInside, &operation, kCount, 0};
        how.is_registered = ++turn % 2 == 0;
        ivy_comm* group = nullptr;
        ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
        const Floats send = make_floats(how, group, plain.emplace_back());
        const Floats receive = make_floats(how, group, plain.emplace_back());
        // Another rank may have aborted the group already.
        int code = ivy_barrier(group, nullptr);
        std::thread aborting;
        if (rank == static_cast<int>(turn) % ivy_comm_size(world)) {
          aborting = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::microseconds(kMicros[turn % 6]));
            EXPECT_EQ(ivy_comm_abort(group, "enough"), IVY_OK);
          });
        }
        while (code == IVY_OK) {
          code = is_work && name != "sendrecv"
                     ? run_works(&operation, group, send, receive, kCount)
                     : operation.call(group, send.data(), receive.data(), kCount, nullptr);
        }
        EXPECT_EQ(code, IVY_CANCELLED) << ivy_last_error();
        for (const Floats floats : {send, receive}) {
          std::fill(floats.begin(), floats.end(), kCanary);
          given_back.emplace_back(std::string(name) + (is_work ? ", as work" : ""), floats);
        }
        if (aborting.joinable()) aborting.join();
      }
    }
    std::this_thread::sleep_for(milliseconds(100));
    for (const auto& [name, floats] : given_back) EXPECT_TRUE(is_untouched(floats)) << name;
  }));
}

// Threads that wait also transfer each other's messages.
TEST_P(GivenBackTest, NoRankWritesIntoAMessageAfterAnError) {
  constexpr std::size_t kCount = 300'000;
  constexpr int kThreads = 3;
  constexpr unsigned kTurns = 6;
  expect_ok(run_world(GetParam(), [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    const int size = ivy_comm_size(world);
    const int next = (rank + 1) % size;
    const int previous = (rank + size - 1) % size;
    std::vector<float> sent(kCount, 1);
    std::vector<std::vector<float>> received(kThreads * kTurns, std::vector<float>(kCount));
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      ivy_comm* group = nullptr;
      ASSERT_EQ(ivy_comm_split(world, 0, rank, &group), IVY_OK) << ivy_last_error();
      std::vector<std::thread> threads;
      for (int tag = 0; tag < kThreads; ++tag) {
        const Floats to = received[turn * kThreads + static_cast<unsigned>(tag)];
        threads.emplace_back([=, &sent] {
          int code = IVY_OK;
          while (code == IVY_OK) {
            code = ivy_sendrecv(group, sent.data(), kCount, next, tag, to.data(), kCount, previous,
                                tag, IVY_F32, nullptr, nullptr);
          }
          EXPECT_EQ(code, IVY_CANCELLED) << ivy_last_error();
          std::fill(to.begin(), to.end(), kCanary);
        });
      }
      if (rank == static_cast<int>(turn) % size) {
        std::this_thread::sleep_for(std::chrono::microseconds(turn * 600));
        EXPECT_EQ(ivy_comm_abort(group, "enough"), IVY_OK);
      }
      for (std::thread& thread : threads) thread.join();
    }
    std::this_thread::sleep_for(milliseconds(100));
    for (std::vector<float>& floats : received) EXPECT_TRUE(is_untouched(floats));
  }));
}

// The same after a rank was killed during large operations: the survivors notice at different
// times, and those that know continue in their own group with other memory.
class SurvivorsTest : public ::testing::TestWithParam<Hosts> {};

void expect_given_back(const Death& death, bool is_work, std::chrono::microseconds after) {
  Shared<Board> board;
  WorldOptions options;
  options.deadline = seconds(10);
  const auto body = [&](int rank) {
    const World world;
    ASSERT_TRUE(world);
    ivy_comm* survivors = nullptr;
    const bool survives = rank != death.victim;
    ASSERT_EQ(ivy_comm_split(world, survives ? 0 : -1, rank, &survivors), IVY_OK);
    std::vector<float> plain[2];
    const Floats send = make_floats(death, world, plain[0]);
    const Floats receive = make_floats(death, world, plain[1]);
    ASSERT_EQ(ivy_barrier(world, nullptr), IVY_OK) << ivy_last_error();
    std::thread killer;
    if (!survives) {
      killer = std::thread([&] {
        std::this_thread::sleep_for(after);
        die(death.way, true, *board);
      });
    }
    int code = IVY_OK;
    while (code == IVY_OK || !survives) {
      code = is_work
                 ? run_works(death.operation, world, send, receive, death.count)
                 : death.operation->call(world, send.data(), receive.data(), death.count, nullptr);
    }
    expect_named(death, code, *board);
    for (const Floats floats : {send, receive}) std::fill(floats.begin(), floats.end(), kCanary);
    // The lengths differ from those of the interrupted operations.
    std::vector<float> others(2 * death.count, 1);
    const std::int64_t until = monotonic_ms() + 30;
    float is_over = 0;
    while (is_over == 0) {
      is_over = monotonic_ms() > until ? 1 : 0;
      ASSERT_EQ(ivy_all_reduce(survivors, IVY_IN_PLACE, &is_over, 1, IVY_F32, IVY_MAX, nullptr),
                IVY_OK)
          << ivy_last_error();
      ASSERT_EQ(ivy_broadcast(survivors, others.data(), death.count, IVY_F32, 0, nullptr), IVY_OK)
          << ivy_last_error();
    }
    EXPECT_TRUE(is_untouched(send)) << "the send buffer";
    EXPECT_TRUE(is_untouched(receive)) << "the receive buffer";
  };
  SCOPED_TRACE(std::string(death.operation->name) + (is_work ? ", as work" : "") +
               (death.is_registered ? ", registered" : "") + ", after " +
               std::to_string(after.count()) + " us");
  expect_ok(run_world(death.hosts, body, options), death.victim);
}

TEST_P(SurvivorsTest, NoRankWritesAfterADeath) {
  std::mt19937 random(5);
  unsigned turn = 0;
  for (const NamedOperation& operation : operations()) {
    const std::string_view name = operation.name;
    if (name == "barrier" || name == "split" || name == "group") continue;
    for (const bool is_registered : {false, true}) {
      Death death = {GetParam(), 0, Way::kKill, Moment::kInside, &operation, 200'003, 0};
      death.is_registered = is_registered;
      death.victim = static_cast<int>(random() % static_cast<unsigned>(rank_count(death.hosts)));
      const bool is_work = turn++ % 4 >= 2 && name != "sendrecv";
      expect_given_back(death, is_work, std::chrono::microseconds(random() % 4000));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, SurvivorsTest,
                         ::testing::Values(one_host(3), host_each(3), Hosts{2, 2}), name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, StoppedInAnyTest,
                         ::testing::Values(one_host(3), host_each(3), Hosts{2, 2}), name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, GivenBackTest,
                         ::testing::Values(one_host(3), host_each(2), Hosts{2, 2}), name_of_world);

INSTANTIATE_TEST_SUITE_P(Worlds, StoppedTest,
                         ::testing::Values(one_host(2), one_host(4), host_each(2), host_each(3),
                                           Hosts{2, 2}, Hosts{3, 1}, Hosts{2, 3}),
                         name_of_world);

}  // namespace
}  // namespace ivy::comm::test
