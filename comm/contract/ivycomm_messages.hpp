// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a communicator. ivycomm.h defines tags, order and lengths.
#pragma once

#include <ivycomm_uneven.hpp>

namespace ivycomm {

template <class Result>
class Messages : public UnevenCollectives<Result> {
  using Base = UnevenCollectives<Result>;

 protected:
  using Base::comm_, Base::how_, Base::memory, Base::run, Base::type;
  static constexpr bool kWaits = std::is_void_v<Result>;

 public:
  using Base::Base;

  template <Buffer B>
  Result send(B&& buffer, int to, int tag = 0) {
    const auto data = memory(std::forward<B>(buffer));
    return run([&](const ivy_call* how) {
      return ivy_send(comm_, data.data(), data.size(), type(data), to, tag, how);
    });
  }
  // The blocking form returns the source, the tag and the size in bytes; the asynchronous form
  // returns a Work, whose message() returns them.
  template <Buffer B>
  auto recv(B&& buffer, int from = IVY_ANY_SOURCE, int tag = IVY_ANY_TAG) {
    const auto data = memory(std::forward<B>(buffer));
    ivy_message message{sizeof message, 0, 0, 0};
    const auto body = [&](const ivy_call* how) {
      return ivy_recv(comm_, data.data(), data.size(), type(data, data), from, tag,
                      kWaits ? &message : nullptr, how);
    };
    if constexpr (kWaits) {
      run(body);
      return message;
    } else {
      return run(body);
    }
  }
  // Sends and receives at the same time; blocking form only.
  template <Buffer Send, Buffer Recv>
  ivy_message sendrecv(Send&& send, int to, Recv&& recv, int from = IVY_ANY_SOURCE,
                       int send_tag = 0, int recv_tag = IVY_ANY_TAG) requires(kWaits) {
    const auto sent = memory(std::forward<Send>(send));
    const auto received = memory(std::forward<Recv>(recv));
    ivy_message message{sizeof message, 0, 0, 0};
    check(ivy_sendrecv(comm_, sent.data(), sent.size(), to, send_tag, received.data(),
                       received.size(), from, recv_tag, type(sent, received), &message, &how_));
    return message;
  }
};

}  // namespace ivycomm
