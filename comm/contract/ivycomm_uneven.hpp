// SPDX-License-Identifier: Apache-2.0
// Collectives whose parts may differ in length from rank to rank. ivycomm.h defines each of them.
#pragma once

#include <ivycomm_collectives.hpp>

namespace ivycomm {

template <class Result>
class UnevenCollectives : public Collectives<Result> {
  using Base = Collectives<Result>;

 protected:
  using Base::comm_, Base::expect, Base::memory, Base::ranks, Base::run, Base::type;

 public:
  using Base::Base, Base::rank;

  // `send` is this rank's part, `recv` holds all parts; `parts` is the same on all ranks.
  template <Buffer Send, Buffer Recv>
  Result all_gather_v(Send&& send, Recv&& recv, const Parts& parts) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(parts.are_of(ranks()) && from.size() == parts.count_of(rank()) &&
           to.size() >= parts.extent());
    return run([&](const ivy_call* how) {
      return ivy_all_gather_v(comm_, from.data(), to.data(), parts.counts(), parts.displacements(),
                              type(from, to), how);
    });
  }
  // `send` holds all parts back to back, `recv` is this rank's part; `parts` is the same on all
  // ranks.
  template <Buffer Send, Buffer Recv>
  Result reduce_scatter_v(Send&& send, Recv&& recv, const Parts& parts, ivy_op op = IVY_SUM) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(parts.are_of(ranks()) && parts.displacements() == nullptr &&
           from.size() == parts.extent() && to.size() == parts.count_of(rank()));
    return run([&](const ivy_call* how) {
      return ivy_reduce_scatter_v(comm_, from.data(), to.data(), parts.counts(), type(from, to), op,
                                  how);
    });
  }
  // `recv` and `parts` are used at the root only; `send` is this rank's part.
  template <Buffer Send, Buffer Recv>
  Result gather_v(Send&& send, Recv&& recv, const Parts& parts, int root) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(rank() != root || (parts.are_of(ranks()) && from.size() == parts.count_of(root) &&
                              to.size() >= parts.extent()));
    return run([&](const ivy_call* how) {
      return ivy_gather_v(comm_, from.data(), from.size(), to.data(), parts.counts(),
                          parts.displacements(), type(from, to), root, how);
    });
  }
  // `send` and `parts` are used at the root only; `recv` is this rank's part.
  template <Buffer Send, Buffer Recv>
  Result scatter_v(Send&& send, Recv&& recv, const Parts& parts, int root) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(rank() != root || (parts.are_of(ranks()) && to.size() == parts.count_of(root) &&
                              from.size() >= parts.extent()));
    return run([&](const ivy_call* how) {
      return ivy_scatter_v(comm_, from.data(), parts.counts(), parts.displacements(), to.data(),
                           to.size(), type(from, to), root, how);
    });
  }
  // `sent` describes the parts for each rank, `received` the parts from each rank.
  template <Buffer Send, Buffer Recv>
  Result all_to_all_v(Send&& send, const Parts& sent, Recv&& recv, const Parts& received) {
    const auto from = memory(std::forward<Send>(send));
    const auto to = memory(std::forward<Recv>(recv));
    expect(sent.are_of(ranks()) && received.are_of(ranks()) && from.size() >= sent.extent() &&
           to.size() >= received.extent());
    return run([&](const ivy_call* how) {
      return ivy_all_to_all_v(comm_, from.data(), sent.counts(), sent.displacements(), to.data(),
                              received.counts(), received.displacements(), type(from, to), how);
    });
  }
};

}  // namespace ivycomm
