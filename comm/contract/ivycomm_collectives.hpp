// SPDX-License-Identifier: Apache-2.0
// The collectives of a communicator, in a blocking form (Result is void) and an asynchronous one
// (Result is Work). ivycomm.h defines each of them. Counts are numbers of elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ivycomm_work.hpp>
#include <numeric>
#include <ranges>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace ivycomm {

// Anything that std::span can be made of: a vector, an array, a RegisteredBuffer, a span.
template <class T>
concept Buffer = requires(T& buffer) {
  std::span(buffer);
};

// The part of a buffer that belongs to each rank: its length, and its start (empty: parts are
// stored back to back). The spans are used only during the call.
class Parts {
 public:
  template <Buffer Counts>
  Parts(const Counts& counts) : counts_(counts) {}  // NOLINT: counts alone are parts.
  template <Buffer Counts, Buffer Begins>
  Parts(const Counts& counts, const Begins& begins) : counts_(counts), begins_(begins) {}

  const std::size_t* counts() const { return counts_.data(); }
  const std::size_t* displacements() const { return begins_.empty() ? nullptr : begins_.data(); }
  std::size_t count_of(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }
  // Returns the number of elements of a buffer that holds all parts.
  std::size_t extent() const {
    if (begins_.empty()) return std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
    std::size_t extent = 0;
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) {
      extent = std::max(extent, begins_[rank] + counts_[rank]);
    }
    return extent;
  }
  bool are_of(std::size_t ranks) const {
    return counts_.size() == ranks && (begins_.empty() || begins_.size() == ranks);
  }

 private:
  std::span<const std::size_t> counts_;
  std::span<const std::size_t> begins_;
};

// Calls on a communicator with one set of options, either blocking or asynchronous.
template <class Result>
class Calls {
 public:
  explicit Calls(ivy_comm* comm,
                 const ivy_call& how = {sizeof(ivy_call), 0, nullptr, 1, nullptr, 0})
      : comm_(comm), how_(how) {}

  ivy_comm* handle() const { return comm_; }
  int rank() const { return ivy_comm_rank(comm_); }
  int size() const { return ivy_comm_size(comm_); }

 protected:
  template <class Body>
  Result run(Body body) {
    if constexpr (std::is_void_v<Result>) {
      check(body(&how_));
    } else {
      ivy_work* work = nullptr;
      ivy_call how = how_;
      how.work = &work;
      check(body(&how));
      return Result(work);
    }
  }
  // Returns the buffer as a span. Rejects temporaries that an asynchronous operation would outlive.
  template <class B>
  static auto memory(B&& buffer) {
    static_assert(
        std::is_void_v<Result> || std::is_lvalue_reference_v<B> || std::ranges::borrowed_range<B>,
        "the buffer of an asynchronous operation must outlive the call");
    return std::span(buffer);
  }
  template <class T, std::size_t Extent>
  static constexpr int type(const std::span<T, Extent>&) {
    static_assert(kDtype<std::remove_const_t<T>> >= 0,
                  "libivycomm has no such element type; specialise kDtype");
    return kDtype<std::remove_const_t<T>>;
  }
  template <class From, class To>
  static constexpr int type(const From& from, const To&) {
    static_assert(!std::is_const_v<typename To::element_type>,
                  "the operation writes to this buffer, so it must not be const");
    static_assert(std::is_same_v<typename From::value_type, typename To::value_type>,
                  "both buffers must have the same element type");
    return type(from);
  }
  // Calls a function of the C interface that takes two buffers, a count, a type and other
  // arguments. Both buffers may be the same: the operation then works in place.
  template <class Function, class From, class To, class... Others>
  Result pass(Function function, const From& from, const To& to, std::size_t count,
              Others... others) {
    return run([&](const ivy_call* how) {
      return function(comm_, from.data(), to.data(), count, type(from, to), others..., how);
    });
  }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  static void expect(bool is_so) {
    if (!is_so) throw std::invalid_argument("ivycomm: a buffer or counts of the wrong length");
  }

  ivy_comm* comm_;
  ivy_call how_;
};

