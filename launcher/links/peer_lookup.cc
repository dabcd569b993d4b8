#include "launcher/links/peer_lookup.h"

#include <boost/asio/ip/udp.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "launcher/links/tcp_dial.h"

namespace ivy {
namespace asio = boost::asio;
using udp = asio::ip::udp;

namespace {

// Connecting a UDP socket asks the routing table and sends nothing; the port is never used.
constexpr const char* kAnyPort = "9";

PeerAddresses look_up(const std::string& host) {
  PeerAddresses addresses;
  asio::io_context here;
  udp::resolver resolver(here);
  boost::system::error_code error;
  for (const auto& entry : resolver.resolve(host, kAnyPort, error)) {
    udp::socket socket(here);
    socket.connect(entry.endpoint(), error);
    if (error) continue;
    addresses.peer = numeric_address(entry.endpoint().address());
    addresses.local = numeric_address(socket.local_endpoint(error).address());
    break;
  }
  return addresses;
}

}  // namespace

void PeerLookup::start(asio::thread_pool& resolvers, const std::string& host,
                       std::function<void(const PeerAddresses&)> found) {
  found_ = std::move(found);
  timer_.expires_after(TcpDial::Limits{}.resolve);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error) self->finish({});
  });
  asio::post(resolvers,
             [self = weak_from_this(), host, &loop = loop_, work = asio::make_work_guard(loop_)] {
               const PeerAddresses addresses = look_up(host);
               asio::post(loop, [self, addresses] {
                 if (const auto alive = self.lock()) alive->finish(addresses);
               });
             });
}

void PeerLookup::cancel() {
  found_ = {};
  timer_.cancel();
}

void PeerLookup::finish(const PeerAddresses& addresses) {
  timer_.cancel();
  if (found_) std::exchange(found_, {})(addresses);
}

}  // namespace ivy
