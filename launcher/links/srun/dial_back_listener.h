// SPDX-License-Identifier: Apache-2.0
// The listener that hosts of a srun step dial back to: listens on a few addresses, admits peers
// that prove to know the step's key, and hands over which host each one is. Other peers cost a
// bounded number of descriptors for a bounded time, and are named.
//
// Thread: the loop's. Lifetime: until close(), after which nothing is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/srun/dial_back_stream.h"

namespace ivy {

struct DialKey {
  std::string identity;  // Names the key in clear.
  std::string key;       // kDialKeyBytes long; empty: it admits no client.
};

struct DialKeys {
  DialKey hosts;  // For ivy-node, which brings transports and signals.
  DialKey join;   // For other nodes' ivyrun, in torchrun mode.
};

struct DialBackListenerSettings {
  std::vector<std::string> addresses;  // Numeric addresses, at least one of them.
  // Ports that may be used, the highest first: MASTER_PORT is taken from the other end. 0: any.
  std::uint16_t port_low = 0;
  std::uint16_t port_high = 0;
  DialKeys keys;
  // For messages: who is to connect, and what to do when we cannot listen.
  std::string awaited = "the step's hosts";
  std::string fix = "--port-range A-B names ports that are free, --iface NAME another interface";
};

class DialBackListener : public std::enable_shared_from_this<DialBackListener> {
 public:
  struct Handlers {
    std::function<void(std::uint32_t host, std::shared_ptr<DialBackStream>)> transport;
    std::function<void(const DialGreeting&)> signal;
    // Another node's ivyrun, which says that it has this node rank.
    std::function<void(std::uint32_t rank, std::shared_ptr<DialBackStream>)> join = {};
    // A peer that is not a host of the step; called once for each address and reason.
    std::function<void(const std::string& address, const std::string& why)> rejected;
  };

  // Connections that have proved nothing yet: beyond these, the oldest one of the address with the
  // most of them is dropped.
  static constexpr std::size_t kMostHalfOpen = 256;
  static constexpr std::chrono::seconds kHalfOpenTime{5};

  // Listens. Unavailable names the address and the ports.
  static Result<std::shared_ptr<DialBackListener>> open(boost::asio::io_context& loop,
                                                        const DialBackListenerSettings& settings,
                                                        Handlers handlers);
  DialBackListener(const DialBackListener&) = delete;
  DialBackListener& operator=(const DialBackListener&) = delete;

  const std::vector<DialAddress>& addresses() const { return addresses_; }
  // For people: "10.0.0.1:41234", one word for each.
  std::string listening_text() const;
  void close();

 private:
  struct HalfOpen {
    std::uint64_t number = 0;
    std::shared_ptr<DialBackStream> stream;
    std::uint64_t since_ns = 0;
  };

  DialBackListener(boost::asio::io_context& loop, Handlers handlers);
  bool may_greet(const DialGreeting& greeting, const DialBackStream& stream) const;
  Result<void> listen(const std::string& address, const DialBackListenerSettings& settings);
  void accept(std::size_t listener);
  void enter(boost::asio::ip::tcp::socket socket);
  std::list<HalfOpen>::iterator oldest_of_the_fullest_address();
  void greeted(std::uint64_t number, const Result<DialGreeting>& greeting);
  void drop_late();
  void report_rejected(const std::string& address, const std::string& why);

  boost::asio::io_context& loop_;
  Handlers handlers_;
  std::string join_identity_;
  std::unique_ptr<PskTls> tls_;
  std::vector<boost::asio::ip::tcp::acceptor> listeners_;
  std::vector<DialAddress> addresses_;
  std::list<HalfOpen> half_open_;  // The oldest comes first.
  std::vector<std::string> reported_;
  boost::asio::steady_timer timer_;
  std::uint64_t next_number_ = 0;
  bool is_closed_ = false;
};

}  // namespace ivy
