// SPDX-License-Identifier: Apache-2.0
// Calls each collective on one rank and checks its results.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tests/comm/matrix_data.h"

namespace ivy::comm::test {

struct Case {
  Kind kind;
  std::size_t count = 0;
  BufferMode mode = BufferMode::kOut;
  bool has_gaps = false;  // For the *_v calls: displacements with gaps, in reverse order.

  std::size_t element() const { return kind.element(); }
  int type() const { return static_cast<int>(kind.dtype); }
  int reduction() const { return static_cast<int>(kind.op); }
};

// Blocks of all ranks in one buffer, in elements.
struct Layout {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> begins;
  std::size_t extent = 0;
  std::size_t gap = 0;  // Before each block.

  // Displacements to pass to the library, or null if the blocks are adjacent.
  const std::size_t* displacements() const { return gap > 0 ? begins.data() : nullptr; }
  std::size_t count(int rank) const { return counts[static_cast<std::size_t>(rank)]; }
  std::size_t begin(int rank) const { return begins[static_cast<std::size_t>(rank)]; }
  std::size_t before(int rank) const;  // Returns the number of elements of lower ranks.
};

class Caller {
 public:
  // Failures are reported as test failures. A broken communicator also sets `is_ok` to false.
  Caller(ivy_comm* comm, const Hosts& hosts, bool* is_ok);

  // From now on, calls start works. settle() waits for them, the last one first, and checks them.
  void begin_works() { makes_works_ = true; }
  void settle();

  void all_reduce(const Case& c, int root);
  void reduce(const Case& c, int root);
  void broadcast(const Case& c, int root);
  void all_gather(const Case& c, int root);
  void all_gather_v(const Case& c, int root);
  void reduce_scatter(const Case& c, int root);
  void reduce_scatter_v(const Case& c, int root);
  void gather(const Case& c, int root);
  void gather_v(const Case& c, int root);
  void scatter(const Case& c, int root);
  void scatter_v(const Case& c, int root);
  void all_to_all(const Case& c, int root);
  void all_to_all_v(const Case& c, int root);
  void scan(const Case& c, int root);
  void exscan(const Case& c, int root);
  void coalesced(const Case& c, int root);
  void barrier();

  bool is_ok() const { return *is_ok_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  // Shared by the call and its check.
  struct Buffers {
    Buffer send;
    Buffer receive;
  };
  using Both = std::shared_ptr<Buffers>;
  struct Pending {
    ivy_work* work;
    std::function<void(int code)> check;
  };

  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  const Bytes& input(int rank, const Case& c) { return expected_.input(rank, c.kind); }
  const Bytes& own(const Case& c) { return input(rank_, c); }
  // Allocates buffers of these sizes. The send buffer contains this rank's elements.
  Both make(const Case& c, std::size_t send, std::size_t receive);
  Both make_empty(const Case& c, std::size_t send, std::size_t receive);
  Layout uneven(const Case& c) const;
  Layout exchanged(const Case& c, bool gives) const;
  bool holds_all(Buffer& buffer, const Case& c, const Layout& layout);

  const ivy_call* how();
  void look(const char* operation, const Case& c, int code, const Both& buffers,
            std::function<bool()> is_right);

  ivy_comm* const comm_;
  const int rank_;
  const int size_;
  bool* const is_ok_;
  Expected expected_;
  bool makes_works_ = false;
  ivy_call call_ = {};
  ivy_work* work_ = nullptr;
  std::vector<Pending> pending_;
};

// The table of all calls.
struct MatrixCall {
  const char* name;
  bool reduces;
  void (Caller::*call)(const Case& c, int root);
};
std::span<const MatrixCall> matrix_calls();

}  // namespace ivy::comm::test
