// The listener of rank 0's private store, opened before the store is started, so that an address
// that is not available is an error in the process that asked for it.
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

class Door {
 public:
  // Opens it where the bootstrap of `identity` wants it. AlreadyExists: another program has the
  // port, also after a moment; Unavailable: the address is not this host's.
  static Result<Door> open(const Identity& identity, std::chrono::steady_clock::time_point end);
  Door(Door&& other) noexcept { *this = std::move(other); }
  Door& operator=(Door&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(own_, other.own_);
    std::swap(addresses_, other.addresses_);
    return *this;
  }
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  int socket() const { return socket_; }
  // With ports: where rank 0 itself finds it, and where the others may, the most likely first.
  const std::string& own() const { return own_; }
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  Door() = default;
  static Result<Door> at(const std::string& address, std::uint16_t port);
  static Result<Door> everywhere(std::uint16_t port);
  static Result<Door> where_told(const Identity& identity);
  static Result<Door> at_address(const Identity& identity,
                                 std::chrono::steady_clock::time_point end);
  static Result<Door> towards(const Identity& identity);

  int socket_ = -1;
  std::string own_;
  std::vector<std::string> addresses_;
};

}  // namespace ivy::comm
