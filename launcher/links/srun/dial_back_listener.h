// SPDX-License-Identifier: Apache-2.0
// The listener to which hosts dial back: listens on a few addresses, admits peers that prove to
// know a key of the job, and reports which host each of them is. Until a peer has proved that, its
// connection is *half open*. Half-open connections are limited in number and time, and rejected
// peers are reported.
//
// Thread: the loop's. Lifetime: until close(), after which nothing is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/srun/dial_back_stream.h"

namespace ivy {

// A key that peers can prove to know.
struct DialKey {
  std::string identity;  // Names the key, unencrypted.
  std::string key;       // kDialKeyBytes long. Empty: no peer is admitted by it.
};

struct DialKeys {
  DialKey hosts;  // For ivy-node, which dials with transports and signals.
  DialKey join;   // For the ivyruns of other nodes, in torchrun mode.
};

struct DialBackListenerSettings {
  std::vector<std::string> addresses;  // Numeric addresses to listen on; at least one.
  // Range of the ports. The highest free one is used, because MASTER_PORT is taken from the low
  // end. 0: any port.
  std::uint16_t port_low = 0;
  std::uint16_t port_high = 0;
  DialKeys keys;
  // For messages: the expected peers, and the advice if listening fails.
  std::string awaited = "the step's hosts";
  std::string fix =
      "choose free ports with --port-range A-B, or another interface with --iface NAME";
};

// Implemented by the owner of a listener.
class DialBackListenerEvents {
 public:
  // A host has connected, for a transport.
  virtual void host_dialled(std::uint32_t host, std::shared_ptr<DialBackStream> stream) = 0;
  // A host reports a signal.
  virtual void signal_reported(const DialGreeting& greeting) = 0;
  // The ivyrun of another node, which claims this node rank. Not called without a key for joining.
  virtual void node_dialled(std::uint32_t rank, std::shared_ptr<DialBackStream> stream) = 0;
  // Called once for each address and reason.
  virtual void peer_rejected(const std::string& address, const std::string& why) = 0;

 protected:
  ~DialBackListenerEvents() = default;
};

class DialBackListener : public std::enable_shared_from_this<DialBackListener> {
 public:
  // Limit of half-open connections. For a further one, the oldest connection of the address that
  // has the most is closed.
  static constexpr std::size_t kMaxHalfOpen = 256;
  static constexpr std::chrono::seconds kHalfOpenTime{5};

  // Starts to listen. An error names the address and the last port that was tried.
  static Result<std::shared_ptr<DialBackListener>> open(boost::asio::io_context& loop,
                                                        const DialBackListenerSettings& settings,
                                                        DialBackListenerEvents& events);
  DialBackListener(const DialBackListener&) = delete;
  DialBackListener& operator=(const DialBackListener&) = delete;

  const std::vector<DialAddress>& addresses() const { return addresses_; }
  // For messages: the addresses in one text, such as "10.0.0.1:41234".
  std::string listening_text() const;
  void close();

 private:
  struct HalfOpen {
    std::uint64_t number = 0;
    std::shared_ptr<DialBackStream> stream;
    std::uint64_t since_ns = 0;
  };

  DialBackListener(boost::asio::io_context& loop, DialBackListenerEvents& events);
  // True if the key of the stream permits this kind of greeting.
  bool may_greet(const DialGreeting& greeting, const DialBackStream& stream) const;
  Result<void> listen(const std::string& address, const DialBackListenerSettings& settings);
  void accept(std::size_t listener);
  void enter(boost::asio::ip::tcp::socket socket);
  std::list<HalfOpen>::iterator oldest_of_busiest_address();
  void greeted(std::uint64_t number, const Result<DialGreeting>& greeting);
  void close_expired_half_open();
  void report_rejected(const std::string& address, const std::string& why);

  boost::asio::io_context& loop_;
  DialBackListenerEvents& events_;
  std::string join_identity_;
  std::unique_ptr<PskTls> tls_;
  std::vector<boost::asio::ip::tcp::acceptor> listeners_;
  std::vector<DialAddress> addresses_;
  std::list<HalfOpen> half_open_;  // The oldest first.
  std::vector<std::string> reported_;
  boost::asio::steady_timer timer_;
  std::uint64_t next_number_ = 0;
  bool is_closed_ = false;
};

}  // namespace ivy
