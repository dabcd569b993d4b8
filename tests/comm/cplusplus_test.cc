// SPDX-License-Identifier: Apache-2.0
// The C++ layer: every function of a communicator, both blocking and as work.
#include <array>
#include <complex>
#include <ivycomm.hpp>
#include <ivycomm_buffer.hpp>

#include "tests/comm/world.h"

namespace ivy::comm::test {
namespace {

using Floats = std::vector<float>;
using Counts = std::vector<std::size_t>;
using std::chrono::milliseconds;

// Waits if the call returned work.
template <class Call>
void finish(Call call) {
  if constexpr (std::is_same_v<decltype(call()), ivycomm::Work>) {
    ivycomm::Work work = call();
    work.wait();
  } else {
    call();
  }
}

// Two ranks. Rank r gives r + 1, so that sums are 3.
template <class Comm>
void reduce_everything(Comm comm) {
  const int rank = comm.rank();
  const auto mine = static_cast<float>(rank + 1);
  Floats x(5, mine);
  finish([&] { return comm.all_reduce(x); });
  EXPECT_EQ(x, Floats(5, 3));
  const Floats from(5, mine);
  finish([&] { return comm.all_reduce(from, x, IVY_MAX); });
  EXPECT_EQ(x, Floats(5, 2));
  std::array<Floats, 2> parts = {Floats(2, mine), Floats(3, mine)};
  finish([&] { return comm.all_reduce_coalesced(parts); });
  EXPECT_EQ(parts[0], Floats(2, 3));
  EXPECT_EQ(parts[1], Floats(3, 3));
  x.assign(4, mine);
  finish([&] { return comm.reduce(x, 1); });
  EXPECT_EQ(x, Floats(4, rank == 1 ? 3 : 1));
  x.assign(4, mine);
  finish([&] { return comm.scan(x); });
  EXPECT_EQ(x, Floats(4, rank == 0 ? 1 : 3));
  x.assign(4, mine);
  finish([&] { return comm.exscan(x); });
  EXPECT_EQ(x, Floats(4, rank == 0 ? 0 : 1));
  Floats out(2);
  const Floats both = {1, 2, 3, 4};
  finish([&] { return comm.reduce_scatter(both, out); });
  EXPECT_EQ(out, rank == 0 ? (Floats{2, 4}) : (Floats{6, 8}));
  const Counts counts = {3, 1};
  Floats uneven(counts[static_cast<std::size_t>(rank)]);
  finish([&] { return comm.reduce_scatter_v(both, uneven, counts); });
  EXPECT_EQ(uneven, rank == 0 ? (Floats{2, 4, 6}) : (Floats{8}));
}

template <class Comm>
void move_everything(Comm comm) {
  const int rank = comm.rank();
  const std::vector<int> mine(2, rank + 1);
  const std::vector<int> all_members = {1, 1, 2, 2};
  std::vector<int> all(4);
  std::vector<int> part(2);
  finish([&] { return comm.barrier(); });
  std::vector<int> x = mine;
  finish([&] { return comm.broadcast(x, 1); });
  EXPECT_EQ(x, std::vector<int>(2, 2));
  finish([&] { return comm.all_gather(mine, all); });
  EXPECT_EQ(all, all_members);
  all.assign(4, 0);
  finish([&] { return comm.gather(mine, all, 1); });
  EXPECT_EQ(all, rank == 1 ? all_members : std::vector<int>(4, 0));
  finish([&] { return comm.scatter(all_members, part, 0); });
  EXPECT_EQ(part, mine);
  const std::vector<int> to_each = {10 * rank, 10 * rank + 1};
  finish([&] { return comm.all_to_all(to_each, part); });
  EXPECT_EQ(part, (std::vector<int>{rank, 10 + rank}));
}

template <class Comm>
void move_uneven_parts(Comm comm) {
  const int rank = comm.rank();
  const Counts counts = {1, 2};
  const Counts begins = {2, 0};  // Rank 1's part is before rank 0's.
  const std::vector<double> mine(counts[static_cast<std::size_t>(rank)], rank + 1.0);
  const std::vector<double> in_order = {1, 2, 2};
  const std::vector<double> turned = {2, 2, 1};
  std::vector<double> all(3);
  finish([&] { return comm.all_gather_v(mine, all, counts); });
  EXPECT_EQ(all, in_order);
  finish([&] { return comm.all_gather_v(mine, all, ivycomm::Parts(counts, begins)); });
  EXPECT_EQ(all, turned);
  all.assign(3, 0);
  finish([&] { return comm.gather_v(mine, all, ivycomm::Parts(counts, begins), 0); });
  EXPECT_EQ(all, rank == 0 ? turned : std::vector<double>(3, 0));
  std::vector<double> part(mine.size());
  finish([&] { return comm.scatter_v(turned, part, ivycomm::Parts(counts, begins), 1); });
  EXPECT_EQ(part, mine);
  // Each rank sends one element to rank 0 and two to rank 1.
  const Counts received(2, mine.size());
  std::vector<double> came(2 * mine.size());
  finish([&] { return comm.all_to_all_v(in_order, counts, came, received); });
  EXPECT_EQ(came, std::vector<double>(came.size(), rank + 1.0));
}

void expect_sent(const ivy_message& message, int source, int tag, std::size_t bytes) {
  EXPECT_EQ(message.source, source);
  EXPECT_EQ(message.tag, tag);
  EXPECT_EQ(message.bytes, bytes);
}

TEST(CplusplusTest, RunsEveryFunctionBlockingAndAsWork) {
  expect_ok(run_world(one_host(2), [](int) {
    ivycomm::World world;
    ASSERT_EQ(world.size(), 2);
    const ivycomm::Communicator plain = world;
    reduce_everything(plain);
    reduce_everything(world.start());
    move_everything(plain);
    move_everything(world.start());
    move_uneven_parts(plain);
    move_uneven_parts(world.within(seconds(30)).start());
    std::vector<std::complex<float>> c(1, {1, 2});
    world.start_all_reduce(c).wait();
    EXPECT_EQ(c[0], (std::complex<float>{2, 4}));
    Floats x(3, 1);
    world.scaled(world.rank() + 0.5).all_reduce(x, IVY_PREMUL_SUM);
    EXPECT_EQ(x, Floats(3, 2));
    ivycomm::RegisteredBuffer<float> registered(world.handle(), 3);
    registered[1] = 1;
    world.all_reduce(registered);
    EXPECT_EQ(registered[1], 2);
  }));
}

TEST(CplusplusTest, SendsAndReceivesMessages) {
  expect_ok(run_world(one_host(2), [](int rank) {
    ivycomm::World world;
    const int other = 1 - rank;
    Floats got(4);
    if (rank == 0) {
      world.send(Floats(4, 7), other, 5);
      expect_sent(world.recv(got, other), other, 0, 3 * sizeof(float));
    } else {
      expect_sent(world.recv(got, other, 5), other, 5, 4 * sizeof(float));
      EXPECT_EQ(got, Floats(4, 7));
      world.send(Floats(3, 8), other);
    }
    const std::vector<int> mine = {rank};
    std::vector<int> theirs = {-1};
    expect_sent(world.sendrecv(mine, other, theirs, other, 3, 3), other, 3, sizeof(int));
    EXPECT_EQ(theirs[0], other);
    theirs[0] = -1;
    ivycomm::Work receiving = world.start().recv(theirs, other, 9);
    ivycomm::Work sending = world.start().send(mine, other, 9);
    sending.wait();
    EXPECT_TRUE(receiving.wait(seconds(30)));
    expect_sent(receiving.message(), other, 9, sizeof(int));
    EXPECT_EQ(theirs[0], other);
    EXPECT_TRUE(sending.test());
    EXPECT_GE(sending.timing().ran, 0);
  }));
}

TEST(CplusplusTest, MakesGroupsAndDescribesCommunicators) {
  expect_ok(run_world(Hosts{2, 1}, [](int rank) {
    ivycomm::World world;
    EXPECT_EQ(world.rank(), rank);
    EXPECT_EQ(world.local_rank(), rank % 2);
    EXPECT_EQ(world.local_size(), rank == 2 ? 1 : 2);
    EXPECT_EQ(world.node_rank(), rank / 2);
    EXPECT_EQ(world.node_count(), 2);
    EXPECT_EQ(world.name(), "world");
    EXPECT_NE(world.source().find("IVY_RANK"), std::string_view::npos) << world.source();
    std::optional<ivycomm::Group> ends = ivycomm::group(world, std::array{2, 0});
    ASSERT_EQ(ends.has_value(), rank != 1);
    if (ends) {
      EXPECT_EQ(ends->world_rank(0), 2);
      ivycomm::Group moved = std::move(*ends);
      EXPECT_EQ(moved.rank(), rank == 2 ? 0 : 1);
      moved.barrier();
    }
    std::optional<ivycomm::Group> halves = ivycomm::split(world, rank == 1 ? -1 : 0, -rank);
    EXPECT_EQ(halves.has_value(), rank != 1);
  }));
}

template <class Body>
int code_of(Body body) {
  try {
    body();
  } catch (const ivycomm::Error& error) {
    EXPECT_STRNE(error.what(), "");
    return error.code();
  }
  return IVY_OK;
}

TEST(CplusplusTest, ThrowsOnFailures) {
  expect_ok(run_world(one_host(2), [](int rank) {
    ivycomm::World world;
    Floats x(3);
    EXPECT_EQ(code_of([&] { world.broadcast(x, 2); }), IVY_INVALID_ARGUMENT);
    EXPECT_THROW(world.all_gather(x, x), std::invalid_argument);
    EXPECT_THROW(world.all_gather_v(x, x, Counts{3}), std::invalid_argument);
    std::optional<ivycomm::Group> group = ivycomm::split(world, 0);
    if (rank == 0) {
      const auto late = [&] { group->within(scaled_time(milliseconds(50))).all_reduce(x); };
      EXPECT_EQ(code_of(late), IVY_DEADLINE_EXCEEDED);
      EXPECT_EQ(last_failure().rank, 1);
    }
    world.barrier();
    std::optional<ivycomm::Group> other = ivycomm::split(world, 0);
    world.barrier();
    if (rank == 0) other->abort("the test wants it");
    EXPECT_EQ(code_of([&] { other->barrier(); }), IVY_CANCELLED);
    ivycomm::Work work = world.start().barrier();
    work.wait();
    work.abort();  // Has no effect on finished work.
    world.barrier();
  }));
}

}  // namespace
}  // namespace ivy::comm::test
