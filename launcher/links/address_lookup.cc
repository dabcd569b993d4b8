#include "launcher/links/address_lookup.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "launcher/links/tcp_dial.h"

namespace ivy {
namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using udp = asio::ip::udp;
using Addresses = std::vector<std::string>;

namespace {

// Connecting a UDP socket asks the routing table and sends nothing; the port is never used.
constexpr std::uint16_t kAnyPort = 9;

Error no_address(const std::string& name, const std::string& why) {
  return {Code::kUnavailable, "cannot resolve " + name + ": " + why,
          "check the spelling, or: getent hosts " + name};
}

Result<Addresses> look_up(const std::string& name) {
  asio::io_context here;
  tcp::resolver resolver(here);
  boost::system::error_code error;
  Addresses addresses;
  for (const auto& entry : resolver.resolve(name, "", error)) {
    const std::string address = numeric_address(entry.endpoint().address());
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  }
  if (addresses.empty())
    return no_address(name,
                      error == asio::error::host_not_found ? "no such name" : error.message());
  if (addresses.size() > TcpDial::kMaxAddresses) addresses.resize(TcpDial::kMaxAddresses);
  return addresses;
}

}  // namespace

void AddressLookup::start(asio::thread_pool& resolvers, const std::string& name, Found found) {
  found_ = std::move(found);
  timer_.expires_after(TcpDial::Limits{}.resolve);
  timer_.async_wait([self = shared_from_this(), name](const boost::system::error_code& ended) {
    if (!ended) self->finish(no_address(name, "the name server did not answer in time"));
  });
  // The answer comes back to the loop, where it may have been cancelled.
  asio::post(resolvers,
             [self = weak_from_this(), name, &loop = loop_, work = asio::make_work_guard(loop_)] {
               const Result<Addresses> addresses = look_up(name);
               asio::post(loop, [self, addresses] {
                 if (const auto alive = self.lock()) alive->finish(addresses);
               });
             });
}

void AddressLookup::cancel() {
  found_ = {};
  timer_.cancel();
}

void AddressLookup::finish(const Result<Addresses>& addresses) {
  timer_.cancel();
  if (found_) std::exchange(found_, {})(addresses);
}

bool is_numeric_address(const std::string& name) {
  boost::system::error_code error;
  asio::ip::make_address(name, error);
  return !error;
}

std::string own_address_towards(const std::string& numeric) {
  boost::system::error_code error;
  const asio::ip::address address = asio::ip::make_address(numeric, error);
  if (error) return {};
  asio::io_context here;
  udp::socket socket(here);
  socket.connect(udp::endpoint(address, kAnyPort), error);
  if (error) return {};
  const udp::endpoint own = socket.local_endpoint(error);
  return error ? std::string() : numeric_address(own.address());
}

}  // namespace ivy
