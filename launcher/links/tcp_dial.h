// From a name and a port to a connected TCP socket: every address is tried, each wait has a bound.
// Thread: the loop's (names are looked up on another thread). Lifetime: held by shared pointers of
// its pending operations; after cancel() nothing is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"

namespace ivy {

struct Dialled {
  int fd = -1;                // Connected, non-blocking; the receiver owns it.
  std::string peer_address;   // Numeric.
  std::string local_address;  // Numeric.
};

class TcpDial : public std::enable_shared_from_this<TcpDial> {
 public:
  struct Handlers {
    std::function<void(const Dialled&)> connected;
    std::function<void(const LinkDown&)> failed;  // kUnresolved, kUnreachable or kRefused.
  };
  struct Limits {
    // A name server that has not answered by then does not answer.
    std::chrono::milliseconds resolve{5'000};
    // One address; less when there are others to try.
    std::chrono::milliseconds connect{10'000};
    std::chrono::milliseconds connect_of_many{3'000};
  };
  TcpDial(boost::asio::io_context& loop, boost::asio::thread_pool& resolvers, Limits limits);

  void start(const std::string& host, std::uint16_t port, Handlers handlers);
  void cancel();

  // Addresses tried of a name that has more.
  static constexpr std::size_t kMaxAddresses = 8;

 private:
  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;
  void resolve();
  void resolved(const boost::system::error_code& error, Endpoints endpoints);
  void try_next();
  void tried(const boost::system::error_code& error);
  void finish();
  void fail(LinkFailure failure, const std::string& message, const std::string& fix);
  void give_up();
  void set_timer(std::chrono::milliseconds limit, std::function<void()> expired);

  boost::asio::io_context& loop_;
  boost::asio::thread_pool& resolvers_;
  const Limits limits_;
  std::string host_;
  std::uint16_t port_ = 0;
  Handlers handlers_;
  boost::asio::steady_timer timer_;
  boost::asio::ip::tcp::socket socket_;
  Endpoints endpoints_;
  std::size_t next_ = 0;
  bool timed_out_ = false;
  bool refused_ = false;
  bool over_ = false;
  std::string failures_;
};

// Numeric address of an endpoint, IPv4 written as IPv4.
std::string numeric_address(const boost::asio::ip::address& address);

}  // namespace ivy
