// Finds all addresses of a name, for carriers whose connection a library opens and which dial each
// one in turn. Thread: the loop's (the name is looked up on another thread). Lifetime: held by
// shared pointers of what is pending; after cancel() nothing is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/contract/status.h"

namespace ivy {

class AddressLookup : public std::enable_shared_from_this<AddressLookup> {
 public:
  // Numeric, each once, in the resolver's order; at least one. Unavailable: there is none, or the
  // name server was silent for 5 s.
  using Found = std::function<void(const Result<std::vector<std::string>>&)>;

  explicit AddressLookup(boost::asio::io_context& loop) : loop_(loop), timer_(loop) {}
  // Calls back once, from the loop.
  void start(boost::asio::thread_pool& resolvers, const std::string& name, Found found);
  void cancel();

 private:
  void finish(const Result<std::vector<std::string>>& addresses);

  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  Found found_;
};

// True for a numeric address, which needs no look-up, nor the threads for one.
bool is_numeric_address(const std::string& name);

// Our own numeric address on the route to that one; empty when there is no route. Sends nothing.
std::string own_address_towards(const std::string& numeric);

}  // namespace ivy
