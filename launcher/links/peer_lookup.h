// Finds the addresses by which a host is reached when another program opens the connection (an ssh
// client): the first address of its name, and our own address on the way to it. Sends nothing.
// Thread: the loop's (the name is looked up on another thread).
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>

namespace ivy {

struct PeerAddresses {
  std::string
      peer;  // Numeric; empty when the name has no address here (it lies behind a jump host).
  std::string local;
};

class PeerLookup : public std::enable_shared_from_this<PeerLookup> {
 public:
  explicit PeerLookup(boost::asio::io_context& loop) : loop_(loop), timer_(loop) {}
  // Calls back once from the loop, with nothing known after 5 s.
  void start(boost::asio::thread_pool& resolvers, const std::string& host,
             std::function<void(const PeerAddresses&)> found);
  void cancel();

 private:
  void finish(const PeerAddresses& addresses);

  boost::asio::io_context& loop_;
  boost::asio::steady_timer timer_;
  std::function<void(const PeerAddresses&)> found_;
};

}  // namespace ivy
