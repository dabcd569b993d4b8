// SPDX-License-Identifier: Apache-2.0
// The listener of rank 0's private store. It is opened before the store is started, so that an
// address that is not available is an error in the process that requested it.
//
// Thread: any. Lifetime: closes the socket; the store has a copy.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "comm/join/identity.h"
#include "proto/contract/status.h"

namespace ivy::comm {

class StoreListener {
 public:
  // Opens the listener according to the bootstrap of `identity`. Fails with AlreadyExists if
  // another program holds the port, even after a short wait, and with Unavailable if the address is
  // not this host's.
  static Result<StoreListener> open(const Identity& identity,
                                    std::chrono::steady_clock::time_point end);
  StoreListener(StoreListener&& other) noexcept { *this = std::move(other); }
  StoreListener& operator=(StoreListener&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(own_, other.own_);
    std::swap(addresses_, other.addresses_);
    return *this;
  }
  ~StoreListener();
  StoreListener(const StoreListener&) = delete;
  StoreListener& operator=(const StoreListener&) = delete;

  int socket() const { return socket_; }
  // Both have ports: the address at which rank 0 itself finds it, and the addresses for the others,
  // the most likely first.
  const std::string& own() const { return own_; }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  StoreListener() = default;
  static Result<StoreListener> at(const std::string& address, std::uint16_t port);
  static Result<StoreListener> everywhere(std::uint16_t port);
  static Result<StoreListener> at_given_host(const Identity& identity);
  static Result<StoreListener> at_address(const Identity& identity,
                                          std::chrono::steady_clock::time_point end);
  static Result<StoreListener> towards(const Identity& identity);

  int socket_ = -1;
  std::string own_;
  std::vector<std::string> addresses_;
};

}  // namespace ivy::comm