template <class Result>
class Collectives : public Calls<Result> {
  using Base = Calls<Result>;

 protected:
  using Base::comm_, Base::expect, Base::memory, Base::pass, Base::ranks, Base::run, Base::type;

 public:
  using Base::Base, Base::rank;

  Result barrier() {
    return run([&](const ivy_call* how) { return ivy_barrier(comm_, how); });
  }
  // In place: all_reduce(buffer, op), scan(buffer, op) and exscan(buffer, op).
#define IVY_COMBINING(function, ...)                          \
  template <Buffer B>                                         \
  Result function(B&& buffer, ivy_op op = IVY_SUM) {          \
    const auto data = memory(std::forward<B>(buffer));        \
    return pass(ivy_##function, data, data, data.size(), op); \
  }
#include "ivycomm_operations.def"
  template <Buffer Send, Buffer Recv>
  Result all_reduce(Send&& send, Recv&& recv, ivy_op op = IVY_SUM) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(from.size() == to.size());
    return pass(ivy_all_reduce, from, to, to.size(), op);
  }
  // Reduces several buffers of one type in place, as one operation. `buffers` is, for example, a
  // std::vector<std::span<float>>.
  template <class Buffers>
  Result all_reduce_coalesced(Buffers&& buffers, ivy_op op = IVY_SUM) {
    using Span = decltype(std::span(*std::begin(buffers)));
    std::vector<void*> to;
    std::vector<std::size_t> counts;
    for (auto& buffer : buffers) {
      const Span data(buffer);
      to.push_back(data.data());
      counts.push_back(data.size());
    }
    const std::vector<const void*> from(to.size(), IVY_IN_PLACE);
    return run([&](const ivy_call* how) {
      return ivy_all_reduce_coalesced(comm_, to.size(), from.data(), to.data(), counts.data(),
                                      type(Span(), Span()), op, how);
    });
  }
  // In place at the root.
  template <Buffer B>
  Result reduce(B&& buffer, int root, ivy_op op = IVY_SUM) {
    const auto data = memory(std::forward<B>(buffer));
    const bool is_root = rank() == root;
    return run([&](const ivy_call* how) {
      return ivy_reduce(comm_, is_root ? IVY_IN_PLACE : data.data(),
                        is_root ? data.data() : nullptr, data.size(), type(data, data), op, root,
                        how);
    });
  }
  template <Buffer B>
  Result broadcast(B&& buffer, int root) {
    const auto data = memory(std::forward<B>(buffer));
    return run([&](const ivy_call* how) {
      return ivy_broadcast(comm_, data.data(), data.size(), type(data, data), root, how);
    });
  }
  // `recv` holds size() times as many elements as `send`.
  template <Buffer Send, Buffer Recv>
  Result all_gather(Send&& send, Recv&& recv) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(from.size() * ranks() == to.size());
    return pass(ivy_all_gather, from, to, from.size());
  }
  // `send` holds size() times as many elements as `recv`.
  template <Buffer Send, Buffer Recv>
  Result reduce_scatter(Send&& send, Recv&& recv, ivy_op op = IVY_SUM) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(to.size() * ranks() == from.size());
    return pass(ivy_reduce_scatter, from, to, to.size(), op);
  }
  // `recv` is used at the root only.
  template <Buffer Send, Buffer Recv>
  Result gather(Send&& send, Recv&& recv, int root) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(rank() != root || from.size() * ranks() == to.size());
    return pass(ivy_gather, from, to, from.size(), root);
  }
  // `send` is used at the root only.
  template <Buffer Send, Buffer Recv>
  Result scatter(Send&& send, Recv&& recv, int root) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(rank() != root || to.size() * ranks() == from.size());
    return pass(ivy_scatter, from, to, to.size(), root);
  }
  template <Buffer Send, Buffer Recv>
  Result all_to_all(Send&& send, Recv&& recv) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(from.size() == to.size() && to.size() % ranks() == 0);
    return pass(ivy_all_to_all, from, to, to.size() / ranks());
  }
};

}  // namespace ivycomm
